"""Checkpoints: everything a training needs to go on exactly, one folder each, written as a whole or not at all.

A folder ``epoch-0002-batch-000010`` is where 10 batches of epoch 2 are done. It holds ``arrays.safetensors``
(parameters, state, optimizer, history), or a file ``arrays-00001-of-00004.safetensors`` of each process or worker that
has a part of them, and the index ``checkpoint.json``, which says where the pieces of each array are; and no code.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import dtypes
from ..checkpoints import files
from ..checkpoints.parts import Parts, divide, file_name, index, write_own, write_remote
from ..compiled import internals
from ..errors import MithrilError, ModelFileError, ParameterError
from ..parallel.stored import PartFiles, StoredArray, StoredPiece, damaged

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program
    from ..parallel.processes import Processes

__all__ = ["Checkpoint", "Store", "check_model", "find", "load_checkpoint", "read", "stored_arrays", "types_of"]

_ABOUT = "checkpoint.json"
#: Names of files that hold arrays.
_FILE = re.compile(r"arrays(-\d{5,}-of-\d{5,})?\.safetensors")
_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)")
#: Beginning of the names of folders that are being written or removed.
_TEMPORARY = ".mithril-"
_FORMAT = 2
#: Seconds in which what one process has written is seen by others.
_SEEN = 10.0


@dataclass
class Checkpoint:
    """Everything a training needs to go on.

    Attributes
    ----------
    epoch, batch : int
        The epoch that comes, and how many of its batches are done.
    groups : dict of dict
        ``parameters``, ``state``, ``optimizer`` and so on: names with arrays or plain numbers.
    about : dict
        What goes into JSON: the settings, the rows of the history.
    value : float or None
        How good it is, where that is known; less is better.
    """

    epoch: int
    batch: int
    groups: dict[str, dict[str, Any]]
    about: dict[str, Any] = field(default_factory=dict)
    value: float | None = None
    #: Checksum of the index of one that was read.
    checksum: int = 0

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"epoch-{self.epoch:04d}-batch-{self.batch:06d}"


class Store:
    """A folder of checkpoints."""

    def __init__(self, folder: str | os.PathLike[str], keep: int) -> None:
        self.folder = files.file_path(folder)
        self._keep = keep

    def positions(self) -> dict[tuple[int, int], Path]:
        """Return the checkpoints by position, in order."""
        try:
            entries = list(self.folder.iterdir()) if self.folder.exists() else []
        except OSError as error:
            raise files.unusable_file("read", self.folder, error) from error
        by_position = {(int(m[1]), int(m[2])): entry for entry in entries if (m := _NAME.fullmatch(entry.name))}
        return dict(sorted(by_position.items()))

    def latest(self) -> Path | None:
        """Return the checkpoint that is furthest."""
        return next(reversed(self.positions().values()), None)

    def write(self, checkpoint: Checkpoint, backend: Backend, processes: Processes | None = None) -> Path:
        """Write a checkpoint; then remove those that are neither among the last ones nor the best.

        Each of several processes writes its part, and so does each worker; the first process writes the index when all
        parts are there, and then gives the folder its name.

        Raises
        ------
        ModelFileError
            If that is not possible; the checkpoints before are still there.
        """
        together = _Together(processes, self.folder / checkpoint.name)
        temporary = self.folder / f"{_TEMPORARY}{together.token:012x}"
        try:
            with together.step():
                if together.is_first:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    self._sweep()
                    temporary.mkdir()
            with together.step():
                together.await_paths([temporary], "process 0")
                parts = divide(checkpoint.groups, backend, together.count)
                _write_parts(temporary, parts, backend, together)
            with together.step():
                if together.is_first:
                    _write_index(temporary, checkpoint, parts, together)
                    os.replace(temporary, together.target)
                    _sync(self.folder)
                    self._prune()
        finally:
            if together.is_first:
                shutil.rmtree(temporary, ignore_errors=True)
        return together.target

    def _sweep(self) -> None:
        """Remove what a process that was killed has left."""
        for entry in self.folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(entry, ignore_errors=True)

    def _prune(self) -> None:
        best = self.best()
        for path in list(self.positions().values())[: -self._keep]:
            if path != best:
                # Not under its name while it is incomplete.
                gone = path.with_name(f"{_TEMPORARY}{path.name}")
                os.replace(path, gone)
                shutil.rmtree(gone, ignore_errors=True)

    def best(self) -> Path | None:
        """Return the best checkpoint, where that is known of any."""
        values = {path: value for path in self.positions().values() if (value := _value(path)) is not None}
        return min(values, key=lambda path: values[path]) if values else None


def _value(path: Path) -> float | None:
    """How good a checkpoint is; None if that is not known, or cannot be read."""
    try:
        value = _about(path).get("value")
    except MithrilError:
        return None
    return value if isinstance(value, (int, float)) and value == value else None


# --- writing ----------------------------------------------------------------------------------------------------


class _Together:
    """The processes that write a checkpoint, which have to know how the others fare.

    Attributes
    ----------
    token : int
        A number that all of them have, and that no training before had.
    count : int
        How many there are.
    target : Path
        The checkpoint.
    """

    def __init__(self, processes: Processes | None, target: Path) -> None:
        self._processes = processes
        self.target = target
        own = secrets.randbits(48)
        tokens = [own] if processes is None else processes.gathered(own)
        self.token, self.count = tokens[0], len(tokens)
        self.rank = 0 if processes is None else processes.rank
        self.is_first = self.rank == 0

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Do something in all processes; raise in all of them if one cannot."""
        failure: Exception | None = None
        try:
            yield
        except OSError as error:
            failure = files.unusable_file("written", self.target, error)
            failure.__cause__ = error
        except Exception as error:
            failure = error
        codes = [0] if self._processes is None else self._processes.gathered(int(failure is not None))
        if failure is not None:
            raise failure
        failed = [str(rank) for rank, code in enumerate(codes) if code]
        if failed:
            raise ModelFileError(
                f"{os.fspath(self.target)!r} cannot be written: process {', '.join(failed)} could not do its part",
                code="M0802",
                hint="its own error says why",
            )

    def await_paths(self, paths: Sequence[Path], writer: str) -> None:
        """Wait until what another process has written is seen here, which may take a while on a file system of many."""
        until = time.monotonic() + _SEEN
        for path in paths:
            while not path.exists():
                if self._processes is None or time.monotonic() > until:
                    raise ModelFileError(
                        f"{os.fspath(self.target)!r} cannot be written: process {self.rank} does not see what {writer} "
                        f"wrote, {path.name!r}",
                        code="M0802",
                        hint="on several machines, the folder has to be one that all of them share",
                    )
                time.sleep(0.05)


