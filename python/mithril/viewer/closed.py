"""A graph with its submodels closed beyond a depth, for pictures that do not move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Box", "Closed", "close"]


@dataclass(frozen=True)
class Box:
    """A node, a closed submodel, an input or an output.

    Attributes
    ----------
    title : str
        Its name.
    lines : tuple of str
        What stands below the name.
    kind : str
        ``"input"``, ``"output"``, ``"node"`` or ``"closed"``.
    groups : tuple of str
        The open submodels around it, from the outermost.
    """

    title: str
    lines: tuple[str, ...]
    kind: str
    groups: tuple[str, ...] = ()


@dataclass
class Closed:
    """Boxes, and edges between them by their positions: source, target, type."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int, str]] = field(default_factory=list)


def close(graph: Mapping[str, Any], depth: int) -> Closed:
    """Close the submodels of a graph beyond a depth; with depth 1 those of the model itself are closed.

    Parameters
    ----------
    graph : mapping
        A graph of `graph_of`.
    depth : int
        How deep parts are shown.
    """
    out = Closed()
    source: dict[int, tuple[int, str]] = {}
    for value, name, _, type_ in graph["inputs"]:
        source[value] = (len(out.boxes), type_)
        out.boxes.append(Box(name, (type_,), "input"))
    parts = [node["path"].split(".") if node["path"] else [] for node in graph["nodes"]]
    counts = Counter(tuple(path[:depth]) for path in parts if path)
    weights: Counter[tuple[str, ...]] = Counter()
    for node, path in zip(graph["nodes"], parts, strict=True):
        weights[tuple(path[:depth])] += node["weights"]
    position: dict[tuple[str, ...], int] = {}
    seen: set[tuple[int, int, int]] = set()
    for node, path in zip(graph["nodes"], parts, strict=True):
        key = tuple(path[:depth])
        if path and key in position:
            at = position[key]
        else:
            at = len(out.boxes)
            position[key] = at
            groups = tuple(".".join(key[: i + 1]) for i in range(len(key) - 1))
            if not path or counts[key] == 1:
                params = (f"{name.rpartition('.')[2]}: {type_}" for name, type_ in node["params"])
                title = ".".join(path[len(key) - 1 :]) if path else node["op"]
                lines = (*((node["op"],) if title != node["op"] else ()), *params)
                out.boxes.append(Box(title, lines, "node", groups))
            else:
                amount = f", {weights[key]:,} parameters" if weights[key] else ""
                out.boxes.append(Box(key[-1], (f"{counts[key]} ops{amount}",), "closed", groups))
        for value in node["inputs"]:
            _connect(out, source.get(value), at, value, seen)
        for value, _, type_ in node["outputs"]:
            source[value] = (at, type_)
    for name, value in graph["outputs"]:
        at = len(out.boxes)
        out.boxes.append(Box(name, (source[value][1],) if value in source else (), "output"))
        _connect(out, source.get(value), at, value, seen)
    return out


def _connect(
    out: Closed, source: tuple[int, str] | None, target: int, value: int, seen: set[tuple[int, int, int]]
) -> None:
    if source is not None and source[0] != target and (source[0], target, value) not in seen:
        seen.add((source[0], target, value))
        out.edges.append((source[0], target, source[1]))
