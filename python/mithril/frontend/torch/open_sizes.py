"""Functions that would fix sizes which stay open, and what stands for them while a module is exported.

Each computes what PyTorch's function does; where all sizes are numbers, that one is called.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

__all__ = ["functions_of_open_sizes"]


def functions_of_open_sizes(torch: Any) -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """List functions: the module, the name, and what makes the one that stands for it."""
    symbols = (torch.SymInt, torch.SymFloat)

    def where(is_open: Callable[..., bool], function: Callable[..., Any]) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            @functools.wraps(original)
            def call(*args: Any, **kwargs: Any) -> Any:
                return (function if is_open(*args, **kwargs) else original)(*args, **kwargs)

            return call

        return make

    def is_number(x: Any = None, *args: Any, **kwargs: Any) -> bool:
        return isinstance(x, symbols) and not args

    def has_open_axes(x: Any, *args: Any, **kwargs: Any) -> bool:
        return isinstance(x, torch.Tensor) and has_symbols(*x.shape)

    def has_open_length(x: Any, *args: Any, **kwargs: Any) -> bool:
        return isinstance(x, torch.Tensor) and has_symbols(*x.shape[-1:])

    def has_symbols(*args: Any, **kwargs: Any) -> bool:
        return any(isinstance(value, symbols) for value in (*args, *kwargs.values()))

    from torch import _VF

    functional = torch.nn.functional
    recurrent = [
        (_VF, kind, where(has_open_axes, functools.partial(_recurrent, torch, kind)))
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    ]
    return [
        *recurrent,
        (math, "sqrt", where(is_number, lambda x: torch.sym_float(x) ** 0.5)),
        (torch, "linspace", where(has_symbols, functools.partial(_linspace, torch))),
        (torch, "cdist", where(has_open_axes, functools.partial(_distances, torch.cdist))),
        (functional, "one_hot", where(has_symbols, functools.partial(_one_hot, torch))),
        (functional, "max_pool1d", where(has_open_length, functools.partial(_max_pool, functional))),
    ]


def _linspace(torch: Any, start: Any, end: Any, steps: Any, **options: Any) -> Any:
    options = {key: value for key, value in options.items() if key != "out"}
    place = torch.arange(steps, **{**options, "dtype": options.get("dtype") or torch.get_default_dtype()})
    step = (end - start) / (steps - 1)
    # From both ends, as PyTorch does it.
    return torch.where(place < steps / 2, start + step * place, end - step * (steps - 1 - place))


def _distances(cdist: Any, x: Any, y: Any, p: float = 2.0, compute_mode: Any = None) -> Any:
    # Which way is faster depends on the sizes.
    return cdist(x, y, p, compute_mode="donot_use_mm_for_euclid_dist")


def _one_hot(torch: Any, tensor: Any, num_classes: Any = -1) -> Any:
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).to(torch.int64)


def _max_pool(
    functional: Any,
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    def pair(value: Any, other: int) -> tuple[int, int]:
        return other, value[0] if isinstance(value, (list, tuple)) else value

    results = functional.max_pool2d(
        input.unsqueeze(-2),
        pair(kernel_size, 1),
        None if stride is None else pair(stride, 1),
        pair(padding, 0),
        pair(dilation, 1),
        ceil_mode,
        return_indices,
    )
    return tuple(part.squeeze(-2) for part in results) if return_indices else results.squeeze(-2)


def _recurrent(torch: Any, kind: str, x: Any, states: Any, params: Any, *options: Any) -> Any:
    if not isinstance(params, (list, tuple)):
        raise NotImplementedError("packed sequences cannot be exported: pass padded ones")
    states = list(states) if kind == "lstm" else [states]
    return tuple(_as_a_whole(torch)(kind, x, states, list(params), *options))


@functools.cache
def _as_a_whole(torch: Any) -> Any:
    """Define an op for recurrent networks, since PyTorch's own are traced step by step, for one length."""

    def compute(kind: str, input: Any, states: Any, params: Any, *options: Any) -> Any:
        from torch import _VF

        return list(getattr(_VF, kind)(input, tuple(states) if kind == "lstm" else states[0], params, *options))

    def shapes(kind: str, input: Any, states: Any, params: Any, *options: Any) -> Any:
        *_, bidirectional, _ = options
        features = states[0].shape[-1] * (2 if bidirectional else 1)
        return [input.new_empty((*input.shape[:2], features)), *(state.new_empty(state.shape) for state in states)]

    op = torch.library.custom_op(
        "mithril::recurrent",
        compute,
        mutates_args=(),
        schema="(str kind, Tensor input, Tensor[] states, Tensor[] params, bool has_biases, int num_layers, "
        "float dropout, bool train, bool bidirectional, bool batch_first) -> Tensor[]",
    )
    op.register_fake(shapes)
    return torch.ops.mithril.recurrent
