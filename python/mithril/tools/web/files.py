"""Files that packages for the web have in common: what is written, what is kept, what checks them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...errors import ModelFileError, NumericsError

__all__ = ["ARRAYS", "HERE", "REGISTERS", "check", "fill", "manifest", "marks", "package_name", "refuse_foreign"]

HERE = Path(__file__).parent
#: Vector registers that code for the web may count on. x86-64 has 16. V8 keeps one of them, and loads all that a step
#: reads before it computes: four rows by two vectors are the largest tile whose sums it does not spill.
REGISTERS = 12
_OURS = "by Mithril"
#: Class of JavaScript that holds a dtype; of 16-bit floats the bits.
ARRAYS = {
    "float32": "Float32Array",
    "float64": "Float64Array",
    "float16": "Uint16Array",
    "bfloat16": "Uint16Array",
    "int8": "Int8Array",
    "int16": "Int16Array",
    "int32": "Int32Array",
    "int64": "BigInt64Array",
    "uint8": "Uint8Array",
    "uint16": "Uint16Array",
    "uint32": "Uint32Array",
    "uint64": "BigUint64Array",
    "bool": "Uint8Array",
}


def refuse_foreign(folder: Path, texts: Iterable[str], others: Iterable[str]) -> None:
    """Keep files that somebody else wrote: our texts say whose they are, and stand beside the others."""
    foreign = [
        folder / name
        for name in texts
        if (folder / name).is_file() and _OURS not in (folder / name).read_text("utf-8", "replace")
    ]
    if not (folder / "model.mjs").is_file():
        foreign += [folder / name for name in others if (folder / name).exists()]
    if foreign:
        text = f"{foreign[0]} already exists and is not part of an export"
        raise ModelFileError(text, hint="choose an empty folder, or move that file away")


def marks(path: Path) -> tuple[str, str]:
    """Return the first bytes of a file of weights, which say whose they are, and a hash of all."""
    digest, head = hashlib.sha256(), b""
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            head = head or chunk[:16]
            digest.update(chunk)
    return head.hex(), digest.hexdigest()[:16]


def fill(text: str, words: Mapping[str, str]) -> str:
    """Replace ``@name@`` by words; other names stay."""
    return re.sub(r"@(\w+)@", lambda match: words.get(match[1], match[0]), text)


def package_name(prefix: str) -> str:
    """Name of the npm package for a prefix."""
    return re.sub(r"^[._]+", "", prefix.lower()) or "model"


def manifest(prefix: str, title: str, names: Sequence[str]) -> str:
    """Text of ``package.json`` for a package of these files."""
    content = {
        "name": package_name(prefix),
        "version": "1.0.0",
        "description": title,
        "type": "module",
        "main": "model.mjs",
        "types": "model.d.ts",
        "exports": {".": {"types": "./model.d.ts", "default": "./model.mjs"}, "./*": "./*"},
        "files": [name for name in names if name not in ("package.json", "README.md")],
        "scripts": {"test": "node check.mjs"},
    }
    return json.dumps(content, indent=2) + "\n"


def check(folder: Path) -> str:
    """Run the check of a package in Node.js, where it is installed; return what it printed.

    Raises
    ------
    NumericsError
        If the model does not reproduce what was recorded.
    """
    node = shutil.which("node")
    if node is None:
        return "not run as WebAssembly: Node.js was not found; the same C reproduces its outputs on this machine"
    completed = subprocess.run(
        [node, "check.mjs"], cwd=folder, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL
    )
    if completed.returncode:
        lines = tuple((completed.stdout + completed.stderr).strip().splitlines()[-6:])
        text = f"the exported model does not reproduce the recorded results in Node.js: {'; '.join(lines)}"
        raise NumericsError(text, notes=lines, hint="the files are kept; please report this with the model")
    return completed.stdout
