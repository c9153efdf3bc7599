"""Whether all backends agree by `ml.compare`, gradients too: over known models, layers and random programs.

`programs` makes a program of a name such as ``zoo:bert``, ``layer:17``, ``network:3`` or ``attention:3``; `worker`
compares some on a backend. ``python -m tools.compare_all --seeds 0:100`` does so for all of them, in processes.
"""
