"""Prints the table of commands and options, which the program without Python reads; `generate.py` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from mithril.command.parser import table

if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(json.dumps(table(), indent=1, ensure_ascii=False))
