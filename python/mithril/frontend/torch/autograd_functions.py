"""Gradients by the rules of `torch.autograd.Function`, which ``torch.export`` drops: it traces what they compute."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .derivatives import unwatched

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


@dataclass(frozen=True)
class _Rule:
    """A function that was called while tracing, with numbers in place of its arguments."""

    cls: Any
    #: Whether random numbers may be negative -> arguments.
    examples: Callable[[bool], tuple[Any, ...]]


def exported_with_rules(export: Callable[[], Any], torch: Any) -> tuple[Any, dict[Any, str]]:
    """Call ``torch.export``, with ``replace_gradient`` in what it traces where functions have rules.

    There, a rule is the product of the inputs with the Jacobian matrix that it implies. Also returns why rules are left
    out: those that are not linear, and what cannot be traced.
    """
    left_out: dict[Any, str] = {}
    while True:
        rules: list[_Rule] = []
        known = len(left_out)
        try:
            with torch.enable_grad(), _traced_rules(rules, left_out, torch):
                program = export()
        except Exception:
            if not rules:
                raise
            # Trace again from the start: `forward` may have written into its inputs. Without any rule, if none failed.
            if len(left_out) == known:
                left_out |= {rule.cls: "cannot be traced" for rule in rules}
            continue
        wrong = {rules[i].cls for i in _read_cotangents(program)}
        examples = {rule.cls: rule for rule in reversed(rules) if rule.cls not in wrong}
        wrong |= {cls for cls, rule in examples.items() if not _is_linear(rule, torch)}
        if not wrong:
            return program, left_out
        left_out |= dict.fromkeys(wrong, "is not linear in the gradient that it is given, or computes without autograd")


def warn_of(left_out: dict[Any, str]) -> None:
    """Say which rules are left out."""
    for cls, reason in left_out.items():
        warnings.warn(
            f"{cls.__qualname__}.backward{_place(cls)} {reason}: the gradient of the model is the one of what its "
            "forward computes. Write backward as products with the gradient, or train the module with PyTorch",
            stacklevel=5,
        )


@contextlib.contextmanager
def _traced_rules(rules: list[_Rule], left_out: dict[Any, str], torch: Any) -> Iterator[None]:
    """While tracing, call functions as `_call` does, and note which ones in ``rules``."""
    base = torch.autograd.Function
    apply = inspect.getattr_static(base, "apply")

    def replacement(cls: Any, *args: Any, **named: Any) -> Any:
        plain = functools.partial(apply.__get__(None, cls), *args, **named)
        if named or cls.__module__.startswith("torch.") or cls in left_out or not torch.is_grad_enabled():
            return plain()
        rules.append(_Rule(cls, _examples(args, torch)))
        try:
            with unwatched():
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
    ops, _ = _defined()
    context, results = _forward(cls, args, torch)
    outputs = results if isinstance(results, tuple) else (results,)
    cotangents = [ops.cotangent(y, rule).detach() if isinstance(y, torch.Tensor) else None for y in outputs]
    products = _products(cls, context, cotangents, args, torch)
    with_rules = [y if s is None else ops.replace_gradient(y, s) for y, s in zip(outputs, products, strict=True)]
    return tuple(with_rules) if isinstance(results, tuple) else with_rules[0]


def _forward(cls: Any, args: Sequence[Any], torch: Any) -> tuple[_Context, Any]:
    fixed = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in args)
    context = _Context(len(args))
    if cls.setup_context is torch.autograd.Function.setup_context:
        return context, cls.forward(context, *fixed)
    results = cls.forward(*fixed)
    cls.setup_context(context, fixed, results)
    return context, results


def _backward(cls: Any, context: _Context, cotangents: Sequence[Any], args: Sequence[Any], torch: Any) -> list[Any]:
    """Return pairs of the gradient of an argument and the argument."""
    gradients = inspect.unwrap(cls.backward)(context, *cotangents)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    return [
        (g if g.shape == x.shape else g.sum_to_size(x.shape), x)
        for g, x in zip(gradients, args, strict=False)
        if isinstance(g, torch.Tensor) and isinstance(x, torch.Tensor)
    ]


def _products(cls: Any, context: _Context, zeros: Sequence[Any], args: Sequence[Any], torch: Any) -> list[Any]:
    """Return, for each result, the product of the arguments with its Jacobian matrix; None: it is 0, or there is none.

    A rule is linear in the cotangents, for which ``zeros`` stand, and its own gradient is that product.
    """
    moving = [v.requires_grad_() for v in zeros if v is not None and v.is_floating_point()]
    pairs = [(g, x) for g, x in _backward(cls, context, zeros, args, torch) if g.requires_grad]
    products: Sequence[Any] = [None] * len(moving)
    if pairs and moving:
        values, tangents = zip(*pairs, strict=True)
        products = torch.autograd.grad(values, moving, grad_outputs=tangents, allow_unused=True)
    left = iter(products)
    return [next(left) if v is not None and v.is_floating_point() else None for v in zeros]


def _examples(args: Sequence[Any], torch: Any) -> Callable[[bool], tuple[Any, ...]]:
    """Return what makes numbers in the shapes of arguments, which have no numbers while tracing."""
    facts = [
        ([n if isinstance(n, int) else n.node.hint for n in x.shape], x.dtype, x.device)
        if isinstance(x, torch.Tensor)
        else x
        for x in args
    ]

    def make(are_signed: bool) -> tuple[Any, ...]:
        draw = torch.randn if are_signed else torch.rand
        return tuple(
            x
            if not isinstance(args[i], torch.Tensor)
            else (draw if x[1].is_floating_point else torch.zeros)(x[0], dtype=x[1], device=x[2])
            for i, x in enumerate(facts)
        )

    return make


def _is_linear(rule: _Rule, torch: Any) -> bool:
    """Whether the product is the transpose of a rule, by numbers.

    It is not where the rule adds a constant, clips, or computes something without autograd.
    """
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        for are_signed in (True, False):
            try:
                sums = _inner_products(rule.cls, rule.examples(are_signed), torch)
            except Exception:
                return False
            if all(math.isfinite(x) for x in sums):
                left, right, size = sums
                return abs(left - right) <= 1e-2 * size + 1e-6
    return True


def _inner_products(cls: Any, args: tuple[Any, ...], torch: Any) -> tuple[float, float, float]:
    """Return the inner products of gradients with arguments and of cotangents with products, and how large they are."""
    context, results = _forward(cls, args, torch)
    outputs = results if isinstance(results, tuple) else (results,)
    zeros = [torch.zeros_like(y) if isinstance(y, torch.Tensor) else None for y in outputs]
    products = _products(cls, context, zeros, args, torch)
    drawn = [torch.randn_like(v) if v is not None and v.is_floating_point() else v for v in zeros]
    both = [
        g.detach() * x
        for g, x in _backward(cls, context, [None if v is None else v.detach() for v in drawn], args, torch)
    ]
    others = [v * s for v, s in zip(drawn, products, strict=True) if s is not None]
    left, right = (sum(float(x.double().sum()) for x in terms) for terms in (both, others))
    return left, right, sum(float(x.double().abs().sum()) for x in (*both, *others))


def _read_cotangents(program: Any) -> set[int]:
    """Find rules whose product with the Jacobian matrix reads the cotangent."""
    found = set()
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if str(node.target) == "mithril.replace_gradient.default":
                found |= _cotangents(node.args[1])
    return found


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
def _defined() -> tuple[Any, Any]:
    """Define what stands in a traced program for a rule: the ops, and their library, with which they would go."""
    import torch

    library: Any = torch.library.Library("mithril", "DEF")  # type: ignore[no-untyped-call]
    library.define("replace_gradient(Tensor input, Tensor surrogate) -> Tensor")
    library.define("cotangent(Tensor output, int rule) -> Tensor")
    library.impl("replace_gradient", lambda x, surrogate: x.clone(), "CompositeExplicitAutograd")
    library.impl("cotangent", lambda y, rule: torch.zeros_like(y), "CompositeExplicitAutograd")
    torch.library.register_fake("mithril::replace_gradient", lambda x, surrogate: torch.empty_like(x))
    torch.library.register_fake("mithril::cotangent", lambda y, rule: torch.empty_like(y))
    return torch.ops.mithril, library


def _place(cls: Any) -> str:
    try:
        return f' at "{inspect.getsourcefile(cls)}", line {inspect.getsourcelines(cls)[1]},'
    except (OSError, TypeError):
        return ""
