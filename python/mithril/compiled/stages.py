"""The text of a model after each stage of compiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import KeyNotFoundError

__all__ = ["RENAMED", "Stages"]

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
