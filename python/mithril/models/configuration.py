"""Models from the `config.json` beside a published checkpoint, or from what a file of GGUF says of its model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _core
from .._core import Model
from ..errors import InvalidValueError, ModelFileError

__all__ = ["from_config"]


def from_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    part: str | None = None,
    name: str | None = None,
    cache: bool | None = None,
    last_only: bool | None = None,
    mask: bool | None = None,
    types: bool | None = None,
    head: str | None = None,
    memory_mask: bool | None = None,
    memory_cache: bool | None = None,
    **sizes: Any,
) -> Model:
    """Build the model that a configuration describes.

    Parameters
    ----------
    source : path-like or mapping
        A folder with a ``config.json``, such a file, or what it holds: ``model_type`` says which model it is. Or a file
        of GGUF, whose metadata says it.
    part : str, optional
        Which model it is, where one configuration describes several: those of T5 an ``"encoder"`` and a ``"decoder"``.
    name : str, optional
        Name; becomes a part of the paths of the parameters.
    cache, last_only, mask, types, head, memory_mask, memory_cache : optional
        What no configuration says: the arguments of that name of the model, if it has them. Default: as for the model.
    **sizes
        Other arguments of the model, such as ``num_layers``; they replace what the configuration says.

    Returns
    -------
    Model
        One of `mithril.models`, with the sizes of the configuration.

    Raises
    ------
    ModelFileError
        If there is no such file, or it cannot be read.
    InvalidValueError
        If the zoo has no such model, or an entry is missing, wrong, or asks for what the model does not have.
    """
    flags = {
        "cache": cache,
        "last_only": last_only,
        "mask": mask,
        "types": types,
        "head": head,
        "memory_mask": memory_mask,
        "memory_cache": memory_cache,
    }
    arguments = {**{flag: value for flag, value in flags.items() if value is not None}, **sizes}
    if isinstance(source, Mapping):
        try:
            text = json.dumps(dict(source))
        except (TypeError, ValueError) as error:
            raise InvalidValueError(
                f"the configuration is not valid JSON: {error}", hint="give plain values"
            ) from error
        return _core.zoo_from_config(text, part, arguments, name)
    if not isinstance(source, (str, os.PathLike)):
        raise InvalidValueError(f"the configuration is a {type(source).__name__}", hint="pass a folder or a dict")
    path = Path(source)
    if path.suffix == ".gguf":
        return _from_gguf(path, arguments, name)
    path = path / "config.json" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(
            f"{os.fspath(path)!r} cannot be read: {reason}", hint="pass the folder that holds config.json"
        ) from error
    return _core.zoo_from_config(text, part, arguments, name)


def _from_gguf(path: Path, arguments: dict[str, Any], name: str | None) -> Model:
    # Files of weights know compiled models, which know this module.
    from ..checkpoints import llama_cpp, weights

    settings, further = llama_cpp.configuration(weights.open(path))
    if "rope_factor" in further and "rope_factor" not in arguments:
        raise InvalidValueError(
            f"the rotary embedding of {os.fspath(path)!r} is scaled, but the file does not say by what factor",
            hint="give rope_factor, rope_low_frequency, rope_high_frequency and rope_length as it was published",
        )
    return _core.zoo_from_config(json.dumps(settings), None, {**further, **arguments}, name)
