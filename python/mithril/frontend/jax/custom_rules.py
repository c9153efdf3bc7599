"""Gradients by the rules that users write: `jax.custom_vjp` and `jax.custom_jvp`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np

from ..complexes import Complex
from ..rows import apply, is_connection
from .missing import place
from .ops.complexes import pair
from .ops.registry import has_open_sizes, is_key

#: Walks through a jaxpr: itself, its constants, its inputs.
Run = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]
#: A jaxpr and its constants.
Closed = tuple[Any, Sequence[Any]]
#: Whether what is converted is a surrogate. Its functions are called with constants for the gradient: a rule may well
#: call the function that it is of.
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)


@contextmanager
def without_rules() -> Iterator[None]:
    """Inline all functions, whatever rules they have."""
    token = _is_inside.set(True)
    try:
        yield
    finally:
        _is_inside.reset(token)


def has_own_rule(eqn: Any, inner: Any) -> bool:
    """Whether an equation calls a function of which a user says what the gradient is; ``inner`` is its jaxpr.

    Functions of JAX itself have the gradient of what they compute, in a form that does not overflow: so have our ops.
    """
    import jax

    if _is_inside.get() or not str(eqn.primitive.name).startswith(("custom_jvp_call", "custom_vjp_call")):
        return False
    source = str(getattr(getattr(inner, "debug_info", None), "func_src_info", ""))
    # With what ends the name of the folder: jaxopt lies beside it.
    return f"{Path(jax.__file__).parent}{os.sep}" not in source and any(map(_varies, eqn.outvars))


def surrogate(eqn: Any, inner: Any) -> Closed | None:
    """Return a function whose gradient is the one of a rule; None, with a warning, if there is none.

    Its first inputs are those of the equation, which are constants for the gradient. In the others, one for each that
    varies, it is linear: it returns their product with the Jacobian matrix that the rule implies.
    """
    import jax
    from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

    inputs, outputs = _inputs(eqn), list(filter(_varies, eqn.outvars))
    moving = list(filter(_varies, inputs))
    info = inner.debug_info
    told = type(info)(info.traced_for, info.func_src_info, None, None)
    call = jaxpr_as_fun(ClosedJaxpr(Jaxpr((), inputs, outputs, [eqn], debug_info=told), ()))

    def pulled(values: Sequence[Any]) -> Any:
        fixed = dict(zip(inputs, values, strict=False))

        def of_moving(*floats: Any) -> Any:
            return call(*{**fixed, **dict(zip(moving, floats, strict=True))}.values())

        return jax.vjp(of_moving, *(fixed[v] for v in moving))

    def product(*values: Any) -> Any:
        results, pull = pulled(values)
        return jax.linear_transpose(pull, results)(values[len(inputs) :])[0]

    avals = [v.aval for v in (*inputs, *moving)]
    try:
        closed = jax.make_jaxpr(product)(*avals)
        # Sizes with names have no numbers, and keys are not drawn.
        is_linear = has_open_sizes(eqn) or any(map(is_key, avals)) or _is_transpose(product, pulled, avals, len(inputs))
    except Exception:
        # Whatever JAX, or the code of the user, says of a call that neither was written for.
        is_linear = False
    if is_linear:
        return closed.jaxpr, closed.consts
    warnings.warn(
        f"the gradient rule of a function is not linear{place(eqn)}: the gradient of the model is the one of what the "
        "function computes; to keep the rule, write it as products with the cotangent",
        stacklevel=2,
    )
    return None


def _is_transpose(product: Callable[..., Any], pulled: Callable[..., Any], avals: Sequence[Any], count: int) -> bool:
    """Whether a product is the transpose of a rule, by numbers: a constant that the rule adds is lost in it."""
    rng = np.random.default_rng(0)
    for draw in (rng.standard_normal, rng.random):
        values = [_example(aval, draw) for aval in avals]
        results, pull = pulled(values)
        cotangents = [_example(y, draw) for y in results]
        sides = (pull(type(results)(cotangents)), values[count:]), (cotangents, product(*values))
        terms = [[np.asarray(a * b, complex) for a, b in zip(*both, strict=True)] for both in sides]
        left, right = (sum(x.sum() for x in side) for side in terms)
        if np.isfinite([left, right]).all():
            size = sum(abs(x).sum() for side in terms for x in side)
            return bool(abs(left - right) <= 1e-2 * size + 1e-6)
    return True


def _example(like: Any, draw: Callable[[Any], Any]) -> Any:
    import jax

    numbers = draw(like.shape) if jax.numpy.issubdtype(like.dtype, jax.numpy.inexact) else np.zeros(like.shape)
    return jax.numpy.asarray(numbers, like.dtype)


def with_gradients_of(rule: Closed, eqn: Any, args: Sequence[Any], results: Sequence[Any], run: Run) -> list[Any]:
    """Return the results of an equation, with the gradients of what `surrogate` made of its rule."""
    values = {v: x for v, x in zip(eqn.invars, args, strict=True) if not hasattr(v, "val")}
    fixed = map(_constant, values.values())
    with without_rules():
        surrogates = iter(run(*rule, [*fixed, *(x for v, x in values.items() if _varies(v))]))
    return [_replaced(y, next(surrogates)) if _varies(v) else y for v, y in zip(eqn.outvars, results, strict=True)]


def _inputs(eqn: Any) -> list[Any]:
    """Return the variables that an equation reads, each once."""
    return list(dict.fromkeys(v for v in eqn.invars if not hasattr(v, "val")))


def _varies(var: Any) -> bool:
    import jax

    return bool(jax.numpy.issubdtype(var.aval.dtype, jax.numpy.inexact))


def _constant(x: Any) -> Any:
    """Return a value through which no gradient flows."""
    if isinstance(x, Complex):
        return type(x)(map(_constant, x))
    return apply("stop_gradient", x) if is_connection(x) else x


def _replaced(y: Any, other: Any) -> Any:
    if isinstance(y, Complex):
        return Complex(_replaced(*both) for both in zip(y, pair(other), strict=True))
    if not is_connection(y):
        return y
    return apply("replace_gradient", y, other) if is_connection(other) else apply("stop_gradient", y)
