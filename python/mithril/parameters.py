"""The dict of parameters: plain arrays by name, lazy until the shapes are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from .errors import KeyNotFoundError, UnresolvedShapeError

__all__ = ["Parameters"]


class Parameters(dict[str, Any]):
    """Parameters by name.

    A model compiled without shapes does not know yet how large its parameters are. Its parameters fill
    themselves at the first `PhysicalModel.evaluate` that they are passed to; reading one before is an error
    that says what to do.

    Parameters
    ----------
    names : tuple of str
        Names of all parameters.
    seed : int or None
        Seed of the values to come.
    """

    __slots__ = ("_fits", "_names", "_resolved", "_seed")

    def __init__(self, names: tuple[str, ...], seed: int | None = None) -> None:
        super().__init__()
        self._names = names
        self._seed = seed
        self._resolved = False
        # What the values were checked for since they last changed: a program, or nothing.
        self._fits: Any = None

    @classmethod
    def of(cls, values: dict[str, Any]) -> Parameters:
        """Make parameters whose values are there."""
        made = cls(tuple(values))
        dict.update(made, values)
        made._resolved = True
        return made

    @property
    def is_resolved(self) -> bool:
        """Whether the values are there."""
        return self._resolved

    def _resolve(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if not dict.__contains__(self, name):
                dict.__setitem__(self, name, value)
        self._resolved = True

    def _check(self) -> None:
        if not self._resolved:
            raise UnresolvedShapeError(
                "the shapes of the parameters are not known yet",
                hint="pass shapes={'input': [...]} to compile, or call evaluate once with these parameters",
            )

    def __missing__(self, name: str) -> Any:
        if not self._resolved and name in self._names:
            self._check()
        near = difflib.get_close_matches(str(name), self._names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(self._names[:20])}"
        raise KeyNotFoundError(f"there is no parameter called {name!r}", hint=hint)

    def __setitem__(self, name: str, value: Any) -> None:
        self._fits = None
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._fits = None
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Parameters:  # type: ignore[override]
        self.update(other)
        return self

    def update(self, *args: Any, **named: Any) -> None:  # noqa: D102 - as dict
        self._fits = None
        super().update(*args, **named)

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: D102 - as dict
        self._fits = None
        return super().setdefault(name, default)

    def pop(self, *args: Any) -> Any:  # noqa: D102 - as dict
        self._check()
        self._fits = None
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:  # noqa: D102 - as dict
        self._check()
        self._fits = None
        return super().popitem()

    def clear(self) -> None:  # noqa: D102 - as dict
        self._fits = None
        super().clear()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: D102 - as dict
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def copy(self) -> dict[str, Any]:  # noqa: D102 - as dict
        self._check()
        return super().copy()

    def keys(self) -> Any:  # noqa: D102 - as dict
        return super().keys() if self._resolved else dict.fromkeys(self._names).keys()

    def items(self) -> Any:  # noqa: D102 - as dict
        self._check()
        return super().items()

    def values(self) -> Any:  # noqa: D102 - as dict
        self._check()
        return super().values()

    def __iter__(self) -> Iterator[str]:
        return super().__iter__() if self._resolved else iter(self._names)

    def __len__(self) -> int:
        return super().__len__() if self._resolved else len(self._names)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (not self._resolved and name in self._names)

    def __or__(self, other: Any) -> Any:
        self._check()
        return super().__or__(other)

    def __eq__(self, other: object) -> bool:
        return self is other or (self._resolved and super().__eq__(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __reduce__(self) -> Any:
        self._check()
        return _restore, (self._names, self._seed, dict(self))

    def __repr__(self) -> str:
        if not self._resolved:
            return f"Parameters({', '.join(self._names)}; shapes not known yet)"
        return super().__repr__()


def _restore(names: tuple[str, ...], seed: int | None, values: dict[str, Any]) -> Parameters:
    made = Parameters(names, seed)
    made._resolve(values)
    return made
