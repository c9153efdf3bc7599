"""Attention in its many spellings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .common import activated, block, last_norm, linear
from .network import Network, RejectedError, Value


@dataclass
class Heads:
    """How many heads there are, and how wide they are."""

    queries: int
    keys: int
    size: int

    @property
    def shared(self) -> int:
        """Heads of the queries for each head of the keys."""
        return self.queries // self.keys


def attended(n: Network, x: Value, other: Value, filters: int, *, bias: bool = False) -> Value:
    """Let each place of a sequence attend to the places of another one, or of its own."""
    count = n.choose(1, 2, 2, 4, 4, 3, 8)
    heads = Heads(count, n.choose(count, count, 1, n.divisor(count)), n.choose(16, 16, 32, 8, 8, 64, 12, 4))
    if count * heads.size > 192:
        raise RejectedError("wide")
    q, k, v = projected(n, x, other, heads)
    if n.chance(0.25):
        q, k = unit_length(n, q), unit_length(n, k)
    if n.chance(0.45):
        q, k = rotated(n, q, k)
    if n.chance(0.2) and other is x:
        k, v = cached(n, k, v)
    y = mixed(n, q, k, v, heads, bias)
    batch, length = x.shape[:2]
    if n.chance(0.15):
        y = last_norm(n, y)
    y = n.reshape(n.transpose(y, (0, 2, 1, 3)), batch, length, heads.queries * heads.size)
    if n.chance(0.15):
        y = y * n.sigmoid(linear(n, x, heads.queries * heads.size))
    if n.chance(0.1):
        # Heads are brought together by the product itself.
        y = n.reshape(y, batch, length, heads.queries, heads.size)
        return n.einsum("blhd,hdc->blc", y, n.weight(heads.queries, heads.size, filters, terms=y.array.size // length))
    return linear(n, y, filters)


def split_heads(n: Network, x: Value, count: int, size: int) -> Value:
    """Return `[batch, heads, length, size]`."""
    batch, length = x.shape[:2]
    if n.chance(0.1):
        # The number of the head runs fastest.
        return n.transpose(n.reshape(x, batch, length, size, count), (0, 3, 1, 2))
    return n.transpose(n.reshape(x, batch, length, count, size), (0, 2, 1, 3))


def projected(n: Network, x: Value, other: Value, heads: Heads) -> list[Value]:
    """Return queries, keys and values, each `[batch, heads, length, size]`."""
    (batch, length, terms), size = x.shape, heads.size
    way = n.choose("apart", "apart", "together", "stacked", "einsum", "plain")
    if way == "plain" and terms % heads.queries == 0 and terms // heads.queries >= 4 and other.shape[2] == terms:
        # Without weights.
        heads.size, heads.keys = terms // heads.queries, heads.queries
        return [split_heads(n, v, heads.queries, heads.size) for v in (x, other, other)]
    if way == "together" and other is x:
        sizes = [count * size for count in (heads.queries, heads.keys, heads.keys)]
        parts = n.split(linear(n, x, sum(sizes)), tuple(sizes), 2)
        counts = heads.queries, heads.keys, heads.keys
        return [split_heads(n, part, count, size) for part, count in zip(parts, counts, strict=True)]
    if way == "stacked" and other is x and heads.keys == heads.queries:
        y = n.reshape(linear(n, x, 3 * heads.queries * size), batch, length, 3, heads.queries, size)
        y = n.transpose(y, (2, 0, 3, 1, 4))
        parts = n.split(y, 3, 0) if n.chance(0.5) else [n.take(y, i, 0) for i in range(3)]
        return [part if len(part.shape) == 4 else n.squeeze(part, 0) for part in parts]
    if way == "einsum":
        weights = [(x, heads.queries), (other, heads.keys), (other, heads.keys)]
        return [n.einsum("blc,chd->bhld", y, n.weight(y.shape[2], c, size, terms=y.shape[2])) for y, c in weights]
    return [
        split_heads(n, linear(n, x, heads.queries * size), heads.queries, size),
        split_heads(n, linear(n, other, heads.keys * size), heads.keys, size),
        split_heads(n, linear(n, other, heads.keys * size), heads.keys, size),
    ]


def unit_length(n: Network, x: Value) -> Value:
    """Normalize queries or keys."""
    return n.normalize(x) * n.factors(1) * 3.0 if n.chance(0.4) else last_norm(n, x)


def rotated(n: Network, q: Value, k: Value) -> tuple[Value, Value]:
    """Rotate pairs of features of queries, keys or both by their positions."""
    size, length = q.shape[-1], max(q.shape[-2], k.shape[-2])
    if size % 2:
        return q, k
    which = n.choose("both", "both", "both", "keys", "queries")
    way = n.choose("rope", "pairs", "by hand", "by hand", "partial", "complex")
    interleaved = n.chance(0.3)
    turned = size // 2 if way == "partial" and size % 4 == 0 else size
    angles = n.data(length, turned // 2, kind="uniform", numbers=(0.0, 6.0))
    cos, sin = n.cos(angles), n.sin(angles)
    if n.chance(0.4):
        # Tables are data.
        cos, sin = (n.data(length, turned // 2, kind="uniform", numbers=(-1.0, 1.0)) for _ in range(2))
    doubled = [n.concat(t, t, axis=-1) for t in (cos, sin)] if way in ("by hand", "partial") else []

    def rows(table: Value, x: Value) -> Value:
        return table if table.shape[0] == x.shape[-2] else n.slice(table, (None,), (x.shape[-2],), (1,))

    def turn(x: Value) -> Value:
        if way == "rope":
            return n.rope(x, None, 10000.0, interleaved)
        if way == "pairs":
            return n.rotate_pairs(x, rows(cos, x), rows(sin, x), interleaved)
        if way == "complex":
            pairs = n.reshape(x, *x.shape[:-1], size // 2, 2)
            a, b = (n.squeeze(part, -1) for part in n.split(pairs, 2, -1))
            c, s = rows(cos, x), rows(sin, x)
            return n.reshape(n.stack(a * c - b * s, b * c + a * s, axis=-1), *x.shape)
        rest = None
        if turned < size:
            x, rest = n.split(x, (turned, size - turned), -1)
        first, second = n.split(x, 2, -1)
        y = x * rows(doubled[0], x) + n.concat(-second, first, axis=-1) * rows(doubled[1], x)
        return y if rest is None else n.concat(y, rest, axis=-1)

    return (q if which == "keys" else turn(q)), (k if which == "queries" else turn(k))


def cached(n: Network, k: Value, v: Value) -> list[Value]:
    """Put new keys and values behind those that are known."""
    batch, heads, length, size = k.shape
    past = n.number(1, 20)
    way = n.choose("concat", "concat", "update", "copy")
    parts = []
    for x in (k, v):
        if way == "concat":
            parts.append(n.concat(n.data(batch, heads, past, size), x, axis=2))
            continue
        memory = n.data(batch, heads, past + length, size)
        if way == "update":
            before = (None, None)
            parts.append(n.slice_update(memory, x, (*before, past), (*before, past + length), (1, 1, 1)))
        else:
            parts.append(n.index_copy(memory, n.data(length, kind="integers", numbers=(0, 1)) + n.arange(length), x, 2))
    return parts


def mixed(n: Network, q: Value, k: Value, v: Value, heads: Heads, bias: bool) -> Value:
    """Return the values, mixed by products of queries and keys."""
    length, keys, size = q.shape[2], k.shape[2], heads.size
    mask, is_causal, is_kept = masked(n, q, k, bias)
    scale = n.choose(None, None, size**-0.5, 0.2)
    if n.chance(0.35):
        grouped = heads.shared > 1 and n.chance(0.7)
        if not grouped:
            k, v = (repeated(n, x, heads.shared) for x in (k, v))
        return n.scaled_dot_product_attention(q, k, v, mask, is_causal, scale, grouped)
    factor = float(scale or size**-0.5)
    where = n.choose("before", "after", "both", "divided", "weight", "keys")
    if where == "before":
        q = q * factor
    elif where == "both":
        q, k = q * factor**0.5, k * factor**0.5
    elif where == "keys":
        k = k * factor
    way = n.choose("matmul", "matmul", "einsum", "merged", "keys first", "grouped")
    if way == "grouped" and heads.shared > 1:
        batch = q.shape[0]
        q5 = n.reshape(q, batch, heads.keys, heads.shared, length, size)
        scores = n.einsum("bgsld,bgkd->bgslk", q5, k)
        scores = n.reshape(scores, batch, heads.queries, length, keys)
    else:
        k = repeated(n, k, heads.shared)
        scores = products(n, q, k, way)
    if where == "after":
        scores = scores * factor
    elif where == "divided":
        scores = scores / (1 / factor)
    elif where == "weight":
        scores = scores * n.factors(heads.queries, 1, 1) * factor
    if is_causal:
        lower = n.tril(n.ones((length, keys), n.dtype), 0)
        scores = n.where(n.greater(lower, 0.5), scores, -1e4)
    if mask is not None:
        scores = n.where(mask, scores, n.choose(-1e4, -3e4)) if is_kept else scores + mask
    scores = weights(n, scores)
    v = repeated(n, v, heads.shared)
    way = n.choose("matmul", "matmul", "einsum", "merged", "values first")
    if way == "einsum":
        return n.einsum("bhlk,bhkd->bhld", scores, v)
    if way == "merged":
        flat = n.reshape(scores, -1, length, keys) @ n.reshape(v, -1, keys, v.shape[3])
        return n.reshape(flat, -1, heads.queries, length, v.shape[3])
    if way == "values first":
        return n.transpose(n.transpose(v, (0, 1, 3, 2)) @ n.transpose(scores, (0, 1, 3, 2)), (0, 1, 3, 2))
    return scores @ v


def products(n: Network, q: Value, k: Value, way: str) -> Value:
    """Return the products of queries and keys."""
    length, keys, size = q.shape[2], k.shape[2], q.shape[3]
    if way == "einsum":
        return n.einsum("bhld,bhkd->bhlk", q, k)
    if way == "merged":
        flat = [n.reshape(x, -1, x.shape[2], size) for x in (q, k)]
        scores = flat[0] @ n.transpose(flat[1], (0, 2, 1))
        return n.reshape(scores, -1, q.shape[1], length, keys)
    if way == "keys first":
        return n.transpose(k @ n.transpose(q, (0, 1, 3, 2)), (0, 1, 3, 2))
    return q @ n.transpose(k, (0, 1, 3, 2))


def repeated(n: Network, x: Value, times: int) -> Value:
    """Repeat each head."""
    if times == 1:
        return x
    batch, heads, length, size = x.shape
    if n.chance(0.5):
        return n.repeat(x, times, 1)
    y = n.broadcast_to(n.expand_dims(x, 2), (-1, heads, times, length, size))
    return n.reshape(y, batch, heads * times, length, size)


def weights(n: Network, scores: Value) -> Value:
    """Make weights of scores."""
    way = n.choose("softmax", "softmax", "softmax", "softmax", "by hand", "sigmoid", "clipped", "none")
    if way == "by hand":
        powers = n.exp(scores - n.max(scores, -1, True))
        return powers / n.sum(powers, -1, True)
    if way == "sigmoid":
        return n.sigmoid(scores)
    if way == "clipped":
        return n.softmax(n.tanh(scores * (1 / 20)) * 20.0)
    if way == "none" and float(np.abs(scores.array).max()) < 100:
        return scores * (1 / scores.shape[-1])
    return n.softmax(scores, -1)


def masked(n: Network, q: Value, k: Value, bias: bool) -> tuple[Value | None, bool, bool]:
    """Return a mask or none, whether what comes later is hidden, and whether the mask says what is kept."""
    (batch, heads, length, _), keys = q.shape, k.shape[2]
    shapes = [
        (length, keys),
        (1, 1, length, keys),
        (batch, 1, 1, keys),
        (batch, 1, length, keys),
        (heads, length, keys),
    ]
    way = n.choose("none", "none", "causal", "keep", "additive", "alibi", "relative")
    if bias:
        way = n.choose("relative", "relative", "additive", "none")
    if way == "causal":
        return None, True, False
    if way == "keep":
        return n.data(*n.choose(*shapes), kind="keep", numbers=(0.7,)), False, True
    if way == "additive":
        return n.data(*n.choose(*shapes), kind="mask", numbers=(-1e4,)), False, False
    if way == "alibi":
        places = n.expand_dims(n.arange(keys), 0) - n.expand_dims(n.arange(length), 1)
        return n.abs(places) * n.reshape(n.factors(heads), heads, 1, 1) * -0.1, False, False
    if way == "relative":
        table, count = n.biases(7, heads), length * keys
        places = n.data(count, kind="integers", numbers=(0, 7))
        rows = n.take(table, places, 0) if n.chance(0.5) else n.embedding(places, table)
        mask = n.transpose(n.reshape(rows, length, keys, heads), (2, 0, 1))
        if n.chance(0.3):
            mask = n.sigmoid(mask) * 4.0
        return n.expand_dims(mask, 0), False, False
    return None, n.chance(0.1), False


@block("sequence", weight=5)
def attention(n: Network, x: Value) -> Value:
    y = last_norm(n, x) if n.chance(0.5) else x
    y = attended(n, y, y, x.shape[2])
    return x + y if n.chance(0.7) else y


@block("sequence", weight=1.5)
def cross_attention(n: Network, x: Value) -> Value:
    memories = [m for m, a in n.values.items() if a.ndim == 3 and m[0] == "v" and a.shape[0] == x.shape[0]]
    memories = [m for m in memories if n.values[m].dtype.kind == "f" and n.values[m].shape[1] <= 128]
    other = (
        Value(n, n.choose(*memories))
        if memories and n.chance(0.7)
        else n.data(x.shape[0], n.number(1, 40), n.choose(16, 32))
    )
    y = attended(n, last_norm(n, x), other, x.shape[2])
    return x + y if n.chance(0.7) else y


@block("sequence", weight=0.7)
def latent_attention(n: Network, x: Value) -> Value:
    """Attention to what few learned queries make of a sequence (an attention pool), and back."""
    count = n.choose(1, 4, 8, 16)
    learned = n.broadcast_to(n.biases(1, count, x.shape[2]), (x.shape[0], count, x.shape[2]))
    pooled = attended(n, learned, x, x.shape[2])
    return pooled if n.chance(0.5) else x + attended(n, x, activated(n, pooled), x.shape[2])


@block("sequence", weight=0.7)
def linear_attention(n: Network, x: Value) -> Value:
    """Attention without a softmax: keys and values are brought together first."""
    size = n.choose(8, 16, 32)
    q, k, v = (linear(n, x, size) for _ in range(3))
    q, k = (n.softplus(y) if n.chance(0.5) else n.softmax(y, n.choose(1, 2)) for y in (q, k))
    if n.chance(0.5):
        together = n.einsum("blk,blv->bkv", k, v)
        total = n.einsum("blk,bk->bl", q, n.sum(k, 1))
        return linear(n, n.einsum("blk,bkv->blv", q, together) / (n.expand_dims(total, -1) + 0.1), x.shape[2])
    scores = n.tril(q @ n.transpose(k, (0, 2, 1)), 0)
    return linear(n, (scores @ v) / (n.sum(scores, -1, True) + 0.1), x.shape[2])
