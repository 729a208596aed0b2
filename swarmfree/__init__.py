"""swarmfree: train a language model on machines that may vanish at any minute."""

__version__ = "0.1.0"
