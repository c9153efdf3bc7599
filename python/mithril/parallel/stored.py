"""Arrays in the files of a checkpoint, of which each device reads the part that it needs.

An array consists of pieces, boxes that lie in one or more files of safetensors. What says where they are comes from a
file, too, so nothing in it is trusted: pieces have to fill the array once, and to be in the files as it says.
"""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core, dtypes
from ..backends.exchange import narrow, numpy_dtype
from ..errors import BackendUnavailableError, MithrilError, ModelFileError
from .pieces import Range, ranges, whole

if TYPE_CHECKING:
    from .layout import Mesh
    from .mesh_engine import Spec

__all__ = ["PartFiles", "StoredArray", "StoredPiece", "damaged"]


def damaged(path: str | os.PathLike[str], reason: str, hint: str | None = None) -> ModelFileError:
    """Return the error of a checkpoint that cannot be used."""
    return ModelFileError(
        f"the checkpoint {os.fspath(path)!r} is damaged: {reason}",
        hint=hint or "remove that folder, and an earlier checkpoint beside it is used",
    )


class StoredPiece(NamedTuple):
    """A box of an array, as a tensor of a file.

    Attributes
    ----------
    file, tensor : str
        Where it is.
    start, shape : tuple of int
        Where it begins in the array, and its sizes.
    checksum : int
        CRC-32 of its bytes.
    """

    file: str
    tensor: str
    start: tuple[int, ...]
    shape: tuple[int, ...]
    checksum: int


