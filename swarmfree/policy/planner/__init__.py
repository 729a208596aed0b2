"""DECIDES: which peers serve what, what that costs, and what to do about a loss."""
