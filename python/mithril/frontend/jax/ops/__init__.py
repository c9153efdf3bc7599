"""What the primitives of JAX become: one function for each, in files by family.

A function takes a `Use` (shapes and dtypes), the arguments (connections, or arrays of NumPy that are known when
converting; at least one is a connection) and the parameters of the primitive. It returns a connection, or a list of
them for a primitive with several results. What is known altogether is computed by JAX.
"""

from . import bits as bits
from . import complex_functions as complex_functions
from . import complexes as complexes
from . import elementwise as elementwise
from . import folds as folds
from . import indexing as indexing
from . import keys as keys
from . import linalg as linalg
from . import linear as linear
from . import movement as movement
from . import reduction as reduction
from . import special as special
from . import windows as windows
from .registry import OPS, Use, constant

__all__ = ["OPS", "Use", "constant"]
