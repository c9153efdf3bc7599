"""What a page shows of a compiled model: the graph of each stage, texts with links to nodes, the memory plan."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..compiled import internals
from ..errors import MithrilError

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["collect", "graph_of", "memory_of", "type_text"]

#: What a graph's text begins with; the stages of C are other programs, which are shown as text.
_GRAPH = "graph {\n"
#: Longer lines are cut: a constant may have millions of characters.
_LONGEST_LINE = 2000
#: Longer literals are cut.
_LONGEST_LITERAL = 120
_TARGETS = re.compile(r"^\s*((?:[A-Za-z_]\w*\s*,\s*)*[A-Za-z_]\w*)\s*=[^=]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
#: The end of a step of C: ``… in "layer1.0" as "relu"``.
_ORIGIN = re.compile(r' in "((?:[^"\\]|\\.)*)" as "(?:[^"\\]|\\.)*"$')
#: ``x8: f32[2, 64] arena 0 in blocks of 16, halo 1 1 1 1 "relu"``.
_BLOCKS = re.compile(r" in blocks of (\d+), halo (\d+) (\d+) (\d+) (\d+)(?:, frames (\d+) (\d+))?")
#: Lines in front of the steps of C.
_HEAD = re.compile(r"(x\d+|arena|variables|tiles): |integers x|update x|halo of x")
_PLACED = re.compile(r"^(x\d+): (\w+)\[([^\]]*)\] arena (\d+)\b(.*)$")
_BITS = re.compile(r"\d+$")


def collect(compiled: PhysicalModel, partitioned: str = "", *, gradients: bool = False) -> dict[str, Any]:
    """Return what the page embeds, of strings, numbers, lists and dictionaries.

    Parameters
    ----------
    compiled : PhysicalModel
        A compiled model, whose shapes are known up to symbols.
    partitioned : str, optional
        The graph of a device of several, which is shown as the stage ``"partition"``.
    gradients : bool, default False
        Whether it is of the function that computes the gradients.

    Returns
    -------
    dict
        ``stages``: name, index of the graph, index of the text. ``graphs``, ``texts``: each that differs once.
        ``source``: index of the text. ``memory``: the plan, or None.
    """
    program = internals.known_program(compiled)
    lines = {row["path"]: row["where"] for row in reversed(_core.nodes(program.core)) if row["path"] and row["where"]}
    stages = dict(compiled.gradient_stages if gradients else compiled.stages)
    source = list(stages)[-1]
    if partitioned:
        stages["partition"] = partitioned
    graphs: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    known: dict[str, tuple[int, int]] = {}
    rows = []
    graph = 0
    for name, text in stages.items():
        if text not in known:
            if text.startswith(_GRAPH):
                graph = len(graphs)
                graphs.append(graph_of(text, lines))
                links = _graph_links(text, graphs[graph])
            elif name == source:
                module = internals.gradient_module(compiled) if gradients else program.module
                links = _source_links(text, module.source, graphs)
            else:
                links = [_step_links(line) for line in text.split("\n")]
            known[text] = (graph, len(texts))
            texts.append({"lines": [_cut(line) for line in text.split("\n")], "links": links})
        graph, index = known[text]
        rows.append([name, graph, index])
    return {
        "backend": compiled.backend.name,
        "stages": rows,
        "graphs": graphs,
        "texts": texts,
        "source": next(index for name, _, index in rows if name == source),
        "memory": _memory(compiled, stages, gradients=gradients),
    }


def graph_of(text: str, lines: Mapping[str, str] | None = None) -> dict[str, Any]:
    r"""Return a graph from its text: inputs that are not weights, nodes with the weights that they read, outputs.

    What depends on gradients of outputs is the backward pass, a part of its own named ``gradients``: as nodes of the
    layers that it goes through backwards, it would make cycles of them.

    Parameters
    ----------
    text : str
        A stage of `PhysicalModel.stages` that is a graph.
    lines : mapping, optional
        Path of a layer to the user's line.

    Examples
    --------
    >>> text = 'graph {\n  data %0 "x": f32[2]\n  %1 "y": f32[2] = exp(%0) in "exp"\n  return "y" = %1\n}\n'
    >>> graph = graph_of(text)
    >>> graph["inputs"], graph["outputs"], graph["nodes"][0]["op"], graph["nodes"][0]["inputs"]
    ([[0, 'x', 'data', 'float32[2]']], [['y', 1]], 'exp', [0])
    """
    graph = _core.parse_graph(text)
    weights = {}
    inputs = []
    for value, name, role, dtype, shape in graph["inputs"]:
        # Running statistics belong to a layer, as weights do; the key of random numbers does not.
        if role == "param" or (role == "state" and "." in (name or "")):
            weights[value] = (name, type_text(dtype, shape), _size(shape) if role == "param" else 0)
        else:
            name = f"gradient:{name}" if role == "cotangent" else name
            inputs.append([value, name or "", role, type_text(dtype, shape)])
    backward = {value for value, _, role, _ in inputs if role == "cotangent"}
    nodes = []
    counted: set[int] = set()
    for row in graph["nodes"]:
        read = [value for _, value, *_ in row["inputs"]]
        own = [value for value in dict.fromkeys(read) if value in weights]
        size = sum(weights[value][2] for value in own if value not in counted)
        counted.update(own)
        outputs = [[value, name or "", type_text(dtype, shape)] for value, name, dtype, shape in row["outputs"]]
        path = row["path"] or ""
        is_backward = not backward.isdisjoint(read)
        if is_backward:
            backward.update(value for value, *_ in outputs)
        names = [name for _, name, _ in outputs if name] + [weights[value][0] for value in own]
        nodes.append(
            {
                "op": row["op"],
                "path": ".".join(filter(None, ("gradients", path))) if is_backward else path,
                "where": (lines or {}).get(path, ""),
                "inputs": [value for value in read if value not in weights],
                "outputs": outputs,
                "params": [list(weights[value][:2]) for value in own],
                "weights": size,
                "literals": ", ".join(f"{name}={_literal(value)}" for name, value in row["literals"].items()),
                "keys": [*(f"v:{_identifier(name)}" for name in names), f"p:{path}|{row['op']}", f"p:{path}"],
            }
        )
    return {"inputs": inputs, "nodes": nodes, "outputs": [list(pair) for pair in graph["outputs"]]}


def type_text(dtype: str, shape: Iterable[Any]) -> str:
    """Write a type.

    Examples
    --------
    >>> type_text("float32", ("batch", 64)), type_text("bool", ())
    ('float32[batch, 64]', 'bool[]')
    """
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _size(shape: Sequence[Any]) -> int:
    return math.prod(shape) if all(isinstance(n, int) for n in shape) else 0


def _literal(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.ndim:
        return f"constant of {type_text(value.dtype.name, value.shape)}"
    text = str(value) if isinstance(value, np.ndarray) else repr(value)
    return text if len(text) <= _LONGEST_LITERAL else f"{text[:_LONGEST_LITERAL]}…"


def _cut(line: str) -> str:
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]} … {len(line) - _LONGEST_LINE:,} more characters"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


# --- links of lines to nodes --------------------------------------------------------------------------------------
# A link is a key: "v:NAME" of a value, as an identifier, or "p:PATH|OP", or "p:PATH". Keys rather than nodes, as the
# same text stands beside the graphs of several stages.


def _graph_links(text: str, graph: Mapping[str, Any]) -> list[list[str]]:
    """Every line of a graph's text that defines a node is linked to that node, by its position: ``n:3``."""
    links: list[list[str]] = []
    position = 0
    for line in text.split("\n"):
        is_node = line.startswith("  %") and position < len(graph["nodes"])
        links.append([f"n:{position}"] if is_node else [])
        position += is_node
    return links


