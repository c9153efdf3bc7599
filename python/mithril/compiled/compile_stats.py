"""What was compiled, how long it took, and why it was compiled again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

__all__ = ["Compilation", "CompileStats", "observed"]


@dataclass(frozen=True)
class Compilation:
    """One compilation.

    Attributes
    ----------
    what : str
        ``"generate"``: source was generated; ``"evaluate"`` or ``"gradients"``: the framework's compiler ran.
    seconds : float
        How long it took. A framework compiles during a call, whose run is included.
    reason : str
        Why it was needed.
    """

    what: str
    seconds: float
    reason: str


@dataclass
class CompileStats:
    """All compilations of a physical model, in order.

    Attributes
    ----------
    compilations : list of Compilation
        What happened.
    referred : set of str
        Ops that the backend lacks, so that the reference interpreter runs them on the host.
    """

    compilations: list[Compilation] = field(default_factory=list)
    referred: set[str] = field(default_factory=set)
    _seen: dict[str, dict[str, str]] = field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """How often something was compiled."""
        return len(self.compilations)

    @property
    def recompilations(self) -> int:
        """How often something was compiled that had been compiled before."""
        return self.count - len({c.what for c in self.compilations})

    @property
    def seconds(self) -> float:
        """Time spent in compilations."""
        return sum(c.seconds for c in self.compilations)

    def note(self, what: str, seconds: float, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Record a compilation for arguments, given as groups such as ``data`` of arrays by name."""
        signature = {
            f"{group} {name!r}": f"{_plain(value.dtype)} {list(value.shape)}"
            for group, arrays in groups.items()
            for name, value in arrays.items()
            if hasattr(value, "shape")
        }
        before = self._seen.get(what)
        self._seen[what] = signature
        self.compilations.append(Compilation(what, seconds, _reason(before, signature)))

    def __str__(self) -> str:
        rows = [(c.what, f"{c.seconds * 1e3:.1f} ms", c.reason) for c in self.compilations]
        width = max((len(row[0]) for row in rows), default=0), max((len(row[1]) for row in rows), default=0)
        lines = [f"{what:<{width[0]}}  {time:>{width[1]}}  {reason}" for what, time, reason in rows]
        return "\n".join([*lines, f"{self.count} compilations, {self.recompilations} of them again"])


def observed(
    stats: CompileStats, what: str, function: Callable[..., Any], traces: Callable[[], int]
) -> Callable[..., Any]:
    """Watch a function that its framework compiles: whenever ``traces()`` has grown, a compilation is noted."""

    def call(params: Any, data: Any, *rest: Any) -> Any:
        # Compilers look at every entry of a class of our own, in each call, which costs more than a copy.
        params = params if type(params) is dict else dict(params)
        data = data if type(data) is dict else dict(data)
        before, start = traces(), perf_counter()
        result = function(params, data, *rest)
        if traces() != before:
            stats.note(what, perf_counter() - start, {"data": data, "parameter": params})
        return result

    return call


def _reason(before: dict[str, str] | None, now: dict[str, str]) -> str:
    if before is None:
        return "first call"
    changes = [f"{name} is {now[name]}, was {before[name]}" for name in now if before.get(name, now[name]) != now[name]]
    if changes:
        return "; ".join(changes[:3]) + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")
    return "arguments of the same shapes and dtypes: the framework asked for it"


def _plain(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]
