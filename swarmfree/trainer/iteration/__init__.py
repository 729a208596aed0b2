"""How an iteration commits: a member's books, averaging, and the coordinator."""
