"""What an export says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["RANDOM", "Exported"]

RANDOM = "weights are random numbers: nothing was trained or loaded"


@dataclass(frozen=True)
class Exported:
    """What was exported, after it was built, run and compared.

    Attributes
    ----------
    folder : Path
        Where it lies.
    files : tuple of Path
        The files.
    weight_bytes, packed_bytes, pack_bytes, arena_bytes : int
        Memory: the weights, the same in the order of the kernels, scratch memory while they are brought into it,
        scratch memory of a call on so many threads as were asked for.
    check : str
        What the program printed that compares the model with the recorded outputs.
    is_random : bool
        Whether the weights are random numbers: the model had none, and none were given. The files say so too.
    """

    folder: Path
    files: tuple[Path, ...]
    weight_bytes: int
    packed_bytes: int
    pack_bytes: int
    arena_bytes: int
    check: str
    is_random: bool

    def __str__(self) -> str:
        names = ", ".join(file.relative_to(self.folder).as_posix() for file in self.files)
        memory = f"weights {self.weight_bytes}, packed {self.packed_bytes}, arena {self.arena_bytes} bytes"
        drawn = f"the {RANDOM}\n" if self.is_random else ""
        return f"wrote {names} to {self.folder}\n{drawn}{memory}\n{self.check.rstrip()}"
