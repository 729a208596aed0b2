"""What peers keep for a loss, and how a lost stage comes back: copy, replay, shadow, merge."""
