"""Groups of parameters by name: options of their own, and their own share of the learning rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import _core
from ..compiled.parameter_patterns import fits, no_parameter
from ..errors import InvalidValueError
from .checks import between
from .rule import Member

__all__ = ["Groups"]

#: What of a group is not an argument of the rule: the factor of its learning rate.
FACTOR = "learning_rate_factor"


class Groups:
    """What each parameter is given to its rule.

    Parameters
    ----------
    optimizer : str
        Name of the row.
    options : dict
        Arguments of the rule.
    options_by_group : mapping, optional
        Pattern of names (``"*.bias"``) to arguments of the rule that differ, and ``learning_rate_factor``. The first
        pattern that fits a name counts.
    """

    def __init__(
        self, optimizer: str, options: Mapping[str, Any], options_by_group: Mapping[str, Mapping[str, Any]] | None
    ) -> None:
        if options_by_group is not None and not isinstance(options_by_group, Mapping):
            raise InvalidValueError(
                f"groups is a {type(options_by_group).__name__}",
                hint='pass e.g. groups={"*.bias": {"weight_decay": 0.0}}',
            )
        _core.optimizer_rule(optimizer, dict(options))
        self._patterns: list[tuple[str, tuple[tuple[str, Any], ...], float]] = []
        for pattern, changes in (options_by_group or {}).items():
            if not isinstance(changes, Mapping):
                raise InvalidValueError(
                    f"the group {pattern!r} is a {type(changes).__name__}", hint='pass e.g. {"weight_decay": 0.0}'
                )
            own = {name: value for name, value in changes.items() if name != FACTOR}
            factor = changes.get(FACTOR, 1.0)
            between(FACTOR, factor, 0.0)
            _core.optimizer_rule(optimizer, {**options, **own})
            self._patterns.append((pattern, tuple({**options, **own}.items()), float(factor)))
        self._default = tuple(options.items())
        self._factors = tuple(dict.fromkeys((1.0, *(factor for *_, factor in self._patterns))))
        self._known: dict[str, tuple[tuple[tuple[str, Any], ...], int]] = {}

    def members(self, steps: Mapping[str, int]) -> tuple[dict[str, Member], list[int]]:
        """Return what each parameter brings to a step, and the counters that they name.

        Parameters
        ----------
        steps : mapping
            Parameter name to the number of its own step.
        """
        counters = {step: k for k, step in enumerate(dict.fromkeys(steps.values()))}
        members = {}
        for name, step in steps.items():
            group = self._known.get(name)
            if group is None:
                group = self._known[name] = self._find(name)
            members[name] = Member(*group, counters[step])
        return members, list(counters)

    def rates(self, rate: float) -> list[float]:
        """Return the learning rates that members name."""
        return [rate * factor for factor in self._factors]

    def check(self, names: Any) -> None:
        """Refuse patterns that fit no parameter: they are misspelled."""
        for pattern, *_ in self._patterns:
            if not any(fits(name, pattern) for name in names):
                raise no_parameter(f"the group {pattern!r} fits no parameter", pattern, names)

    def _find(self, name: str) -> tuple[tuple[tuple[str, Any], ...], int]:
        for pattern, args, factor in self._patterns:
            if fits(name, pattern):
                return args, self._factors.index(factor)
        return self._default, 0
