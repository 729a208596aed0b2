"""TRIES: whole swarms on one machine as real processes, started through the command line, with kill
scripts and reports.
"""
