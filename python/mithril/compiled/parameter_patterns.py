"""Parameters chosen by patterns of their names: which are frozen, and how they start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..errors import ConflictingOptionError, InvalidValueError, ParameterError
from ..suggestions import nearest

__all__ = ["fits", "matching", "no_parameter", "read_initializers", "refuse_both"]

_FANS = ("fan_in", "fan_out", "fan_avg")
_DISTRIBUTIONS = ("uniform", "normal", "truncated_normal")
#: Initializers whose variance is a number by a fan. Those of Kaiming and Xavier draw as in PyTorch, the others as in
#: JAX and Keras, which cut normal distributions at two standard deviations.
_VARIANCE_SCALING = {
    "kaiming_uniform": (2.0, "fan_in", "uniform"),
    "kaiming_normal": (2.0, "fan_in", "normal"),
    "he_uniform": (2.0, "fan_in", "uniform"),
    "he_normal": (2.0, "fan_in", "truncated_normal"),
    "xavier_uniform": (1.0, "fan_avg", "uniform"),
    "xavier_normal": (1.0, "fan_avg", "normal"),
    "glorot_uniform": (1.0, "fan_avg", "uniform"),
    "glorot_normal": (1.0, "fan_avg", "truncated_normal"),
    "lecun_uniform": (1.0, "fan_in", "uniform"),
    "lecun_normal": (1.0, "fan_in", "truncated_normal"),
}
#: Initializers that are said by their name, and those that take a number.
_PLAIN = ("zeros", "ones", "fan_in", *_VARIANCE_SCALING, "orthogonal")
_SCALED = {
    "constant": "the value",
    "uniform": "the bound",
    "normal": "the standard deviation",
    "truncated_normal": "the standard deviation",
    "orthogonal": "the gain",
}


def fits(name: str, pattern: str) -> bool:
    """Whether a parameter is meant: ``*`` stands for anything, and the name of a layer for all its parameters."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def matching(option: str, patterns: Any, names: Iterable[str] | None) -> list[str]:
    """Return the names that one of the patterns fits; refuse a pattern that fits none of them, where they are known."""
    if patterns is None:
        return []
    if isinstance(patterns, str):
        raise InvalidValueError(f"{option} is a string", hint=f"pass a list: {option}=[{patterns!r}]")
    if not isinstance(patterns, Iterable):
        hint = f'pass a list of patterns: {option}=["encoder.*"]'
        raise InvalidValueError(f"{option} is a {type(patterns).__name__}", hint=hint)
    is_known = names is not None
    example = '["encoder.*"]' if option != "initializers" else '{"encoder.*": "zeros"}'
    names, matched = list(names or ()), set()
    for pattern in patterns:
        if not isinstance(pattern, str):
            shown = pattern.__name__ if isinstance(pattern, type) else repr(pattern)
            raise InvalidValueError(
                f"{option} holds {shown}",
                hint=f"patterns are strings, which fit names of parameters: {option}={example}",
            )
        meant = [name for name in names if fits(name, pattern)]
        if not meant and is_known:
            raise no_parameter(f"{option} holds {pattern!r}, which fits no parameter", pattern, names)
        matched.update(meant)
    return [name for name in names if name in matched]


def refuse_both(trainable: Iterable[str], frozen: Iterable[str]) -> None:
    """Raise if something is to be trained and to be frozen."""
    both = set(trainable) & set(frozen)
    if both:
        raise ConflictingOptionError(
            f"{', '.join(map(repr, sorted(both)))} is named by trainable_keys and by freeze", hint="choose one"
        )


def no_parameter(message: str, pattern: str, names: Iterable[str]) -> ParameterError:
    """Make the error that a pattern fits no parameter."""
    names = list(names)
    layers = {name.rpartition(".")[0] for name in names} - {""}
    candidates = [*names, *sorted(layers), *(f"{layer}.*" for layer in sorted(layers))]
    near = nearest(pattern, candidates)
    known = f"available: {', '.join(names[:20])}" if names else "the model has none"
    return ParameterError(message, hint=f"did you mean {near!r}?" if near else known)


