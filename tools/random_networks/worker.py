"""A process that runs the networks of some seeds: a line of JSON before each, and one after it."""

from __future__ import annotations

import faulthandler
import json
import sys
from typing import Any

from .compare import compare
from .minimize import smallest
from .settings import generate

#: Seconds after which a network counts as one that hangs.
PATIENCE = 600


def check(seed: int, backend: str, minimize: bool) -> dict[str, Any]:
    """Run the network of a seed: its setting, what differs, how much of what is allowed, and a program."""
    network, setting = generate(seed, backend)
    outcome = compare(network, setting, seed)
    text = "; ".join(map(str, outcome.differences[:3]))
    program = smallest(network, setting, seed) if text and minimize else ""
    return {
        "setting": str(setting),
        "text": text,
        "ratio": outcome.ratio,
        "note": outcome.refused,
        "program": program,
        "blocks": [name for name, _ in network.blocks],
    }


def main() -> None:
    """Run each of the seeds that the command line names: minimize, then pairs of seed and backend."""
    minimize, *pairs = sys.argv[1:]
    for pair in pairs:
        seed, backend = pair.split(":")
        print(json.dumps({"begins": int(seed)}), flush=True)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        print(json.dumps(check(int(seed), backend, minimize == "yes")), flush=True)


if __name__ == "__main__":
    main()
