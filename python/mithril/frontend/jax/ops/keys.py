"""Keys of random numbers that are data: pairs of words, from which the numbers are computed as JAX computes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...complexes import Complex
from .registry import OPS, Use, apply, convert, is_key, tensor

__all__ = ["KEYS", "Key", "convert_key", "input_key", "reads_keys"]

#: Primitives that make or read keys; those of `complexes.PARTS` are applied to both words.
KEYS = frozenset(
    ("random_bits", "random_split", "random_fold_in", "random_seed", "random_wrap", "random_unwrap", "random_clone")
)


class Key(Complex):
    """Both words of an array of keys."""


def reads_keys(eqn: Any) -> bool:
    """Whether an equation reads or returns keys."""
    return any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars))


def input_key(x: Any) -> Key:
    """Take apart a tensor of words, ``[..., 2]``."""
    return Key((x[(..., 0)], x[(..., 1)]))


def words(x: Any) -> Key:
    """Give both words of a key that is known, too."""
    if isinstance(x, Key):
        return x
    import jax

    data = np.asarray(jax.random.key_data(x))
    return Key((np.ascontiguousarray(data[..., 0]), np.ascontiguousarray(data[..., 1])))


def _stacked(x: Any) -> Any:
    return apply("stack", -1, *map(tensor, words(x)))


def convert_key(use: Use, args: Sequence[Any], params: Any) -> Any:
    """Convert a primitive that reads or returns keys."""
    name = str(use.eqn.primitive.name)
    if name == "random_wrap":
        return input_key(tensor(args[0]))
    if name == "random_unwrap":
        return _stacked(args[0])
    if name == "random_clone":
        return args[0]
    if name in KEYS:
        return _drawn(use, name, args, params)
    flags = [is_key(v.aval) for v in use.eqn.invars]
    pairs = [words(x) if flag else (x, x) for x, flag in zip(args, flags, strict=True)]
    first, second = (OPS[name](use, *(both[i] for both in pairs), **params) for i in range(2))
    if isinstance(first, list):
        return [Key(both) for both in zip(first, second, strict=True)]
    return Key((tensor(first), tensor(second)))


def _drawn(use: Use, name: str, args: Sequence[Any], params: Any) -> Any:
    """Walk through what JAX computes from the words."""
    import jax

    keys = use.eqn.outvars[0].aval if name == "random_seed" else use.eqn.invars[0].aval
    implementation = getattr(keys.dtype, "_impl")  # noqa: B009
    if implementation.tag != "fry":
        raise use.refuse(f"of keys of the kind {implementation.name}: use those of threefry2x32, the default")
    functions: dict[str, Callable[..., Any]] = {
        "random_bits": lambda key: implementation.random_bits(key, params["bit_width"], tuple(params["shape"])),
        "random_split": lambda key: implementation.split(key, tuple(params["shape"])),
        "random_fold_in": implementation.fold_in,
        "random_seed": implementation.seed,
    }
    shapes = [v.aval.shape for v in use.eqn.invars]
    if len(set(shapes)) > 1:
        raise use.refuse("of keys and numbers of different shapes")
    function = functions[name]
    for _ in shapes[0]:
        function = jax.vmap(function)
    examples = [
        np.zeros((*v.aval.shape, 2), np.uint32) if is_key(v.aval) else np.zeros(v.aval.shape, v.aval.dtype)
        for v in use.eqn.invars
    ]
    traced = jax.make_jaxpr(function)(*examples)
    values = [_stacked(x) if is_key(v.aval) else x for x, v in zip(args, use.eqn.invars, strict=True)]
    (result,) = use.run(traced.jaxpr, traced.consts, values)
    return result if name == "random_bits" else input_key(tensor(result))


#: By how many bits the rounds of Threefry rotate (Salmon et al. 2011), and the constant of its third word.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


@convert("threefry2x32")
def _threefry(use: Use, *args: Any, **ignored: Any) -> Any:
    first, second, x, y = map(tensor, args)

    def constant(n: int) -> Any:
        return apply("full", (), n, "uint32")

    third = apply("bitwise_xor", apply("bitwise_xor", first, second), constant(_PARITY))
    schedule = (first, second, third)
    x, y = x + first, y + second
    for i in range(5):
        for by in _ROTATIONS[i % 2]:
            x = x + y
            turned = apply(
                "bitwise_or", apply("left_shift", y, constant(by)), apply("right_shift", y, constant(32 - by))
            )
            y = apply("bitwise_xor", turned, x)
        x, y = x + schedule[(i + 1) % 3], y + schedule[(i + 2) % 3] + constant(i + 1)
    return [apply("broadcast_to", v, use.shape) if use.shape else v for v in (x, y)]
