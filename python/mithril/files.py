"""Saving and loading: models as JSON, parameters as safetensors. Neither file holds code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ._core import Model
from .backends.exchange import narrow, to_host
from .errors import BackendUnavailableError, InvalidValueError, MithrilError, ModelFileError, ParameterError

__all__ = ["load", "save", "write"]

#: What parameters are saved as.
_SUFFIX = ".safetensors"
#: dtype in such a file -> dtype of ours.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def save(what: Model | Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Save a model, or a dict of parameters. The file is replaced as a whole, or not at all.

    Parameters
    ----------
    what : Model or mapping
        A model, without its parameters; or parameters by name, arrays of any backend.
    path : path-like
        The file: usually ``*.json`` for a model; ``*.safetensors`` for parameters, which needs the package
        ``safetensors``.

    Examples
    --------
    >>> import mithril as ml, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.json")
    >>> ml.save(ml.Linear(4), path)
    >>> ml.load(path)
    Linear(inputs=[input], outputs=[output])
    """
    target = _path(path)
    if isinstance(what, Model):
        if target.suffix == _SUFFIX:
            raise InvalidValueError(
                f"{os.fspath(path)!r} is a file of parameters, and a model is given",
                hint="save the model as *.json, and its parameters on their own",
            )
        content = what.to_json().encode()
    elif isinstance(what, Mapping):
        if target.suffix != _SUFFIX:
            raise InvalidValueError(f"parameters are saved as *{_SUFFIX}, not {os.fspath(path)!r}")
        content = _pack(what)
    else:
        raise InvalidValueError(f"save takes a model or a dict of parameters, not a {type(what).__name__}")
    try:
        _replace(target, content)
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


def _replace(target: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=".mithril-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; the file takes the rights of the one it replaces, or the usual ones.
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o644)
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def load(path: str | os.PathLike[str]) -> Any:
    """Load a model, or parameters.

    Parameters
    ----------
    path : path-like
        A file that `save` has written, or any other ``*.safetensors``.

    Returns
    -------
    Model or dict
        Parameters are NumPy arrays by name: pass them to `PhysicalModel.load_params`, or `transfer` them to a backend.

    Raises
    ------
    ModelFileError
        If the file is malformed.
    """
    source = _path(path)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise _unusable("read", source, error) from error
    if source.suffix == _SUFFIX:
        return _unpack(content, source)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{os.fspath(path)!r} is no text file", hint="give a file written by ml.save") from error
    return Model.from_json(text)


# --- parameters -------------------------------------------------------------------------------------------------


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise BackendUnavailableError(
            f"*{_SUFFIX} needs the package safetensors", hint="pip install safetensors"
        ) from error
    return safetensors


def _pack(params: Mapping[str, Any]) -> bytes:
    save = _safetensors().numpy.save
    hosts = {}
    for name, value in params.items():
        if not isinstance(name, str):
            raise ParameterError(f"the name {name!r} is a {type(name).__name__}", hint="names are strings")
        try:
            hosts[name] = np.array(to_host(value), order="C")
        except (TypeError, ValueError) as error:
            reason = error.message if isinstance(error, MithrilError) else error
            raise ParameterError(f"parameter {name!r} cannot be saved: {reason}", hint="save arrays") from error
    packed: bytes = save(hosts)
    return packed


def _unpack(content: bytes, source: Path) -> dict[str, np.ndarray[Any, Any]]:
    safetensors = _safetensors()
    try:
        entries = safetensors.deserialize(content)
    except (safetensors.SafetensorError, ValueError) as error:
        raise ModelFileError(f"{str(source)!r} is no safetensors file: {error}", hint="it may be incomplete") from error
    return {name: _array(name, entry) for name, entry in sorted(entries)}


def _array(name: str, entry: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype, data = _DTYPES.get(entry["dtype"]), entry["data"]
    if dtype is None:
        raise ModelFileError(f"parameter {name!r} is of dtype {entry['dtype']}", hint=f"known: {', '.join(_DTYPES)}")
    if dtype == "bfloat16":
        # The upper half of a float32; NumPy has no such dtype of its own.
        wide = np.frombuffer(data, "<u2").astype(np.uint32) << 16
        return narrow(wide.view(np.float32).reshape(entry["shape"]))
    little = np.dtype(dtype).newbyteorder("<")
    found: np.ndarray[Any, Any] = np.frombuffer(data, little).astype(dtype).reshape(entry["shape"])
    return found
