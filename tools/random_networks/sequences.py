"""Blocks of sequences and vectors: gated layers, recurrences, state-space blocks, mixing of places, tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import activated, block, last_norm, linear, width
from .network import Network, RejectedError, Value


@block("sequence", weight=2)
@block("vector", weight=4)
def dense(n: Network, x: Value) -> Value:
    y = linear(n, x, width(n))
    return activated(n, y) if n.chance(0.5) else y


@block("sequence", weight=2)
@block("vector")
def perceptron(n: Network, x: Value) -> Value:
    """Two layers, gated or not, beside what goes in."""
    hidden, y = n.choose(16, 32, 64, 48, 96, 33), last_norm(n, x)
    way = n.choose("plain", "gated", "gated", "together")
    if way == "plain":
        y = activated(n, linear(n, y, hidden, True))
    elif way == "gated":
        y = activated(n, linear(n, y, hidden)) * linear(n, y, hidden)
    else:
        axis = len(x.shape) - 1
        a, b = n.split(linear(n, y, 2 * hidden), 2, axis)
        y = a * activated(n, b)
    y = linear(n, y, x.shape[-1])
    return x + y if n.chance(0.8) else y


@block("sequence", weight=1.5)
def mixing(n: Network, x: Value) -> Value:
    """Places are mixed by a weight, as in an MLP mixer."""
    length = x.shape[1]
    y = last_norm(n, x)
    if n.chance(0.4):
        y = n.weight(length, length) @ y
    else:
        y = n.transpose(linear(n, n.transpose(y, (0, 2, 1)), length), (0, 2, 1))
    return x + activated(n, y)


@block("sequence")
def spatial_gate(n: Network, x: Value) -> Value:
    """Half of the features gate the other half, after places were mixed."""
    if x.shape[2] % 2:
        raise RejectedError("odd")
    a, b = n.split(x, 2, 2)
    return a * (n.weight(x.shape[1], x.shape[1]) @ last_norm(n, b) + 1.0)


@block("sequence", weight=1.5)
def convolution_of_places(n: Network, x: Value) -> Value:
    """A convolution along the places: by channels and causal, or dense."""
    channels, kernel = x.shape[2], n.choose(3, 4, 5, 7)
    y = n.transpose(x, (0, 2, 1))
    if n.chance(0.6):
        if n.chance(0.5):
            y = n.pad(y, ((0, 0), (0, 0), (kernel - 1, 0)))
            y = n.conv1d(y, n.weight(channels, 1, kernel), n.biases(channels), 1, 0, 1, channels)
        else:
            y = n.conv1d(y, n.weight(channels, 1, kernel), None, 1, ((kernel - 1, 0),), 1, channels)
    else:
        filters = width(n)
        y = n.conv1d(y, n.weight(filters, channels, kernel), n.biases(filters), n.choose(1, 1, 2), kernel // 2)
    return activated(n, n.transpose(y, (0, 2, 1)))


@block("sequence")
def token_shift(n: Network, x: Value) -> Value:
    """Mix each place with the one before it."""
    size = x.shape[2]
    if x.shape[1] < 2:
        raise RejectedError("short")
    before = n.slice(x, (None, None), (None, -1), (1, 1))
    before = n.pad(before, ((0, 0), (1, 0), (0, 0)))
    share = n.sigmoid(n.biases(size))
    return x * share + before * (share * -1.0 + 1.0)


@block("sequence", weight=1.5)
def recurrence(n: Network, x: Value) -> Value:
    """An LSTM or a GRU, written out."""
    batch, length, size = x.shape
    if length > 12:
        raise RejectedError("long")
    hidden = n.choose(8, 16, 32, 24)
    is_lstm, together = n.chance(0.5), n.chance(0.4)
    gates = 4 if is_lstm else 3
    inner, outer = n.weight(gates * hidden, hidden), n.weight(gates * hidden, size)
    bias = n.biases(gates * hidden)
    all_places = n.linear(x, outer, bias) if together else None
    state = cell = n.data(batch, hidden) if n.chance(0.5) else linear(n, n.mean(x, 1), hidden)
    states = []
    for i in range(length):
        if all_places is not None:
            inputs = n.take(all_places, i, 1)
        else:
            place = n.squeeze(n.slice(x, (None, i), (None, i + 1), (1, 1)), 1)
            inputs = n.linear(place, outer, bias)
        if is_lstm:
            a, f, o, g = n.split(inputs + n.linear(state, inner), 4, 1)
            cell = n.sigmoid(f) * cell + n.sigmoid(a) * n.tanh(g)
            state = n.sigmoid(o) * n.tanh(cell)
        else:
            (r, z, g), (hr, hz, hg) = n.split(inputs, 3, 1), n.split(n.linear(state, inner), 3, 1)
            update = n.sigmoid(z + hz)
            new = n.tanh(g + n.sigmoid(r + hr) * hg)
            state = (update * -1.0 + 1.0) * new + update * state
        states.append(state)
    return n.stack(*states, axis=1) if n.chance(0.5) else n.concat(*[n.expand_dims(s, 1) for s in states], axis=1)


@block("sequence", weight=1.5)
def state_space(n: Network, x: Value) -> Value:
    """A selective state space, as one sum that runs along: decays are multiplied as sums of logarithms."""
    length, size = x.shape[1:]
    if length > 40:
        raise RejectedError("long")
    inner, states = n.choose(8, 16, 32), n.choose(2, 4, 8)
    y, gate = n.split(linear(n, x, 2 * inner), 2, 2)
    if n.chance(0.7):
        turned = n.pad(n.transpose(y, (0, 2, 1)), ((0, 0), (0, 0), (3, 0)))
        turned = n.conv1d(turned, n.weight(inner, 1, 4), n.biases(inner), 1, 0, 1, inner)
        y = n.silu(n.transpose(turned, (0, 2, 1)))
    steps = n.softplus(linear(n, y, inner, True)) * 0.1
    b, c = linear(n, y, states), linear(n, y, states)
    way = n.choose("cumsum", "pairs", "loop") if length <= 12 else n.choose("cumsum", "pairs")
    if way == "pairs":
        # As in Mamba 2: a matrix of decays between places.
        decay = n.cumsum(n.mean(steps, -1), 1)
        between = n.expand_dims(decay, 1) - n.expand_dims(decay, 2)
        matrix = n.tril(n.exp(n.minimum(between * -1.0, 0.0) if not n.is_smooth else between * -0.2), 0)
        scores = (c @ n.transpose(b, (0, 2, 1))) * matrix
        output = scores @ (y * steps)
    elif way == "cumsum":
        total = n.expand_dims(n.cumsum(steps, 1), -1)
        rate = n.exp(n.biases(inner, states))
        growth = n.exp(total * rate * 0.2)
        terms = n.expand_dims(y * steps, -1) * n.expand_dims(b, 2)
        state = n.cumsum(terms * growth, 1) / growth
        output = n.einsum("blis,bls->bli", state, c) if n.chance(0.5) else n.sum(state * n.expand_dims(c, 2), -1)
    else:
        rate = n.negative(n.exp(n.biases(inner, states)))
        state, made_at = None, []
        for i in range(length):
            at = [n.take(v, i, 1) for v in (y, steps, b, c)]
            term = n.expand_dims(at[0] * at[1], -1) * n.expand_dims(at[2], 1)
            state = term if state is None else state * n.exp(n.expand_dims(at[1], -1) * rate) + term
            made_at.append(n.sum(state * n.expand_dims(at[3], 1), -1))
        output = n.stack(*made_at, axis=1)
    output = output + y * n.factors(inner)
    output = last_norm(n, output) if n.chance(0.3) else output
    return linear(n, output * n.silu(gate), size)


@block("sequence", weight=0.7)
def running_means(n: Network, x: Value) -> Value:
    """Sums that run along the places, forwards or backwards."""
    sums = n.cumsum(x, 1, n.chance(0.3), n.chance(0.3))
    return sums * (1 / x.shape[1])


@block("sequence", weight=0.7)
def positions(n: Network, x: Value) -> Value:
    length, size = x.shape[1:]
    if n.chance(0.5):
        return x + n.take(n.biases(length + 3, size), n.arange(length), 0)
    return x + n.slice(n.biases(length + 5, size), (2,), (2 + length,), (1,))


@block("sequence", weight=0.7)
def places(n: Network, x: Value) -> Value:
    """Other places: chosen by an index, joined with others, or pooled."""
    batch, length, size = x.shape
    way = n.choose("take", "join", "pool", "pairs", "along")
    if way == "take":
        return n.take(x, n.data(n.number(1, 2 * length), kind="integers", numbers=(0, length)), 1)
    if way == "join":
        return n.concat(x, n.data(batch, n.number(1, 9), size), axis=1)
    if way == "along":
        index = n.data(batch, n.number(1, length), 1, kind="integers", numbers=(0, length))
        return n.take_along_axis(x, index, 1)
    if way == "pairs" and length % 2 == 0:
        return n.reshape(x, batch, length // 2, 2 * size)
    return n.mean(n.reshape(x, batch, length // n.divisor(length), -1, size), 2)


@block("sequence", weight=0.5)
def table(n: Network, x: Value) -> Value:
    """Add rows of a table of embeddings."""
    rows = n.number(5, 50)
    tokens = n.data(*x.shape[:2], kind="integers", numbers=(0, rows))
    y = n.embedding(tokens, n.weight(rows, x.shape[2], terms=1))
    return x + y if n.chance(0.7) else y


@block("sequence", weight=0.5)
@block("vector", weight=0.5)
def experts(n: Network, x: Value) -> Value:
    """A mixture of experts, all of which are computed."""
    count, filters, terms = n.choose(2, 3, 4), n.choose(16, 32, 8), x.shape[-1]
    gates = n.softmax(linear(n, x, count))
    letters = "abc"[: len(x.shape) - 1]
    y = n.einsum(f"{letters}x,exy->{letters}ey", x, n.weight(count, terms, filters, terms=terms))
    return n.sum(y * n.expand_dims(gates, -1), -2)


@block("sequence", weight=0.5)
def bilinear(n: Network, x: Value) -> Value:
    """Products of places, all pairs, mixed by a small weight: an outer product mean."""
    a, b = (linear(n, x, n.choose(4, 8)) for _ in range(2))
    pairs = n.einsum("blx,bmx->blm", a, b) if a.shape == b.shape else n.einsum("blx,bmy->blm", a, b)
    return n.softmax(pairs * 0.2) @ x if n.chance(0.5) else linear(n, pairs, n.choose(16, 32))


@block("sequence", weight=0.7)
def to_image(n: Network, x: Value) -> Any:
    batch, length, size = x.shape
    height = max(d for d in range(1, int(length**0.5) + 1) if length % d == 0)
    return "image", n.reshape(n.transpose(x, (0, 2, 1)), batch, size, height, length // height)


@block("sequence", weight=0.3)
def to_signal(n: Network, x: Value) -> Any:
    return "signal", n.transpose(x, (0, 2, 1)) if n.chance(0.8) else x


@block("sequence", weight=0.3)
def to_vector(n: Network, x: Value) -> Any:
    way = n.choose("first", "last", "mean", "max", "flat", "weighted")
    if way in ("first", "last"):
        return "vector", n.take(x, 0 if way == "first" else x.shape[1] - 1, 1)
    if way == "flat" and x.array.size // x.shape[0] <= 1024:
        return "vector", n.flatten(x, 1)
    if way == "weighted":
        return "vector", n.sum(n.softmax(linear(n, x, 1), 1) * x, 1)
    return "vector", n.op("max" if way == "max" else "mean", x, 1)


@block("vector", weight=0.5)
def cross(n: Network, x: Value) -> Value:
    """A layer that multiplies features with what was given first."""
    return x * linear(n, x, x.shape[1]) + x


@block("vector", weight=0.5)
def outer(n: Network, x: Value) -> Any:
    y = linear(n, x, n.choose(4, 8, 16))
    return "sequence", n.expand_dims(y, 2) * n.expand_dims(x, 1)


@block("vector", weight=0.5)
def to_places(n: Network, x: Value) -> Any:
    batch, size = x.shape
    length = n.divisor(size, 16)
    return "sequence", n.reshape(x, batch, length, size // length)


@block("vector", weight=0.5)
def to_small_image(n: Network, x: Value) -> Any:
    side = n.choose(1, 2, 4)
    channels = n.choose(4, 16, 32)
    y = linear(n, x, channels * side * side)
    return "image", n.reshape(y, x.shape[0], channels, side, side)


def loss(n: Network, x: Value) -> Value:
    """Compare with targets: classes along the features, or numbers."""
    rank = len(x.shape)
    classes_last = rank == 3 and n.chance(0.5)
    way = n.choose("classes", "classes", "numbers", "smooth", "binary", "by hand", "probabilities")
    if way == "numbers":
        return n.mse_loss(x, n.data(*x.shape))
    if way == "binary":
        return n.binary_cross_entropy_with_logits(x, n.data(*x.shape, kind="uniform", numbers=(0.0, 1.0)))
    if way == "probabilities":
        return n.cross_entropy(x, n.softmax(n.data(*x.shape), 1))
    if x.shape[1] > 1 and not classes_last:
        labels = n.data(x.shape[0], *x.shape[2:], kind="integers", numbers=(0, x.shape[1]))
        if way == "smooth":
            return n.cross_entropy(x, labels, label_smoothing=0.1)
        if way == "by hand" and rank == 2:
            chosen = n.take_along_axis(n.log_softmax(x, 1), n.expand_dims(labels, 1), 1)
            return n.negative(n.mean(chosen))
        return n.cross_entropy(x, labels)
    if classes_last:
        labels = n.data(*x.shape[:2], kind="integers", numbers=(0, x.shape[2]))
        return n.cross_entropy(n.transpose(x, (0, 2, 1)), labels)
    return n.mean(n.square(x - n.data(*x.shape)))


def start(n: Network, kind: str) -> Value:
    """Return data of this kind."""
    batch, size = n.batch, int(n.choose(16, 32, 64, 3, 8, 24, 33, 12, 1, 96))
    if kind == "image":
        side = int(n.choose(1, 2, 4, 5, 7, 8, 8, 9, 12, 14, 16))
        other = side if n.chance(0.6) else n.number(1, 16)
        return n.data(batch, size, side, other)
    if kind == "signal":
        return n.data(batch, size, n.choose(1, 5, 8, 16, 31, 32, 50, 64))
    if kind == "volume":
        return n.data(batch, n.choose(1, 3, 8, 16), *(n.number(2, 6) for _ in range(3)))
    if kind == "vector":
        return n.data(batch, size)
    length = n.choose(1, 4, 8, 12, 16, 16, 17, 32, 33, 49, 64)
    if n.chance(0.3):
        rows = n.number(5, 60)
        tokens = n.data(batch, length, kind="integers", numbers=(0, rows))
        y = n.embedding(tokens, n.weight(rows, size, terms=1))
        return y * float(np.sqrt(2)) if n.chance(0.2) else y
    return n.data(batch, length, size)
