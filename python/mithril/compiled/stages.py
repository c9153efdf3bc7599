"""What the stages of compiling made of a model, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import KeyNotFoundError

__all__ = ["Stages"]


class Stages(Mapping[str, str]):
    """Text of the graph after each stage of compiling, in order."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def __getitem__(self, stage: str) -> str:
        if stage not in self._texts:
            raise KeyNotFoundError(f"there is no stage {stage!r}", hint=f"there are: {', '.join(self._texts)}")
        return self._texts[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
