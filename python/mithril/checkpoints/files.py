"""Saving and loading: models as JSON, parameters as safetensors. Neither file holds code."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .. import _core, dtypes
from .._core import Model
from .._generated import zoo
from ..backends.exchange import to_host
from ..errors import InvalidValueError, MithrilError, ModelFileError, ParameterError
from . import weights

__all__ = ["load", "save", "write"]

#: What parameters are saved as.
_SUFFIX = ".safetensors"
#: What files that hold tensors are called.
_TENSORS = (_SUFFIX, ".gguf", ".pt", ".pth", ".bin")
#: Bytes that are handed to the file at once.
_CHUNK = 1 << 24


def save(
    what: Model | Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Save a model, or a dict of parameters. The file is replaced as a whole, or not at all.

    A link is followed, and stays; into a device or a pipe the content is written.

    Parameters
    ----------
    what : Model or mapping
        A model, without its parameters; or parameters by name, arrays of any backend.
    path : path-like
        The file: usually ``*.json`` for a model; ``*.safetensors`` for parameters.
    layout : str, optional
        Write parameters with the names and the form of published checkpoints: ``"torchvision"``, ``"transformers"``,
        ``"openai"``. Default: ours.
    metadata : mapping, optional
        Texts by name that are kept with the parameters.

    Examples
    --------
    >>> import mithril as ml, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "model.json")
    >>> ml.save(ml.Linear(4), path)
    >>> ml.load(path)
    Linear(inputs=[input], outputs=[output])
    """
    target = file_path(path)
    if isinstance(what, Mapping):
        if target.suffix != _SUFFIX:
            raise InvalidValueError(
                f"parameters are saved as *{_SUFFIX}, not {os.fspath(path)!r}",
                hint=f'add the ending: "{target.name or "params"}{_SUFFIX}"; files of GGUF are written by ml.save_gguf',
            )
        texts = metadata or {}
        if not all(isinstance(text, str) for pair in texts.items() for text in pair):
            raise InvalidValueError("metadata holds what is not a string", hint="convert it: json.dumps(value)")
        return _save_arrays(what, target, layout, texts)
    if not isinstance(what, Model):
        hint = "give a dict of arrays by name, or a model"
        if hasattr(what, "get_parameters"):
            hint = "save its parameters, and the model it was compiled from: ml.save(compiled.get_parameters(), path)"
        raise InvalidValueError(f"save takes a model or a dict of parameters, not a {type(what).__name__}", hint=hint)
    if target.suffix == _SUFFIX:
        raise InvalidValueError(
            f"{os.fspath(path)!r} is a file of parameters, and a model is given",
            hint="save the model as *.json, and its parameters on their own",
        )
    if layout is not None or metadata is not None:
        raise InvalidValueError("a model is saved without layout and metadata", hint="they belong to parameters")
    write(target, what.to_json())


def write(path: str | os.PathLike[str], text: str | bytes) -> None:
    """Write a file, which is replaced as a whole, or not at all; a device or a pipe gets the content.

    Raises
    ------
    ModelFileError
        If that is not possible.
    """
    target = file_path(path)
    content = text.encode() if isinstance(text, str) else text
    try:
        if is_special(target):
            target.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(target)), content)
    except OSError as error:
        raise unusable_file("written", target, error, len(content)) from error


def is_special(path: Path) -> bool:
    """Whether a path is a device or a pipe: there is nothing to replace, and what is written goes through it."""
    return path.exists() and not path.is_file() and not path.is_dir()


@contextlib.contextmanager
def written(path: Path) -> Iterator[Path]:
    """Give the path of the file to write in the place of `path`: of a device or a pipe, a file that is copied into it.

    Opening and writing a pipe may wait for the other side, which Python can interrupt.
    """
    if not is_special(path):
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        staged = Path(folder) / path.name
        yield staged
        try:
            with staged.open("rb") as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise unusable_file("written", path, error, staged.stat().st_size) from error


def file_path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        hint = 'pass a path, e.g. "model.json"'
        if isinstance(path, (Model, Mapping)):
            hint = "it comes second: ml.save(model, path)"
        raise InvalidValueError(f"the path is a {type(path).__name__}", hint=hint)
    if "\0" in str(path):
        raise InvalidValueError(f"{os.fspath(path)!r} is not a path", hint="it holds a character of value zero")
    return Path(path)


