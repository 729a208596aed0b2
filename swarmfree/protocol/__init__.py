"""SAYS: the values, messages and ports that every room shares. Imports nothing but the standard
library.
"""
