"""Checkpoints: everything a training needs to go on exactly, one folder each, written as a whole or not at all.

A folder ``epoch-0002-batch-000010`` is where 10 batches of epoch 2 are done. It holds ``arrays.safetensors``
(parameters, state, optimizer, history) and ``checkpoint.json`` (the rest, and the checksums of both), and no code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checkpoints import files
from ..compiled import internals
from ..errors import InvalidValueError, MithrilError, ModelFileError, ParameterError

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["Checkpoint", "Store", "find", "load_checkpoint", "read"]

_ARRAYS, _ABOUT = "arrays.safetensors", "checkpoint.json"
_NAME = re.compile(r"epoch-(\d+)-batch-(\d+)")
#: Beginning of the names of folders that are being written or removed.
_TEMPORARY = ".mithril-"
_FORMAT = 1


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

    def write(self, checkpoint: Checkpoint, backend: Backend) -> Path:
        """Write a checkpoint; then remove those that are neither among the last ones nor the best.

        Raises
        ------
        ModelFileError
            If that is not possible; the checkpoints before are still there.
        """
        target = self.folder / checkpoint.name
        temporary: str | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep()
            temporary = tempfile.mkdtemp(dir=self.folder, prefix=_TEMPORARY)
            _fill(Path(temporary), checkpoint, backend)
            os.replace(temporary, target)
            _sync(self.folder)
        except OSError as error:
            raise files.unusable_file("written", target, error) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        self._prune()
        return target

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


def _fill(folder: Path, checkpoint: Checkpoint, backend: Backend) -> None:
    arrays: dict[str, Any] = {}
    entries: dict[str, dict[str, Any]] = {}
    for group, values in checkpoint.groups.items():
        entries[group] = {}
        for name, value in values.items():
            key = f"{group}/{name}"
            if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
                entries[group][name] = {"value": value}
            elif hasattr(value, "shape") and hasattr(value, "dtype"):
                own = backend.engine.is_own(value)
                dtype = str(backend.dtype(value)) if own else np.asarray(value).dtype.name
                entries[group][name] = {"array": key, "dtype": dtype, "own": bool(own)}
                arrays[key] = backend.to_numpy(value) if own else np.asarray(value)
            else:
                raise InvalidValueError(
                    f"{group} holds {name!r}, a {type(value).__name__}, which cannot be saved",
                    hint="state_dict() returns arrays and plain numbers by name",
                )
    files.save(arrays, folder / _ARRAYS)
    content = {
        "format": _FORMAT,
        "epoch": checkpoint.epoch,
        "batch": checkpoint.batch,
        "value": checkpoint.value,
        "about": checkpoint.about,
        "entries": entries,
        "arrays": zlib.crc32((folder / _ARRAYS).read_bytes()),
    }
    text = json.dumps(content)
    with open(folder / _ABOUT, "w", encoding="utf-8") as file:
        json.dump({"checksum": zlib.crc32(text.encode()), "content": content}, file)
        file.flush()
        os.fsync(file.fileno())
    os.chmod(folder, 0o755)
    _sync(folder)


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


def read(path: Path, backend: Backend | None) -> Checkpoint:
    """Read a checkpoint; its arrays become those of the backend, if one is given.

    Raises
    ------
    ModelFileError
        If it is damaged.
    """
    content = _about(path)
    try:
        raw = (path / _ARRAYS).read_bytes()
    except OSError as error:
        raise _damaged(path, str(error)) from error
    if zlib.crc32(raw) != content["arrays"]:
        raise _damaged(path, f"{_ARRAYS} has been changed")
    arrays = files.load(path / _ARRAYS)

    def value(entry: Mapping[str, Any]) -> Any:
        if "value" in entry:
            return entry["value"]
        array = arrays[entry["array"]]
        return backend.tensor(array, entry["dtype"]) if entry["own"] and backend is not None else array

    try:
        groups = {
            group: {n: value(entry) for n, entry in entries.items()} for group, entries in content["entries"].items()
        }
        return Checkpoint(content["epoch"], content["batch"], groups, content["about"], content["value"])
    except (LookupError, TypeError, AttributeError) as error:
        raise _damaged(path, str(error)) from error


def _about(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        content: dict[str, Any] = document["content"]
        intact = document["checksum"] == zlib.crc32(json.dumps(content).encode())
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not intact:
        raise _damaged(path, f"{_ABOUT} has been changed")
    if content.get("format") != _FORMAT:
        raise ModelFileError(
            f"the checkpoint {os.fspath(path)!r} is of format {content.get('format')!r}",
            hint=f"this version of Mithril reads format {_FORMAT}",
        )
    return content


def _damaged(path: Path, reason: str) -> ModelFileError:
    return ModelFileError(
        f"the checkpoint {os.fspath(path)!r} is damaged: {reason}",
        hint="remove that folder, and an earlier checkpoint beside it is used",
    )


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
    groups = read(chosen, None).groups
    try:
        parameters = groups["parameters"]
    except KeyError as error:
        raise _damaged(chosen, "it holds no parameters") from error
    known = internals.names_by_role(model)["state"]
    state = {name: value for name, value in groups.get("state", {}).items() if name in known}
    try:
        return model.load_params({**state, **parameters})
    except ParameterError as error:
        raise ParameterError(
            f"the checkpoint {os.fspath(chosen)!r} belongs to another model: {error.message}", hint=error.hint
        ) from error
