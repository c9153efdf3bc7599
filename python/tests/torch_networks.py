"""Convolution, pooling, normalization, attention and losses from torch; see torch_ops."""

import math

import torch
import torch.nn.functional as F
from torch_common import DTYPES, as_tuple, pad_pairs

# --- convolution and pooling --------------------------------------------------------------------------------

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
CONV_TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
MAX_POOL = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG_POOL = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def spatial_pad(x, pairs, value=0.0):
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)


def spatial_pairs(padding, sizes, kernel, stride, dilation):
    n = len(sizes)
    if padding == "valid":
        return ((0, 0),) * n
    if padding == "same":
        totals = [
            max((-(-size // s) - 1) * s + d * (k - 1) + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
        ]
        return tuple((t // 2, t - t // 2) for t in totals)
    return tuple(p if isinstance(p, tuple) else (p, p) for p in as_tuple(padding, n))


def conv_general(x, weight, stride, pads, dilation, input_dilation, groups):
    n = x.ndim - 2
    apart = as_tuple(input_dilation, n)
    sizes = [(s - 1) * d + 1 for s, d in zip(x.shape[2:], apart, strict=True)]
    spread = x.new_zeros(*x.shape[:2], *sizes)
    spread[(..., *(slice(None, None, d) for d in apart))] = x
    pairs = ((0, 0),) * n if pads == 0 else pad_pairs(pads, n)
    return CONV[n](spatial_pad(spread, pairs), weight, None, stride, 0, dilation, groups)


def conv(x, weight, bias, stride, padding, dilation, groups):
    n = x.ndim - 2
    stride, dilation = as_tuple(stride, n), as_tuple(dilation, n)
    pairs = spatial_pairs(padding, x.shape[2:], weight.shape[2:], stride, dilation)
    return CONV[n](spatial_pad(x, pairs), weight, bias, stride, 0, dilation, groups)


def conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation):
    n = x.ndim - 2
    stride, dilation, more = as_tuple(stride, n), as_tuple(dilation, n), as_tuple(output_padding, n)
    if padding == "same":
        totals = [d * (k - 1) + 1 + o - s for k, s, d, o in zip(weight.shape[2:], stride, dilation, more, strict=True)]
        pairs = tuple((max(t, 0) // 2, t - max(t, 0) // 2) for t in totals)
    else:
        pairs = spatial_pairs(padding, x.shape[2:], weight.shape[2:], stride, dilation)
    whole = CONV_TRANSPOSE[n](x, weight, None, stride, 0, 0, groups, dilation)
    result = spatial_pad(whole, [(-a, o - b) for (a, b), o in zip(pairs, more, strict=True)])
    return result if bias is None else result + bias.reshape(-1, *(1,) * n)


def window_positions(sizes, window, stride, dilation):
    """One array of positions per axis, which broadcast to all positions, then all places in the window."""
    n = len(sizes)
    results = []
    for axis, (size, k, s, d) in enumerate(zip(sizes, window, stride, dilation, strict=True)):
        many = (size - d * (k - 1) - 1) // s + 1
        shape = [1] * (2 * n)
        shape[axis], shape[n + axis] = many, k
        results.append((torch.arange(many)[:, None] * s + torch.arange(k) * d).reshape(shape))
    return tuple(results)


def windows(x, window, stride, pads, dilation, value):
    n = x.ndim - 2
    padded = spatial_pad(x, ((0, 0),) * n if pads == 0 else pad_pairs(pads, n), value)
    window, stride, dilation = as_tuple(window, n), as_tuple(stride, n), as_tuple(dilation, n)
    return padded[(slice(None), slice(None), *window_positions(padded.shape[2:], window, stride, dilation))]


def fold_windows(x, sizes, stride, pads, dilation):
    n = (x.ndim - 2) // 2
    sizes, stride, dilation = as_tuple(sizes, n), as_tuple(stride, n), as_tuple(dilation, n)
    pairs = ((0, 0),) * n if pads == 0 else pad_pairs(pads, n)
    padded = [size + sum(pair) for size, pair in zip(sizes, pairs, strict=True)]
    positions = window_positions(padded, x.shape[2 + n :], stride, dilation)
    target = x.new_zeros(*padded, *x.shape[:2])
    target = target.index_put(positions, x.permute(*range(2, x.ndim), 0, 1), accumulate=True)
    return spatial_pad(target.permute(n, n + 1, *range(n)), [(-a, -b) for a, b in pairs])


def max_pool(x, kernel_size, stride, padding, dilation, ceil_mode):
    n = x.ndim - 2
    kernel = as_tuple(kernel_size, n)
    stride = kernel if stride is None else as_tuple(stride, n)
    if isinstance(padding, str):
        x = spatial_pad(x, spatial_pairs(padding, x.shape[2:], kernel, stride, as_tuple(dilation, n)), -math.inf)
        padding = 0
    elif is_wide(padding, [(k - 1) * d + 1 for k, d in zip(kernel, as_tuple(dilation, n), strict=True)]):
        x, padding = spatial_pad(x, [(p, p) for p in as_tuple(padding, n)], -math.inf), 0
    return MAX_POOL[n](x, kernel, stride, padding, dilation, ceil_mode)


def is_wide(padding, extents):
    """Whether torch takes no such padding: more than half of a window."""
    plain = isinstance(padding, int) or all(isinstance(p, int) for p in padding)
    return plain and any(2 * p > e for p, e in zip(as_tuple(padding, len(extents)), extents, strict=True))


def avg_pool(x, kernel_size, stride, padding, ceil_mode, count_include_pad):
    n = x.ndim - 2
    kernel = as_tuple(kernel_size, n)
    stride = kernel if stride is None else as_tuple(stride, n)
    if isinstance(padding, str) or is_wide(padding, kernel):
        wide = not isinstance(padding, str) and [(p, p) for p in as_tuple(padding, n)]
        pairs = wide or spatial_pairs(padding, x.shape[2:], kernel, stride, (1,) * n)
        mean = AVG_POOL[n](spatial_pad(x, pairs), kernel, stride)
        return mean if count_include_pad else mean / AVG_POOL[n](spatial_pad(torch.ones_like(x), pairs), kernel, stride)
    return AVG_POOL[n](x, kernel, stride, padding, ceil_mode, count_include_pad)


# --- normalization and attention ----------------------------------------------------------------------------


def batch_norm(x, weight, bias, mean, variance, training, momentum, eps, groups=None):
    if training and groups is not None:
        parts = [batch_norm(p, weight, bias, mean, variance, True, momentum, eps) for p in x.chunk(groups)]
        outputs, *moved = zip(*parts, strict=True)
        return (torch.cat(outputs), *(torch.stack(values).mean(0) for values in moved))
    if not training:
        shape = (-1, *(1,) * (x.ndim - 2))  # torch has no gradients of the statistics
        scale = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shift = 0 if bias is None else bias.reshape(shape)
        return (x - mean.reshape(shape)) * scale.reshape(shape) + shift, mean, variance
    axes = (0, *range(2, x.ndim))
    moved = [
        (1 - momentum) * mean + momentum * x.mean(axes),
        (1 - momentum) * variance + momentum * x.var(axes),
    ]
    return (F.batch_norm(x, None, None, weight, bias, True, momentum, eps), *moved)


def normalized(shape, x, *affine):
    if shape is not None:
        return as_tuple(shape, 1)
    return next((tuple(a.shape) for a in affine if a is not None), tuple(x.shape[-1:]))


def layer_norm(x, weight, bias, shape, eps):
    return F.layer_norm(x, normalized(shape, x, weight, bias), weight, bias, eps)


def rms_norm(x, weight, shape, eps, *, default):
    eps = float(torch.finfo(DTYPES[default]).eps) if eps is None else eps
    return F.rms_norm(x, normalized(shape, x, weight), weight, eps)


def group_norm(x, weight, bias, num_groups, eps):
    return F.group_norm(x, num_groups, weight, bias, eps)


def normalize(x, axis, eps):
    return x / torch.linalg.vector_norm(x, dim=axis, keepdim=True).clamp_min(eps)


def attention(query, key, value, mask, is_causal, scale, enable_gqa):
    if is_causal and mask is not None:
        earlier = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
        mask = mask & earlier if mask.dtype == torch.bool else mask.masked_fill(~earlier, -math.inf)
        is_causal = False
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def rotate_pairs(x, cos, sin, interleaved):
    half = x.shape[-1] // 2
    if cos.shape[-1] == x.shape[-1]:
        part = slice(None, None, 2) if interleaved else slice(None, half)
        cos, sin = cos[..., part], sin[..., part]
    pairs = x.unflatten(-1, (half, 2)) if interleaved else x.unflatten(-1, (2, half)).mT
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * torch.complex(cos, sin))
    return (turned if interleaved else turned.mT).flatten(-2)


def rope(x, positions, base, interleaved):
    positions = torch.arange(x.shape[-2]) if positions is None else positions
    while 1 < positions.ndim < x.ndim - 1:
        positions = positions.unsqueeze(-2)
    angles = positions[..., None] * base ** (-torch.arange(0, x.shape[-1], 2, dtype=torch.float64) / x.shape[-1])
    return rotate_pairs(x, angles.cos(), angles.sin(), interleaved)


def interpolate(x, size, scale_factor, mode, align_corners):
    if mode.endswith("linear"):
        mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[x.ndim - 2]
    corners = None if mode.startswith("nearest") else align_corners
    return F.interpolate(x, size, scale_factor, mode, corners)


# --- losses -------------------------------------------------------------------------------------------------


def reduced(loss, reduction):
    return {"mean": torch.mean, "sum": torch.sum, "none": lambda x: x}[reduction](loss)


def hinge_loss(x, target, reduction):
    return reduced(F.relu(1 - target * x), reduction)


def quad_hinge_loss(x, target, reduction):
    return reduced(F.relu(1 - target * x) ** 2, reduction)


def binary_cross_entropy(x, target, weight, reduction):
    loss = F.binary_cross_entropy(x, target, reduction="none")
    return reduced(loss if weight is None else loss * weight, reduction)


def binary_cross_entropy_with_logits(x, target, weight, pos_weight, reduction):
    positive = 1 if pos_weight is None else pos_weight
    loss = -(positive * target * F.logsigmoid(x) + (1 - target) * F.logsigmoid(-x))
    return reduced(loss if weight is None else loss * weight, reduction)


def nll_loss(x, target, weight, reduction, ignore_index):
    if weight is None or not weight.requires_grad:
        return F.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=reduction)
    # torch has no gradient of the weights.
    each = torch.where(target == ignore_index, 0.0, weight[target.clamp_min(0)])
    loss = F.nll_loss(x, target, ignore_index=ignore_index, reduction="none") * each
    return loss.sum() / each.sum() if reduction == "mean" else reduced(loss, reduction)


def cross_entropy(x, target, weight, reduction, ignore_index, label_smoothing):
    if weight is None or not weight.requires_grad:
        return F.cross_entropy(
            x, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
        )
    axis = min(x.ndim - 1, 1)
    classes = x.shape[axis]
    shape = [classes if a == axis else 1 for a in range(x.ndim)]
    logs = torch.log_softmax(x, axis) * weight.reshape(shape)
    if target.is_floating_point():
        smooth = target * (1 - label_smoothing) + label_smoothing / classes
        loss = -(smooth * logs).sum(axis)
        return loss.sum() / loss.numel() if reduction == "mean" else reduced(loss, reduction)
    counts = target != ignore_index
    place = target.clamp_min(0)
    picked = -logs.gather(axis, place.unsqueeze(axis)).squeeze(axis)
    loss = ((1 - label_smoothing) * picked - label_smoothing / classes * logs.sum(axis)) * counts
    return loss.sum() / (weight[place] * counts).sum() if reduction == "mean" else reduced(loss, reduction)
