"""Models of PyTorch, read from the graph that ``torch.export`` makes of a module.

``export.py`` gets the graph, ``convert.py`` turns it into nested models, ``ops/`` says what each op becomes.
"""

from .convert import from_torch

__all__ = ["from_torch"]
