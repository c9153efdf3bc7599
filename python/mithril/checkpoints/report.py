"""What became of weights in a model, in words: what was loaded, what does not fit, and what may be done about it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ParameterError

__all__ = ["MisShaped", "Report", "misfit", "report_of"]

#: Names that a message shows of each kind.
_SHOWN = 5
#: Parts that a help names.
_NAMED = 24
#: A name in a part of a model that is repeated: what stands before the number, and the number.
_NUMBERED = re.compile(r"(.*?)\.(\d{1,6})\.")


@dataclass(frozen=True)
class MisShaped:
    """An array whose shape differs: our name, that in the file, our shape and theirs.

    Where the file has matrices the other way round, ``actual`` is the shape as ours would be.
    """

    name: str
    source: str
    expected: tuple[int, ...]
    actual: tuple[int, ...]

    def __str__(self) -> str:
        other = "" if self.source.endswith(self.name) or self.name.endswith(self.source) else f", {self.source}"
        return f"{self.name} ({list(self.expected)} in the model, {list(self.actual)} in the weights{other})"


@dataclass(frozen=True)
class Report:
    """What `load_weights` did. ``print(report)`` shows it.

    Attributes
    ----------
    source : str
        Where the weights come from.
    layout : str or None
        The layout of the names, by who publishes it; None if they are ours.
    loaded : tuple of str
        Our names that got their values.
    missing : tuple of str
        Our names that the source lacks.
    unexpected : tuple of str
        Names of the source that have no place in the model.
    mis_shaped : tuple of MisShaped
        Arrays of another shape.
    ignored : tuple of str
        Names of the source that hold nothing the model needs.
    did_you_mean : dict
        For missing names, one of the source that may be meant.
    prefix : str
        The part of the model that the weights are of; empty for the whole.
    names : dict
        The names that were given: those of the model to those of the source.
    renamed : dict
        For parts of the model that are missing, what they may be called in the source: as many parts of it, one after
        the other, have the same sizes.
    """

    source: str
    layout: str | None
    loaded: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mis_shaped: tuple[MisShaped, ...] = ()
    ignored: tuple[str, ...] = ()
    did_you_mean: dict[str, str] = field(default_factory=dict)
    prefix: str = ""
    names: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether everything in the model got its values, and nothing was left over."""
        return not (self.missing or self.unexpected or self.mis_shaped)

    def __str__(self) -> str:
        names = "with the names given" if self.names else "with names as they are"
        names = names if self.layout is None else f"in the layout of {self.layout}"
        part = f" into {self.prefix!r}" if self.prefix else ""
        lines = [f"{len(self.loaded)} arrays loaded{part} from {self.source}, {names}", *self._problems()]
        if self.ignored:
            lines.append(_line("ignored", list(self.ignored)))
        return "\n".join(lines)

    def _problems(self) -> list[str]:
        def shown(name: str) -> str:
            near = self.did_you_mean.get(name)
            return name if near is None else f"{name} (is it {near}?)"

        kinds = {
            "missing": [shown(name) for name in self.missing],
            "unexpected": list(self.unexpected),
            "of another shape": [str(one) for one in self.mis_shaped],
        }
        return [_line(kind, names) for kind, names in kinds.items() if names]

    def _summary(self) -> str:
        counts = {"missing": self.missing, "unexpected": self.unexpected, "of another shape": self.mis_shaped}
        return ", ".join(f"{len(names)} {kind}" for kind, names in counts.items() if names)


def report_of(label: str, plan: dict[str, Any], names: dict[str, str]) -> Report:
    """Make the report about a plan of the core; ``label`` and ``names`` are what was given."""
    return Report(
        source=label,
        layout=plan["layout"],
        prefix=plan["prefix"],
        loaded=tuple(name for name, *_ in plan["steps"]),
        missing=tuple(name for name, _ in plan["missing"]),
        unexpected=tuple(plan["unexpected"]),
        mis_shaped=tuple(MisShaped(n, s, tuple(ours), tuple(theirs)) for n, s, ours, theirs in plan["mis_shaped"]),
        ignored=tuple(plan["ignored"]),
        did_you_mean={name: near for name, near in plan["missing"] if near is not None},
        names=names,
        renamed=dict(plan["renamed"]),
    )


