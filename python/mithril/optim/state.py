"""The flat form of what an optimizer remembers: arrays and plain numbers by name, as safetensors can hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ParameterError
from .checks import check_mapping
from .rule import Slots

__all__ = ["State", "flat", "number", "unflat"]


@dataclass
class State:
    """What a flat state holds, by what it belongs to."""

    steps: int = 0
    own_steps: dict[str, int] = field(default_factory=dict)
    slots: Slots = field(default_factory=dict)
    accumulated: dict[str, Any] = field(default_factory=dict)
    accumulated_calls: int = 0
    schedule: dict[str, Any] = field(default_factory=dict)

    def refuse(self, what: str, reason: str) -> None:
        """Raise the error that a part has no place."""
        raise ParameterError(
            f"the state holds {what!r}, but {reason}", hint="create the optimizer with the options that it had"
        )


def flat(kind: str, slots: Slots) -> dict[str, Any]:
    """Return slots as one mapping: ``"<kind>/<slot>/<parameter>"`` to array."""
    return {f"{kind}/{slot}/{name}": array for name, kept in slots.items() for slot, array in kept.items()}


def unflat(state: Mapping[str, Any]) -> State:
    """Read a flat state; refuse what is none."""
    check_mapping("state", state)
    hint = "pass what state_dict() of an optimizer returned"
    if "steps" not in state:
        raise ParameterError("the state lacks 'steps'", hint=hint)
    result = State(steps=number("steps", state["steps"]))
    for key, value in state.items():
        kind, _, rest = str(key).partition("/")
        if kind == "step":
            result.own_steps[rest] = number(key, value)
            result.slots.setdefault(rest, {})
        elif kind == "slot":
            slot, _, name = rest.partition("/")
            result.slots.setdefault(name, {})[slot] = value
        elif kind == "accumulated":
            result.accumulated[rest] = value
        elif kind == "accumulated_calls":
            result.accumulated_calls = number(key, value)
        elif kind == "schedule":
            result.schedule[rest] = value
        elif key != "steps":
            raise ParameterError(f"the state holds {key!r}", hint=hint)
    return result


def number(key: str, value: Any) -> int:
    """Read an integer, which may have become an array in a file."""
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "iu" or array < 0:
        raise ParameterError(f"the state holds {value!r} as {key!r}", hint="it is a number of steps")
    return int(array)
