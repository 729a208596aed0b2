"""Chaos: a plan of faults carried out on a real swarm, and judges of every invariant."""