#: Errors of a disk that is full, of a quota, of a bound on the size of a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def unusable_file(done: str, path: Path, error: OSError, size: int | None = None) -> ModelFileError:
    message = f"{os.fspath(path)!r} cannot be {done}: {error.strerror or error}"
    hint = "check the folder and its permissions"
    if error.errno in _FULL:
        if size is not None:
            message += f"; it has {size} bytes"
        hint = "free some space, or choose another folder; the previous file is unchanged"
    elif path.is_dir():
        hint = "of a folder, ml.models.from_config builds the model, and ml.load_weights reads the weights"
    elif not path.parent.is_dir():
        hint = f"there is no folder {os.fspath(path.parent)!r}: create it, or check the path"
    elif isinstance(error, FileNotFoundError):
        hint = "check the path"
    return ModelFileError(message, code="M0802", hint=hint)


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
        A file that `save` has written, or any other ``*.safetensors``, ``*.gguf``, ``*.pt``, ``*.pth`` or ``*.bin``; a
        file ``*.pt2`` of ``torch.export`` or ``*.onnx``; a folder with a ``config.json`` and weights; a folder of
        checkpoints that `mithril.train.fit` has written, or one of these; or the name of a model of `mithril.models`.

    Returns
    -------
    Model, dict, or both
        A model; parameters; or both, a tuple, of a file ``*.pt2`` or ``*.onnx`` or a folder. Parameters are NumPy
        arrays by name, views of the file in memory where that is possible (see `mithril.weights.open`): pass them to
        `PhysicalModel.load_params`, or `transfer` them to a backend.

    Raises
    ------
    ModelFileError
        If the file is malformed.
    """
    source = file_path(path)
    stored = weights.of_training(source)
    if stored is not None:
        return {name: array.read() for name, array in sorted(stored.items())}
    if source.is_dir() or source.suffix in (".pt2", ".onnx"):
        return _load_with_weights(source)
    if isinstance(path, str) and path in zoo.__all__ and not source.exists():
        return getattr(zoo, path)()
    if source.suffix in _TENSORS:
        return dict(sorted(weights.open(source).items()))
    try:
        content = source.read_bytes()
    except OSError as error:
        raise unusable_file("read", source, error) from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"{os.fspath(path)!r} is not a text file", hint="give a file written by ml.save"
        ) from error
    try:
        return Model.from_json(text)
    except ModelFileError as error:
        if (hint := _meant(text, source)) is None:
            raise
        raise ModelFileError(f"{os.fspath(path)!r} holds no model of Mithril", hint=hint) from error


def _load_with_weights(source: Path) -> tuple[Model, dict[str, Any]]:
    # These know files of weights themselves.
    from ..backends.with_manualgrad.numpy_backend import NumpyBackend
    from ..compiled.compile import compile
    from ..frontend.opening import open_foreign
    from ..models.configuration import from_config

    foreign = open_foreign(source)
    if foreign is not None and foreign.params is not None:
        return foreign.model, foreign.params
    if foreign is not None:
        raise ModelFileError(f"the folder {os.fspath(source)!r} holds no weights", hint="put the checkpoint into it")
    if not (source / "config.json").is_file():
        raise ModelFileError(
            f"the folder {os.fspath(source)!r} holds no config.json", hint="ml.load_weights reads weights alone"
        )
    model = from_config(source)
    compiled = compile(model, NumpyBackend(), inference=True)
    weights.load_weights(compiled, source)
    return model, {name: to_host(value) for name, value in compiled.get_parameters().items()}


def _meant(text: str, path: Path) -> str | None:
    """Say what to do with files of published checkpoints."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(content, dict) and "model_type" in content:
        return f"it is a configuration: ml.models.from_config({os.fspath(path)!r}) builds its model"
    if isinstance(content, dict) and "weight_map" in content:
        return f"it lists files of weights: ml.load_weights(model, {os.fspath(path)!r}) reads them"
    return None


# --- parameters -------------------------------------------------------------------------------------------------


def _save_arrays(params: Mapping[str, Any], path: Path, layout: str | None, metadata: Mapping[str, str]) -> None:
    """Write arrays one after the other: one of them at a time is copied."""
    for name in params:
        if not isinstance(name, str):
            raise ParameterError(f"the name {name!r} is a {type(name).__name__}", hint="names are strings")
    types = {name: array_type(name, value) for name, value in params.items()}
    if layout is None:
        sources = [(name, name, 0, 1, False, False) for name in params]
    else:
        sources = _core.publish_weights(list(params), layout)
    entries = []
    for theirs, ours, _, parts, transposed, paired in sources:
        if paired:
            raise InvalidValueError(
                f"{ours!r} is ordered otherwise in the layout {layout!r}", hint="write a file of GGUF: ml.save_gguf"
            )
        dtype, shape = types[ours]
        if parts > 1 and (not shape or shape[0] % parts):
            raise ParameterError(
                f"{ours!r} of shape {list(shape)} cannot be split into {parts}", hint="save it as it is"
            )
        shape = (shape[0] // parts, *shape[1:]) if parts > 1 else shape
        entries.append((theirs, dtype, shape[::-1] if transposed else shape))

    def chunks(place: int) -> Iterator[bytes]:
        _, ours, part, parts, transposed, _ = sources[place]
        host = little_endian(to_host(params[ours]), types[ours][0])
        if parts > 1:
            rows = len(host) // parts
            host = host[part * rows : (part + 1) * rows]
        return byte_chunks(host.T if transposed else host)

    with written(path) as target:
        _core.save_tensors(target, entries, dict(metadata), chunks)


def byte_chunks(host: np.ndarray[Any, Any]) -> Iterator[bytes]:
    """Go through the bytes of an array, some at a time."""
    flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    return (flat[start : start + _CHUNK].tobytes() for start in range(0, len(flat), _CHUNK))


def array_type(name: str, value: Any) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of an array, without a copy of those that frameworks hold."""
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
    try:
        if dtype in dtypes.ALL and hasattr(value, "shape"):
            return dtype, tuple(int(n) for n in value.shape)
        host = to_host(value)
    except (TypeError, ValueError) as error:
        reason = error.message if isinstance(error, MithrilError) else error
        raise ParameterError(f"parameter {name!r} cannot be saved: {reason}", hint="save arrays") from error
    return host.dtype.name, host.shape


def little_endian(host: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Little-endian elements; those of bfloat16 as their bits, also where NumPy has to hold them as float32."""
    if dtype == "bfloat16":
        if host.dtype == np.float32:
            return (host.view(np.uint32) >> 16).astype("<u2")
        return host.view(np.uint16).astype("<u2", copy=False)
    array: np.ndarray[Any, Any] = host.astype(np.dtype(dtype).newbyteorder("<"), copy=False)
    return array
