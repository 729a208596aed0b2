"""SHOWS: what a person sees of a swarm: a state folded from what was told, a live view, plain
lines, and `status`.
"""
