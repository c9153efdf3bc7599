"""The dict of parameters and running statistics: plain arrays by name, lazy until the shapes are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import KeyNotFoundError, UnresolvedShapeError
from ..suggestions import did_you_mean

if TYPE_CHECKING:
    from .physical_model import PhysicalModel

__all__ = ["Parameters", "gradient_order", "gradients_like", "like", "untrained"]


class Parameters(dict[str, Any]):
    """Parameters and running statistics by name.

    Running statistics, such as those of batch norm, are entries as parameters are, so that whoever copies all entries
    copies a trained model. Gradients have no entries for them, but give zeros where they are asked for them.

    A model compiled without shapes does not know yet how large its parameters are. Its parameters fill
    themselves at the first `PhysicalModel.evaluate` that they are passed to; reading one before is an error
    that says what to do.

    Parameters
    ----------
    names : tuple of str
        Names of all parameters.
    seed : int or None
        Seed of the values to come.
    statistics, frozen : tuple of str
        Names of the running statistics, and of parameters that training leaves as they are.
    model : PhysicalModel or None
        The model that these parameters belong to: its state holds the statistics.
    """

    __slots__ = ("_fits", "_frozen", "_model", "_names", "_order", "_resolved", "_seed", "_statistics", "_zeros")

    def __init__(
        self,
        names: tuple[str, ...],
        seed: int | None = None,
        statistics: tuple[str, ...] = (),
        frozen: tuple[str, ...] = (),
        model: PhysicalModel | None = None,
    ) -> None:
        super().__init__()
        self._names = names
        self._seed = seed
        self._statistics = statistics
        self._frozen = frozen
        self._model = model
        self._resolved = False
        # What the values were checked for since they last changed: a program, or nothing.
        self._fits: Any = None
        # Of gradients: the names of what was differentiated, and what makes zeros for those that have no gradient.
        self._order: tuple[str, ...] | None = None
        self._zeros: Callable[[str], Any] | None = None

    @classmethod
    def of(
        cls, values: Mapping[str, Any], statistics: tuple[str, ...] = (), frozen: tuple[str, ...] = ()
    ) -> Parameters:
        """Make parameters whose values are there."""
        parameters = cls(tuple(name for name in values if name not in statistics), None, statistics, frozen)
        dict.update(parameters, values)
        parameters._resolved = True
        return parameters

    @property
    def is_resolved(self) -> bool:
        """Whether the values are there."""
        return self._resolved

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics."""
        return self._statistics

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the parameters that training leaves as they are."""
        return self._frozen

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

    def _linked(self) -> tuple[str, ...]:
        """Names of the statistics that the state of the model holds."""
        return self._statistics if self._model is not None else ()

    def _whole(self) -> dict[str, Any]:
        """All entries as a plain dict."""
        self._check()
        return {name: self[name] for name in self}

    def _unlink(self) -> None:
        """Keep the statistics as they are now, apart from the model."""
        model, self._model = self._model, None
        if model is not None and self._resolved:
            dict.update(self, {name: model.state[name] for name in self._statistics})

    def _link(self, model: PhysicalModel) -> None:
        """Let the state of the model hold the statistics."""
        for name in self._statistics:
            dict.pop(self, name, None)
        self._model = model

    def __missing__(self, name: str) -> Any:
        if not self._resolved and name in (*self._names, *self._statistics):
            self._check()
        if self._model is not None and name in self._statistics:
            return self._model.state[name]
        if self._zeros is not None and self._order is not None and name in self._order:
            return self._zeros(name)
        known = (*self._names, *self._statistics)
        hint = did_you_mean(name, known, f"available: {', '.join(known[:20])}")
        raise KeyNotFoundError(f"there is no parameter called {name!r}", hint=hint)

    def __setitem__(self, name: str, value: Any) -> None:
        if self._model is not None and name in self._statistics:
            self._check()
            self._model._set_statistics({name: value})
            return
        self._fits = None
        super().__setitem__(name, value)

    def __delitem__(self, name: str) -> None:
        self._unlink()
        self._fits = None
        super().__delitem__(name)

    def __ior__(self, other: Any) -> Parameters:  # type: ignore[override]
        self.update(other)
        return self

    def update(self, *args: Any, **named: Any) -> None:  # noqa: D102 - as dict
        for name, value in dict(*args, **named).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: D102 - as dict
        if name in self:
            return self[name]
        self[name] = default
        return default

    def pop(self, *args: Any) -> Any:  # noqa: D102 - as dict
        self._check()
        self._unlink()
        self._fits = None
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:  # noqa: D102 - as dict
        self._check()
        self._unlink()
        self._fits = None
        return super().popitem()

    def clear(self) -> None:  # noqa: D102 - as dict
        self._unlink()
        self._fits = None
        super().clear()

    def get(self, name: str, default: Any = None) -> Any:  # noqa: D102 - as dict
        return self[name] if name in self else default  # noqa: SIM401 - this is `get`

    def copy(self) -> dict[str, Any]:  # noqa: D102 - as dict
        return self._whole()

    def keys(self) -> Any:  # noqa: D102 - as dict
        return super().keys() if self._resolved and not self._linked() else dict.fromkeys(self).keys()

    def items(self) -> Any:  # noqa: D102 - as dict
        self._check()
        return self._whole().items() if self._linked() else super().items()

    def values(self) -> Any:  # noqa: D102 - as dict
        self._check()
        return self._whole().values() if self._linked() else super().values()

    def __iter__(self) -> Iterator[str]:
        if not self._resolved:
            return iter((*self._names, *self._statistics))
        return iter((*super().__iter__(), *self._linked())) if self._linked() else super().__iter__()

    def __reversed__(self) -> Iterator[str]:
        return reversed(tuple(self))

    def __len__(self) -> int:
        if not self._resolved:
            return len(self._names) + len(self._statistics)
        return super().__len__() + len(self._linked())

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name) or name in self._linked():
            return True
        return not self._resolved and (name in self._names or name in self._statistics)

    def __or__(self, other: Any) -> Any:
        return self._whole() | other

    def __eq__(self, other: object) -> bool:
        return self is other or (self._resolved and self._whole() == other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __reduce__(self) -> Any:
        return _restore, (self._names, self._seed, self._whole(), self._statistics, self._frozen)

    def __repr__(self) -> str:
        if not self._resolved:
            return f"Parameters({', '.join(self)}; shapes not known yet)"
        return repr(self._whole())


def _restore(
    names: tuple[str, ...],
    seed: int | None,
    values: dict[str, Any],
    statistics: tuple[str, ...] = (),
    frozen: tuple[str, ...] = (),
) -> Parameters:
    parameters = Parameters(names, seed, statistics, frozen)
    parameters._resolve(values)
    return parameters


# --- gradients --------------------------------------------------------------------------------------------------

#: Zeros that stand in a plain dict for gradients that are not there.
_ZEROS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def gradients_like(
    params: Mapping[str, Any], gradients: dict[str, Any], zeros: Callable[[str], Any], is_tree: bool
) -> Mapping[str, Any]:
    """Return gradients that a loop over all parameters can use, and that a map over both can.

    Parameters
    ----------
    params : mapping
        What was differentiated; some may have no gradient: running statistics and what is frozen.
    gradients : dict
        The gradients that there are.
    zeros : callable
        Makes zeros for a name without a gradient.
    is_tree : bool
        Whether the framework maps functions over trees of one structure, as JAX does.
    """
    order = tuple(params)
    others = [name for name in order if name not in gradients]
    if type(params) is Parameters:
        wrapped = Parameters.of(gradients, frozen=params._frozen)
        wrapped._statistics = params._statistics
    elif not others:
        return gradients
    elif is_tree:
        return {name: gradients[name] if name in gradients else _marked(zeros(name)) for name in order}
    else:
        wrapped = Parameters.of(gradients, frozen=tuple(others))
    if others or type(params) is Parameters:
        wrapped._order, wrapped._zeros = order, zeros
    return wrapped


def gradient_order(params: Parameters) -> tuple[str, ...] | None:
    """Return the names of what was differentiated, of gradients; None of parameters."""
    return params._order


def _marked(zeros: Any) -> Any:
    _ZEROS[id(zeros)] = zeros
    return zeros


def untrained(*mappings: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of what an optimizer leaves alone: running statistics, and what is frozen."""
    names: set[str] = set()
    for mapping in mappings:
        if isinstance(mapping, Parameters):
            names.update(mapping._statistics, mapping._frozen)
        elif _ZEROS:
            names.update(name for name, value in mapping.items() if _ZEROS.get(id(value)) is value)
    return frozenset(names)


def like(params: Mapping[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return new values of the kind of the parameters that they are of."""
    return Parameters.of(new, params.statistics, params.frozen) if isinstance(params, Parameters) else new
