"""Modules that take gradients in ``forward``, which ``torch.export`` does not trace: they are traced below autograd."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from .backward_ops import decompositions
from .missing import error
from .replaced import replaced_attributes

__all__ = ["traced_below_autograd", "unwatched", "watched_gradients"]


_UNWATCHED: ContextVar[bool] = ContextVar("unwatched", default=False)


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Take gradients that are none of the module's own."""
    token = _UNWATCHED.set(True)
    try:
        yield
    finally:
        _UNWATCHED.reset(token)


@contextlib.contextmanager
def watched_gradients(torch: Any) -> Iterator[list[str]]:
    """Collect the calls of autograd and of ``torch.func`` by which code takes gradients."""
    from torch._functorch import eager_transforms as transforms

    taken: list[str] = []
    places = [
        (torch.autograd, "_engine_run_backward"),
        (transforms, "_grad_increment_nesting"),
        (transforms, "_jvp_increment_nesting"),
    ]

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not _UNWATCHED.get():
                taken.append(name)
            return function(*args, **kwargs)

        return call

    known = [(place, name, watched(name, getattr(place, name))) for place, name in places if hasattr(place, name)]
    with replaced_attributes(*known):
        yield taken


@contextlib.contextmanager
def traced_below_autograd(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_dynamic: bool, torch: Any
) -> Iterator[None]:
    """Give a module the ops that it computes, those of gradients among them, as its ``forward``.

    What is traced is compared with the module on the example inputs: outputs, and gradients, of which a trace below
    autograd would keep nothing of rules of one's own.

    Raises
    ------
    UnsupportedOpError
        If the ops compute other outputs or gradients than the module.
    """
    graph = _trace(module, args, kwargs, is_dynamic, torch)
    _check(module, graph, args, kwargs, torch)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return graph(dict(module.named_parameters()), dict(module.named_buffers()), args, kwargs)

    forward.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
    former = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if former is not None:
            module.forward = former


def _trace(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_dynamic: bool, torch: Any) -> Any:
    import torch.utils._pytree as pytree
    from torch._dispatch.python import enable_python_dispatcher
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.nn.attention import SDPBackend, sdpa_kernel

    stop = _stop_gradient(torch)

    def compute(parameters: Any, buffers: Any, args: Any, kwargs: Any) -> Any:
        with _stops(stop, torch):
            return torch.func.functional_call(module, (parameters, buffers), args, kwargs)

    options: dict[str, Any] = (
        {"record_stack_traces": True} if "record_stack_traces" in inspect.signature(make_fx).parameters else {}
    )
    trace = make_fx(compute, decompositions(torch), "symbolic" if is_dynamic else "fake", **options)
    # Fused kernels of attention and of recurrent layers have gradients of their own, and no decomposition.
    with sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(False), enable_python_dispatcher():
        graph = trace(*_copied(module, args, kwargs, torch))
    # What autograd saves is detached in some releases of PyTorch; only the marks stop gradients.
    aten = torch.ops.aten
    targets = {aten.detach.default: aten.alias.default, stop.default: aten.detach.default}
    for node in graph.graph.nodes:
        node.target = targets.get(node.target, node.target)
    graph.recompile()
    interpreter = torch.fx.Interpreter(graph)

    def run(*inputs: Any) -> Any:
        # Node by node, so that each op keeps the line that it comes from.
        with torch.fx.traceback.preserve_node_meta():
            return interpreter.run(*pytree.tree_leaves(inputs))

    return run


def _copied(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], torch: Any, moved_by: float = 0.0
) -> tuple[Any, ...]:
    """Copy what a call reads, so that nothing of the user's changes; gradients of all inputs can be taken.

    Floats are moved by a part of themselves, for how far results depend on their last digits.
    """
    import torch.utils._pytree as pytree

    def copied(tensor: Any, needs_gradient: bool) -> Any:
        copy = tensor.detach().clone()
        if moved_by and copy.is_floating_point():
            copy = copy * (1 + moved_by * torch.randn_like(copy))
        return copy.requires_grad_(needs_gradient)

    parameters = {name: copied(tensor, tensor.requires_grad) for name, tensor in module.named_parameters()}
    buffers = {name: copied(tensor, False) for name, tensor in module.named_buffers()}
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: copied(tensor, tensor.is_floating_point()), (tuple(args), dict(kwargs))
    )
    return parameters, buffers, args, kwargs


