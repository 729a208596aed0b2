"""SAYS: the immutable nouns that every room shares. Imports nothing but the standard library."""
