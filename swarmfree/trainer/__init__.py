"""RUNS: one peer's life as a tree of tasks. Knows `protocol` and `policy`; everything outside is a
port.
"""
