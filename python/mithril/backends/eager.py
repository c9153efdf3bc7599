"""Ops that are applied at once: each call signature becomes a small program, which is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, dtypes
from .._generated.ops import KINDS
from ..dtypes import DType
from ..errors import InvalidValueError
from . import custom

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["EagerOps"]

#: Most programs that are kept.
_LIMIT = 4096


class EagerOps:
    """What a backend does when one of its ops is called with arrays; part of `Backend`."""

    default_dtype: DType
    array: Any
    dtype: Any
    _overrides: Mapping[str, custom.Override]
    #: Signature of a call -> its function.
    _eager: dict[Any, Callable[..., Any]]
    #: Ops that a warning was about.
    _told: set[str]

    if TYPE_CHECKING:

        @property
        def engine(self) -> Any:
            """See `Backend.engine`."""

    def _op(self, name: str, args: Sequence[Any]) -> Any:
        """Apply an op: at once to arrays; to a connection, as a part of the model being defined."""
        if any(isinstance(a, _core.Connection) for a in args) or any(
            isinstance(a, (list, tuple)) and any(isinstance(i, _core.Connection) for i in a) for a in args
        ):
            return _core.apply_op(name, list(args))
        # Inside the user's own method, the op is the one of the parent class.
        inherited = bool(self._overrides) and custom.active(self, name)  # type: ignore[arg-type]
        key: list[Any] = [name, inherited]
        arrays: list[Any] = []
        kinds = KINDS[name]
        for i, arg in enumerate(args):
            is_tensor = kinds[min(i, len(kinds) - 1)] == "t"
            if not is_tensor:
                arg = _plain(arg)
            # Numbers in a list are one tensor; arrays in a list are several.
            if is_tensor and isinstance(arg, (list, tuple)) and not any(hasattr(item, "dtype") for item in arg):
                key.append(self._signature(self.array(arg), arrays))
            else:
                key.append(self._signature(arg, arrays))
        program = self._eager.get(signature := tuple(key))
        if program is None:
            if len(self._eager) > _LIMIT:
                self._eager.clear()
            program = self._eager[signature] = self._build(name, key[2:], inherited)
        return program(arrays)

    def _signature(self, arg: Any, arrays: list[Any]) -> Any:
        """Return what of an argument decides the code; gather arrays in ``arrays``."""
        if arg is None or isinstance(arg, (str, slice, type(...))):
            return arg if not isinstance(arg, slice) else ("slice", arg.start, arg.stop, arg.step)
        if isinstance(arg, (bool, int, float)):
            return (type(arg).__name__, arg)
        if hasattr(arg, "shape") and hasattr(arg, "dtype") and not isinstance(arg, type):
            is_here = self.engine.is_own(arg) and (self.engine.is_single_device or self.engine.is_here(arg))
            arrays.append(arg if is_here else self.engine.adopt(arg))
            own = arrays[-1]
            return ("array", str(own.dtype) if self.engine.names_dtypes else str(self.dtype(own)), tuple(own.shape))
        if isinstance(arg, (list, tuple)):
            return ("tuple", *(self._signature(a, arrays) for a in arg))
        if isinstance(arg, type) or "dtype" in type(arg).__name__.lower():
            return ("dtype", dtypes.normalize(arg))
        arrays.append(self.array(arg))
        return ("array", str(arrays[-1].dtype), tuple(arrays[-1].shape))

    def _build(self, name: str, signature: list[Any], inherited: bool = False) -> Callable[[list[Any]], Any]:
        if inherited:
            target = custom.target_without(type(self), name)
            source = _core.eager_source(name, signature, target, str(self.default_dtype))
            module = self.engine.load_source(source, f"op.{name}")
        else:
            module = self.engine.load_op(name, signature)
        self.engine.report_fallbacks(module, self._told, self.engine.strict)
        function, many = module.function("op"), module.source.many

        def call(arrays: list[Any]) -> Any:
            try:
                results = function({f"x{i}": a for i, a in enumerate(arrays)})
            except Exception as error:
                explained = module.explain(error)
                if explained is None:
                    raise
                raise explained from error
            return results if many else results[0]

        return call


def _plain(arg: Any) -> Any:
    """Value of an argument that is not a tensor, with Python's numbers in the place of NumPy's."""
    if isinstance(arg, np.generic) or (isinstance(arg, np.ndarray) and arg.dtype.kind in "biu"):
        arg = arg.tolist()
    if isinstance(arg, (list, tuple, range)):
        return tuple(_plain(item) for item in arg)
    if isinstance(arg, Iterator):
        raise InvalidValueError(f"a {type(arg).__name__} is not allowed here", hint="give a tuple or a list")
    return arg
