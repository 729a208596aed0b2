"""The recovery study: the same failure traces played to every recovery method, and tables and
figures of what came out.
"""
