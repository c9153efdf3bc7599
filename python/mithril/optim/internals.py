"""What a training step that is one program asks of an optimizer beyond its public methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core, dtypes

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .optimizer import Optimizer
    from .rule import Program, Slots

__all__ = [
    "adopt_slots",
    "check_groups",
    "count_step",
    "is_plain",
    "learning_rates",
    "own_steps",
    "slot_bytes",
    "step_core",
    "step_program",
    "step_scalar",
    "trained_names",
    "writes_params",
]


def is_plain(optimizer: Optimizer) -> bool:
    """Whether each call takes a step, on the backend of the parameters."""
    return optimizer._accumulator.calls == 1 and optimizer._rule.backend is None


def trained_names(optimizer: Optimizer, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that an optimizer does not freeze."""
    return optimizer._trained(names)


def own_steps(optimizer: Optimizer, name: str) -> int:
    """Return how many steps a parameter itself has taken."""
    return optimizer._own_steps.get(name, 0)


def count_step(optimizer: Optimizer, names: Sequence[str], number: int) -> None:
    """Note that these parameters have taken so many steps, of which one was taken just now."""
    optimizer.steps += 1
    optimizer._own_steps.update(dict.fromkeys(names, number))


def check_groups(optimizer: Optimizer, params: Mapping[str, Any]) -> None:
    """Refuse patterns of groups that fit no parameter."""
    optimizer._groups.check(params)


def learning_rates(optimizer: Optimizer, *, first: bool = False) -> list[float]:
    """Return the learning rates of the groups at the next step, or at the first one."""
    rate = optimizer.learning_rate
    if not first:
        return optimizer._groups.rates(optimizer._rate())
    return optimizer._groups.rates(float(rate(1) if callable(rate) else rate))


def step_program(optimizer: Optimizer, params: Mapping[str, Any], steps: Mapping[str, int]) -> Program:
    """Return the compiled step of these parameters."""
    return optimizer._program(params, params, steps)[0]


def step_core(program: Program) -> _core.Compiled:
    """Return the graph of a compiled step."""
    return program._program.core


def step_scalar(program: Program) -> str:
    """Return the dtype of rates and counters of a compiled step."""
    return str(program._scalar)


def adopt_slots(optimizer: Optimizer, program: Program, params: Mapping[str, Any]) -> Slots:
    """Make the slots of an optimizer those that a program wants and may write into, and return them."""
    state = optimizer._adopt(program, params, is_written=True)
    if state is not optimizer.state:
        optimizer.state.update(state)
        optimizer._fits = program
        optimizer._shared.difference_update(state)
    return optimizer.state


def writes_params(optimizer: Optimizer, backend: Backend) -> bool:
    """Whether steps of parameters of a backend may write into these."""
    rule = optimizer._rule
    is_simple = backend.name == "torch" and backend.engine.is_single_device
    return is_simple and not rule.jit and rule.backend in (None, backend)


def slot_bytes(optimizer: Optimizer) -> float:
    """Return how many bytes an optimizer keeps for each byte of a large matrix in float32."""
    rule, size = optimizer._rule, [1024, 1024]
    part = (size, "float32", "float32", dict(optimizer.options), 0, 0)
    _, slots, _ = _core.optimizer_step(
        rule.optimizer, [part], clip_value=rule.clip_value, clip_norm=rule.clip_norm, master=rule.master
    )
    kept = sum(math.prod(slot[1]) * dtypes.normalize(slot[2]).itemsize for slot in slots[0])
    return float(kept / (4 * math.prod(size)))