def _write_parts(folder: Path, parts: Parts, backend: Backend, together: _Together) -> None:
    """Write what this process has, and its workers; what was written is in a file beside until the index is written."""
    written = write_remote(folder, parts)
    number = len(parts.writers) - together.count + together.rank
    own = write_own(folder, parts, number, backend)
    if own is not None:
        written[number] = own
    for key, about in written.items():
        _write_json(folder / f"part-{key}.json", about)
    _sync(folder)


def _write_index(folder: Path, checkpoint: Checkpoint, parts: Parts, together: _Together) -> None:
    written = {}
    for number in (*parts.own, *parts.remote):
        about = folder / f"part-{number}.json"
        data = folder / file_name(number, len(parts.writers))
        together.await_paths([about, data], parts.writers[number])
        written[number] = json.loads(about.read_text(encoding="utf-8"))
        about.unlink()
    entries, listed = index(parts, written)
    content = {
        "format": _FORMAT,
        "epoch": checkpoint.epoch,
        "batch": checkpoint.batch,
        "value": checkpoint.value,
        "about": checkpoint.about,
        "entries": entries,
        "files": listed,
    }
    text = json.dumps(content)
    _write_json(folder / _ABOUT, {"checksum": zlib.crc32(text.encode()), "content": content})
    _sync(folder)


def _write_json(path: Path, content: Any) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Let the entries of a folder reach the disk, where the system can do that."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- reading ----------------------------------------------------------------------------------------------------


