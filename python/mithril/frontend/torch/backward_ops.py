"""Ops of gradients that PyTorch leaves whole, in ops that have a conversion: for traces below autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["decompositions"]


def decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return what each of the ops computes, by overload: PyTorch's own decompositions where it has some."""
    from torch._decomp import decomposition_table, get_decompositions

    aten = torch.ops.aten
    known = [getattr(aten, name) for name in _DECOMPOSED if hasattr(aten, name)]
    table: dict[Any, Callable[..., Any]] = get_decompositions(known)
    table |= {op: rule for op, rule in decomposition_table.items() if "_backward" in str(op)}
    rules = _Rules(torch)
    own: dict[str, Callable[..., Any]] = {
        "convolution_backward": rules.convolution,
        "select_backward": rules.select,
        "slice_backward": rules.slice,
        "_cdist_backward": rules.distances,
        "_prelu_kernel": rules.prelu,
        "native_dropout": rules.dropout,
        "_linalg_check_errors": lambda info, name, *, is_matrix: None,
        **{f"max_pool{n}d_with_indices_backward": rules.max_pool for n in (2, 3)},
        **{f"avg_pool{n}d_backward": rules.avg_pool for n in (2, 3)},
        **{f"adaptive_max_pool{n}d_backward": functools.partial(rules.adaptive_max_pool, n) for n in (2, 3)},
        **{f"_adaptive_avg_pool{n}d_backward": functools.partial(rules.adaptive_avg_pool, n) for n in (2, 3)},
        **{f"replication_pad{n}d_backward": rules.replication_pad for n in (1, 2, 3)},
    }
    return table | {getattr(aten, name).default: rule for name, rule in own.items() if hasattr(aten, name)}


#: Ops that compute beside their results what their gradients read.
_DECOMPOSED = (
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"),
    *("_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_fused_rms_norm"),
)


