"""Data that the caller gives away: whose memory a compiled model may write its results into.

A program writes into a donated array only where nothing else reads it (``mithril-codegen`` ``donation.rs``). What the
program cannot see is looked at here: an array that shares memory with other data, or that cannot be written, is
copied before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import ref

from ..errors import ConflictingOptionError, InvalidValueError

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["Known", "alone", "check_pure", "donated_names"]


def donated_names(names: Iterable[str], data: Sequence[str], backend: Backend) -> tuple[str, ...]:
    """Return the names of data that programs of a backend may write into.

    Parameters
    ----------
    names : iterable of str
        What the user donates.
    data : sequence of str
        Names of the data of the model.
    backend : Backend
        Where it runs; many cannot write into arrays.

    Raises
    ------
    InvalidValueError
        If something is not data.
    """
    for name in names:
        if name not in data:
            raise InvalidValueError(
                f"donate names {name!r}, which is not a data input", hint=f"data are: {', '.join(data)}"
            )
    return tuple(names) if backend.engine.writes_in_place else ()


class Known:
    """The donated arrays of the last call that needed no copy: a decoder gives its caches again with each token."""

    def __init__(self) -> None:
        #: The arrays, and where the memory of each starts and ends, in the order of memory.
        self._last: tuple[list[ref[Any]], list[int]] = ([], [])

    def remember(self, arrays: Iterable[Any], spans: Iterable[tuple[int, int]]) -> None:
        """Keep arrays that lie apart from each other."""
        borders = [border for span in sorted(spans) if span[0] < span[1] for border in span]
        self._last = ([ref(array) for array in arrays], borders)

    def holds(self, backend: Backend, data: Mapping[str, Any], donated: tuple[str, ...]) -> bool:
        """Whether the donated arrays are those, may be written, and lie apart from all other data."""
        arrays, borders = self._last
        if len(arrays) != len(donated):
            return False
        for known, name in zip(arrays, donated, strict=True):
            array = data[name]
            if known() is not array or not backend.engine.is_writable(array):
                return False
        for name, array in data.items():
            if name not in donated:
                start, end = backend.engine.memory_span(array)
                at = bisect_right(borders, start)
                if at % 2 or (at < len(borders) and borders[at] < end):
                    return False
        return True


def alone(backend: Backend, data: Mapping[str, Any], donated: tuple[str, ...], known: Known) -> Mapping[str, Any]:
    """Return the data with copies of those donated arrays that may not be written into.

    Parameters
    ----------
    backend : Backend
        Where the arrays are.
    data : mapping
        All data of a call, arrays of the backend.
    donated : tuple of str
        Names of what is given away.
    known : Known
        What was found at earlier calls.

    Returns
    -------
    mapping
        ``data`` itself if nothing needs a copy.
    """
    if known.holds(backend, data, donated):
        return data
    spans = sorted((*backend.engine.memory_span(array), name) for name, array in data.items())
    shared: set[str] = set()
    reach, holder = 0, ""
    for start, end, name in spans:
        if start < min(end, reach):
            shared |= {name, holder}
        if end > reach:
            reach, holder = end, name
    copied = [name for name in donated if name in shared or not backend.engine.is_writable(data[name])]
    if copied:
        return {**data, **{name: backend.engine.copy(data[name]) for name in copied}}
    known.remember([data[name] for name in donated], [(start, end) for start, end, name in spans if name in donated])
    return data


def check_pure(donated: tuple[str, ...]) -> None:
    """Raise if a program may write into its data."""
    if donated:
        raise ConflictingOptionError(
            "a function that writes into the memory of donated data is not pure", hint="compile without donate"
        )
