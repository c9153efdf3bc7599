"""What the ops of ATen become: one function for each, in files by family.

A function takes a `Use` (the node, its dtype and shape) and the node's arguments, tensors as connections. It returns a
connection, a list of them for an op with several results, or anything that is known when converting. An op without one
goes through PyTorch's own decomposition; what is left then is an error that lists all of it.
"""

from . import complexes as complexes
from . import convolution as convolution
from . import create as create
from . import elementwise as elementwise
from . import indexing as indexing
from . import linalg as linalg
from . import linear as linear
from . import losses as losses
from . import movement as movement
from . import normalization as normalization
from . import order as order
from . import pooling as pooling
from . import quantization as quantization
from . import randoms as randoms
from . import recurrent as recurrent
from . import reduction as reduction
from . import sizes as sizes
from . import special as special
from .registry import OPS, Use

# What makes a copy of a view makes the same values.
for _name in (
    "narrow",
    "permute",
    "unbind.int",
    "squeeze",
    "squeeze.dim",
    "squeeze.dims",
    "t",
    "transpose.int",
    "unsqueeze",
):
    _op, _, _overload = _name.partition(".")
    _overload = _overload or "default"
    OPS.setdefault(f"aten.{_op}_copy.{_overload}", OPS[f"aten.{_op}.{_overload}"])

__all__ = ["OPS", "Use"]
