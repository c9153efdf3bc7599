"""Saving and loading models as JSON: a version, no code."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ._core import Model
from .errors import InvalidValueError, ModelFileError

__all__ = ["load", "save"]


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
    target = Path(path)
    text = model.to_json()
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
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
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is no text file", hint="give a file written by ml.save") from error
    return Model.from_json(text)
