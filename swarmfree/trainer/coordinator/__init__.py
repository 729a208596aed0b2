"""One iteration as the coordinator sees it: who serves what, what is asked again, what is sealed,
and who leads next.
"""
