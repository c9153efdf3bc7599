"""What a model takes and gives, in the words of Rust: names of fields, types, and the templates that they fill."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = [
    "DATA_ROLES",
    "KEYWORDS",
    "TYPES",
    "Port",
    "count_of",
    "data_ports",
    "dtype_said",
    "filled",
    "named_fields",
    "quoted",
    "result_ports",
    "said",
    "type_of",
    "variant_of",
    "zero_of",
]

_HERE = Path(__file__).parent
#: The type of Rust that holds a dtype; of 16-bit floats the bits.
TYPES = {
    "float32": "f32",
    "float64": "f64",
    "float16": "u16",
    "bfloat16": "u16",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "bool": "bool",
}
#: What inputs are for that every call is given.
DATA_ROLES = ("data", "cotangent")
KEYWORDS = frozenset(
    [
        "abstract",
        "as",
        "async",
        "await",
        "become",
        "box",
        "break",
        "const",
        "continue",
        "crate",
        "do",
        "dyn",
        "else",
        "enum",
        "extern",
        "false",
        "final",
        "fn",
        "for",
        "gen",
        "if",
        "impl",
        "in",
        "let",
        "loop",
        "macro",
        "match",
        "mod",
        "move",
        "mut",
        "override",
        "priv",
        "pub",
        "ref",
        "return",
        "self",
        "static",
        "struct",
        "super",
        "trait",
        "true",
        "try",
        "type",
        "typeof",
        "union",
        "unsafe",
        "unsized",
        "use",
        "virtual",
        "where",
        "while",
        "yield",
    ]
)

Port = Mapping[str, Any]


def filled(template: str, words: Mapping[str, str]) -> str:
    """Fill words into a template."""
    text = (_HERE / template).read_text("utf-8")
    return re.sub(r"@(\w+)@", lambda match: words[match[1]], text)


def data_ports(report: Mapping[str, Any]) -> list[Port]:
    """List what every call is given."""
    return [port for port in report["inputs"] if port["role"] in DATA_ROLES]


def result_ports(report: Mapping[str, Any]) -> list[Port]:
    """List what a call gives; new states stay in the model."""
    return [port for port in report["outputs"] if port["replaces"] is None]


def named_fields(ports: Sequence[Port]) -> list[tuple[str, Port]]:
    """Give ports names that are fields of Rust, each once."""
    taken: set[str] = set()
    fields = []
    for port in ports:
        stem = re.sub(r"[^a-z0-9_]+", "_", port["name"].lower()).strip("_") or "tensor"
        stem = f"tensor_{stem}" if stem[0].isdigit() else stem
        stem = f"{stem}_" if stem in KEYWORDS else stem
        name, i = stem, 1
        while name in taken:
            i += 1
            name = f"{stem}_{i}"
        taken.add(name)
        fields.append((name, port))
    return fields


def type_of(port: Port) -> str:
    """Return the type of Rust of an element."""
    return TYPES[port["dtype"]]


def zero_of(port: Port) -> str:
    """Return a zero of that type."""
    kind = type_of(port)
    return "false" if kind == "bool" else f"0.0_{kind}" if kind[0] == "f" else f"0_{kind}"


def count_of(port: Port) -> int:
    """Return how many elements a tensor has."""
    return math.prod(port["shape"])


def variant_of(dtype: str) -> str:
    """Return which of `Values` holds a dtype."""
    return {"bfloat16": "BF16", "float16": "F16", "bool": "Bool"}.get(dtype, TYPES[dtype].upper())


def dtype_said(dtype: str) -> str:
    """Say of which dtype the elements are."""
    return f"{dtype}, as bits" if dtype in ("float16", "bfloat16") else dtype


def said(port: Port) -> str:
    """Describe a tensor in a comment."""
    name = port["name"].replace("`", "'")
    return f"`{name}`: {dtype_said(port['dtype'])} `{list(port['shape'])}`."


def quoted(text: str) -> str:
    r"""Write a text of Rust.

    >>> print(quoted('a"b'))
    "a\"b"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in escaped) + '"'
