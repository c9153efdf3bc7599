"""Data types: names that compare equal to their string."""

from __future__ import annotations

import re
from typing import Any


class DType(str):
    """A data type, equal to its name: ``ml.float32 == "float32"``.

    Parameters
    ----------
    name : str
        Canonical name.

    Examples
    --------
    >>> import mithril as ml
    >>> ml.float32 == "float32", ml.float32.itemsize
    (True, 4)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"mithril.{self!s}"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        digits = re.search(r"\d+", self)
        return int(digits.group()) // 8 if digits else 1

    @property
    def is_floating(self) -> bool:
        """Whether the type is a float."""
        return "float" in self


bool_ = DType("bool")
uint8 = DType("uint8")
uint16 = DType("uint16")
uint32 = DType("uint32")
uint64 = DType("uint64")
int8 = DType("int8")
int16 = DType("int16")
int32 = DType("int32")
int64 = DType("int64")
float16 = DType("float16")
bfloat16 = DType("bfloat16")
float32 = DType("float32")
float64 = DType("float64")

_UNSIGNED = (uint8, uint16, uint32, uint64)
_FLOATS = (float16, bfloat16, float32, float64)
ALL: tuple[DType, ...] = (bool_, *_UNSIGNED, int8, int16, int32, int64, *_FLOATS)


def normalize(dtype: Any) -> DType:
    """Bring any spelling of a dtype to ours.

    Parameters
    ----------
    dtype : object
        ``ml.float16``, ``"float16"``, ``"half"``, ``numpy.float16``, ``torch.float16``, ``mlx.core.float16``,
        Python's ``float``, ``int`` and ``bool`` …

    Returns
    -------
    DType

    Raises
    ------
    TypeInferenceError
        If there is no dtype called so; the hint names the nearest.

    Examples
    --------
    >>> from mithril.dtypes import normalize
    >>> normalize("half"), normalize(float)
    (mithril.float16, mithril.float32)
    """
    from . import _core

    if isinstance(dtype, DType):
        return dtype
    if not isinstance(dtype, str):
        name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
        dtype = name if isinstance(name, str) else str(dtype)
    return DType(_core.parse_dtype(dtype))