def read(
    path: Path, backend: Backend | None, *, is_divided: bool = False, only: Sequence[str] | None = None
) -> Checkpoint:
    """Read a checkpoint; its arrays become those of the backend, if one is given.

    Parameters
    ----------
    path : Path
        Its folder.
    backend : Backend or None
        Whose arrays they become.
    is_divided : bool, optional
        Leave arrays in their files, as `StoredArray`, until it is known which part each device needs. States and what
        is not of the backend are read in any case.
    only : sequence of str, optional
        The groups that are returned; all by default. The others are looked through for damage.

    Raises
    ------
    ModelFileError
        If it is damaged.
    """
    content = _about(path)
    try:
        stored = _stored(path, content)
        groups = {group: content["entries"][group] for group in content["entries"] if only is None or group in only}
        arrays = {
            group: {name: stored[entry["array"]] if "array" in entry else entry["value"] for name, entry in es.items()}
            for group, es in groups.items()
        }
        own = {entry["array"] for entries in groups.values() for entry in entries.values() if entry.get("own")}
        checkpoint = Checkpoint(content["epoch"], content["batch"], arrays, content["about"], content["value"])
        checkpoint.checksum = zlib.crc32(json.dumps(content).encode())
        keys = {id(array): key for key, array in stored.items()}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise damaged(path, str(error)) from error
    returned = {id(value) for values in arrays.values() for value in values.values()}
    for array in stored.values():
        if id(array) not in returned:
            array.check()
    for group, values in checkpoint.groups.items():
        for name, value in values.items():
            if not isinstance(value, StoredArray):
                continue
            is_own = backend is not None and keys[id(value)] in own
            if is_own and is_divided and group not in ("state", "history", "meter"):
                continue
            values[name] = backend.engine.restored(value) if backend is not None and is_own else value.read()
    return checkpoint


def _stored(path: Path, content: Mapping[str, Any]) -> dict[str, StoredArray]:
    """Return the arrays of a checkpoint by key, after a look at what its index says of them."""
    listed = content["files"]
    names = [file["name"] for file in listed]
    for name in names:
        if not (isinstance(name, str) and _FILE.fullmatch(name)):
            raise damaged(path, f"its index names the file {name!r}, and files of arrays are beside it")
    if len(set(names)) < len(names):
        raise damaged(path, "its index names a file twice")
    opened = PartFiles(path, {file["name"]: str(file["writer"]) for file in listed})
    opened.check({file["name"]: file["bytes"] for file in listed})
    used: set[tuple[str, str]] = set()
    left = {file["name"]: file["bytes"] for file in listed}
    stored: dict[str, StoredArray] = {}
    for entries in content["entries"].values():
        for entry in entries.values():
            if "array" not in entry:
                continue
            pieces = []
            for place, tensor, start, shape, checksum in entry["pieces"]:
                _check_sizes(path, [place, checksum, *start, *shape])
                piece = StoredPiece(names[place], str(tensor), tuple(start), tuple(shape), checksum)
                if (piece.file, piece.tensor) in used:
                    raise damaged(path, f"its index names {piece.tensor!r} of {piece.file!r} twice")
                used.add((piece.file, piece.tensor))
                left[piece.file] -= math.prod(shape) * dtypes.normalize(entry["dtype"]).itemsize
                if left[piece.file] < 0:
                    raise damaged(path, f"its index puts more into {piece.file!r} than that holds")
                pieces.append(piece)
            _check_sizes(path, entry["shape"])
            if entry["array"] in stored:
                raise damaged(path, f"its index names {entry['array']!r} twice")
            stored[entry["array"]] = StoredArray(opened, entry["dtype"], entry["shape"], pieces)
    return stored


