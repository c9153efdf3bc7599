"""Weights in 8 bits for generated Python: the options of its backends, and the weights of a program."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..errors import ConflictingOptionError, InvalidValueError, MithrilError, ParameterError, UnsupportedOpError
from . import options
from .exchange import to_host
from .with_manualgrad.native import unknown_quantization

if TYPE_CHECKING:
    from .backend import Backend

__all__ = ["ByteParameters", "ByteWeights", "QuantizedWeights", "bytes_of", "choose_weights"]

#: Ways to keep weights.
SCHEMES = ("int8", "int8_weights")

#: Name of a weight; how it is kept, its axis of outputs, and the inputs that stand for it; or why it stays.
_Decision = tuple[str, "tuple[str, int, tuple[str, str, str | None]] | None", "str | None"]


class QuantizedWeights:
    """The options ``quantize`` and ``quantize_strict`` of a backend."""

    #: Patterns of names of weights, and how those are kept; None: there is nothing to quantize.
    quantize: list[tuple[str, str | None]] | None = None
    #: Whether a weight that cannot be kept as asked is an error.
    quantize_strict: bool = False

    def _read_quantize(self, settings: Mapping[str, Any]) -> None:
        value = settings.get("quantize")
        strict = settings.get("quantize_strict")
        self.quantize_strict = False if strict is None else options.switch("quantize_strict", strict)
        if value is None:
            return
        rules = list(value.items()) if isinstance(value, Mapping) else [("*", value)]
        for pattern, scheme in rules:
            is_left = scheme is None and isinstance(value, Mapping)
            if not isinstance(pattern, str) or not (is_left or (isinstance(scheme, str) and scheme in SCHEMES)):
                error = unknown_quantization(value, pattern, scheme, SCHEMES)
                if "4" in str(scheme):
                    error = InvalidValueError(
                        f"quantize is {scheme!r}, and {type(self).__name__} keeps weights in 8 bits",
                        hint=f"{error.hint}; CBackend and GGMLBackend have 4 bits",
                    )
                raise error
        self.quantize = rules

    def _quantize_options(self) -> dict[str, Any]:
        """Return the options of a backend that is like this one."""
        schemes = None if self.quantize is None else dict(self.quantize)
        return {"quantize": schemes, "quantize_strict": self.quantize_strict or None}

    def _schemes(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return how each weight is to be kept."""
        names, rules = list(names), self.quantize or []
        patterns = [_regex(pattern) for pattern, _ in rules]
        for (pattern, _), regex in zip(rules, patterns, strict=True):
            if pattern != "*" and not any(map(regex.fullmatch, names)):
                some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
                raise InvalidValueError(
                    f"quantize: no parameter of the model has a name like {pattern!r}",
                    hint=f"its parameters are {some}",
                )
        parts = []
        for name in names:
            fits = (scheme for (_, scheme), regex in zip(rules, patterns, strict=True) if regex.fullmatch(name))
            scheme = next(fits, None)
            if scheme is not None:
                parts.append((name, scheme))
        return parts


def choose_weights(backend: Backend, options: dict[str, Any], names: Iterable[str]) -> None:
    """Put the weights that are to be kept in 8 bits into the options of compiling, if the backend has any."""
    options.pop("quantize", None)
    if not isinstance(backend, QuantizedWeights) or backend.quantize is None:
        return
    if options["training"]:
        raise ConflictingOptionError(
            "quantize needs inference=True: training changes weights",
            hint="add inference=True to ml.compile, or train on a backend without quantize",
        )
    options["quantize"] = backend._schemes(names)


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile("".join({"*": ".*", "?": "."}.get(c, re.escape(c)) for c in pattern), re.DOTALL)


