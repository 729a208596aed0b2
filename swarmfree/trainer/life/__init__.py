"""How a peer comes, holds a stage, and ends."""