class _Rules:
    """Gradients, written with differentiable functions of PyTorch, so that they have gradients too."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch

    def convolution(
        self,
        grad: Any,
        x: Any,
        weight: Any,
        bias_sizes: Any,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
        mask: Sequence[bool],
    ) -> tuple[Any, Any, Any]:
        rank = x.dim() - 2
        stride, padding, dilation = ([*v] * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation))
        convolution = self.torch.ops.aten.convolution.default
        of_x = of_weight = of_bias = None
        if mask[0] and transposed:
            of_x = convolution(grad, weight, None, stride, padding, dilation, False, [0] * rank, groups)
        elif mask[0]:
            # What the last windows leave over.
            rest = [
                x.shape[i + 2]
                - ((grad.shape[i + 2] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (weight.shape[i + 2] - 1) + 1)
                for i in range(rank)
            ]
            of_x = convolution(grad, weight, None, stride, padding, dilation, True, rest, groups)
        if mask[1]:
            images, filters = (grad, x) if transposed else (x, grad)
            of_weight = self._of_weight(images, filters, weight, stride, padding, dilation, groups)
        if mask[2]:
            of_bias = grad.sum([0, *range(2, rank + 2)])
        return of_x, of_weight, of_bias

    def _of_weight(
        self, images: Any, filters: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Any:
        """Convolve images with gradients: the batch is what is summed over, stride and dilation change places."""
        rank, batch = images.dim() - 2, images.shape[0]
        images = images.reshape(batch, groups, -1, *images.shape[2:])
        images = images.permute(2, 1, 0, *range(3, rank + 3)).reshape(-1, groups * batch, *images.shape[3:])
        convolution = self.torch.ops.aten.convolution.default
        rest = (None, dilation, padding, stride, False, [0] * rank, groups)
        result = convolution(images, filters.transpose(0, 1), *rest)
        for axis in range(2, rank + 2):
            result = result.narrow(axis, 0, weight.shape[axis])
        return result.transpose(0, 1)

    def _at_places(self, grad: Any, x: Any, places: Any, rank: int) -> Any:
        """Add gradients up at the places, in flat images, that they are of."""
        flat = self.torch.zeros_like(x).flatten(-rank)
        return flat.scatter_add(-1, places.flatten(-rank), grad.flatten(-rank)).reshape(x.shape)

    def max_pool(
        self, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, places: Any
    ) -> Any:
        return self._at_places(grad, x, places, len(kernel))

    def adaptive_max_pool(self, rank: int, grad: Any, x: Any, places: Any) -> Any:
        return self._at_places(grad, x, places, rank)

    def avg_pool(
        self,
        grad: Any,
        x: Any,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: Any,
    ) -> Any:
        torch, rank = self.torch, len(kernel)
        stride = stride or kernel
        for i in range(rank):
            axis = i - rank
            size, pad = x.shape[axis], padding[i]
            start = torch.arange(grad.shape[axis], device=x.device) * stride[i] - pad
            end = (start + kernel[i]).clamp(max=size + pad)
            low, high = start.clamp(min=0), end.clamp(max=size)
            count = end - start if count_include_pad else high - low
            place = torch.arange(size, device=x.device)
            reads = ((place >= low[:, None]) & (place < high[:, None])).to(x.dtype)
            weights = reads if divisor else reads / count[:, None]
            grad = self._along(grad, weights, axis)
        return grad / divisor if divisor else grad

    def adaptive_avg_pool(self, rank: int, grad: Any, x: Any) -> Any:
        torch = self.torch
        for axis in range(-rank, 0):
            size, count = x.shape[axis], grad.shape[axis]
            i = torch.arange(count, device=x.device)
            start, end = i * size // count, ((i + 1) * size + count - 1) // count
            place = torch.arange(size, device=x.device)
            reads = ((place >= start[:, None]) & (place < end[:, None])).to(x.dtype)
            grad = self._along(grad, reads / (end - start)[:, None], axis)
        return grad

    def _along(self, grad: Any, weights: Any, axis: int) -> Any:
        """Multiply an axis of gradients by a matrix of ``[results, elements]``."""
        return (grad.transpose(axis, -1) @ weights).transpose(axis, -1)

    def replication_pad(self, grad: Any, x: Any, padding: Sequence[int]) -> Any:
        torch = self.torch
        for i in range(len(padding) // 2):
            axis = x.dim() - 1 - i
            size = x.shape[axis]
            places = (torch.arange(grad.shape[axis], device=x.device) - padding[2 * i]).clamp(0, size - 1)
            shape = [*grad.shape[:axis], size, *grad.shape[axis + 1 :]]
            grad = grad.new_zeros(shape).index_add(axis, places, grad)
        return grad

    def select(self, grad: Any, sizes: Sequence[Any], axis: int, index: Any) -> Any:
        axis = axis % len(sizes)
        index = index + sizes[axis] if index < 0 else index
        return self._padded(grad.unsqueeze(axis), axis, index, sizes[axis] - index - 1)

    def slice(self, grad: Any, sizes: Sequence[Any], axis: int, start: Any, end: Any, step: Any) -> Any:
        axis = axis % len(sizes)
        if step != 1:
            return NotImplemented
        start = max(start + sizes[axis], 0) if start < 0 else start
        return self._padded(grad, axis, start, sizes[axis] - start - grad.shape[axis])

    def _padded(self, grad: Any, axis: int, before: Any, after: Any) -> Any:
        """Put zeros around an axis."""
        padding = [0, 0] * (grad.dim() - 1 - axis) + [before, after]
        return self.torch.ops.aten.constant_pad_nd.default(grad, padding)

    def distances(self, grad: Any, x: Any, y: Any, p: float, distances: Any) -> Any:
        torch = self.torch
        difference = x[..., :, None, :] - y[..., None, :, :]
        grad, distances = grad[..., None], distances[..., None]
        if p == 0:
            return torch.zeros_like(x)
        if p == float("inf"):
            part = difference.sign() * (difference.abs() == distances)
        else:
            is_zero = distances == 0
            scaled = difference.abs() / torch.where(is_zero, 1, distances)
            part = torch.where(is_zero, 0, difference.sign() * scaled ** (p - 1))
        return (grad * part).sum(-2)

    def prelu(self, x: Any, weight: Any) -> Any:
        return self.torch.where(x > 0, x, weight * x)

    def dropout(self, x: Any, p: float, train: Any) -> tuple[Any, Any]:
        if train is False:
            return x.clone(), self.torch.ones_like(x, dtype=self.torch.bool)
        # Drawn as its kernel draws it, so that the same generator gives the same elements.
        kept = self.torch.ops.aten.bernoulli.p(x, 1 - p).bool()
        return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept
