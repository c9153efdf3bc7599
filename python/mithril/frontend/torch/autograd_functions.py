"""Gradients by the rules of `torch.autograd.Function`, which ``torch.export`` drops: it traces what they compute."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["exported_with_rules", "warn_of"]


class _Context:
    """What `forward` leaves for `backward`."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (True,) * count
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        raise NotImplementedError("a function that writes into its inputs")

    def mark_non_differentiable(self, *tensors: Any) -> None:
        pass

    def set_materialize_grads(self, value: bool) -> None:
        pass


def exported_with_rules(export: Callable[[], Any], torch: Any) -> tuple[Any, dict[Any, str]]:
    """Call ``torch.export``, with ``replace_gradient`` in what it traces where functions have rules.

    There, a rule is the product of the inputs with the Jacobian matrix that it implies. Also returns why rules are left
    out: those that are not linear, and what cannot be traced.
    """
    left_out: dict[Any, str] = {}
    while True:
        rules: list[Any] = []
        try:
            with torch.enable_grad(), _traced_rules(rules, left_out, torch):
                program = export()
        except Exception:
            if not rules:
                raise
            # Trace again from the start, without them: `forward` may have written into its inputs.
            left_out |= {cls: left_out.get(cls, "cannot be traced") for cls in rules}
            continue
        nonlinear = _nonlinear(program, rules)
        if not nonlinear:
            return program, left_out
        left_out |= dict.fromkeys(nonlinear, "is not linear in the gradient that it is given")


def warn_of(left_out: dict[Any, str]) -> None:
    """Say which rules are left out."""
    for cls, reason in left_out.items():
        warnings.warn(
            f"{cls.__qualname__}.backward{_place(cls)} {reason}: the gradient of the model is the one of what its "
            "forward computes",
            stacklevel=5,
        )


@contextlib.contextmanager
def _traced_rules(rules: list[Any], left_out: dict[Any, str], torch: Any) -> Iterator[None]:
    """While tracing, call functions as `_call` does, and note which ones in ``rules``."""
    base = torch.autograd.Function
    apply = inspect.getattr_static(base, "apply")

    def replacement(cls: Any, *args: Any, **named: Any) -> Any:
        plain = functools.partial(apply.__get__(None, cls), *args, **named)
        if named or cls.__module__.startswith("torch.") or cls in left_out or not torch.is_grad_enabled():
            return plain()
        rules.append(cls)
        try:
            return _call(cls, args, len(rules) - 1, torch)
        except Exception as reason:
            left_out[cls] = f"cannot be traced ({reason})"
            raise

    base.apply = classmethod(replacement)
    try:
        yield
    finally:
        base.apply = apply


def _call(cls: Any, args: Sequence[Any], rule: int, torch: Any) -> Any:
    """Call a function; its results have the gradients of its rule."""
    ops = _ops()
    fixed = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
    context = _Context(len(args))
    if cls.setup_context is torch.autograd.Function.setup_context:
        results = cls.forward(context, *fixed)
    else:
        results = cls.forward(*fixed)
        cls.setup_context(context, fixed, results)
    outputs = results if isinstance(results, tuple) else (results,)
    cotangents = [ops.cotangent(y, rule).detach() if isinstance(y, torch.Tensor) else None for y in outputs]
    moving = [v.requires_grad_() for v in cotangents if v is not None and v.is_floating_point()]
    # The transpose of the rule: it is linear in the cotangents, and its own gradient is the product with the Jacobian.
    gradients = inspect.unwrap(cls.backward)(context, *cotangents)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    pairs = [
        (g if g.shape == x.shape else g.sum_to_size(x.shape), x)
        for g, x in zip(gradients, args, strict=False)
        if isinstance(g, torch.Tensor) and isinstance(x, torch.Tensor) and g.requires_grad
    ]
    products: Sequence[Any] = [None] * len(moving)
    if pairs and moving:
        values, tangents = zip(*pairs, strict=True)
        products = torch.autograd.grad(values, moving, grad_outputs=tangents, allow_unused=True)
    left = iter(products)
    with_rules = [
        ops.replace_gradient(y, s) if v is not None and v.is_floating_point() and (s := next(left)) is not None else y
        for y, v in zip(outputs, cotangents, strict=True)
    ]
    return tuple(with_rules) if isinstance(results, tuple) else with_rules[0]


def _nonlinear(program: Any, rules: Sequence[Any]) -> set[Any]:
    """Find functions whose product with the Jacobian matrix depends on the cotangent."""
    found = set()
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if str(node.target) == "mithril.replace_gradient.default":
                found |= _cotangents(node.args[1])
    return {rules[i] for i in found}


def _cotangents(node: Any) -> set[int]:
    """Return the rules on whose cotangents a node depends by more than their shapes."""
    found, seen, open_nodes = set(), set(), [node]
    while open_nodes:
        node = open_nodes.pop()
        name = str(node.target)
        if node in seen or "_like" in name or "sym_size" in name:
            continue
        seen.add(node)
        if name == "mithril.cotangent.default":
            found.add(node.args[1])
        open_nodes.extend(node.all_input_nodes)
    return found


@functools.cache
def _ops() -> Any:
    """Define what stands in a traced program for a rule."""
    import torch

    library: Any = torch.library.Library("mithril", "DEF")  # type: ignore[no-untyped-call]
    library.define("replace_gradient(Tensor input, Tensor surrogate) -> Tensor")
    library.define("cotangent(Tensor output, int rule) -> Tensor")
    library.impl("replace_gradient", lambda x, surrogate: x.clone(), "CompositeExplicitAutograd")
    library.impl("cotangent", lambda y, rule: torch.zeros_like(y), "CompositeExplicitAutograd")
    torch.library.register_fake("mithril::replace_gradient", lambda x, surrogate: torch.empty_like(x))
    torch.library.register_fake("mithril::cotangent", lambda y, rule: torch.empty_like(y))
    # A library undefines its ops when it is deleted.
    _ops.library = library  # type: ignore[attr-defined]
    return torch.ops.mithril


def _place(cls: Any) -> str:
    try:
        return f' at "{inspect.getsourcefile(cls)}", line {inspect.getsourcelines(cls)[1]},'
    except (OSError, TypeError):
        return ""
