"""What backends share whose arrays are NumPy's and whose models are functions of the core: C, and plans of ggml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import InvalidValueError
from ...suggestions import nearest
from .. import options
from ..keywords import NativeOptions, names
from ..numpy_arrays import NumpyArrays
from .engine import NativeEngine

__all__ = ["NativeBackend", "unknown_quantization"]


class NativeBackend(NumpyArrays):
    """A backend of NumPy arrays whose models are functions of the core."""

    # Of ops that are applied at once.
    target = "numpy"
    _engine_type = NativeEngine
    _options = names(NativeOptions)
    #: The size that is an argument of the function; None: there is none.
    batch: str | None = None

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        settings = options.normalize(type(self).__name__, keywords, self._options)
        #: Threads of a call; 0: as many as there are.
        self.num_threads: int = _threads(settings.get("num_threads"))
        limit = settings.get("memory_limit")
        #: Bytes that a call may need; None: any number.
        self.memory_limit: int | None = (
            None if limit is None else options.memory(settings.spelling("memory_limit"), limit)
        )


def unknown_quantization(value: Any, pattern: object, requested: object, known: Iterable[str]) -> InvalidValueError:
    """Make the error for a way to keep low-bit weights that there is not.

    Examples
    --------
    >>> from mithril.backends.with_manualgrad.native import unknown_quantization
    >>> print(unknown_quantization({"head.*": "q8"}, "head.*", "q8", ["q8_0", "q4_0"]).hint)
    did you mean 'q8_0'? Give one of q8_0, q4_0, or a mapping from patterns of names to one of them or None
    """
    names = list(known)
    near = nearest(requested.lower(), names) if isinstance(requested, str) else None
    guess = f"did you mean {near!r}? Give" if near else "give"
    place = f" of {pattern!r}" if isinstance(value, Mapping) else ""
    return InvalidValueError(
        f"quantize{place} is {requested!r}",
        hint=f"{guess} one of {', '.join(names)}, or a mapping from patterns of names to one of them or None",
    )


def _threads(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 < value <= 1024:
        raise InvalidValueError(f"num_threads is {value!r}", hint="give a number from 1 to 1024")
    return int(value)