def _step_links(line: str) -> list[str]:
    """Link a step of C to the part of the model that it belongs to."""
    origin = _ORIGIN.search(line)
    paths = [origin.group(1)] if origin is not None else _QUOTED.findall(line)[-1:]
    return [f"p:{_unescaped(path)}" for path in paths]


def _source_links(text: str, source: Any, graphs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    known = {key for graph in graphs for node in graph["nodes"] for key in node["keys"]}
    known |= {f"v:{_identifier(name)}" for graph in graphs for _, name, *_ in graph["inputs"]}
    origin = getattr(source, "origin", None)
    links = []
    for number, line in enumerate(text.split("\n"), start=1):
        keys = []
        if origin is not None:
            # Python: a line computes what it assigns; the code generator says of which op it is.
            target = _TARGETS.match(line)
            names = re.split(r"\s*,\s*", target.group(1)) if target else []
            link = origin(number)
            if link is not None:
                keys = [f"p:{link[1] or ''}|{link[0]}", f"p:{link[1] or ''}"]
        else:
            # Elsewhere a function is called with what it writes: all names in the line.
            names = _IDENTIFIER.findall(line)
        values = [f"v:{name}" for name in dict.fromkeys(names) if f"v:{name}" in known]
        links.append([*values, *keys])
    return links


# --- memory -------------------------------------------------------------------------------------------------------


def _memory(compiled: PhysicalModel, stages: Mapping[str, str], *, gradients: bool) -> dict[str, Any] | None:
    if "memory_planning" in stages:
        return memory_of(stages["memory_planning"])
    if gradients:
        # What is known otherwise is the plan of the forward pass.
        return None
    try:
        return {"total": compiled.memory.total, "text": str(compiled.memory), "steps": [], "tensors": []}
    except MithrilError:
        # The other backends leave memory to their framework.
        return None


def memory_of(text: str) -> dict[str, Any]:
    """Return the plan of the arena from the text of the stage ``memory_planning``.

    Returns
    -------
    dict
        ``total``: bytes of the arena. ``steps``: what runs. ``tensors``: name, offset and size in bytes, first and last
        step that uses it, key of the link.

    Examples
    --------
    >>> text = '''arena: 512 bytes
    ... x0: f32[2, 8] input 0 "input"
    ... x1: f32[2, 64] arena 0 "relu"
    ... x2: f32[2, 10] output 0 "logits"
    ... variables: 0
    ... x1 = 2x64x8 product(x0) in "first" as "relu"
    ... x2 = 2x10x64 product(x1) in "second" as "logits"
    ... '''
    >>> memory_of(text)["tensors"]
    [['relu', 0, 512, 0, 1, 'float32[2, 64]']]
    """
    lines = text.split("\n")
    total = re.match(r"arena: (\d+)", lines[0])
    placed = [match for match in map(_PLACED.match, lines) if match is not None]
    body = [line for line in lines if line and not _HEAD.match(line)]
    if "at every call:" in body:
        body = body[body.index("at every call:") + 1 :]
    uses: dict[str, list[int]] = {}
    steps: list[str] = []
    for line in body:
        # What is indented belongs to the step above.
        if not line.startswith(" "):
            steps.append(line)
        for name in re.findall(r"\bx\d+\b", line):
            uses.setdefault(name, []).append(max(0, len(steps) - 1))
    tensors = []
    for match in placed:
        name, dtype, sizes, offset, more = match.groups()
        if name not in uses:
            continue
        shape = [int(size) for size in sizes.split(",") if size.strip().isdigit()]
        label = _QUOTED.findall(more)
        size = _elements(shape, more) * _bytes(dtype)
        kind = type_text(_long(dtype), shape)
        tensors.append(
            [_unescaped(label[-1]) if label else name, int(offset), size, uses[name][0], uses[name][-1], kind]
        )
    return {"total": int(total.group(1)) if total else 0, "text": "", "steps": steps, "tensors": tensors}


def _elements(shape: Sequence[int], layout: str) -> int:
    """Return the number of elements in memory, with the halo of a tensor in blocks."""
    blocks = _BLOCKS.search(layout)
    if blocks is None:
        return math.prod(shape)
    lanes, top, bottom, left, right, *frames = (int(number or 0) for number in blocks.groups())
    batch, channels, *depth, height, width = shape
    # Behind each block lies a vector more.
    plane = ((top + height + bottom) * (left + width + right) + 1) * lanes
    return batch * channels // lanes * plane * (depth[0] + sum(frames) if depth else 1)


def _bytes(dtype: str) -> int:
    bits = _BITS.search(dtype)
    return max(1, int(bits.group()) // 8) if bits else 1


def _long(dtype: str) -> str:
    names = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat"}
    match = re.fullmatch(r"(bf|f|i|u)(\d+)", dtype)
    return f"{names[match.group(1)]}{match.group(2)}" if match else dtype
