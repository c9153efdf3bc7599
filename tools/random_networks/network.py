"""A random network as a list of calls of ops, evaluated in float64 while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import mithril as ml
import numpy as np

#: Ops that are applied one at a time, without any pass over a graph.
EXACT = ml.NumpyBackend(dtype="float64")
#: Largest number of elements of a value.
LARGEST = 1 << 16
#: Largest estimated number of multiplications of an op.
LONGEST = 2 << 23
#: Ops that only move elements.
MOVES = frozenset({"broadcast_to", "concat", "expand_dims", "getitem", "reshape", "squeeze", "transpose"})
#: Dtypes of inputs that are not floats.
DTYPES = {"integers": "int64", "bool": "bool", "keep": "bool"}


class RejectedError(Exception):
    """The network cannot go on this way: too large, not finite, or sizes that do not fit."""


@dataclass(frozen=True)
class Name:
    """The name of a value where it stands as an argument."""

    text: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Call:
    """One line of a network: the op, its arguments, and the names of what it returns."""

    names: tuple[str, ...]
    op: str
    args: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()

    def reads(self) -> list[str]:
        """Return the names of the values among the arguments."""
        return [a.text for a in self.args if isinstance(a, Name)]

    def apply(self, ops: Any, values: Mapping[str, Any]) -> dict[str, Any]:
        """Apply the op to arrays or connections."""
        args = [values[a.text] if isinstance(a, Name) else a for a in self.args]
        results = getattr(ops, self.op)(*args, **dict(self.options))
        results = results if isinstance(results, (tuple, list)) else (results,)
        return dict(zip(self.names, results, strict=True))

    def __str__(self) -> str:
        args = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.options)]
        return f"{', '.join(self.names)} = ops.{self.op}({', '.join(args)})"


@dataclass(frozen=True)
class Input:
    """An input and how its values are drawn."""

    shape: tuple[int, ...]
    kind: str = "normal"
    #: Scale and mean; for integers the bounds, for booleans the probability.
    numbers: tuple[float, ...] = (1.0, 0.0)
    is_weight: bool = False

    @property
    def is_float(self) -> bool:
        """Whether the values are floats."""
        return self.kind not in DTYPES

    def draw(self, random: np.random.Generator) -> Any:
        """Draw values in float64, int64 or bool."""
        return eval(self.source("random"), {"np": np, "random": random})

    def source(self, random: str) -> str:
        """Return Python that draws the values."""
        a, b = (*self.numbers, 0.0)[:2]
        normal = f"{random}.standard_normal({self.shape})"
        match self.kind:
            case "normal":
                return f"{normal} * {a!r} + {b!r}" if b else f"{normal} * {a!r}"
            case "positive":
                return f"np.abs({normal}) * {a!r} + {b!r}"
            case "uniform":
                return f"{random}.uniform({a!r}, {b!r}, {self.shape})"
            case "two":
                return f"{random}.choice([{a!r}, {b!r}], {self.shape})"
            case "integers":
                return f"{random}.integers({int(a)}, {int(b)}, {self.shape})"
            case "bool":
                return f"{random}.random({self.shape}) < {a!r}"
            case "mask":
                # The first key may always be attended to.
                return (
                    f"np.where(({random}.random({self.shape}) < 0.7) | (np.arange({self.shape[-1]}) == 0), 0.0, {a!r})"
                )
            case "keep":
                return f"({random}.random({self.shape}) < {a!r}) | (np.arange({self.shape[-1]}) == 0)"
        raise ValueError(self.kind)


class Value:
    """A value of a growing network, with the operators of Python."""

    def __init__(self, network: Network, name: str) -> None:
        self.network, self.name = network, name

    @property
    def array(self) -> Any:
        """What it is in float64."""
        return self.network.values[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.array.shape)

    def __add__(self, other: Any) -> Value:
        return self.network.add(self, other)

    def __sub__(self, other: Any) -> Value:
        return self.network.subtract(self, other)

    def __mul__(self, other: Any) -> Value:
        return self.network.multiply(self, other)

    def __truediv__(self, other: Any) -> Value:
        return self.network.divide(self, other)

    def __matmul__(self, other: Any) -> Value:
        return self.network.matmul(self, other)

    def __neg__(self) -> Value:
        return self.network.negative(self)


@dataclass
class Network:
    """A network that grows: what it is add_input, its calls, and the values in float64.

    Ops are methods: ``network.relu(x)``.
    """

    random: np.random.Generator = field(repr=False)
    #: Numbers are exact in this dtype.
    dtype: str = "float32"
    #: Bits that the weights fit into exactly; 0: any numbers.
    bits: int = 0
    #: Size of the batch.
    batch: int = 1
    #: The network is differentiated.
    is_smooth: bool = False
    #: Statistics of batch norms are those of the batch.
    is_training: bool = False
    inputs: dict[str, Input] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    #: Blocks that it is made of, with the number of calls after each.
    blocks: list[tuple[str, int]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict, repr=False)
    count: int = 0
    #: Values that depend on weights alone.
    fixed: set[str] = field(default_factory=set, repr=False)

    # Growing.

    def fresh(self, prefix: str) -> str:
        """Return a name that nothing has."""
        self.count += 1
        return f"{prefix}{self.count}"

    def add_input(self, prefix: str, kind: Input) -> Value:
        """Add an input."""
        name = self.fresh(prefix)
        self.inputs[name] = kind
        self.values[name] = rounded(kind.draw(self.random), self.dtype)
        return Value(self, name)

    def is_weight(self, name: str) -> bool:
        """Whether a name is that of a weight."""
        return name in self.inputs and self.inputs[name].is_weight

    def data(self, *shape: int, kind: str = "normal", numbers: tuple[float, ...] = (1.0, 0.0)) -> Value:
        """Add data."""
        return self.add_input("x", Input(tuple(map(int, shape)), kind, numbers))

    def weight(self, *shape: int, terms: int | None = None) -> Value:
        """Add a weight whose products keep the size of the other factor; `terms` are summed for each result."""
        shape = tuple(map(int, shape))
        scale = float(max(terms or np.prod(shape[1:]), 1)) ** -0.5
        if self.bits and len(shape) > 1:
            # Two numbers, which every scale that a group of weights may get holds exactly.
            unit = 2.0 ** round(np.log2(scale * 2.0 ** (1 - self.bits)))
            two = (-8 * unit, 7 * unit) if self.bits == 4 else (-127 * unit, 127 * unit)
            return self.add_input("w", Input(shape, "two", two, True))
        return self.add_input("w", Input(shape, "normal", (round(scale, 4), 0.0), True))

    def factors(self, *shape: int) -> Value:
        """Add numbers near 1, as the weights of a norm are."""
        return self.add_input("w", Input(tuple(map(int, shape)), "normal", (0.2, 1.0), True))

    def biases(self, *shape: int) -> Value:
        """Add numbers near 0."""
        return self.add_input("w", Input(tuple(map(int, shape)), "normal", (0.3, 0.0), True))

    def op(self, op: str, *args: Any, **options: Any) -> Any:
        """Apply an op; several results are a list."""
        plain = tuple(Name(a.name) if isinstance(a, Value) else a for a in args)
        call = Call((), op, plain, tuple(options.items()))
        arrays = [self.values[name] for name in call.reads()]
        if _multiplications(op, arrays) > LONGEST:
            raise RejectedError(f"{op} takes too long")
        try:
            results = getattr(EXACT, op)(*[a.array if isinstance(a, Value) else a for a in args], **options)
        except ml.errors.MithrilError as error:
            raise RejectedError(f"{op}: {error}") from error
        several = isinstance(results, (tuple, list))
        results = results if several else (results,)
        is_fixed = bool(arrays) and all(name in self.fixed or self.is_weight(name) for name in call.reads())
        if self.bits and is_fixed and op not in MOVES and max(array.ndim for array in results) > 1:
            # It would be quantized as weights are, and is none of the numbers that the bits hold exactly.
            raise RejectedError(f"{op} of weights alone")
        for array in results:
            if not 0 < array.size <= LARGEST:
                raise RejectedError(f"{op}: {array.shape}")
            if array.dtype.kind == "f" and not np.isfinite(array).all() and op not in ("where", "log"):
                raise RejectedError(f"{op} is not finite")
        names = tuple(self.fresh("v") for _ in results)
        if is_fixed:
            self.fixed.update(names)
        self.calls.append(replace(call, names=names))
        self.values |= dict(zip(names, map(np.asarray, results), strict=True))
        values = [Value(self, name) for name in names]
        return values if several else values[0]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **options: self.op(name, *args, **options)

    def reshape(self, x: Value, *shape: int) -> Value:
        """Reshape; the first size is left open, so that any batch fits."""
        sizes = [int(size) for size in shape[1:]]
        if -1 in sizes:
            known = shape[0] * int(np.prod([size for size in sizes if size != -1]))
            sizes[sizes.index(-1)] = x.array.size // known
        return self.op("reshape", x, (-1, *sizes))

    def choose(self, *among: Any) -> Any:
        """Choose one of several."""
        return among[int(self.random.integers(len(among)))]

    def chance(self, p: float) -> bool:
        """Return true with this probability."""
        return bool(self.random.random() < p)

    def number(self, low: int, high: int) -> int:
        """Return a number from low to high, both included."""
        return int(self.random.integers(low, high + 1))

    def divisor(self, n: int, most: int | None = None) -> int:
        """Return a divisor."""
        return self.choose(*[d for d in range(1, n + 1) if n % d == 0 and d <= (most or n)])

    def mark(self) -> tuple[int, int, int]:
        """Return where the network stands, for `back`."""
        return len(self.inputs), len(self.calls), len(self.blocks)

    def back(self, mark: tuple[int, int, int]) -> None:
        """Forget what came after a mark."""
        for name in list(self.inputs)[mark[0] :]:
            del self.inputs[name], self.values[name]
        for call in self.calls[mark[1] :]:
            for name in call.names:
                del self.values[name]
        del self.calls[mark[1] :]
        del self.blocks[mark[2] :]

    # Grown.

    def pruned(self, outputs: Iterable[str] | None = None) -> Network:
        """Return the network without what none of these outputs needs."""
        outputs = list(self.outputs if outputs is None else outputs)
        needed, kept = set(outputs), []
        for call in reversed(self.calls):
            if needed.intersection(call.names):
                needed.update(call.reads())
                kept.append(call)
        inputs = {name: kind for name, kind in self.inputs.items() if name in needed}
        return replace(self, inputs=inputs, calls=kept[::-1], outputs=outputs)

    def draw(self, seed: int) -> dict[str, Any]:
        """Draw all inputs anew."""
        random = np.random.default_rng(seed)
        return {name: rounded(kind.draw(random), self.dtype) for name, kind in self.inputs.items()}

    def inputs_now(self) -> dict[str, Any]:
        """Return the inputs that it grew with."""
        return {name: self.values[name] for name in self.inputs}

    def evaluate(self, ops: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Apply one op after the other to arrays or connections; all values."""
        values = dict(inputs)
        for call in self.calls:
            values |= call.apply(ops, values)
        return values

    def model(self) -> ml.Model:
        """Return the model, with an output for each of `outputs`."""
        keys = {}
        for name, kind in self.inputs.items():
            dtype = {} if kind.is_float else {"dtype": DTYPES[kind.kind]}
            keys[name] = ml.IOKey(name, **dtype)
        values = self.evaluate(ml.NumpyBackend(), keys)
        return ml.Model.create(**{f"out_{name}": values[name] for name in self.outputs})


def rounded(array: Any, dtype: str) -> Any:
    """Round floats to a dtype, and back to float64."""
    array = np.asarray(array)
    return array.astype(native(dtype)).astype(np.float64) if array.dtype.kind == "f" else array


def native(dtype: str) -> Any:
    """Return the dtype of NumPy, or of ml_dtypes."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _multiplications(op: str, arrays: list[Any]) -> float:
    """Estimate how long a product takes, before it is done."""
    sizes = [float(a.size) for a in arrays]
    if op == "conv_general" or op.startswith("conv"):
        # Each pixel of the input meets each filter of its group at each place of the window.
        return sizes[0] * sizes[1] / arrays[0].shape[1]
    if op == "linear":
        return sizes[0] * arrays[1].shape[0]
    if op == "matmul":
        return sizes[0] * arrays[1].shape[-1]
    if op == "einsum" and len(sizes) > 1:
        return max(sizes) * 512
    return max(sizes, default=0.0)
