"""COMPUTES: layers, stages, passes, gradient sums, merge and optimizer step of one stage, in torch.
No I/O, no clock.
"""
