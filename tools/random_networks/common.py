"""Blocks that images, signals, sequences and vectors share, and the register of all blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .network import Network, RejectedError, Value

#: A block gets a network and a value, and returns what it makes of it: a value, or the kind of another value with it.
Block = Callable[[Network, Value], Any]

#: Kind of value -> its blocks, each with how often it is chosen.
BLOCKS: dict[str, dict[str, tuple[Block, float]]] = {}

#: Axis of the features of each kind of value.
AXES = {"image": 1, "signal": 1, "volume": 1, "sequence": 2, "vector": 1}

SMOOTH = ["silu", "gelu", "tanh", "sigmoid", "softplus", "mish", "erf", "sin"]
BENT = ["relu", "relu", "relu", "leaky_relu", "relu6", "hard_swish", "hard_sigmoid", "elu", "selu", "celu", "abs"]

#: Sizes of features: those of kernels, and odd ones.
WIDTHS = [16, 16, 32, 32, 32, 64, 64, 48, 24, 40, 96, 128, 8, 12, 17, 31, 33, 7, 5, 3, 2, 1]


def block(*kinds: str, weight: float = 1.0) -> Callable[[Block], Block]:
    """Register a block for kinds of values."""

    def register(function: Block) -> Block:
        for kind in kinds:
            BLOCKS.setdefault(kind, {})[function.__name__] = function, weight
        return function

    return register


def width(n: Network) -> int:
    """Return a number of features."""
    return int(n.choose(*WIDTHS))


def activated(n: Network, x: Value) -> Value:
    """Apply an activation."""
    names = SMOOTH if n.is_smooth and n.chance(0.7) else SMOOTH + BENT * 2
    name = n.choose(*names)
    if name == "gelu" and n.chance(0.4):
        return n.gelu(x, "tanh")
    if name == "sigmoid" and n.chance(0.5):
        return x * n.sigmoid(x)
    if name == "relu" and n.chance(0.15):
        return n.square(n.relu(x))
    return n.op(name, x)


def scaled(n: Network, x: Value) -> Value:
    """Keep a value at a usual size."""
    import numpy as np

    size = float(np.sqrt(np.mean(np.square(x.array, dtype=np.float64))))
    if size == 0 or not np.isfinite(size):
        raise RejectedError("a value is 0 or not finite")
    return x * float(2.0 ** -round(np.log2(size))) if not 0.1 < size < 6 else x


def linear(n: Network, x: Value, filters: int, bias: bool | None = None) -> Value:
    """Multiply the last axis by a weight, in one of the ways in which that is written."""
    terms = x.shape[-1]
    way = n.choose("linear", "linear", "linear", "matmul", "transposed", "einsum")
    if way == "linear":
        return n.linear(x, n.weight(filters, terms), n.biases(filters) if bias or n.chance(0.5) else None)
    if way == "matmul":
        y = x @ n.weight(terms, filters, terms=terms)
    elif way == "transposed":
        y = x @ n.transpose(n.weight(filters, terms), (1, 0))
    else:
        letters = "abcd"[: len(x.shape) - 1]
        y = n.einsum(f"{letters}x,yx->{letters}y", x, n.weight(filters, terms))
    return y + n.biases(filters) if bias or (bias is None and n.chance(0.5)) else y


def last_norm(n: Network, x: Value) -> Value:
    """Normalize along the last axis."""
    size = x.shape[-1]
    if size < 2:
        return x
    way = n.choose("layer", "layer", "rms", "plain", "by hand", "rms by hand", "zero")
    if way == "layer":
        return n.layer_norm(x, n.factors(size), n.biases(size))
    if way == "rms":
        return n.rms_norm(x, n.factors(size))
    if way == "plain":
        return n.layer_norm(x, None, None, (size,))
    if way == "rms by hand":
        return x * n.rsqrt(n.mean(n.square(x), -1, True) + 1e-5) * n.factors(size)
    if way == "zero":
        # The weight is what is added to 1.
        return n.rms_norm(x, n.biases(size) + 1.0, eps=1e-6)
    centered = x - n.mean(x, -1, True)
    return centered / n.sqrt(n.mean(centered * centered, -1, True) + 1e-5) * n.factors(size) + n.biases(size)


def channel_norm(n: Network, x: Value) -> Value:
    """Normalize an image, a signal or a vector whose channels are axis 1."""
    channels, rank = x.shape[1], len(x.shape)
    ways = ["batch", "batch", "batch"]
    if rank > 2:
        ways += ["group", "instance", "last", "one"]
    way = n.choose(*ways)
    if way == "batch":
        mean, variance = n.data(channels, numbers=(0.3, 0.0)), n.data(channels, kind="positive", numbers=(0.3, 0.7))
        is_training = n.is_training and x.array.size // channels > 3
        return n.batch_norm(x, n.factors(channels), n.biases(channels), mean, variance, is_training)[0]
    if x.array.size // x.shape[0] // channels < 2:
        return x
    if way == "instance":
        return n.instance_norm(x, n.factors(channels), n.biases(channels))
    if way == "last":
        axes = (0, *range(2, rank), 1)
        back = (0, rank - 1, *range(1, rank - 1))
        return n.transpose(last_norm(n, n.transpose(x, axes)), back)
    groups = 1 if way == "one" else n.divisor(channels, 8)
    return n.group_norm(x, n.factors(channels), n.biases(channels), groups)


def normalized(n: Network, x: Value, kind: str) -> Value:
    """Normalize a value of this kind."""
    return last_norm(n, x) if kind == "sequence" or (kind == "vector" and n.chance(0.5)) else channel_norm(n, x)


def like(n: Network, x: Value) -> Value:
    """Return a value of the same shape: one that is there, or data."""
    candidates = [name for name, array in n.values.items() if array.shape == x.shape and array.dtype.kind == "f"]
    candidates = [name for name in candidates if name != x.name and name[0] == "v"]
    return Value(n, n.choose(*candidates)) if candidates and n.chance(0.8) else n.data(*x.shape)


@block("image", "signal", "volume", "sequence", "vector", weight=2)
def activation(n: Network, x: Value) -> Value:
    return activated(n, x)


@block("image", weight=2)
@block("signal")
@block("volume")
def channels_norm(n: Network, x: Value) -> Value:
    return channel_norm(n, x)


@block("sequence", weight=1.5)
@block("vector")
def features_norm(n: Network, x: Value) -> Value:
    return last_norm(n, x) if len(x.shape) == 3 or n.chance(0.5) else channel_norm(n, x)


@block("image", "signal", "volume", "sequence", "vector")
def sum_of_branches(n: Network, x: Value) -> Value:
    other = like(n, x)
    way = n.choose("add", "subtract", "multiply", "mean", "maximum", "gate")
    if way == "mean":
        return (x + other) * 0.5
    if way == "gate":
        return x * n.sigmoid(other)
    if way == "maximum" and n.is_smooth:
        way = "add"
    return n.op(way, x, other)


def concatenated(kind: str) -> Block:
    """Return a block that joins a value with another one along its features."""

    def concatenation(n: Network, x: Value) -> Value:
        axis, shape = AXES[kind], x.shape
        fits = [
            name
            for name, array in n.values.items()
            if array.dtype.kind == "f"
            and name[0] == "v"
            and len(array.shape) == len(shape)
            and array.shape[:axis] + array.shape[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
        ]
        count = n.choose(1, 1, 1, 2, 3)
        others = [Value(n, n.choose(*fits)) for _ in range(count)] if fits and n.chance(0.8) else [n.data(*shape)]
        together = [x, *others]
        if n.chance(0.5):
            together = together[::-1]
        if sum(v.shape[axis] for v in together) > 256:
            raise RejectedError("many features")
        return n.concat(*together, axis=axis)

    return concatenation


def residual(kind: str) -> Block:
    """Return a block that adds what blocks of the same kind make of a value to it."""

    def residual(n: Network, x: Value) -> Value:
        y = normalized(n, x, kind) if n.chance(0.6) else x
        for _ in range(n.choose(1, 1, 2, 3)):
            y = grown(n, y, kind, keep=True)
        if y.shape != x.shape:
            raise RejectedError("the shape changed")
        if n.chance(0.2):
            y = y * n.factors(x.shape[AXES[kind]], *[1] * (len(x.shape) - 1 - AXES[kind]))
        return x + y if n.chance(0.7) else y + x

    return residual


def partial(kind: str) -> Block:
    """Return a block that splits features, works on a part, and joins them again."""

    def partial(n: Network, x: Value) -> Value:
        axis, size = AXES[kind], x.shape[AXES[kind]]
        if size < 2:
            raise RejectedError("few features")
        way = n.choose("halves", "sizes", "slice")
        if way == "halves" and size % 2 == 0:
            parts = n.split(x, 2, axis)
        else:
            at = n.number(1, size - 1) if n.chance(0.5) else size // 2
            if way == "sizes":
                parts = n.split(x, (at, size - at), axis)
            else:
                before, every = (None,) * axis, (1,) * (axis + 1)
                parts = [
                    n.slice(x, (*before, None), (*before, at), every),
                    n.slice(x, (*before, at), (*before, None), every),
                ]
        changed = n.number(0, 1)
        others = list(parts)
        others[changed] = grown(n, parts[changed], kind)
        if others[changed].shape[:axis] != x.shape[:axis] or others[changed].shape[axis + 1 :] != x.shape[axis + 1 :]:
            raise RejectedError("the shape changed")
        if n.chance(0.2) and others[0].shape == others[1].shape:
            return others[0] * n.sigmoid(others[1])
        if n.chance(0.3):
            others = others[::-1]
        return n.concat(*others, axis=axis)

    return partial


for _kind in AXES:
    block(_kind, weight=1.5)(concatenated(_kind))
    block(_kind, weight=2)(residual(_kind))
    block(_kind)(partial(_kind))


def grown(n: Network, x: Value, kind: str, *, keep: bool = False) -> Value:
    """Add a block whose result is of the same kind and, to keep it, of the same shape."""
    for _ in range(12):
        mark = n.mark()
        _, value, of = step(n, x, kind)
        if value is not None and of == kind and (not keep or value.shape == x.shape):
            return value
        n.back(mark)
    raise RejectedError("no block keeps the shape")


#: Blocks that add blocks of their own, and how deep these are now.
NESTED = ("residual", "partial", "shuffle_unit")
_depth = 0


def step(n: Network, x: Value, kind: str) -> tuple[str, Value | None, str]:
    """Try to add some block: its name, the value that it makes (none if that failed), and of which kind it is."""
    names = [name for name in BLOCKS[kind] if _depth < 2 or name not in NESTED]
    weights = [BLOCKS[kind][name][1] for name in names]
    name = names[int(n.random.choice(len(names), p=[w / sum(weights) for w in weights]))]
    return name, *attempt(n, x, kind, name)


def attempt(n: Network, x: Value, kind: str, name: str) -> tuple[Value | None, str]:
    """Try to add a block: the value that it makes (none if that failed), and of which kind it is."""
    global _depth
    mark = n.mark()
    _depth += 1
    try:
        value = BLOCKS[kind][name][0](n, x)
        of, value = value if isinstance(value, tuple) else (kind, value)
        value = scaled(n, value)
        n.blocks.append((f"{kind}.{name}", len(n.calls)))
        return value, of
    except RejectedError:
        n.back(mark)
        return None, kind
    finally:
        _depth -= 1
