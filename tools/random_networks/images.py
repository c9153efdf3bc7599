"""Blocks of images, signals and volumes: convolutions, pooling, shuffles, resizing, windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .attention import attended
from .common import activated, block, channel_norm, grown, linear, width
from .network import Network, RejectedError, Value


def padding(n: Network, kernel: list[int], dilation: list[int], stride: list[int]) -> Any:
    """Return padding in one of its spellings."""
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    way = n.choose("half", "half", "half", "none", "pairs", "same", "any")
    if way == "same":
        return "same"
    if way == "none":
        return n.choose(0, "valid")
    if way == "pairs":
        return tuple((n.number(0, r), n.number(0, r)) for r in reach)
    if way == "any":
        return tuple(n.number(0, r) for r in reach)
    return tuple(r // 2 for r in reach)


def convolved(n: Network, x: Value, filters: int | None = None, *, keep: bool = False) -> Value:
    """Convolve along all axes but the first two."""
    channels, rank = x.shape[1], len(x.shape) - 2
    op = f"conv{rank}d"
    way = n.choose("plain", "plain", "plain", "point", "point", "depth", "group", "wide", "strided", "dilated", "line")
    kernel, stride, dilation, groups = [3] * rank, [1] * rank, [1] * rank, 1
    filters = filters or width(n)
    if way == "point":
        kernel = [1] * rank
    elif way == "depth":
        groups = channels
        kernel = [n.choose(3, 3, 5, 7)] * rank
        filters = channels if keep or n.chance(0.8) else 2 * channels
    elif way == "group":
        groups = n.divisor(channels, 32)
        filters = groups * max(1, filters // groups)
    elif way == "wide":
        kernel = [n.number(1, 7 if rank < 3 else 3) for _ in range(rank)]
    elif way == "strided":
        kernel = [n.number(1, 4) for _ in range(rank)]
        stride = [n.choose(1, 2, 2, 3, k) for k in kernel]
    elif way == "dilated":
        dilation = [n.number(1, 3) for _ in range(rank)]
    elif way == "line":
        kernel = [1] * rank
        kernel[n.number(0, rank - 1)] = n.choose(3, 5, 7)
    if keep:
        stride = [1] * rank
        pads: Any = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilation, strict=True))
        if any(d * (k - 1) % 2 for k, d in zip(kernel, dilation, strict=True)) or n.chance(0.2):
            pads = "same"
    else:
        pads = padding(n, kernel, dilation, stride)
    weight = n.weight(filters, channels // groups, *kernel)
    bias = n.biases(filters) if n.chance(0.5) else None
    if way == "point" and n.chance(0.15):
        # The same as a product of matrices.
        flat = n.reshape(x, x.shape[0], channels, -1)
        y = n.reshape(weight, filters, channels) @ flat
        return n.reshape(y, x.shape[0], filters, *x.shape[2:])
    if n.chance(0.05):
        weight = n.tanh(weight * 0.5)
    plain = [v[0] if len(set(v)) == 1 and n.chance(0.5) else tuple(v) for v in (stride, dilation)]
    return n.op(op, x, weight, bias, plain[0], pads, plain[1], groups)


@block("image", weight=6)
@block("signal", weight=4)
@block("volume", weight=3)
def convolution(n: Network, x: Value) -> Value:
    return convolved(n, x)


@block("image", weight=2)
@block("signal")
@block("volume", weight=0.5)
def padded_convolution(n: Network, x: Value) -> Value:
    """Zeros on the far side before a convolution, as TensorFlow pads; often after another one with a bias."""
    if n.chance(0.6):
        x = convolved(n, x, n.choose(16, 24, 32, width(n)))
        x = activated(n, x) if n.chance(0.3) else x
    pads = ((0, 0), (0, 0), *((n.choose(0, 0, 1), n.number(0, 2)) for _ in x.shape[2:]))
    return convolved(n, n.pad(x, pads, "constant"))


@block("image")
@block("signal", weight=0.5)
@block("volume", weight=0.5)
def cropped(n: Network, x: Value) -> Value:
    """A part of an image, as networks without padding cut what is joined."""
    starts = [n.number(0, min(2, size - 1)) for size in x.shape[2:]]
    stops = [n.number(max(start + 1, size - 2), size) for start, size in zip(starts, x.shape[2:], strict=True)]
    return n.slice(x, (None, None, *starts), (None, None, *stops), (1,) * len(x.shape))


@block("image", weight=4)
@block("signal", weight=2)
@block("volume")
def unit(n: Network, x: Value) -> Value:
    """Convolution, norm, activation: in this order or another."""
    for part in n.choose("cna", "cna", "nac", "can", "ca"):
        x = {"c": convolved, "n": channel_norm, "a": activated}[part](n, x)
    return x


@block("image", weight=2)
@block("signal")
def kept(n: Network, x: Value) -> Value:
    """A convolution that keeps the shape, so that branches fit together."""
    y = convolved(n, x, x.shape[1], keep=True)
    return activated(n, channel_norm(n, y)) if n.chance(0.5) else y


@block("image")
@block("signal")
@block("volume", weight=0.5)
def transposed_convolution(n: Network, x: Value) -> Value:
    channels, rank = x.shape[1], len(x.shape) - 2
    groups = n.divisor(channels, 8) if n.chance(0.3) else 1
    filters = groups * max(1, width(n) // groups)
    kernel = n.number(1, 4)
    stride, dilation = n.number(1, 3), n.choose(1, 1, 1, 2)
    output_padding = n.number(0, max(stride, dilation) - 1) if n.chance(0.3) else 0
    pads = n.number(0, max(dilation * (kernel - 1) // 2, 0)) if n.chance(0.9) else "same"
    if pads == "same":
        output_padding = 0
    weight = n.weight(channels, filters // groups, *[kernel] * rank, terms=channels * kernel**rank // stride**rank)
    bias = n.biases(filters) if n.chance(0.5) else None
    return n.op(f"conv_transpose{rank}d", x, weight, bias, stride, pads, output_padding, groups, dilation)


@block("image", weight=0.5)
@block("signal", weight=0.5)
def general_convolution(n: Network, x: Value) -> Value:
    channels, rank = x.shape[1], len(x.shape) - 2
    kernel = [n.number(1, 3) for _ in range(rank)]
    pads = tuple((n.number(-1, k), n.number(-1, k)) for k in kernel)
    spread = tuple(n.number(1, 2) for _ in kernel)
    weight = n.weight(width(n), channels, *kernel)
    return n.conv_general(x, weight, tuple(n.number(1, 2) for _ in kernel), pads, (1,) * rank, spread, 1)


@block("image")
@block("signal")
@block("volume", weight=0.5)
def pooling(n: Network, x: Value) -> Value:
    rank = len(x.shape) - 2
    kind = n.choose("max", "avg")
    if n.chance(0.25):
        size = tuple(n.number(1, s) for s in x.shape[2:])
        return n.op(f"adaptive_{kind}_pool{rank}d", x, size)
    kernel = tuple(n.number(1, min(4, s)) for s in x.shape[2:])
    stride = n.choose(None, tuple(n.number(1, 3) for _ in kernel))
    pads = n.choose(0, tuple(n.number(0, k // 2) for k in kernel), "same")
    is_ceil = n.chance(0.2) and pads != "same"
    if kind == "max":
        return n.op(f"max_pool{rank}d", x, kernel, stride, pads, 1, is_ceil)
    return n.op(f"avg_pool{rank}d", x, kernel, stride, pads, is_ceil, n.chance(0.5))


@block("image", weight=1.5)
@block("signal", weight=0.5)
def channel_shuffle(n: Network, x: Value) -> Value:
    channels, sizes = x.shape[1], x.shape[2:]
    groups = n.divisor(channels)
    y = n.reshape(x, x.shape[0], groups, channels // groups, *sizes)
    y = n.transpose(y, (0, 2, 1, *range(3, len(sizes) + 3)))
    return n.reshape(y, x.shape[0], channels, *sizes)


@block("image")
def pixel_shuffle(n: Network, x: Value) -> Value:
    _, channels, height, width_ = x.shape
    ways = [("pixel_shuffle", r) for r in (2, 3) if channels % (r * r) == 0]
    ways += [("pixel_unshuffle", r) for r in (2, 3) if height % r == width_ % r == 0]
    if not ways:
        raise RejectedError("the sizes do not fit")
    op, factor = n.choose(*ways)
    if op == "pixel_unshuffle" and n.chance(0.4):
        # The patches of a merging layer, as slices.
        steps = [(i, j) for j in range(2) for i in range(2)]
        if height % 2 == width_ % 2 == 0:
            parts = [n.slice(x, (None, None, i, j), (None,) * 4, (1, 1, 2, 2)) for i, j in steps]
            return n.concat(*parts, axis=1)
    return n.op(op, x, factor)


@block("image", weight=1.5)
@block("signal", weight=0.5)
def squeeze_and_excitation(n: Network, x: Value) -> Value:
    channels, rank = x.shape[1], len(x.shape) - 2
    axes = tuple(range(2, rank + 2))
    hidden = max(1, channels // n.choose(1, 2, 4, 8))
    gate = n.choose("sigmoid", "sigmoid", "hard_sigmoid" if not n.is_smooth else "sigmoid", "tanh")
    way = n.choose("conv", "linear", "adaptive", "line")
    if way == "line":
        # Efficient channel attention: a convolution over the channels.
        y = n.reshape(n.mean(x, axes), x.shape[0], 1, channels)
        y = n.conv1d(y, n.weight(1, 1, 3), None, 1, 1)
        return x * n.reshape(n.op(gate, y), x.shape[0], channels, *[1] * rank)
    if way == "linear":
        y = activated(n, linear(n, n.mean(x, axes), hidden))
        y = n.op(gate, linear(n, y, channels))
        return x * n.reshape(y, x.shape[0], channels, *[1] * rank)
    y = n.mean(x, axes, True) if way == "conv" else n.op(f"adaptive_avg_pool{rank}d", x, 1)
    y = n.op(f"conv{rank}d", y, n.weight(hidden, channels, *[1] * rank), n.biases(hidden))
    y = activated(n, y)
    y = n.op(f"conv{rank}d", y, n.weight(channels, hidden, *[1] * rank), n.biases(channels))
    return n.op(gate, y) * x


@block("image")
def spatial_attention(n: Network, x: Value) -> Value:
    planes = [n.mean(x, 1, True), n.mean(x, 1, True) if n.is_smooth else n.max(x, 1, True)]
    y = n.concat(*planes, axis=1)
    return x * n.sigmoid(n.conv2d(y, n.weight(1, 2, 3, 3), None, 1, 1))


@block("image")
@block("signal", weight=0.5)
def resizing(n: Network, x: Value) -> Value:
    sizes = x.shape[2:]
    modes = ["nearest", "nearest-exact", "linear"] + (["bicubic"] if len(sizes) == 2 else [])
    mode = n.choose(*modes)
    corners = n.chance(0.4) and mode in ("linear", "bicubic")
    if n.chance(0.5):
        return n.interpolate(x, tuple(n.number(1, 2 * s) for s in sizes), None, mode, corners)
    return n.interpolate(x, None, n.choose(2.0, 2.0, 0.5, 1.5, 3.0), mode, corners)


@block("image")
def resized_branch(n: Network, x: Value) -> Value:
    """A pyramid of features: a branch of another size is resized and joined or added."""
    images = [name for name, a in n.values.items() if a.ndim == 4 and name[0] == "v" and a.shape[0] == x.shape[0]]
    images = [name for name in images if n.values[name].shape[2:] != x.shape[2:]]
    if not images:
        raise RejectedError("there is no other image")
    other = Value(n, n.choose(*images))
    if max(other.shape[2:]) > 64:
        raise RejectedError("large")
    y = n.interpolate(other, x.shape[2:], None, n.choose("nearest", "linear"))
    if n.chance(0.5):
        return x + n.conv2d(y, n.weight(x.shape[1], y.shape[1], 1, 1))
    return n.concat(x, y, axis=1)


@block("image")
@block("signal", weight=0.5)
def padded(n: Network, x: Value) -> Value:
    most = min(x.shape[2:]) - 1
    mode = n.choose("constant", "reflect", "edge", "circular", "symmetric")
    pads = ((0, 0), (0, 0), *((n.number(0, min(2, most)), n.number(0, min(2, most))) for _ in x.shape[2:]))
    return n.pad(x, pads, mode)


@block("image")
@block("signal", weight=0.5)
@block("sequence", weight=0.5)
def moved(n: Network, x: Value) -> Value:
    axis = n.number(1, len(x.shape) - 1)
    way = n.choose("flip", "roll", "crop", "transpose")
    if way == "flip":
        return n.flip(x, axis)
    if way == "roll":
        return n.roll(x, n.number(-3, 3), axis)
    if way == "crop":
        size = x.shape[axis]
        start = n.number(0, size - 1)
        stop = n.number(start + 1, size)
        return n.slice(x, (None,) * axis + (start,), (None,) * axis + (stop,), (1,) * axis + (n.choose(1, 1, 2),))
    return n.swapaxes(x, -1, -2)


@block("image")
def separable(n: Network, x: Value) -> Value:
    """Depthwise and pointwise convolutions, inverted or not."""
    channels = x.shape[1]
    y = x
    if n.chance(0.5):
        hidden = min(channels * n.choose(2, 3, 4), 192)
        y = activated(n, channel_norm(n, n.conv2d(y, n.weight(hidden, channels, 1, 1))))
    hidden, kernel = y.shape[1], n.choose(3, 5, 7)
    y = n.conv2d(y, n.weight(hidden, 1, kernel, kernel), None, 1, kernel // 2, 1, hidden)
    y = activated(n, channel_norm(n, y)) if n.chance(0.7) else y
    if n.chance(0.3):
        y = squeeze_and_excitation(n, y)
    filters = channels if n.chance(0.6) else width(n)
    y = n.conv2d(y, n.weight(filters, hidden, 1, 1), n.biases(filters))
    return x + y if y.shape == x.shape and n.chance(0.7) else y


@block("image")
def branches(n: Network, x: Value) -> Value:
    """Several ways side by side, joined."""
    parts = []
    for _ in range(n.number(2, 4)):
        y = convolved(n, x, keep=True) if n.chance(0.7) else n.avg_pool2d(x, 3, 1, 1)
        parts.append(activated(n, y) if n.chance(0.7) else y)
    if n.chance(0.2) and len({v.shape for v in parts}) == 1:
        weights = n.softmax(n.biases(len(parts), 1, 1, 1, 1), 0)
        return n.sum(n.stack(*parts, axis=0) * weights, 0)
    return n.concat(*parts, axis=1)


@block("image")
def shuffle_unit(n: Network, x: Value) -> Value:
    """Halves of the channels, one of which is convolved, joined and shuffled."""
    if x.shape[1] % 2:
        raise RejectedError("odd")
    left, right = n.split(x, 2, 1)
    right = grown(n, right, "image")
    if right.shape[2:] != left.shape[2:]:
        raise RejectedError("the shape changed")
    return channel_shuffle(n, n.concat(left, right, axis=1))


@block("image", weight=1.5)
def windows(n: Network, x: Value) -> Value:
    """Attention in windows, shifted or not, with a bias for each place of the window."""
    batch, channels, height, width_ = x.shape
    sizes = [d for d in (1, 2, 3, 4, 5, 7, 8) if height % d == 0 and width_ % d == 0]
    size, is_last = int(n.choose(*sizes)), n.chance(0.5)
    y = n.transpose(x, (0, 2, 3, 1))
    shift = n.choose(0, size // 2)
    if shift:
        y = n.roll(y, (-shift, -shift), (1, 2))
    rows, columns = height // size, width_ // size
    y = n.reshape(y, batch, rows, size, columns, size, channels)
    y = n.transpose(y, (0, 1, 3, 2, 4, 5))
    y = n.reshape(y, -1, size * size, channels)
    y = attended(n, y, y, channels, bias=True)
    y = n.reshape(y, batch, rows, columns, size, size, channels)
    y = n.op("reshape", n.transpose(y, (0, 1, 3, 2, 4, 5)), (-1, height, width_, channels))
    if shift:
        y = n.roll(y, (shift, shift), (1, 2))
    if is_last:
        y = linear(n, y, channels)
    return n.transpose(y, (0, 3, 1, 2))


@block("image")
def pixels_attend(n: Network, x: Value) -> Value:
    """Attention among pixels, of which 1x1 convolutions make queries, keys and values."""
    batch, channels = x.shape[:2]
    pixels, inner = int(np.prod(x.shape[2:])), n.choose(8, 16, 32, 24)
    if pixels > 256:
        raise RejectedError("many pixels")
    q, k = (n.reshape(n.conv2d(x, n.weight(inner, channels, 1, 1)), batch, inner, pixels) for _ in range(2))
    v = n.reshape(n.conv2d(x, n.weight(channels, channels, 1, 1)), batch, channels, pixels)
    if n.chance(0.3):
        # Among channels.
        scores = n.softmax((v @ n.transpose(v, (0, 2, 1))) * (1 / pixels))
        return n.reshape(scores @ v, batch, channels, *x.shape[2:])
    scores = n.softmax(n.transpose(q, (0, 2, 1)) @ k * inner**-0.5)
    y = v @ n.transpose(scores, (0, 2, 1))
    return n.reshape(y, batch, channels, *x.shape[2:]) + x


@block("image", weight=0.7)
def to_sequence(n: Network, x: Value) -> Any:
    batch, channels = x.shape[:2]
    y = n.reshape(x, batch, channels, -1)
    if y.shape[2] > 256:
        raise RejectedError("long")
    y = n.transpose(y, (0, 2, 1))
    if n.chance(0.4):
        y = y + n.biases(*y.shape[1:])
    if n.chance(0.3) and batch == n.batch:
        first = n.broadcast_to(n.biases(1, 1, channels), (batch, 1, channels))
        y = n.concat(first, y, axis=1)
    return "sequence", y


@block("image", weight=0.3)
@block("signal", weight=0.3)
@block("volume", weight=0.3)
def to_vector(n: Network, x: Value) -> Any:
    axes = tuple(range(2, len(x.shape)))
    way = n.choose("mean", "flatten", "max", "both")
    if way == "flatten" and x.array.size // x.shape[0] <= 1024:
        return "vector", n.flatten(x, 1)
    if way == "both":
        return "vector", n.concat(n.mean(x, axes), n.max(x, axes), axis=1)
    return "vector", n.op("max" if way == "max" else "mean", x, axes)


@block("image", weight=0.3)
def to_signal(n: Network, x: Value) -> Any:
    batch, channels, height, width_ = x.shape
    if n.chance(0.5):
        return "signal", n.reshape(x, batch, channels, height * width_)
    return "signal", n.reshape(n.transpose(x, (0, 1, 3, 2)), batch, channels * width_, height)


@block("image", weight=0.2)
def to_volume(n: Network, x: Value) -> Any:
    batch, channels, height, width_ = x.shape
    depth = n.choose(*[d for d in (2, 3, 4) if channels % d == 0] or [1])
    return "volume", n.reshape(x, batch, channels // depth, depth, height, width_)


@block("volume", weight=0.5)
def volume_to_image(n: Network, x: Value) -> Any:
    batch, channels, depth, height, width_ = x.shape
    if n.chance(0.5):
        return "image", n.mean(x, 2)
    return "image", n.reshape(x, batch, channels * depth, height, width_)


@block("signal", weight=0.5)
def signal_to_sequence(n: Network, x: Value) -> Any:
    return "sequence", n.transpose(x, (0, 2, 1))


@block("signal")
def gated(n: Network, x: Value) -> Value:
    """A gated convolution, as in WaveNet."""
    filters = width(n)
    y = convolved(n, x, 2 * filters, keep=True)
    if y.shape[1] != 2 * filters:
        raise RejectedError("depthwise")
    a, b = n.split(y, 2, 1)
    return n.tanh(a) * n.sigmoid(b)