@functools.cache
def _stop_gradient(torch: Any) -> Any:
    """Define an op that marks where gradients end, since a trace below autograd does not show it."""
    op = torch.library.custom_op(
        "mithril::stop_gradient", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(torch.empty_like)
    return torch.ops.mithril.stop_gradient


def _stops(stop: Any, torch: Any) -> Any:
    """Return a mode that marks results without a gradient of what has one: of ``detach``, and under ``no_grad``."""
    import torch.utils._pytree as pytree
    from torch._C._functorch import peek_interpreter_stack
    from torch.overrides import TorchFunctionMode

    replaced = {torch.nn.functional.grid_sample: functools.partial(_grid_sample, torch)}

    class Stops(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = replaced.get(function, function)(*args, **(kwargs or {}))
            # Within torch.func, what has a gradient is seen only by the transformation that takes it.
            if peek_interpreter_stack() is not None:
                return result
            inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if not any(tensor.requires_grad for tensor in inputs):
                return result

            def marked(tensor: Any) -> Any:
                is_new = all(tensor is not other for other in inputs)
                ends = is_new and tensor.is_floating_point() and not tensor.requires_grad
                return stop(tensor) if ends else tensor

            return pytree.tree_map_only(torch.Tensor, marked, result)

    return Stops()


def _grid_sample(
    torch: Any, x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Any = None
) -> Any:
    """Read images at a grid by PyTorch's decomposition, since the op of its gradient has none."""
    from torch._decomp import decomposition_table

    decomposed = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
    if x.dim() != 4:
        return torch.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)
    modes, paddings = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
    return decomposed(x, grid, modes.index(mode), paddings.index(padding_mode), bool(align_corners))


def _check(module: Any, graph: Any, args: Sequence[Any], kwargs: Mapping[str, Any], torch: Any) -> None:
    """Compare the ops of a trace with the module, on the example inputs."""

    def call(parameters: Any, buffers: Any, args: Any, kwargs: Any) -> Any:
        return torch.func.functional_call(module, (parameters, buffers), args, kwargs)

    with torch.random.fork_rng():
        expected, again, moved, computed = (
            _results(function, _copied(module, args, kwargs, torch, moved_by), torch)
            for function, moved_by in ((call, 0.0), (call, 0.0), (call, 1e-6), (graph, 0.0))
        )
    for i, what in enumerate(_REASONS):
        is_fixed = _agree(expected[i], expected[i], again[i], torch)
        if not is_fixed or not _agree(expected[i], moved[i], computed[i], torch):
            raise error(
                f"{type(module).__name__} takes gradients in `forward`, and its ops alone give other {what}",
                [_REASONS[what]],
                "return what is differentiated from the module, and take its gradient outside",
            )


#: Why the ops of a trace may compute something else than the module.
_REASONS = {
    "outputs": "it may draw random numbers outside of PyTorch, or keep values from one call to the next",
    "gradients": "it may have a `torch.autograd.Function`, a hook, or a `detach` within torch.func",
}


def _results(call: Any, copies: tuple[Any, ...], torch: Any) -> tuple[list[Any], list[Any] | None]:
    """Return the outputs of a call, and gradients of their sum with fixed random factors if there are some."""
    import torch.utils._pytree as pytree

    def tensors(tree: Any) -> list[Any]:
        return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    leaves = [tensor for tensor in tensors(copies) if tensor.requires_grad]
    with torch.enable_grad():
        torch.manual_seed(0)
        outputs = tensors(call(*copies))
        torch.manual_seed(0)
        parts = [(y, torch.randn(y.shape).to(y)) for y in outputs if y.requires_grad]
        if not parts or not leaves:
            return outputs, [torch.zeros_like(leaf) for leaf in leaves]
        try:
            gradients = torch.autograd.grad(
                [y for y, _ in parts], leaves, [factor for _, factor in parts], allow_unused=True
            )
        except RuntimeError:
            # Of modules that let go of their graph, by `autograd.grad` without `create_graph=True`, there are none.
            return outputs, None
    zeros = (torch.zeros_like(leaf) if g is None else g for g, leaf in zip(gradients, leaves, strict=True))
    return [y.detach() for y in outputs], list(zeros)


def _agree(expected: list[Any] | None, moved: list[Any] | None, computed: list[Any] | None, torch: Any) -> bool:
    """Compare results, with as much room as they have themselves where inputs move by rounding."""
    if expected is None or moved is None or computed is None:
        return expected is None
    return len(expected) == len(computed) and all(
        a.shape == c.shape and a.dtype == c.dtype and _is_close(a, b, c, torch)
        for a, b, c in zip(expected, moved, computed, strict=True)
    )


def _is_close(a: Any, moved: Any, b: Any, torch: Any) -> bool:
    if not a.numel():
        return True
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    finite = a.isfinite() & moved.isfinite()
    room = torch.where(finite, (moved - a).abs(), 0).max().item()
    unit = torch.where(finite, a.abs(), 0).max().item()
    return bool(torch.allclose(a, b, rtol=1e-3, atol=1e-4 * unit + 10 * room, equal_nan=True))
