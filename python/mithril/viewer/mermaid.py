"""A graph as the text of a Mermaid flowchart."""

from __future__ import annotations

from ..tables import visible
from .closed import Closed

__all__ = ["mermaid"]

#: What Mermaid, or the HTML that it makes of labels, would take for something else. The first is what the others are
#: written with.
_SPECIAL = {"#": "#35;", '"': "#quot;", "&": "#amp;", "<": "#lt;", ">": "#gt;", "`": "#96;", "\\": "#92;"}
_SHAPES = {"input": ('(["', '"])'), "output": ('(["', '"])'), "closed": ('[["', '"]]'), "node": ('["', '"]')}


def mermaid(graph: Closed) -> str:
    """Return the flowchart; open submodels are subgraphs.

    Parameters
    ----------
    graph : Closed
        The boxes and edges.
    """
    lines = ["flowchart TD"]
    around: dict[str, list[str]] = {"": []}
    names: dict[str, str] = {}
    for i, box in enumerate(graph.boxes):
        for depth, path in enumerate(box.groups):
            if path not in names:
                names[path] = f"g{len(names)}"
                around[path] = []
                around[box.groups[depth - 1] if depth else ""].append(path)
        before, after = _SHAPES[box.kind]
        label = "<br>".join(_escaped(text) for text in (box.title, *box.lines))
        around[box.groups[-1] if box.groups else ""].append(f"n{i}{before}{label}{after}")

    def write(path: str, indent: str) -> None:
        for entry in around[path]:
            if entry in names:
                lines.append(f'{indent}subgraph {names[entry]}["{_escaped(entry.rpartition(".")[2])}"]')
                write(entry, indent + "  ")
                lines.append(f"{indent}end")
            else:
                lines.append(indent + entry)

    write("", "  ")
    lines.extend(f'  n{a} -->|"{_escaped(type_)}"| n{b}' for a, b, type_ in graph.edges)
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in visible(text)) or "#32;"
