"""Writes the arrays of a checkpoint: each process and each worker what it holds, into a file of its own."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, dtypes
from ..errors import InvalidValueError, ModelFileError
from ..parallel.pieces import Piece
from ..parallel.remote import RemoteArray
from . import files

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..parallel.workers import Workers

__all__ = ["Parts", "Tensor", "divide", "file_name", "index", "write_own", "write_part", "write_remote"]


@dataclass(frozen=True)
class Tensor:
    """A piece of an array that is written.

    Attributes
    ----------
    key, name : str
        Of the array, and of the tensor of the file.
    dtype : str
        Dtype of its elements.
    piece : Piece
        Where it is in the array.
    array : object
        The array.
    """

    key: str
    name: str
    dtype: str
    piece: Piece
    array: Any


@dataclass
class Parts:
    """Who writes what of a checkpoint.

    Attributes
    ----------
    entries : dict
        For each group what the index says of its values: numbers, and which arrays there are.
    writers : list of str
        Who writes the files, for messages.
    own : dict of int to list of Tensor
        What processes write that run the script, by number of the file.
    remote : dict of int to list of Tensor
        What workers write.
    workers : Workers or None
        These workers.
    """

    entries: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    writers: list[str] = field(default_factory=list)
    own: dict[int, list[Tensor]] = field(default_factory=dict)
    remote: dict[int, list[Tensor]] = field(default_factory=dict)
    workers: Workers | None = None


def file_name(number: int, count: int) -> str:
    """Return the name of a file of arrays, one of so many."""
    return "arrays.safetensors" if count == 1 else f"arrays-{number + 1:05d}-of-{count:05d}.safetensors"


def divide(groups: dict[str, dict[str, Any]], backend: Backend, processes: int) -> Parts:
    """Say who writes what.

    A piece that several hold is written by the one that has the least to write so far; all processes find the same.

    Parameters
    ----------
    groups : dict of dict
        Names with arrays and plain numbers.
    backend : Backend
        Whose arrays they are.
    processes : int
        How many processes run the script.
    """
    parts = Parts()
    arrays: list[tuple[str, str, Any, bool]] = []
    for group, values in groups.items():
        parts.entries[group] = {}
        for name, value in values.items():
            key = f"{group}/{name}"
            if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
                parts.entries[group][name] = {"value": value}
            elif hasattr(value, "shape") and hasattr(value, "dtype"):
                is_own = bool(backend.engine.is_own(value))
                array = value if is_own else np.asarray(value)
                dtype = str(backend.dtype(value)) if is_own else array.dtype.name
                if dtype not in dtypes.ALL:
                    raise InvalidValueError(f"{group} holds {name!r} of dtype {dtype}, which cannot be saved")
                shape = [int(size) for size in array.shape]
                parts.entries[group][name] = {"array": key, "dtype": dtype, "own": is_own, "shape": shape}
                arrays.append((key, dtype, array, is_own))
            else:
                raise InvalidValueError(
                    f"{group} holds {name!r}, a {type(value).__name__}, which cannot be saved",
                    hint="state_dict() returns arrays and plain numbers by name",
                )
    pool = next((array.workers for _, _, array, _ in arrays if isinstance(array, RemoteArray)), None)
    parts.workers = pool
    # Workers come first: their numbers are those of the devices.
    offset = len(pool.devices) if pool is not None else 0
    if pool is not None:
        parts.writers = [f"device {rank}" for rank in range(offset)]
    parts.writers += [f"process {rank}" for rank in range(processes)] if processes > 1 else ["the script"]
    loads = [0] * len(parts.writers)
    for key, dtype, array, is_own in arrays:
        is_remote = isinstance(array, RemoteArray) and array.workers is pool
        is_elsewhere = isinstance(array, RemoteArray) and not is_remote
        boxes = backend.engine.pieces(array) if is_own and not is_elsewhere else None
        if boxes is None:
            sizes = tuple(int(size) for size in array.shape)
            zeros = (0,) * len(sizes)
            # What is not an array of the backend is what the first process has.
            boxes = [Piece(zeros, sizes, zeros, tuple(range(processes)) if is_own else (0,))]
        counts = [0] * len(parts.writers)
        for piece in boxes:
            numbers = [rank + (0 if is_remote else offset) for rank in piece.holders]
            writer = min(numbers, key=lambda number: (loads[number], number))
            loads[writer] += math.prod(piece.shape) * dtypes.normalize(dtype).itemsize
            name = key if not counts[writer] else f"{key}#{counts[writer]}"
            counts[writer] += 1
            target = parts.remote if is_remote else parts.own
            target.setdefault(writer, []).append(Tensor(key, name, dtype, piece, array))
    return parts


def write_part(
    path: Path,
    tensors: Sequence[tuple[str, str, tuple[int, ...]]],
    content: Callable[[int], np.ndarray[Any, Any]],
) -> dict[str, Any]:
    """Write a file of arrays, one after another, so that one of them is copied at a time.

    Parameters
    ----------
    path : Path
        The file.
    tensors : sequence of tuple
        Name, dtype and shape of each.
    content : callable
        Given the place of a tensor, its elements.

    Returns
    -------
    dict
        Its size in bytes, and the checksums of its tensors.
    """
    checksums = [0] * len(tensors)

    def chunks(place: int) -> Iterator[bytes]:
        host = files.little_endian(content(place), tensors[place][1])
        for chunk in files.byte_chunks(host):
            checksums[place] = zlib.crc32(chunk, checksums[place])
            yield chunk

    _core.save_tensors(path, list(tensors), {}, chunks)
    return {"bytes": path.stat().st_size, "checksums": checksums}


def write_own(folder: Path, parts: Parts, number: int, backend: Backend) -> dict[str, Any] | None:
    """Write the part of this process; None if it has nothing to write."""
    tensors = parts.own.get(number)
    if not tensors:
        return None
    engine = backend.engine

    def content(place: int) -> np.ndarray[Any, Any]:
        tensor = tensors[place]
        if isinstance(tensor.array, np.ndarray) and not engine.is_own(tensor.array):
            return tensor.array
        return np.asarray(backend.to_numpy(engine.piece(tensor.array, tensor.piece)))

    about = [(tensor.name, tensor.dtype, tensor.piece.shape) for tensor in tensors]
    return write_part(folder / file_name(number, len(parts.writers)), about, content)


def write_remote(folder: Path, parts: Parts) -> dict[int, dict[str, Any]]:
    """Let workers write their parts."""
    if parts.workers is None:
        return {}
    messages: list[Any] = []
    for rank in range(len(parts.workers.devices)):
        tensors = parts.remote.get(rank, [])
        content = [
            [tensor.name, tensor.dtype, tensor.piece.shape, tensor.array.number, tensor.piece.offset]
            for tensor in tensors
        ]
        path = os.path.abspath(folder / file_name(rank, len(parts.writers)))
        messages.append(({"do": "write", "path": path, "tensors": content}, []))
    replies = parts.workers.ask(messages)
    return {rank: reply for rank, reply in enumerate(replies) if parts.remote.get(rank)}


def index(parts: Parts, written: dict[int, dict[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what the index says of values, and of the files that were written.

    Raises
    ------
    ModelFileError
        If a part is missing.
    """
    count = len(parts.writers)
    expected = {number: tensors for group in (parts.own, parts.remote) for number, tensors in group.items()}
    entries = {group: {name: dict(entry) for name, entry in values.items()} for group, values in parts.entries.items()}
    by_key = {entry["array"]: entry for values in entries.values() for entry in values.values() if "array" in entry}
    for entry in by_key.values():
        entry["pieces"] = []
    listed: list[dict[str, Any]] = []
    for number, tensors in sorted(expected.items()):
        about = written.get(number)
        if about is None or len(about["checksums"]) != len(tensors):
            raise ModelFileError(f"{parts.writers[number]} did not write its part", code="M0802")
        place = len(listed)
        listed.append({"name": file_name(number, count), "bytes": about["bytes"], "writer": parts.writers[number]})
        for tensor, checksum in zip(tensors, about["checksums"], strict=True):
            piece = [place, tensor.name, list(tensor.piece.start), list(tensor.piece.shape), checksum]
            by_key[tensor.key]["pieces"].append(piece)
    return entries, listed
