"""The program that runs all exported models at once without a system: its table of models, and what it prints."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .models import Model

#: Of each kind of number that main.c knows: its dtype, and the largest error, in parts of the largest number.
KINDS = {"f": ("<f4", 1e-5), "d": ("<f8", 1e-12), "h": ("<f2", 2e-3), "b": ("<u2", 1e-2)}


class Tensor(NamedTuple):
    """A recorded tensor: name, kind of number as in main.c, bytes."""

    name: str
    kind: str
    recorded: bytes


def recorded(model: Model) -> tuple[list[Tensor], list[Tensor]]:
    """Return the data and the outputs that were recorded when the model was exported."""
    folder = model.exported.folder
    left = (folder / f"{model.name}.check").read_bytes()
    text = (folder / "main.c").read_text()
    groups: list[list[Tensor]] = []
    for table in re.findall(r"tensor (?:data|results)\[.*?\};", text, re.S):
        groups.append([])
        for name, kind, count, item in re.findall(r'\{"(.*?)", \'(.)\', (\d+), (\d+)\}', table):
            size = int(count) * int(item)
            groups[-1].append(Tensor(name, kind, left[:size]))
            left = left[size:]
    assert not left
    data, results = groups
    return data, results


def calls(model: Model) -> int:
    """Return after how many calls the outputs were recorded."""
    (number,) = re.findall(r"\bCALLS = (\d+)", (model.exported.folder / "main.c").read_text())
    return int(number)


def updates(model: Model) -> list[tuple[int, int]]:
    """Return of each new state, in the order of the outputs, which input it replaces, and its bytes."""
    (table,) = re.findall(r"_weight_table\[.*?\] = \{(.*?)\};", model.source.read_text(), re.S)
    rows = re.findall(r"\{(\d+), (\d+), \d+, (\d+)\}, /\*", table)
    return [(int(i), int(size)) for output, i, size in sorted((int(o), i, size) for i, o, size in rows)]


def places(model: Model) -> list[int]:
    """Return which inputs are data, then -1."""
    (table,) = re.findall(r"_data_table\[.*?\] = \{(.*?)\};", model.source.read_text(), re.S)
    return [*map(int, table.split(",")[:-1]), -1]


def aligned(sizes: list[int]) -> int:
    """Return the bytes of tensors one after the other, each at a multiple of 64."""
    return sum((size + 63) // 64 * 64 for size in sizes)


def write_table(models: Sequence[Model], folder: Path) -> None:
    """Write models.h for run.c: what belongs to each model, and how much memory they need."""
    lines = ["#include <stddef.h>", *(f'#include "{m.name}.h"' for m in models), TYPE]
    rows, output_bytes = [], []
    for model in models:
        name, (data, results) = model.name, recorded(model)
        for i, tensor in enumerate(data):
            numbers = ", ".join(map(str, tensor.recorded))
            lines.append(f"_Alignas(64) static const unsigned char {name}_data_{i}[] = {{{numbers}}};")
        sizes = [len(t.recorded) for t in results] + [size for _, size in updates(model)]
        output_bytes.append(aligned(sizes))
        tables = {
            "const void *const": ("data", [f"{name}_data_{i}" for i in range(len(data))]),
            "const size_t": ("sizes", sizes),
        }
        numbers = {"places": places(model), "states": [*(i for i, _ in updates(model)), -1]}
        for kind, (what, values) in [*tables.items(), *(("const int", item) for item in numbers.items())]:
            lines.append(f"static {kind} {name}_{what}[] = {{{', '.join(map(str, values))}}};")
        called = ("arena_bytes", "packed_bytes", "pack_bytes", "pack", "run", "error")
        functions = ", ".join(f"{name}_{f}" for f in called)
        inside = f"{name}_packed" if f"{name}_packed[" in model.header.read_text() else "NULL"
        arrays = ", ".join((inside, *(f"{name}_{f}" for f in ("weights", "data", "places", "sizes", "states"))))
        numbers = f"{name.upper()}_INPUTS, {name.upper()}_OUTPUTS, {len(results)}, {calls(model)}"
        rows.append(f'  {{"{name}", {functions}, {arrays}, {numbers}}},')
    most = {
        "ARENA_BYTES": max(max(m.exported.arena_bytes, m.exported.pack_bytes) for m in models),
        "PACKED_BYTES": max(m.exported.packed_bytes for m in models),
        "OUTPUT_BYTES": max(output_bytes),
    }
    lines += [f"#define {name} {size}" for name, size in most.items()]
    for what in ("INPUTS", "OUTPUTS"):
        lines.append(f"enum {{ MOST_{what} = " + " + ".join(f"{m.name.upper()}_{what}" for m in models) + " };")
    lines += ["static const model models[] = {", *rows, "};"]
    (folder / "models.h").write_text("\n".join(lines) + "\n")


TYPE = """\
typedef struct {
  const char *name;
  size_t (*arena_bytes)(int);
  size_t (*packed_bytes)(void);
  size_t (*pack_bytes)(void);
  int (*pack)(const void *const *, void *, void *);
  int (*run)(const void *const *, void *const *, const void *, void *, const mithril_pool *);
  const char *(*error)(int);
  const void *packed; /* where the weights are packed; NULL: they are not */
  const void *const *weights, *const *data;
  const int *places; /* of the data among the inputs, then -1 */
  const size_t *sizes;
  const int *states;
  int inputs, outputs, results, calls;
} model;
"""


def problems(models: Sequence[Model], printed: str) -> Iterator[str]:
    """Compare what run.c printed with what was recorded; yield what is wrong."""
    lines = iter(printed.split("\n"))
    for model in models:
        for tensor in recorded(model)[1]:
            line = next(lines, "")
            name, _, digits = line.partition(" ")
            if name != model.name or not re.fullmatch("([0-9a-f]{2})*", digits):
                yield f"{model.name}.{tensor.name}: printed is {line[:80]!r}"
                return
            error = distance(tensor, bytes.fromhex(digits))
            allowed = KINDS.get(tensor.kind, ("", 0.0))[1]
            if not error <= allowed:
                yield f"{model.name}.{tensor.name}: the largest error is {error:.2g}, allowed {allowed:.2g}"


def distance(tensor: Tensor, content: bytes) -> float:
    """Return the largest distance from what was recorded, in parts of the largest recorded number."""
    if content == tensor.recorded:
        return 0.0
    if tensor.kind not in KINDS or len(content) != len(tensor.recorded):
        return np.inf
    got, expected = (np.frombuffer(b, KINDS[tensor.kind][0]) for b in (content, tensor.recorded))
    if tensor.kind == "b":
        got, expected = ((x.astype(np.uint32) << 16).view(np.float32) for x in (got, expected))
    got, expected = got.astype(float), expected.astype(float)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    far = np.abs(got - expected)[~same] / np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
    return float(np.where(np.isnan(far), np.inf, far).max(initial=0.0))
