"""Control flow of JAX: loops that are unrolled, and conditions that become selections."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..complexes import Complex
from ..rows import apply, is_connection
from .missing import error, place
from .ops.complexes import pair
from .ops.registry import constant, tensor
from .sizes import is_open

__all__ = ["cond", "is_known", "scan", "while_loop"]

#: Equations that a loop may become.
_UNROLLED = 20_000

#: Walks through a jaxpr: itself, its constants, its inputs.
Run = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def is_known(x: Any) -> bool:
    """Whether a value is known when converting."""
    return not is_connection(x) and not isinstance(x, Complex)


def parts_of_scan(params: Any) -> tuple[int, int]:
    """Return how many inputs of a scan are the same in all steps, and how many are carried from step to step."""
    if "ft_in" in params:  # since JAX 0.11
        constants, carries, _ = params["ft_in"].unpack()
        return len(constants), len(carries)
    return params["num_consts"], params["num_carry"]


def scan(eqn: Any, args: Sequence[Any], run: Run) -> list[Any]:
    """Unroll a scan."""
    params = eqn.params
    body, length = params["jaxpr"], params["length"]
    constants, carries = parts_of_scan(params)
    fixed, state, rows = args[:constants], args[constants : constants + carries], args[constants + carries :]
    if is_open(length):
        raise error(
            f"a scan has {length} steps, which are not known", [f"it stands{place(eqn)}"], "scan over a fixed size"
        )
    if length * len(body.jaxpr.eqns) > _UNROLLED:
        raise error(
            f"a scan of {length} steps with {len(body.jaxpr.eqns)} equations is too long to be unrolled",
            [f"it stands{place(eqn)}"],
            "scan over fewer steps",
        )
    steps: list[list[Any]] = []
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    for i in order:
        results = run(body.jaxpr, body.consts, [*fixed, *state, *(_row(x, i) for x in rows)])
        state = results[:carries]
        steps.append(results[carries:])
    if params["reverse"]:
        steps.reverse()
    return [*state, *(_stacked(column) for column in zip(*steps, strict=True))]


def _row(x: Any, i: int) -> Any:
    return Complex(part[i] for part in x) if isinstance(x, Complex) else x[i]


def _stacked(rows: Sequence[Any]) -> Any:
    if any(isinstance(row, Complex) for row in rows):
        return Complex(_stacked(parts) for parts in zip(*map(pair, rows), strict=True))
    if not any(map(is_connection, rows)):
        return np.stack(rows)
    return apply("stack", 0, *(row if is_connection(row) else constant(row) for row in rows))


def while_loop(eqn: Any, args: Sequence[Any], run: Run) -> list[Any]:
    """Unroll a loop whose condition is known at each step."""
    params = eqn.params
    condition, body = params["cond_jaxpr"], params["body_jaxpr"]
    first, second = params["cond_nconsts"], params["body_nconsts"]
    tested, fixed, state = args[:first], args[first : first + second], list(args[first + second :])
    count = 0
    while True:
        (goes_on,) = run(condition.jaxpr, condition.consts, [*tested, *state])
        if not is_known(goes_on):
            raise error(
                "the number of iterations of a while loop depends on data",
                [f"it stands{place(eqn)}"],
                "use a known number of iterations: fori_loop with bounds that are Python integers, or scan",
            )
        if not goes_on:
            return state
        count += len(body.jaxpr.eqns) + 1
        if count > _UNROLLED:
            raise error("a while loop is too long to be unrolled", [f"it stands{place(eqn)}"], "use fewer iterations")
        state = run(body.jaxpr, body.consts, [*fixed, *state])


def cond(eqn: Any, args: Sequence[Any], run: Run) -> list[Any]:
    """Take the branch of an index that is known; compute all of another, and select."""
    index, operands = args[0], args[1:]
    branches = eqn.params["branches"]
    if is_known(index):
        branch = branches[int(np.clip(index, 0, len(branches) - 1))]
        return run(branch.jaxpr, branch.consts, operands)
    last = len(branches) - 1
    results: list[Any] = []
    for i, branch in enumerate(branches):
        op = "less_equal" if i == 0 else "greater_equal" if i == last else "equal"
        chosen = apply(op, index, i)
        inputs = [_guarded(x, chosen, v) for x, v in zip(operands, eqn.invars[1:], strict=True)]
        outputs = run(branch.jaxpr, branch.consts, inputs)
        results = outputs if i == 0 else [_selected(chosen, *both) for both in zip(outputs, results, strict=True)]
    return results


def _guarded(x: Any, chosen: Any, var: Any) -> Any:
    """Stop the gradient of a branch that is not taken: zero times an infinite slope would be NaN."""
    if isinstance(x, Complex):
        return Complex(_guarded(part, chosen, var) for part in x)
    if not is_connection(x) or var.aval.dtype.kind in "biu":
        return x
    return apply("where", chosen, x, apply("stop_gradient", x))


def _selected(chosen: Any, x: Any, y: Any) -> Any:
    if isinstance(x, Complex) or isinstance(y, Complex):
        return Complex(_selected(chosen, *both) for both in zip(pair(x), pair(y), strict=True))
    return x if x is y else apply("where", chosen, tensor(x), tensor(y))
