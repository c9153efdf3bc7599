"""The same ops from torch: an oracle that shares no code with ours.

Each function takes the arguments of our op in the order of its ports, with tensors as torch tensors. NumPy's
indexing gives positions where torch has none (negative steps, padding modes).
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
import torch_indexing
import torch_linalg
import torch_recurrent
from torch_common import all_axes, as_tuple, at_positions, pad_pairs, torch_dtype
from torch_networks import (
    attention,
    avg_pool,
    batch_norm,
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    conv,
    conv_general,
    conv_transpose,
    cross_entropy,
    fold_windows,
    group_norm,
    hinge_loss,
    interpolate,
    layer_norm,
    max_pool,
    nll_loss,
    normalize,
    quad_hinge_loss,
    rms_norm,
    rope,
    rotate_pairs,
    windows,
)

# --- elementwise --------------------------------------------------------------------------------------------


def clip(x, low, high):
    # torch gives no gradient on bounds that are numbers, and half of it on those that are tensors.
    x = x if low is None else torch.where(x < low, low, x)
    return x if high is None else torch.where(x > high, high, x)


def cast(x, dtype):
    return x.to(torch_dtype(dtype))


def sign(x):
    return torch.where(x.isnan(), x, torch.sign(x))  # torch: 0 for NaN


def gelu(x, approximate):
    # torch's own exact gelu loses all digits far below 0.
    return F.gelu(x, approximate="tanh") if approximate == "tanh" else x * torch.erfc(-x / math.sqrt(2)) / 2


def hard_tanh(x, low, high):
    if x.is_floating_point():
        return F.hardtanh(x, low, high)
    held = torch.clamp(x.double(), low, high)
    return held.to(x.dtype) if all(math.isinf(n) or n == int(n) for n in (low, high)) else held


def leaky_relu(x, slope):
    return torch.where(x > 0, x, slope * x)


# --- movement -----------------------------------------------------------------------------------------------


def transpose(x, axes):
    return x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes)


def expand_dims(x, axis):
    axes = axis if isinstance(axis, tuple) else (axis,)
    for a in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(a)
    return x


def squeeze(x, axis):
    return x.squeeze() if axis is None else x.squeeze(axis)


def broadcast_to(x, shape):
    return x.expand(as_tuple(shape, 1))


def slices(starts, stops, steps):
    return tuple(slice(*bounds) for bounds in zip(starts, stops, steps or (None,) * len(starts), strict=True))


def slice_update(x, update, starts, stops, steps):
    positions = np.arange(x.numel()).reshape(tuple(x.shape))[slices(starts, stops, steps)]
    flat = x.reshape(-1).clone()
    flat[torch.tensor(positions.reshape(-1).copy())] = update.expand(positions.shape).reshape(-1)
    return flat.reshape(x.shape)


def roll(x, shift, axis):
    return torch.roll(x, shift) if axis is None else torch.roll(x, shift, axis)


def split(x, sections, axis):
    return torch.split(x, x.shape[axis] // sections if isinstance(sections, int) else list(sections), axis)


PAD_MODES = {"circular": "wrap", "replicate": "edge"}


def pad(x, pads, mode, value):
    pairs = pad_pairs(pads, x.ndim)
    if mode == "constant":
        return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)
    for axis, pair in enumerate(pairs):
        positions = np.pad(np.arange(x.shape[axis]), pair, mode=PAD_MODES.get(mode, mode))
        x = x.index_select(axis, torch.tensor(positions))
    return x


def repeat(x, repeats, axis):
    return torch.repeat_interleave(x, repeats, dim=axis)


# --- index --------------------------------------------------------------------------------------------------


def getitem(x, key, *indices):
    rest = iter(indices)
    items = [next(rest).numpy() if k == "tensor" else k for k in (key if isinstance(key, tuple) else (key,))]
    return at_positions(x, tuple(np.array(k) if isinstance(k, tuple) else k for k in items))


def counted(indices, size):
    return torch.where(indices < 0, indices + size, indices).long()


def take(x, indices, axis):
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis %= x.ndim
    result = x.index_select(axis, counted(indices, x.shape[axis]).reshape(-1))
    return result.reshape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])


def take_along_axis(x, indices, axis):
    return torch.take_along_dim(x, counted(indices, x.shape[axis]), axis)


def scatter_add(x, indices, source, axis):
    return torch.scatter_add(x, axis, counted(indices, x.shape[axis]), source)


def index_add(x, indices, source, axis):
    return torch.index_add(x, axis, counted(indices, x.shape[axis]), source)


def index_copy(x, indices, source, axis):
    return torch.index_copy(x, axis, counted(indices, x.shape[axis]), source)


def one_hot(indices, depth, dtype):
    return F.one_hot(counted(indices, depth), depth).to(torch_dtype(dtype) or torch.float64)


# --- creation -----------------------------------------------------------------------------------------------


def full(shape, value, dtype):
    return torch.full(as_tuple(shape, 1), value, dtype=torch_dtype(dtype))


def arange(start, stop, step, dtype):
    start, stop = (0, start) if stop is None else (start, stop)
    if (stop - start) * step <= 0:
        return torch.zeros(0, dtype=torch_dtype(dtype) or torch.int64)
    is_float = any(isinstance(number, float) for number in (start, stop, step))
    return torch.arange(start, stop, step, dtype=torch_dtype(dtype) or (torch.float64 if is_float else torch.int64))


def linspace(start, stop, num, dtype):
    return torch.linspace(start, stop, num, dtype=torch.float64)


def eye(n, m, k, dtype):
    return torch.tensor(np.eye(n, m, k)).to(torch_dtype(dtype) or torch.float64)


def trace(x, offset, axis1, axis2):
    return torch.diagonal(x, offset, axis1, axis2).sum(-1)


# --- random -------------------------------------------------------------------------------------------------


def philox(counter, key):
    """One block of Philox4x32-10 (Salmon et al. 2011) with Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def words(key, count):
    seed, stream = (int(n) % 2**64 for n in key)
    numbers = []
    for block in range((count + 3) // 4):
        counter = [block % 2**32, block >> 32, stream % 2**32, stream >> 32]
        numbers += philox(counter, [seed % 2**32, seed >> 32])
    return np.array(numbers[:count], dtype=np.int64)


def random_bits(key, shape):
    shape = as_tuple(shape, 1)
    return torch.tensor(words(key, math.prod(shape)).reshape(shape))


def unit(key, shape, dtype):
    if dtype == "float64":
        bits = words(key, 2 * math.prod(shape)).reshape(*shape, 2)
        return ((bits[..., 0] >> 5) * 2**26 + (bits[..., 1] >> 6)) / 2**53
    return (words(key, math.prod(shape)).reshape(shape) >> 8) / 2**24


def random_uniform(key, shape, low, high, dtype, *, default):
    name = default if dtype is None else str(dtype)
    return torch.tensor(low + (high - low) * unit(key, as_tuple(shape, 1), name))


def random_normal(key, shape, mean, stddev, dtype, *, default):
    shape = as_tuple(shape, 1)
    count = math.prod(shape)
    u, v = unit(key, (2, (count + 1) // 2), default if dtype is None else str(dtype))
    radius = np.sqrt(-2 * np.log1p(-u))
    z = np.concatenate([radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)])[:count]
    return torch.tensor(mean + stddev * z.reshape(shape))


def random_randint(key, shape, low, high):
    return low + (random_bits(key, shape) * (high - low) >> 32)


def random_bernoulli(key, p, shape):
    # Drawn in float32 whatever the dtype of the model, so that masks are the same in all.
    shape = tuple(np.shape(p)) if shape is None else as_tuple(shape, 1)
    return torch.tensor(unit(key, shape, "float32")) < p


def random_permutation(key, n):
    return torch.argsort(random_bits(key, n), stable=True)


def dropout(x, key, p, training, shape=None):
    if not training or p == 0:
        return x
    kept = random_bernoulli(key, 1 - p, tuple(x.shape) if shape is None else shape)
    return torch.where(kept, x / (1 - p) if p < 1 else torch.zeros_like(x), torch.zeros_like(x))


def feature_dropout(x, key, p, training):
    return dropout(x, key, p, training, (*x.shape[:2], *[1] * (x.ndim - 2)))


# --- linear algebra -----------------------------------------------------------------------------------------


def dot(a, b):
    if a.ndim == 0 or b.ndim == 0:
        return a * b
    return torch.tensordot(a, b, dims=([a.ndim - 1], [max(b.ndim - 2, 0)]))


def tensordot(a, b, axes):
    if isinstance(axes, int):
        return torch.tensordot(a, b, dims=axes)
    return torch.tensordot(a, b, dims=[list(as_tuple(side, 1)) for side in axes])


def columns(function):
    def with_vector(a, b, *args):
        return function(a, b[:, None], *args)[..., 0] if b.ndim == 1 else function(a, b, *args)

    return with_vector


def transform(function):
    def both_parts(real, imag, axis, norm):
        result = function(torch.complex(real, torch.zeros_like(real) if imag is None else imag), dim=axis, norm=norm)
        return result.real, result.imag

    return both_parts


def rfft(x, axis, norm):
    result = torch.fft.rfft(x, dim=axis, norm=norm)
    return result.real, result.imag


def irfft(real, imag, n, axis, norm):
    return torch.fft.irfft(torch.complex(real, imag), n=n, dim=axis, norm=norm)


# --- reduction ----------------------------------------------------------------------------------------------


def prod(x, axis, keepdim):
    if x.ndim == 0:
        return x.clone()
    for a in sorted(all_axes(x, axis), reverse=True):
        x = torch.prod(x, a, keepdim=keepdim)
    return x


def position(function):
    return lambda x, axis, keepdim: torch.as_tensor(function(x.numpy(), axis, keepdims=keepdim))


def truth(function):
    return lambda x, axis, keepdim: function(x != 0, all_axes(x, axis), keepdim=keepdim) if x.ndim else x != 0


def count_nonzero(x, axis, keepdim):
    return torch.sum(x != 0, dim=axis, keepdim=keepdim)


def var(x, axis, keepdim, correction):
    return torch.var(x, dim=axis, keepdim=keepdim, correction=correction)


def std(x, axis, keepdim, correction):
    return torch.std(x, dim=axis, keepdim=keepdim, correction=correction)


def norm(x, p, axis, keepdim):
    return torch.linalg.vector_norm(x, p, dim=axis, keepdim=keepdim)


def scan(function, neutral):
    def run(x, axis, exclusive, reverse):
        x = x.flip(axis) if reverse else x
        result = function(x, axis)
        if exclusive:
            first = torch.full_like(result.narrow(axis, 0, 1), neutral)
            result = torch.cat([first, result.narrow(axis, 0, x.shape[axis] - 1)], axis)
        return result.flip(axis) if reverse else result

    return run


def sort(x, axis, descending):
    return torch.sort(x, dim=axis, descending=descending, stable=True).values


def topk(x, k, axis, largest, sorted):
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


#: Ops whose function needs the default dtype, as the argument ``default``.
WITH_DEFAULT = {"random_uniform", "random_normal", "rms_norm", "nan_to_num"}

#: Our name of an op where torch has a function of the same name and arguments.
SAME = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "remainder",
    "abs",
    "maximum",
    "minimum",
    "sqrt",
    "rsqrt",
    "square",
    "reciprocal",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "atan2",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "floor",
    "ceil",
    "round",
    "trunc",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "where",
    "logical_and",
    "logical_or",
    "logical_xor",
    "logical_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_not",
    "isnan",
    "isinf",
    "isfinite",
    "sigmoid",
    "swapaxes",
    "moveaxis",
    "flatten",
    "tril",
    "triu",
    "diagonal",
    "diag",
    "matmul",
    "outer",
    "inner",
    "kron",
    "einsum",
    "det",
]

OPS = (
    {name: getattr(torch, name) for name in SAME}
    | torch_linalg.OPS
    | {
        "power": torch.pow,
        "floor_divide": lambda a, b: torch.floor_divide(a.detach(), b.detach()),  # torch has no gradient: it is 0
        "sign": sign,
        "negative": torch.neg,
        "clip": clip,
        "addcmul": lambda x, a, b, value=1.0: torch.addcmul(x, a, b, value=value),
        "cast": cast,
        "barrier": lambda x, after: x,
        "stop_gradient": lambda x: x.detach().requires_grad_(False) * 1,
        "replace_gradient": lambda x, s, training: x.detach() + s - s.detach() if training else x * 1,
        "equal": torch.eq,
        "left_shift": torch.bitwise_left_shift,
        "right_shift": torch.bitwise_right_shift,
        "relu": F.relu,
        "relu6": F.relu6,
        "leaky_relu": leaky_relu,
        "prelu": F.prelu,
        "elu": F.elu,
        "selu": F.selu,
        "celu": F.celu,
        "gelu": gelu,
        "silu": F.silu,
        "mish": F.mish,
        "log_sigmoid": F.logsigmoid,
        "softplus": F.softplus,
        "softsign": F.softsign,
        "hard_sigmoid": lambda x: F.relu6(x + 3) / 6,  # the gradient of torch's is that of float32
        "hard_swish": F.hardswish,
        "hard_tanh": hard_tanh,
        "softmax": torch.softmax,
        "log_softmax": torch.log_softmax,
        "reshape": lambda x, shape: torch.reshape(x, as_tuple(shape, 1)),
        "transpose": transpose,
        "expand_dims": expand_dims,
        "squeeze": squeeze,
        "broadcast_to": broadcast_to,
        "slice": lambda x, starts, stops, steps: at_positions(x, slices(starts, stops, steps)),
        "slice_update": slice_update,
        "flip": lambda x, axis: torch.flip(x, all_axes(x, axis)),
        "roll": roll,
        "split": split,
        "concat": lambda axis, *inputs: torch.cat(inputs, axis),
        "stack": lambda axis, *inputs: torch.stack(inputs, axis),
        "pad": pad,
        "tile": lambda x, reps: torch.tile(x, as_tuple(reps, 1)),
        "repeat": repeat,
        "getitem": getitem,
        "take": take,
        "take_along_axis": take_along_axis,
        "scatter_add": scatter_add,
        "index_add": index_add,
        "index_copy": index_copy,
        "one_hot": one_hot,
        "full": full,
        "zeros": lambda shape, dtype: full(shape, 0.0, dtype),
        "ones": lambda shape, dtype: full(shape, 1.0, dtype),
        "full_like": lambda x, value, dtype: torch.full_like(x, value, dtype=torch_dtype(dtype)),
        "zeros_like": lambda x, dtype: torch.zeros_like(x, dtype=torch_dtype(dtype)),
        "ones_like": lambda x, dtype: torch.ones_like(x, dtype=torch_dtype(dtype)),
        "arange": arange,
        "linspace": linspace,
        "eye": eye,
        "trace": trace,
        "random_bits": random_bits,
        "random_uniform": random_uniform,
        "random_normal": random_normal,
        "random_randint": random_randint,
        "random_bernoulli": random_bernoulli,
        "random_permutation": random_permutation,
        "dropout": dropout,
        "feature_dropout": feature_dropout,
        "linear": F.linear,
        "matrix_transpose": lambda x: x.mT,
        "vecdot": lambda a, b, axis: (a * b).sum(axis, dtype=a.dtype),
        "dot": dot,
        "tensordot": tensordot,
        "cross": lambda a, b, axis: torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=axis),
        "solve": columns(torch.linalg.solve),
        "inv": torch.linalg.inv,
        "slogdet": torch.linalg.slogdet,
        "cholesky": lambda x: torch.linalg.cholesky((x + x.mT) / 2),
        "matrix_power": torch.linalg.matrix_power,
        "fft": transform(torch.fft.fft),
        "ifft": transform(torch.fft.ifft),
        "rfft": rfft,
        "irfft": irfft,
        "sum": lambda x, axis, keepdim: x + 0 if axis == () else torch.sum(x, dim=axis, keepdim=keepdim),
        "mean": lambda x, axis, keepdim: torch.mean(x.double(), dim=axis, keepdim=keepdim),
        "prod": prod,
        "max": lambda x, axis, keepdim: torch.amax(x, all_axes(x, axis), keepdim),
        "min": lambda x, axis, keepdim: torch.amin(x, all_axes(x, axis), keepdim),
        "argmax": position(np.argmax),
        "argmin": position(np.argmin),
        "any": truth(torch.any),
        "all": truth(torch.all),
        "count_nonzero": count_nonzero,
        "var": var,
        "std": std,
        "norm": norm,
        "logsumexp": lambda x, axis, keepdim: torch.logsumexp(x, all_axes(x, axis), keepdim),
        "cumsum": scan(torch.cumsum, 0),
        "cumprod": scan(torch.cumprod, 1),
        "sort": sort,
        "argsort": lambda x, axis, descending: torch.argsort(x, dim=axis, descending=descending, stable=True),
        "topk": topk,
        "conv_general": conv_general,
        "conv1d": conv,
        "conv2d": conv,
        "conv3d": conv,
        "conv_transpose1d": conv_transpose,
        "conv_transpose2d": conv_transpose,
        "conv_transpose3d": conv_transpose,
        "windows": windows,
        "fold_windows": fold_windows,
        "max_pool1d": max_pool,
        "max_pool2d": max_pool,
        "max_pool3d": max_pool,
        "avg_pool1d": avg_pool,
        "avg_pool2d": avg_pool,
        "avg_pool3d": avg_pool,
        "adaptive_avg_pool1d": F.adaptive_avg_pool1d,
        "adaptive_avg_pool2d": F.adaptive_avg_pool2d,
        "adaptive_avg_pool3d": F.adaptive_avg_pool3d,
        "adaptive_max_pool1d": F.adaptive_max_pool1d,
        "adaptive_max_pool2d": F.adaptive_max_pool2d,
        "adaptive_max_pool3d": F.adaptive_max_pool3d,
        "batch_norm": batch_norm,
        "layer_norm": layer_norm,
        "rms_norm": rms_norm,
        "group_norm": group_norm,
        "instance_norm": lambda x, weight, bias, eps: F.instance_norm(x, weight=weight, bias=bias, eps=eps),
        "normalize": normalize,
        "embedding": F.embedding,
        "scaled_dot_product_attention": attention,
        "rotate_pairs": rotate_pairs,
        "rope": rope,
        "interpolate": interpolate,
        "pixel_shuffle": F.pixel_shuffle,
        "pixel_unshuffle": F.pixel_unshuffle,
        "squared_error": lambda x, target: (x - target) ** 2,
        "absolute_error": lambda x, target: (x - target).abs(),
        "mse_loss": lambda x, target, reduction: F.mse_loss(x, target, reduction=reduction),
        "l1_loss": lambda x, target, reduction: F.l1_loss(x, target, reduction=reduction),
        "huber_loss": lambda x, target, reduction, delta: F.huber_loss(x, target, reduction=reduction, delta=delta),
        "smooth_l1_loss": lambda x, target, reduction, beta: F.smooth_l1_loss(
            x, target, reduction=reduction, beta=beta
        ),
        "binary_cross_entropy": binary_cross_entropy,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
        "kl_div": lambda x, t, reduction, log_target: F.kl_div(x, t, reduction=reduction, log_target=log_target),
        "hinge_loss": hinge_loss,
        "quad_hinge_loss": quad_hinge_loss,
        "nll_loss": nll_loss,
        "cross_entropy": cross_entropy,
    }
)

OPS |= torch_indexing.OPS | {
    "nanprod": prod,
    "nancumsum": OPS["cumsum"],
    "nancumprod": OPS["cumprod"],
}

OPS |= {
    name: getattr(torch_recurrent, name)
    for kind in ("rnn", "lstm", "gru")
    for name in (f"{kind}_step", f"{kind}_sequence", f"{kind}_scan")
}
OPS |= {name: getattr(torch_recurrent, name) for name in ("hidden_scan_gradient", "lstm_scan_gradient")}

#: Ops without an oracle, each with the reason.
EXCEPTIONS: dict[str, str] = {}


def run(name, args, default):
    """Apply the oracle; results as a tuple."""
    result = OPS[name](*args, **({"default": default} if name in WITH_DEFAULT else {}))
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)
