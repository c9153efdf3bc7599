"""The text of a model after each stage of compiling."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping

from ..errors import KeyNotFoundError

__all__ = ["RENAMED", "Stages", "dump"]

#: Former names of stages, and the current ones. They stay valid for one release after the renaming, as keys of
#: ``compiled.stages`` and in ``MITHRIL_DUMP``.
RENAMED: dict[str, str] = {
    "fold": "fold_constants",
    "merge": "cse",
    "prune": "dce",
    "finish": "cleanup",
    # Those of C.
    "loops": "lowering",
    "fuse": "fusion",
    "apart": "batch_tiling",
    "spread": "split_reduction",
    "phases": "phase_decomposition",
    "widen": "promotion",
    "prepare": "prepacking",
    "layout": "blocked_layout",
    "kernels": "kernel_selection",
    "rows": "row_fusion",
    "updates": "update_fusion",
    "memory": "memory_planning",
}


class Stages(Mapping[str, str]):
    """Text of the graph after each stage of compiling, in order.

    A stage that was renamed is found under its former name too (``RENAMED``).
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)

    def __getitem__(self, stage: str) -> str:
        # The targets name their stages separately: the former name of one may be the current name of another.
        name = stage if stage in self._texts else RENAMED.get(stage, stage)
        if name not in self._texts:
            raise KeyNotFoundError(f"there is no stage {stage!r}", hint=f"stages: {', '.join(self._texts)}")
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def dump(stages: Callable[[], Mapping[str, str]], *, gradients: bool = False) -> None:
    """Print the stages that ``MITHRIL_DUMP`` names, of a forward pass or of gradients, to the standard error."""
    names = os.environ.get("MITHRIL_DUMP")
    if not names:
        return
    texts = Stages(stages())
    for name in texts if names == "all" else map(str.strip, names.split(",")):
        # A forward pass has no such stage, and says nothing of it: the gradients are made later.
        if name == "differentiate" and name not in texts:
            continue
        heading = f"gradients: {name}" if gradients else name
        absent = f"there is no such stage; stages: {', '.join(texts)}"
        print(f"--- {heading}\n{texts.get(name, absent)}", file=sys.stderr)
