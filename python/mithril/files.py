"""Saving and loading models as JSON: a version, no code."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ._core import Model
from .errors import InvalidValueError, ModelFileError

__all__ = ["load", "save", "write"]


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Save a model. The file is replaced as a whole, or not at all.

    Parameters
    ----------
    model : Model
        What to save. Parameters are not part of it: they are yours, a dict of arrays.
    path : path-like
        The file, usually ``*.json``.

    Examples
    --------
    >>> import mithril as ml, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.json")
    >>> ml.save(ml.Linear(4), path)
    >>> ml.load(path)
    Linear(inputs=[input], outputs=[output])
    """
    if not isinstance(model, Model):
        raise InvalidValueError(f"save takes a model, not a {type(model).__name__}")
    target = _path(path)
    text = model.to_json()
    try:
        _replace(target, text)
    except OSError as error:
        raise _unusable("written", target, error) from error


def write(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file.

    Raises
    ------
    ModelFileError
        If that is not possible.
    """
    target = _path(path)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unusable("written", target, error) from error


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidValueError(f"the path is a {type(path).__name__}", hint='pass a path, e.g. "model.json"')
    if "\0" in str(path):
        raise InvalidValueError(f"{os.fspath(path)!r} is no path", hint="it holds a character of value zero")
    return Path(path)


def _unusable(done: str, path: Path, error: OSError) -> ModelFileError:
    message = f"{os.fspath(path)!r} cannot be {done}: {error.strerror or error}"
    return ModelFileError(message, code="M0802", hint="check the folder and its permissions")


def _replace(target: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".mithril-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the file takes the rights of the one it replaces, or the usual ones.
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model.

    Raises
    ------
    ModelFileError
        If the file is malformed.
    """
    source = _path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise _unusable("read", source, error) from error
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is no text file", hint="give a file written by ml.save") from error
    return Model.from_json(text)
