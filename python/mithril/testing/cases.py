"""Test cases of ops, read from their rows.

A case is a line of words: ``[2,3]`` is a float tensor drawn from the op's domain, ``i64[4]<5`` integers from 0 to 4,
``bool[2]`` booleans, ``spd[3,3]`` a symmetric positive definite matrix, ``none`` an absent input and
``axis=(0, 2)`` an argument.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _core

__all__ = ["Case", "cases"]

_SHORT = {
    "bool": "bool",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
}


@dataclass(frozen=True)
class Case:
    """One use of an op.

    Attributes
    ----------
    op : str
        Name of the op.
    text : str
        The line it was read from.
    args : tuple
        One argument per port; arrays are NumPy arrays with floats in double precision.
    """

    op: str
    text: str
    args: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.op} {self.text}".strip()


def cases(row: dict[str, Any]) -> Iterator[Case]:
    """All cases of an op, given its row."""
    lines = row["cases"] or _derived(row)
    for number, line in enumerate(lines):
        yield _read(row, line, number)


def _derived(row: dict[str, Any]) -> list[str]:
    tensors = [p for p in row["ports"] if p["kind"] == "tensor"]
    table: dict[int, list[list[str]]] = {
        0: [[]],
        1: [["[2,3]"], ["[]"], ["[0,3]"], ["[2,1,3,2]"]],
        2: [["[2,3]", "[2,3]"], ["[2,1,3]", "[4,1]"], ["[2,3]", "[]"], ["[0,3]", "[1]"]],
    }
    shapes = table.get(len(tensors), [["[2,3]"] * len(tensors)])
    lines = []
    for choice in shapes:
        words = []
        for port, shape in zip(tensors, choice, strict=True):
            kinds = port["kinds"]
            prefix = "" if "float" in kinds else "i64" if "integer" in kinds else "bool"
            words.append(prefix + shape)
        lines.append(" ".join(words))
    return lines


def _read(row: dict[str, Any], line: str, number: int) -> Case:
    random = np.random.default_rng([zlib.crc32(row["name"].encode()), number])
    names = [p["name"] for p in row["ports"]]
    arguments: dict[str, Any] = {}
    tensors: list[Any] = []
    for word in _words(line):
        name, equals, value = word.partition("=")
        if equals and name in names:
            arguments[name] = _core.parse_literal(value)
        else:
            tensors.append(_tensor(row, word, random))
    args: list[Any] = []
    for port in row["ports"]:
        if port["kind"] == "variadic":
            args.extend(tensors)
            tensors = []
        elif port["name"] in arguments:
            args.append(arguments[port["name"]])
        elif port["kind"] in ("tensor", "optional") and tensors:
            args.append(tensors.pop(0))
        elif port["training"]:
            args.append(True)
        else:
            args.append(port.get("default"))
    return Case(row["name"], line, tuple(args))


def _words(line: str) -> list[str]:
    words, depth, quoted, start = [], 0, False, 0
    for i, c in enumerate(line):
        if c == '"':
            quoted = not quoted
        elif not quoted and c in "([{":
            depth += 1
        elif not quoted and c in ")]}":
            depth -= 1
        elif not quoted and depth == 0 and c == " ":
            words.append(line[start:i])
            start = i + 1
    words.append(line[start:])
    return [w for w in words if w]


def _tensor(row: dict[str, Any], word: str, random: np.random.Generator) -> Any:
    if "[" not in word:
        return _core.parse_literal(word)
    prefix, _, rest = word.partition("[")
    sizes, _, tail = rest.partition("]")
    shape = tuple(int(n) for n in sizes.split(",") if n.strip())
    if prefix == "spd":
        a = random.uniform(-1, 1, shape)
        return a @ np.swapaxes(a, -1, -2) + shape[-1] * np.eye(shape[-1])
    low, high = row["domain"]
    dtype = _SHORT[prefix] if prefix else "float64"
    if "float" in dtype:
        # Exactly representable in every float dtype, so that all are given the same numbers.
        return random.uniform(low, high, shape).astype(np.float16).astype(dtype)
    if dtype == "bool":
        return np.asarray(random.random(shape) < 0.5)
    if tail.startswith("<"):
        return np.asarray(random.integers(0, int(tail[1:]), shape), dtype)
    return np.asarray(random.integers(0 if dtype.startswith("uint") else -5, 6, shape), dtype)
