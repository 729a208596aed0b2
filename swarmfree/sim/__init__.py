"""REHEARSES: a whole swarm in one process, in virtual time, from a seed; faults, checks of the
invariants, transcripts.
"""
