"""The arrays that a worker keeps between calls, and the files of checkpoints that it reads and writes them in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..checkpoints.parts import write_part
from ..errors import MithrilError
from .channel import Packed
from .layout import Mesh
from .sections import decoded
from .stored import PartFiles, StoredArray

__all__ = ["HeldArrays", "about"]


class HeldArrays:
    """Arrays by number, of which a worker has its part.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.

    Attributes
    ----------
    arrays : dict of int to array
        What is here.
    """

    def __init__(self, backend: Any) -> None:
        self._backend, self._engine = backend, backend.engine
        self.arrays: dict[int, Any] = {}
        #: The files that were read last, which are open until programs run.
        self._files: PartFiles | None = None

    def __getitem__(self, number: int) -> Any:
        return self.arrays[number]

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget arrays."""
        for number in numbers:
            self.arrays.pop(number, None)

    def close_files(self) -> None:
        """Close the files that were read."""
        self._files = None

    def do(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]] | None:
        """Do what a message asks for, if it is about arrays; else None."""
        actions = {
            "keep": self._keep,
            "zeros": self._zeros,
            "fetch": self._fetch,
            "read": self._read,
            "write": self._write,
        }
        action = actions.get(head["do"])
        return None if action is None else action(head, arrays)

    def _keep(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        # Their memory is that of the message, which nobody else has.
        self.arrays.update(zip(head["numbers"], arrays, strict=True))
        return {}, []

    def _zeros(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        self.arrays[head["number"]] = self._backend.zeros(tuple(head["shape"]), dtype=head["dtype"])
        return {}, []

    def _fetch(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        return {}, [self._engine.packed(self.arrays[number]) for number in head["numbers"]]

    def _read(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        """Read the block of an array of a checkpoint."""
        mesh, spec = Mesh(**dict(head["mesh"])), decoded(head["spec"])

        def read() -> dict[str, Any]:
            stored = StoredArray.decoded(head["array"], self._files)
            self._files = stored.files
            block = self._backend.tensor(stored.block(mesh, spec, head["place"]), stored.dtype)
            self.arrays[head["number"]] = block
            return {"shape": list(block.shape)}

        return _refusing(read), []

    def _write(self, head: dict[str, Any], arrays: list[Any]) -> tuple[dict[str, Any], list[Packed]]:
        """Write pieces of arrays into a file."""
        tensors = head["tensors"]
        if not tensors:
            return {}, []

        def content(place: int) -> Any:
            *_, shape, number, offset = tensors[place]
            box = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
            return self._backend.to_numpy(self.arrays[number][box])

        described = [(name, dtype, tuple(shape)) for name, dtype, shape, _, _ in tensors]
        return _refusing(lambda: write_part(Path(head["path"]), described, content)), []


def about(backend: Any, array: Any) -> tuple[str, tuple[int, ...]]:
    """Return dtype and shape of an array."""
    return str(backend.dtype(array)), tuple(array.shape)


def _refusing(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Read or write files, where an error is an answer: arrays stay, and workers are in step."""
    try:
        return action()
    except OSError as error:
        return {"refused": [error.strerror or str(error), "M0802", None]}
    except MithrilError as error:
        return {"refused": [error.message, error.code, error.hint]}
