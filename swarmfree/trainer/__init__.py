"""RUNS: one peer's life as a tree of tasks. Knows `swarm` and `policy`; everything outside is a port."""
