"""One iteration as a member sees it: what it promises, stores and steps with, and how a stage
averages.
"""