class PartFiles:
    """The files of a checkpoint, each of which one process has written.

    Parameters
    ----------
    folder : path-like
        Where they are.
    writers : mapping
        Their names, with who wrote them.
    """

    def __init__(self, folder: str | os.PathLike[str], writers: Mapping[str, str]) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.writers = dict(writers)
        self._open: dict[str, _core.Checkpoint] = {}
        self._checked: set[tuple[str, str]] = set()

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise unless all files are there, with as many bytes as they were written with."""
        for name, size in sizes.items():
            path = self.folder / name
            if os.path.realpath(path) != os.path.join(os.path.realpath(self.folder), name):
                raise damaged(self.folder, f"{name!r} is not a file of its folder")
            try:
                actual = path.stat().st_size
            except OSError as error:
                raise self._missing(name, error) from error
            if actual != size:
                raise damaged(self.folder, f"{name!r} has {actual} bytes, and was written with {size}")

    def raw(self, piece: StoredPiece, dtype: str) -> np.ndarray[Any, Any]:
        """Return the elements of a piece as they are in the file: a view of it."""
        core = self._opened(piece.file)
        try:
            weight = core.weight(piece.tensor)
        except MithrilError as error:
            raise damaged(self.folder, f"{piece.file!r} does not hold {piece.tensor!r}") from error
        array = np.asarray(weight)
        if weight.stored != dtype or array.shape != piece.shape:
            raise damaged(
                self.folder,
                f"{piece.tensor!r} of {piece.file!r} is {weight.stored} {list(array.shape)}, and {dtype} "
                f"{list(piece.shape)} is expected",
            )
        key = (piece.file, piece.tensor)
        if key not in self._checked:
            content: Any = array.reshape(-1).view(np.uint8)
            if zlib.crc32(content) != piece.checksum:
                raise damaged(self.folder, f"{piece.tensor!r} of {piece.file!r} has been changed")
            self._checked.add(key)
        return array

    def release(self, piece: StoredPiece) -> None:
        """Give back the memory of the pages that a piece was read from."""
        self._open[piece.file].release(piece.tensor)

    def _opened(self, name: str) -> _core.Checkpoint:
        if name not in self._open:
            path = self.folder / name
            try:
                self._open[name] = _core.Checkpoint.open(str(path), None)
            except MithrilError as error:
                if not path.exists():
                    raise self._missing(name, error) from error
                raise damaged(self.folder, error.message) from error
        return self._open[name]

    def _missing(self, name: str, error: Exception) -> ModelFileError:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            return damaged(self.folder, f"{name!r} cannot be read: {error.strerror or error}")
        return damaged(
            self.folder,
            f"it lacks {name!r}, the part of {self.writers.get(name, 'another process')}",
            hint="on several machines, the folder has to be one that all of them share; or copy that file into it, or "
            "remove the folder, and an earlier checkpoint beside it is used",
        )


class StoredArray:
    """An array in the files of a checkpoint.

    Parameters
    ----------
    files : PartFiles
        Where it is.
    dtype : str
        Its dtype.
    shape : sequence of int
        Its sizes.
    pieces : sequence of StoredPiece
        The pieces that it consists of.
    """

    def __init__(self, files: PartFiles, dtype: str, shape: Sequence[int], pieces: Sequence[StoredPiece]) -> None:
        self.files = files
        self.dtype = dtype
        self.shape = tuple(shape)
        self.pieces = list(pieces)
        reason = _problem(self.shape, self.pieces) if dtype in dtypes.ALL else f"there is no dtype {dtype!r}"
        if reason is not None:
            name = self.pieces[0].tensor if self.pieces else "an array"
            raise damaged(files.folder, f"{name!r} of shape {list(self.shape)}: {reason}")

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def read(self, box: Sequence[Sequence[Range]] | None = None) -> np.ndarray[Any, Any]:
        """Return the elements in some ranges along each axis, one range behind another; of all of it by default.

        Only the pieces in which they lie are read.
        """
        axes = whole(self.shape) if box is None else box
        # Where ranges begin in the result.
        starts = [list(itertools.accumulate((stop - start for start, stop in axis), initial=0)) for axis in axes]
        shape = tuple(ends[-1] for ends in starts)
        result: np.ndarray[Any, Any] | None = None
        for piece in self.pieces:
            sources, targets = [], []
            for begin, size, axis, ends in zip(piece.start, piece.shape, axes, starts, strict=True):
                source, target = [], []
                for (start, stop), end in zip(axis, ends, strict=False):
                    low, high = max(begin, start), min(begin + size, stop)
                    if low < high:
                        source.append(slice(low - begin, high - begin))
                        target.append(slice(end + low - start, end + high - start))
                sources.append(source)
                targets.append(target)
            if not all(sources):
                continue
            raw = self.files.raw(piece, self.dtype)
            result = np.empty(shape, raw.dtype) if result is None else result
            for source_box, target_box in zip(itertools.product(*sources), itertools.product(*targets), strict=True):
                result[target_box] = raw[source_box]
            del raw
            self.files.release(piece)
        if result is None:
            result = np.empty(shape, np.uint16 if self.dtype == "bfloat16" else numpy_dtype(self.dtype))
        return _values(result, self.dtype)

    def check(self) -> None:
        """Raise if a piece is not in its file as it was written."""
        for piece in self.pieces:
            self.files.raw(piece, self.dtype)
            self.files.release(piece)

    def block(self, mesh: Mesh, spec: Spec, rank: int) -> np.ndarray[Any, Any]:
        """Return the block of a device."""
        return self.read(ranges(self.shape, mesh, spec, rank))

    def full_tensor(self) -> np.ndarray[Any, Any]:
        """Return the whole array."""
        return self.read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        values = self.read()
        return values if dtype is None else values.astype(dtype)

    def __repr__(self) -> str:
        return f"StoredArray(shape={list(self.shape)}, {self.dtype}, in {os.fspath(self.files.folder)!r})"

    def encoded(self) -> dict[str, Any]:
        """Return it as JSON holds it, for another process."""
        return {
            "folder": os.fspath(self.files.folder),
            "writers": {piece.file: self.files.writers.get(piece.file, "") for piece in self.pieces},
            "dtype": self.dtype,
            "shape": list(self.shape),
            "pieces": [list(piece) for piece in self.pieces],
        }

    @classmethod
    def decoded(cls, content: Mapping[str, Any], files: PartFiles | None = None) -> StoredArray:
        """Return the array of which `encoded` was made; with the files, if they are open already."""
        if files is None or os.fspath(files.folder) != content["folder"]:
            files = PartFiles(content["folder"], {})
        files.writers |= content["writers"]
        pieces = [
            StoredPiece(file, tensor, tuple(start), tuple(shape), checksum)
            for file, tensor, start, shape, checksum in content["pieces"]
        ]
        return cls(files, content["dtype"], content["shape"], pieces)


def _problem(shape: tuple[int, ...], pieces: list[StoredPiece]) -> str | None:
    """Say why pieces do not make up an array; None if they do."""
    count = math.prod(shape)
    if count >= 1 << 62:
        return "it is too large"
    volumes = 0
    for piece in pieces:
        if len(piece.start) != len(shape) or len(piece.shape) != len(shape):
            return f"a piece has {len(piece.shape)} axes"
        for start, size, limit in zip(piece.start, piece.shape, shape, strict=True):
            if start + size > limit:
                return f"a piece of shape {list(piece.shape)} at {list(piece.start)} is not inside of it"
        volumes += math.prod(piece.shape)
    if count and not all(math.prod(piece.shape) for piece in pieces):
        return "a piece is empty"
    if volumes != count:
        return f"its pieces have {volumes} elements, and it has {count}"
    if count and len(pieces) > 1 and shape:
        starts = np.array([piece.start for piece in pieces], np.int64)
        stops = starts + np.array([piece.shape for piece in pieces], np.int64)
        for i in range(len(pieces) - 1):
            overlaps = (starts[i + 1 :] < stops[i]) & (starts[i] < stops[i + 1 :])
            if overlaps.all(axis=1).any():
                return "two of its pieces overlap"
    return None


def _values(raw: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return the elements that are in a file so."""
    if dtype == "bool":
        # Bytes may be anything, and booleans of NumPy are 0 or 1.
        return np.asarray(raw.view(np.uint8) != 0)
    if dtype != "bfloat16":
        return raw
    try:
        return raw.view(numpy_dtype("bfloat16"))
    except BackendUnavailableError:
        # The upper half of a float32 holds the same number.
        return narrow((raw.astype(np.uint32) << 16).view(np.float32))