def read_initializers(initializers: Any, names: Iterable[str]) -> dict[str, tuple[str, Any]]:
    """Return how parameters start, by name, where that is chosen; the first pattern that fits a name counts."""
    if not isinstance(initializers, Mapping):
        hint = 'pass a dict of patterns: initializers={"*.bias": "zeros"}'
        raise InvalidValueError(f"initializers is a {type(initializers).__name__}", hint=hint)
    by_name: dict[str, tuple[str, Any]] = {}
    for pattern, value in initializers.items():
        meant = matching("initializers", [pattern], names)
        initializer = _initializer(pattern, value)
        for name in meant:
            by_name.setdefault(name, initializer)
    return by_name


def _initializer(pattern: str, initializer: Any) -> tuple[str, Any]:
    hint = f"give one of {', '.join(_PLAIN)}, a pair such as ('normal', 0.02), a number, or an array"
    if isinstance(initializer, str) and initializer in _PLAIN:
        return _plain(initializer)
    if isinstance(initializer, str) and initializer in _SCALED:
        raise InvalidValueError(
            f"the initializer of {pattern!r} is {initializer!r}, without {_SCALED[initializer]}",
            hint=f"give a pair: ({initializer!r}, 0.02)",
        )
    if isinstance(initializer, str) and initializer == "variance_scaling":
        raise InvalidValueError(
            f"the initializer of {pattern!r} is {initializer!r}, without scale, fan and distribution", hint=_EXAMPLE
        )
    if isinstance(initializer, tuple) and initializer and initializer[0] == "variance_scaling":
        return initializer[0], _variance_scaling(pattern, initializer[1:])
    if isinstance(initializer, tuple) and len(initializer) == 2 and isinstance(initializer[0], str):
        kind, value = initializer
        if kind in _PLAIN and value is None:
            return _plain(kind)
        if kind == "value":
            return initializer
        if kind in _SCALED and _is_number(value) and np.isfinite(value) and (kind == "constant" or value >= 0):
            return kind, float(value)
    elif _is_number(initializer) and np.isfinite(initializer):
        return "constant", float(initializer)
    elif hasattr(initializer, "shape") and hasattr(initializer, "dtype"):
        return "value", initializer
    shown = f"{initializer!r}" if len(repr(initializer)) < 80 else f"a {type(initializer).__name__}"
    name = initializer[0] if isinstance(initializer, tuple) and initializer else initializer
    near = nearest(name, (*_PLAIN, *_SCALED)) if isinstance(name, str) and name not in (*_PLAIN, *_SCALED) else None
    raise InvalidValueError(
        f"the initializer of {pattern!r} is {shown}", hint=f"did you mean {near!r}?" if near else hint
    )


_EXAMPLE = f"""write ("variance_scaling", 2.0, "fan_in", "normal"): a number, one of {", ".join(_FANS)}, and one of {
    ", ".join(_DISTRIBUTIONS)
}"""


def _plain(name: str) -> tuple[str, Any]:
    """Return what is computed for an initializer that is said by its name."""
    if name in _VARIANCE_SCALING:
        return "variance_scaling", _VARIANCE_SCALING[name]
    return name, 1.0 if name == "orthogonal" else None


def _variance_scaling(pattern: str, values: tuple[Any, ...]) -> tuple[float, str, str]:
    if len(values) == 3:
        scale, fan, distribution = values
        is_scale = _is_number(scale) and np.isfinite(scale) and scale >= 0
        if is_scale and fan in _FANS and distribution in _DISTRIBUTIONS:
            return float(scale), fan, distribution
    raise InvalidValueError(f"the initializer of {pattern!r} is {('variance_scaling', *values)!r}", hint=_EXAMPLE)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