def bytes_of(weight: np.ndarray[Any, Any], axis: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a weight in 8 bits, and the scale of each output.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.backends.quantized import bytes_of
    >>> numbers, scale = bytes_of(np.array([[127.0, 2.4, -3.0]], np.float32), 0)
    >>> numbers.tolist(), scale.tolist()
    ([[127, 2, -3]], [1.0])
    """
    others = tuple(i for i in range(weight.ndim) if i != axis)
    with np.errstate(all="ignore"):
        largest = np.abs(weight).max(others, keepdims=True).astype(np.float32)
        is_finite = np.isfinite(largest)
        inverse = np.where(is_finite & (largest > 1e-30), np.float32(127) / largest, np.float32(0))
        numbers = np.where(is_finite, weight, np.float32(0)) * inverse
        whole = np.trunc(numbers + np.where(numbers < 0, np.float32(-0.5), np.float32(0.5)))
        scale = np.where(is_finite, largest / np.float32(127), np.float32(np.nan))
    return whole.astype(np.int8), scale.reshape(-1)


class ByteParameters(Mapping[str, Any]):
    """Parameters of a model with weights in 8 bits, as `PhysicalModel.pack` makes them: the arrays that its code reads.

    Attributes
    ----------
    bytes : int
        How much memory the arrays take.
    """

    def __init__(self, arrays: dict[str, Any], decisions: list[_Decision]) -> None:
        self._arrays, self._decisions = arrays, decisions

    @property
    def bytes(self) -> int:
        """How much memory the arrays take."""
        return sum(int(array.nbytes) for array in self._arrays.values())

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"ByteParameters({len(self)} arrays, {self.bytes} bytes)"


class ByteWeights:
    """The weights of a program that are kept in 8 bits."""

    def __init__(self, core: _core.Compiled, backend: Backend, source: Any, strict: bool) -> None:
        self._backend = backend
        self.decisions: list[_Decision] = core.decisions()
        self._kept = [(name, kept) for name, kept, _ in self.decisions if kept is not None]
        computed = {name for _, kept in self._kept for name in kept[2]}
        self._plain = [name for name in source.reads if name not in computed]
        self._seen: list[tuple[weakref.ref[Any], int]] = []
        self._cached: dict[str, Any] = {}
        left = [f"{name}: {reason}" for name, _, reason in self.decisions if reason is not None]
        if strict and left:
            raise UnsupportedOpError(
                f"{len(left)} of the weights cannot be quantized: {'; '.join(left[:5])}",
                hint="exclude them by name, or leave quantize_strict out: they then stay in float32",
            )

    def pack(self, params: Mapping[str, Any]) -> ByteParameters:
        """Make the arrays that the code reads of parameters."""
        arrays: dict[str, Any] = {}
        for name, (_, axis, names) in self._kept:
            try:
                host = np.asarray(to_host(params[name]))
            except (TypeError, ValueError, RuntimeError) as error:
                if isinstance(error, MithrilError):
                    raise
                raise InvalidValueError(
                    f"the parameter {name!r} has no values yet, and its weights cannot be quantized",
                    hint="quantize them before: pass model.pack(params)",
                ) from error
            numbers, scale = bytes_of(host, axis)
            others = tuple(i for i in range(host.ndim) if i != axis)
            values = (numbers, scale, numbers.sum(others, dtype=np.int32))
            for key, value in zip(names, values, strict=True):
                if key is not None:
                    arrays[key] = self._backend.tensor(value, value.dtype.name)
        return ByteParameters({**arrays, **{name: params[name] for name in self._plain}}, self.decisions)

    def of(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the code reads, for parameters that are packed or not."""
        if type(params) is ByteParameters:
            return params._arrays
        values = [params[name] for name, _ in self._kept]
        # PyTorch counts writes; arrays of JAX cannot be written, and those of NumPy no more.
        if len(values) != len(self._seen) or not all(
            seen() is value and version == getattr(value, "_version", 0)
            for (seen, version), value in zip(self._seen, values, strict=True)
        ):
            packed = self.pack(params)._arrays
            for value in values:
                if type(value) is np.ndarray:
                    value.setflags(write=False)
            self._cached = {name: array for name, array in packed.items() if name not in self._plain}
            self._seen = [(weakref.ref(value), getattr(value, "_version", 0)) for value in values]
        return {**self._cached, **{name: params[name] for name in self._plain}}

    def check(self, params: ByteParameters) -> None:
        """Refuse parameters that were packed for another model."""
        if params._decisions != self.decisions or any(name not in params for name in self._plain):
            raise ParameterError("params are packed for another model", hint="pack them with this one: model.pack(...)")
