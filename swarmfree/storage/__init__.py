"""KEEPS: tokens, weights and events on disk, behind the ports of `protocol`. Knows no other
room.
"""
