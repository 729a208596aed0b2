"""KEEPS: tokens, weights and events on disk, behind the ports of `swarm`. Knows no other room."""
