"""How one microbatch travels: sources feed it, stage replicas compute it, hops carry it, gradient
sums take what it leaves.
"""
