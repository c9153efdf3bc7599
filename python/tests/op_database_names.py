"""Where PyTorch's database of ops and our rows differ: other arguments, other meanings, nothing to compare with."""

import numpy as np
import torch


class Unmapped(Exception):
    """A use that our op does not have, with the reason."""


#: Arguments of PyTorch, and the ports that they may mean.
WORDS = {
    "other": ("right", "other"),
    "exponent": ("right",),
    "vec2": ("right",),
    "mat2": ("right",),
    "tensor": ("right",),
    "tensor1": ("left",),
    "tensor2": ("right",),
    "vec": ("right",),
    "A": ("left", "input"),
    "B": ("right",),
    "x": ("left", "real"),
    "y": ("right",),
    "index": ("indices",),
    "size": ("size", "shape"),
    "sizes": ("shape",),
    "fill_value": ("value",),
    "tensors": ("inputs", "operands"),
    "operands": ("operands",),
    "attn_mask": ("mask",),
    "min_val": ("min",),
    "max_val": ("max",),
    "diagonal": ("k",),
    "dims": ("axis", "reps"),
    "dim": ("axis", "axes"),
    "dim1": ("axis1",),
    "dim2": ("axis2",),
    "shifts": ("shift",),
    "start_dim": ("start_axis",),
    "end_dim": ("end_axis",),
    "src": ("source",),
    "end": ("stop",),
    "steps": ("num",),
    "num_classes": ("depth",),
    "self": ("input", "left", "real"),
}