def misfit(report: Report, steps: Sequence[Any], ours: list[str], theirs: list[str]) -> ParameterError:
    """Make the error that weights do not fit.

    Parameters
    ----------
    report : Report
        Says what does not fit.
    steps : sequence
        What would be loaded: our names, with theirs in the second place.
    ours, theirs : list of str
        All names of the model, and of the weights.
    """
    if not steps and not report.mis_shaped:
        message = f"nothing in {report.source} fits the model"
        notes = [_line("the model has", ours), _line("the weights have", theirs)]
        other = "these are weights of another model, or in a layout that is not known"
        return _error(message, notes, _renamed(report) or f"{other}{_example(report)}")
    notes = report._problems()
    blocks = _blocks(report, steps)
    if report.mis_shaped and not report.missing and not report.unexpected:
        message = f"the weights of {report.source} belong to a model of other sizes"
    else:
        message = f"the weights of {report.source} do not match the model: {report._summary()}"
    if sizes := _sizes(report.mis_shaped):
        notes.append(f"so {', '.join(f'{ours} in the model is {theirs} in the weights' for ours, theirs in sizes)}")
    notes += [f"{name!r} has {ours} parts in the model, {theirs} in the weights" for name, ours, theirs in blocks]
    if renamed := _renamed(report):
        hint = renamed
    elif report.mis_shaped or blocks:
        hint = _builder(report.source) or "build the model with the sizes of the weights"
    elif report.prefix and not report.unexpected:
        return _error(message, notes, f"they fit the part {report.prefix!r}: prefix={report.prefix!r} loads that alone")
    else:
        hint = f"compare the arguments of the model{_example(report)}"
    return _error(message, notes, f"{hint}; strict=False loads what fits" if steps else hint)


def _renamed(report: Report) -> str | None:
    """Return what names to give, where sizes agree part by part."""
    if not report.renamed:
        return None
    pairs = [f"{ours!r}: {theirs!r}" for ours, theirs in {**report.names, **report.renamed}.items()]
    names = ", ".join([*pairs[:_NAMED], *(["…"] if len(pairs) > _NAMED else [])])
    return f"the sizes agree in order; if the layers are in the same order, give names={{{names}}}"


def _example(report: Report) -> str:
    """Return how names are given, by those of the first that are missing and left over."""
    if not (report.missing and report.unexpected):
        return ""
    ours = report.missing[0]
    theirs = report.did_you_mean.get(ours, report.unexpected[0])
    return f"; where only names differ, say what is called what: names={{{ours!r}: {theirs!r}, …}}"


def _error(message: str, notes: list[str], hint: str) -> ParameterError:
    text = "\n  ".join([f"error[{ParameterError.code}]: {message}", *notes, f"help: {hint}"])
    return ParameterError(text, message=message, notes=tuple(notes), hint=hint)


def _sizes(arrays: Iterable[MisShaped]) -> list[tuple[int, int]]:
    """Return which sizes of the model are which in the weights; without multiples of others, and the first few."""
    pairs = {
        pair
        for one in arrays
        if len(one.expected) == len(one.actual)
        for pair in zip(one.expected, one.actual, strict=True)
        if pair[0] != pair[1]
    }
    ratios: list[tuple[int, int]] = []
    for ours, theirs in sorted(pairs):
        if not any(ours * other == theirs * own for own, other in ratios):
            ratios.append((ours, theirs))
    # Of one size that is several, nothing follows.
    return ratios[:_SHOWN] if len({ours for ours, _ in ratios}) == len(ratios) else []


def _blocks(report: Report, steps: Sequence[Any]) -> list[tuple[str, int, int]]:
    """Return of which repeated parts there are more in the model or in the weights: our name, how many, and theirs."""
    pairs = [(ours, theirs[0]) for ours, theirs, *_ in steps]
    pairs += [(one.name, one.source.split(" + ")[0]) for one in report.mis_shaped]
    blocks: dict[str, tuple[str, set[str], set[str]]] = {}
    for ours, theirs in pairs:
        here, there = _NUMBERED.match(ours), _NUMBERED.match(theirs)
        if here and there and here[2] == there[2]:
            _, own, others = blocks.setdefault(here[1], (there[1], set(), set()))
            own.add(here[2])
            others.add(there[2])
    for name in report.missing:
        if (here := _NUMBERED.match(name)) and here[1] in blocks:
            blocks[here[1]][1].add(here[2])
    for name in report.unexpected:
        there = _NUMBERED.match(name)
        for prefix, _, others in blocks.values():
            if there and there[1] == prefix:
                others.add(there[2])
    return [(name, len(own), len(others)) for name, (_, own, others) in blocks.items() if len(own) != len(others)]


def _builder(source: str) -> str | None:
    """Return how a model of the sizes of a file is built, where something says it: a configuration, or GGUF itself."""
    if source.endswith(".gguf"):
        return f"ml.models.from_config({source!r}) builds the model of the file, if the zoo has it"
    if not os.path.isabs(source):
        return None  # No file.
    folder = Path(source).parent
    try:
        known = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(known, dict) or "model_type" not in known:
        return None
    return f"ml.models.from_config({os.fspath(folder)!r}) builds the model of these weights, if the zoo has it"


def _line(kind: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{kind}: {', '.join(name[:200] for name in names[:_SHOWN])}{more}"
