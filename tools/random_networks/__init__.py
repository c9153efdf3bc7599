"""Random networks: whether a backend computes what the ops mean, whatever stands beside them.

`settings.generate` makes the network of a seed, of the blocks in `images`, `sequences` and `attention`, and says how
it is run; `compare.compare` runs it, and compares it with its ops applied one by one in float64; `minimize.smallest`
makes one that differs smaller. ``python -m tools.random_networks`` does so for many seeds.
"""