def _pad(x, pad, mode="constant", value=None):
    pairs = [(0, 0)] * x.ndim
    for i in range(len(pad) // 2):
        pairs[x.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    return "pad", {"input": x, "pads": tuple(pairs), "mode": mode, "value": 0.0 if value is None else value}


def _split(x, sizes, dim=0):
    n = x.shape[dim]
    if isinstance(sizes, int):
        if sizes == 0:
            raise Unmapped("parts of no elements")
        sizes = [min(sizes, n - i) for i in range(0, n, sizes)] or [0]
    return "split", {"input": x, "sections": tuple(sizes), "axis": dim}


def _variance(op):
    def adapt(x, dim=None, unbiased=True, keepdim=False, *, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        correction = (1.0 if unbiased else 0.0) if correction is None else correction
        if isinstance(dim, (list, tuple)) and not dim:
            dim = None
        return op, {"input": x, "axis": dim, "keepdim": keepdim, "correction": float(correction)}

    return adapt


def _reduction(op):
    def adapt(x, dim=None, keepdim=False, *, dtype=None):
        if dtype not in (None, x.dtype):
            raise Unmapped(f"{op} has no `dtype`")
        if isinstance(dim, (list, tuple)) and not dim:
            dim = None
        return op, {"input": x, "axis": tuple(dim) if isinstance(dim, (list, tuple)) else dim, "keepdim": keepdim}

    return adapt


def _norm(x, ord=2, dim=None, keepdim=False, *, dtype=None):
    if dtype not in (None, x.dtype):
        raise Unmapped("norm has no `dtype`")
    if isinstance(dim, (list, tuple)):
        dim = tuple(dim) or None
    return "norm", {"input": x, "p": float(ord), "axis": dim, "keepdim": keepdim}


def _with_axis(op, default=None):
    def adapt(x, dim=default, *args, **kwargs):
        if isinstance(dim, tuple) and not dim:
            raise Unmapped("no axes")
        return op, {"input": x, "axis": dim}

    return adapt


def _softmax(op):
    def adapt(x, dim=None, dtype=None, **kwargs):
        if dtype is not None:
            raise Unmapped(f"{op} has no `dtype`")
        return op, {"input": x, "axis": dim}

    return adapt


def _layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    if np.prod(normalized_shape) == 1:
        raise Unmapped("the gradient over one element is 0, of which PyTorch computes the rounding")
    arguments = {"input": x, "weight": weight, "bias": bias, "eps": eps}
    return "layer_norm", arguments | {"normalized_shape": tuple(normalized_shape)}


def _rms_norm(x, normalized_shape, weight=None, eps=None):
    return "rms_norm", {"input": x, "weight": weight, "normalized_shape": tuple(normalized_shape), "eps": eps}


def _group_norm(x, num_groups, weight=None, bias=None, eps=1e-5):
    return "group_norm", {"input": x, "weight": weight, "bias": bias, "num_groups": num_groups, "eps": eps}


def _batch_norm(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if running_mean is None or running_var is None or training:
        raise Unmapped("batch_norm of batches gives the new statistics, too")
    return "batch_norm", {
        "input": x,
        "weight": weight,
        "bias": bias,
        "running_mean": running_mean,
        "running_var": running_var,
        "training": False,
        "eps": eps,
    }


def _instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None, *rest, eps=1e-5, **kwargs):
    if running_mean is not None or running_var is not None or rest or not kwargs.get("use_input_stats", True):
        raise Unmapped("instance_norm has no running statistics")
    return "instance_norm", {"input": x, "weight": weight, "bias": bias, "eps": eps}


def _normalize(x, p=2.0, dim=1, eps=1e-12, out=None):
    if p != 2:
        raise Unmapped("normalize has no `p`")
    return "normalize", {"input": x, "axis": dim, "eps": eps}


def _embedding(weight, indices, padding_idx=None, max_norm=None, **kwargs):
    if max_norm is not None or kwargs.get("scale_grad_by_freq") or kwargs.get("sparse"):
        raise Unmapped("embedding has no `max_norm`, `scale_grad_by_freq` and `sparse`")
    return "embedding", {"indices": indices, "weight": weight, "padding_idx": padding_idx}


def _arange(start, end=None, step=1, **kwargs):
    if set(kwargs) - {"dtype"}:
        raise Unmapped("arange has no device and no layout")
    dtype = str(kwargs["dtype"]).removeprefix("torch.") if "dtype" in kwargs else None
    return "arange", {"start": start, "stop": end, "step": step, "dtype": dtype}


def _solve(left, right, **kwargs):
    if 1 < right.ndim == left.ndim - 1:
        raise Unmapped("several systems have matrices on the right")
    if not kwargs.get("left", True):
        raise Unmapped("solve has no `left`")
    return "solve", {"left": left, "right": right}


def _solve_triangular(matrix, right, *, upper, left=True, unitriangular=False):
    if not left:
        raise Unmapped("solve_triangular has no `left`")
    return "solve_triangular", {"left": matrix, "right": right, "upper": upper, "unit_diagonal": unitriangular}


def _getitem(x, key):
    items = key if isinstance(key, tuple) else (key,)
    tensors, kinds = [], []
    for item in items:
        if isinstance(item, list):
            item = torch.tensor(item)
        if isinstance(item, torch.Tensor):
            if item.dtype == torch.bool:
                raise Unmapped("the shape of what a mask takes depends on it")
            tensors.append(item)
            kinds.append("tensor")
        else:
            kinds.append(item)
    return "getitem", {"input": x, "key": tuple(kinds), "indices": tensors}


def _sorted(use, actual, expected):
    """Positions of equal elements are in any order: compare what lies there."""
    x = use.args[0].detach()
    if x.dtype == torch.bfloat16:
        return actual, expected
    axis = use.op_args[1] if use.op == "argsort" else use.op_args[2]
    x = x.numpy()
    if x.ndim == 0:
        return actual[:1], expected[:1]
    at = 0 if use.op == "argsort" else 1
    pair = [np.take_along_axis(x, positions[at], axis).astype(use.dtype) for positions in (actual, expected)]
    return ([pair[0]], [pair[1]]) if use.op == "argsort" else (actual[:1], expected[:1])


def _with_signs(axes):
    """Vectors that are unique but for their signs: each gets the one that makes its largest element positive.

    `axes` gives for each output the axis along which the elements of a vector lie; None for what has no signs.
    """

    def positive(x, axis):
        if axis is None or x.size == 0:
            return x
        places = np.abs(x.astype(np.float64)).argmax(axis, keepdims=True)
        sign = np.where(np.take_along_axis(x, places, axis) < 0, -1, 1)
        return (x * sign).astype(x.dtype)

    def adapt(use, actual, expected):
        if use.op == "svd":
            # Vectors beyond the singular values are any basis of the rest.
            n = expected[1].shape[-1]
            actual, expected = ([x[0][..., :n], x[1], x[2][..., :n, :]] for x in (actual, expected))
        return tuple([positive(x, axis) for x, axis in zip(xs, axes, strict=False)] for xs in (actual, expected))

    return adapt


def _with_positive_diagonal(use, actual, expected):
    """Factors of a QR decomposition are unique but for the signs of the diagonal."""

    def positive(x):
        if len(x) == 1:
            return [np.abs(x[0])]
        q, r = x
        diagonal = np.diagonal(r, axis1=-2, axis2=-1)
        sign = np.ones(r.shape[:-1], r.dtype)
        sign[..., : diagonal.shape[-1]] = np.where(diagonal < 0, -1, 1)
        n = min(q.shape[-1], r.shape[-2])
        return [(q[..., :n] * sign[..., None, :n]).astype(q.dtype), (r * sign[..., None]).astype(r.dtype)]

    return positive(actual), positive(expected)


#: Results that are compared in another way: the actual ones and the expected ones.
CHECKED = {
    "argsort": _sorted,
    "topk": _sorted,
    "svd": _with_signs((-2, None, -1)),
    "eigh": _with_signs((None, -2)),
    "qr": _with_positive_diagonal,
}

#: Entries whose arguments differ from ours: a function of theirs that gives op and arguments, or the op alone.
ADAPTED = {
    "nn.functional.pad": _pad,
    "split": _split,
    "split_with_sizes": _split,
    "var": _variance("var"),
    "std": _variance("std"),
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "sum": _reduction("sum"),
    "mean": _reduction("mean"),
    "prod": _reduction("prod"),
    "all": _reduction("all"),
    "any": _reduction("any"),
    "count_nonzero": _reduction("count_nonzero"),
    "logsumexp": _reduction("logsumexp"),
    "linalg.vector_norm": _norm,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "nn.functional.layer_norm": _layer_norm,
    "nn.functional.rms_norm": _rms_norm,
    "nn.functional.group_norm": _group_norm,
    "nn.functional.batch_norm": _batch_norm,
    "nn.functional.instance_norm": _instance_norm,
    "nn.functional.normalize": _normalize,
    "nn.functional.embedding": _embedding,
    "__getitem__": _getitem,
    "max.binary": "maximum",
    "min.binary": "minimum",
    "eq": "equal",
    "div.no_rounding_mode": "divide",
    "mv": "matmul",
    "t": lambda x: ("transpose", {"input": x}),
    "transpose": lambda x, a, b: ("swapaxes", {"input": x, "axis1": a, "axis2": b}),
    "repeat": lambda x, *reps: ("tile", {"input": x, "reps": tuple(reps[0]) if len(reps) == 1 else reps}),
    "expand": lambda x, *shape: ("broadcast_to", {"input": x, "shape": tuple(shape[0])}),
    "permute": lambda x, axes: ("transpose", {"input": x, "axes": tuple(axes)}),
    "view": lambda x, *shape: ("reshape", {"input": x, "shape": tuple(shape[0])}),
    "cat": lambda xs, dim=0: ("concat", {"inputs": list(xs), "axis": dim}),
    "stack": lambda xs, dim=0: ("stack", {"inputs": list(xs), "axis": dim}),
    "index_select": lambda x, dim, index: ("take", {"input": x, "indices": index, "axis": dim}),
    "gather": lambda x, dim, index: ("take_along_axis", {"input": x, "indices": index, "axis": dim}),
    "take": lambda x, index: ("take", {"input": x, "indices": index, "axis": None}),
    "take_along_dim": lambda x, index, dim=None: (
        "take_along_axis",
        {"input": x if dim is not None else x.reshape(-1), "indices": index, "axis": 0 if dim is None else dim},
    ),
    "einsum": lambda operands, equation: ("einsum", {"equation": equation, "operands": list(operands)}),
    "flip": lambda x, dims: ("flip", {"input": x, "axis": tuple(dims)}),
    "fft.fft": lambda x, n=None, dim=-1, norm=None: _transform("fft", x, n, dim, norm),
    "fft.ifft": lambda x, n=None, dim=-1, norm=None: _transform("ifft", x, n, dim, norm),
    "fft.rfft": lambda x, n=None, dim=-1, norm=None: _transform("rfft", x, n, dim, norm),
    "where": lambda x, condition, other: ("where", {"condition": condition, "input": x, "other": other}),
    "arange": _arange,
    "linalg.solve": _solve,
    "linalg.solve_triangular": _solve_triangular,
    "linalg.cross": lambda x, y, dim=-1: ("cross", {"left": x, "right": y, "axis": dim}),
}


def _transform(op, x, n, dim, norm):
    if n not in (None, x.shape[dim]) or not x.is_floating_point():
        raise Unmapped(f"{op} has no `n`")
    return op, {"real" if op != "rfft" else "input": x, "axis": dim, "norm": norm or "backward"}


_RANDOM = "random numbers are those of Mithril's own generator"
_OTHER = "an op of another meaning has this name"
_MASKED = "Mithril's op has no mask"

#: Entries that are not compared although a row has their name, with the reason.
OTHERWISE = {
    **dict.fromkeys(("normal", "uniform", "bernoulli", "randint", "nn.functional.dropout"), _RANDOM),
    **dict.fromkeys(("equal", "select", "unfold", "nn.functional.unfold", "resize_", "norm", "linalg.norm"), _OTHER),
    "svd": "PyTorch's gives V where ours gives its transpose, as linalg.svd, which is compared",
    **dict.fromkeys(("triangular_solve",), "PyTorch's gives two tensors and is deprecated"),
    **dict.fromkeys(
        [
            *("masked.sum", "masked.prod", "masked.cumsum", "masked.cumprod", "masked.amax", "masked.amin"),
            *("masked.argmax", "masked.argmin", "masked.mean", "masked.norm", "masked.var", "masked.std"),
            *("masked.softmax", "masked.log_softmax", "masked.normalize", "masked.logsumexp"),
        ],
        _MASKED,
    ),
    **dict.fromkeys(("conj", "view_as_real", "view_as_complex", "polar", "angle"), "complex numbers are pairs here"),
    **dict.fromkeys(("median", "nanmedian"), "of two in the middle ours is the mean, PyTorch's the lower one"),
    **dict.fromkeys(("masked.median", "masked.logaddexp"), _MASKED),
    **dict.fromkeys(("index_put", "meshgrid.variadic_tensors"), "keys and lists of tensors are not put to ports yet"),
    **dict.fromkeys(("meshgrid.list_of_tensors", "histogram", "unique"), "arguments are not put to ports yet"),
    "linalg.polar": _OTHER,
    "sparse.mm.reduce": "Mithril has no sparse tensors",
    "nn.functional.silu.complex": "Mithril has no complex dtype",
    "bmm.triton_optimized": "a kernel of CUDA",
    "div.trunc_rounding": "divide has no rounding mode",
    "div.floor_rounding": "divide has no rounding mode",
    "round.decimals_0": "round has no decimals",
    "round.decimals_3": "round has no decimals",
    "round.decimals_neg_3": "round has no decimals",
    "softmax.with_dtype": "softmax has no dtype",
    "log_softmax.with_dtype": "log_softmax has no dtype",
    "nn.functional.interpolate.area": "interpolate has no such mode: adaptive_avg_pool2d is the same",
    "fft.irfft": "PyTorch's takes complex numbers",
    "linspace.tensor_overload": "the number of elements would depend on tensors",
}

#: What Mithril refuses although PyTorch takes it: entries, texts of the message, and why.
REFUSED = {
    ("*", "does not exist in 0 dimensions"): "a tensor without axes has no axis 0 and no axis -1",
    ("nn.functional.*", r"of (\w+_pool|conv|batch_norm|instance_norm)\w* has \d dimensions"): "the batch is an axis",
    ("nn.functional.pad.*", "cannot be padded by"): "modes other than constant cut nothing off",
    ("gather", "of take_along_axis"): "indices have the sizes of the input, but along the axis",
    ("take_along_dim", "of take_along_axis"): "indices have the sizes of the input, but along the axis",
    ("scatter_add", "of scatter_add"): "indices and source have the sizes of the input, but along the axis",
    ("masked_scatter", "`mask` of masked_scatter has shape"): "the result has the shape of the input",
    ("nn.functional.linear", r"`weight` of linear has shape|linear does not accept"): "weights are matrices",
    ("cat", "axis 1 does not exist in 1 dimensions"): "a tensor without elements has as many axes as the others",
    ("nn.functional.grid_sample", '"bicubic"'): "bicubic sampling is defined for images",
    ("repeat_interleave", "`repeats` of repeat|needs a value when compiling"): "each element is repeated equally often",
    ("linalg.*", r"`[ar]tol` of \w+ is computed by the model"): "tolerances are known when compiling",
    ("bincount", "`length` of bincount is missing"): "the number of results does not depend on data",
    ("squeeze*", "the size of a squeezed axis and 1"): "an axis of another size is not squeezed",
}

_INTEGERS = "int64 int32 int16 int8 uint8"

#: Uses that are not as in PyTorch, because that is meant or known: entry, dtypes, backends, extremal values alone.
DIFFERENT = {
    ("gradient:cholesky_inverse", "*", "*", False): "PyTorch gives the triangle that is not read a gradient, too",
    ("gradient:linalg.svd", "*", "*", False): "the sign of singular vectors is free, and with it that of gradients",
    ("gradient:linalg.qr", "*", "*", False): "the signs of the factors are free, and with them that of gradients",
    ("gradient:linalg.eigh", "*", "*", False): "the sign of eigenvectors is free, and with it that of gradients",
    **dict.fromkeys(
        ((entry, "bool", "*", False) for entry in ("add", "mul", "outer", "kron", "prod", "sign")),
        "arithmetic on truth values counts in int64",
    ),
    ("addcmul", _INTEGERS, "*", False): "the factor is a float",
    ("nn.functional.hardtanh", _INTEGERS, "*", False): "bounds that are not integers make floats",
    ("sign", "*", "*", True): "the sign of NaN is NaN, in PyTorch 0",
    ("nn.functional.conv*", _INTEGERS, "*", False): "convolutions of integers give floats",
    ("nn.functional.avg_pool*", _INTEGERS, "*", False): "means of integers are floats",
    ("nn.functional.interpolate*", _INTEGERS, "*", False): "what lies between integers is a float",
    ("einsum", _INTEGERS, "*", False): "PyTorch sums axes of one operand in int64, products in the dtype",
}
