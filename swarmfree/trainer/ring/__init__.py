"""How microbatches travel: device, sums, table of work, hops, sources."""