def _check_sizes(path: Path, numbers: Sequence[Any]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise damaged(path, f"its index holds {number!r} as a size")


def _about(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        content: dict[str, Any] = document["content"]
        intact = document["checksum"] == zlib.crc32(json.dumps(content).encode())
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise damaged(path, str(error)) from error
    if not intact:
        raise damaged(path, f"{_ABOUT} has been changed")
    if content.get("format") != _FORMAT:
        raise ModelFileError(
            f"the checkpoint {os.fspath(path)!r} is of format {content.get('format')!r}",
            hint=f"this version of Mithril reads format {_FORMAT}",
        )
    return content


def find(path: str | os.PathLike[str]) -> Path:
    """Return the checkpoint that a path means: that folder, or the latest in it.

    Raises
    ------
    ModelFileError
        If there is none.
    """
    folder = files.file_path(path)
    newest = folder if _NAME.fullmatch(folder.name) and folder.is_dir() else Store(folder, 1).latest()
    if newest is None:
        raise ModelFileError(f"{os.fspath(path)!r} holds no checkpoint", hint="give a folder that fit has written")
    return newest


def stored_arrays(path: str | os.PathLike[str]) -> dict[str, StoredArray] | None:
    """Return the parameters and statistics of a checkpoint, still in their files; None if the path is none.

    Parameters
    ----------
    path : path-like
        The folder of a checkpoint, or of several: then that which is furthest.
    """
    folder = files.file_path(path)
    if not folder.is_dir():
        return None
    chosen = folder if (folder / _ABOUT).is_file() else Store(folder, 1).latest()
    if chosen is None:
        return None
    content = _about(chosen)
    try:
        stored, entries = _stored(chosen, content), content["entries"]
        # The state of the random numbers belongs to the training.
        names = {name: entry for group in ("state", "parameters") for name, entry in entries[group].items()}
        return {name: stored[entry["array"]] for name, entry in names.items() if "array" in entry and name != "key"}
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise damaged(chosen, str(error)) from error


def types_of(params: Mapping[str, Any], backend: Backend) -> dict[str, list[Any]]:
    """Return dtype and shape of parameters, as a checkpoint says them."""
    return {name: [str(backend.dtype(p)), list(p.shape)] for name, p in params.items()}


def check_model(
    model: PhysicalModel, program: Program | None, saved: Mapping[str, Any], state: Mapping[str, Any], path: str
) -> None:
    """Raise if a checkpoint belongs to another model.

    Parameters
    ----------
    model : PhysicalModel
        The model that is trained.
    program : Program or None
        One of its programs, which knows shapes.
    saved : mapping
        What `types_of` said.
    state : mapping
        The state in the checkpoint.
    path : str
        The checkpoint.
    """
    known = {name: (dtype, list(shape)) for name, dtype, shape in program.params} if program is not None else {}
    ours = set(model.parameter_keys)
    problems = [f"it lacks {name!r}" for name in sorted(ours - saved.keys())]
    problems += [f"it holds {name!r}" for name in sorted(saved.keys() - ours)]
    problems += [
        f"{name!r} is {dtype} {shape}, here {known[name][0]} {known[name][1]}"
        for name, (dtype, shape) in saved.items()
        if name in known and (dtype != known[name][0] or shape != known[name][1])
    ]
    # The counter of the random numbers is not an input of the model.
    expected = set(internals.names_by_role(model)["state"])
    problems += [f"it lacks the state {name!r}" for name in sorted(expected - state.keys())]
    problems += [f"it holds the state {name!r}" for name in sorted(state.keys() - expected - {"key"})]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ParameterError(
            f"the checkpoint {path!r} belongs to another model: {'; '.join(problems[:5])}{more}",
            hint="give another folder, or remove it",
        )


def load_checkpoint(model: Any, path: str | os.PathLike[str], *, best: bool = False) -> Any:
    """Take over the parameters and the state of a checkpoint.

    Parameters
    ----------
    model : PhysicalModel
        A model with the same parameters, also one compiled for inference, or for another backend.
    path : path-like
        The folder of a checkpoint, or the folder of several: then that which is furthest.
    best : bool, optional
        Of several, take the one with the best ``monitor`` of `fit`.

    Returns
    -------
    dict
        The parameters, which now belong to the model.

    Raises
    ------
    ModelFileError
        If there is no checkpoint, or a damaged one.
    ParameterError
        If it belongs to another model.
    """
    chosen = Store(path, 1).best() if best else find(path)
    if chosen is None:
        raise ModelFileError(
            f"of no checkpoint in {os.fspath(path)!r} it is known how good it is",
            hint="that is known of those that `fit` writes after an epoch; leave out best=True",
        )
    groups = read(chosen, None, only=("parameters", "state")).groups
    try:
        parameters = groups["parameters"]
    except KeyError as error:
        raise damaged(chosen, "it holds no parameters") from error
    known = internals.names_by_role(model)["state"]
    state = {name: value for name, value in groups.get("state", {}).items() if name in known}
    try:
        return model.load_params({**state, **parameters})
    except ParameterError as error:
        raise ParameterError(
            f"the checkpoint {os.fspath(chosen)!r} belongs to another model: {error.message}", hint=error.hint
        ) from error
