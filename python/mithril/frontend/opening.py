"""Files and folders of other frameworks, by what they are: each becomes a model with its weights."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._core import Model
from ..errors import InvalidValueError, MithrilError, ModelFileError, UnsupportedOpError
from .onnx import from_onnx
from .torch import from_torch

__all__ = ["READERS", "Opened", "open_foreign"]


@dataclass(frozen=True)
class Opened:
    """A model of another framework.

    Attributes
    ----------
    model : Model
        The model.
    params : dict or None
        Its weights; None if the folder holds none.
    way : str
        How it was read, for people.
    """

    model: Model
    params: dict[str, Any] | None
    way: str


def open_foreign(path: Path, shapes: Mapping[str, Any] | None = None) -> Opened | None:
    """Read a file of `READERS`, or a folder whose configuration the zoo does not know; None for everything else.

    Parameters
    ----------
    path : Path
        The file or folder.
    shapes : mapping, optional
        Shapes of inputs, where the model is traced.

    Raises
    ------
    ModelFileError
        If it cannot be read.
    UnsupportedOpError
        If it holds ops without a counterpart.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is not None and not path.is_dir():
        return reader(path)
    if path.is_dir() and (path / "config.json").is_file():
        return _folder(path, shapes or {})
    return None


def _exported(path: Path) -> Opened:
    model, params = from_torch(path)
    return Opened(model, params, f"{path}: a program of torch.export, with its weights")


def _onnx(path: Path) -> Opened:
    model, params = from_onnx(path)
    return Opened(model, params, f"{path}: a file of ONNX, with its weights")


#: Endings of files, and what reads them.
READERS: dict[str, Callable[[Path], Opened]] = {".pt2": _exported, ".onnx": _onnx}


# --- folders of the hub -------------------------------------------------------------------------------------------


def _folder(path: Path, shapes: Mapping[str, Any]) -> Opened | None:
    from ..models.configuration import from_config

    try:
        from_config(path)
    except ModelFileError:
        raise
    except InvalidValueError as error:
        names = _architectures(path)
        if "not in the zoo" not in error.message or not names:
            return None
        return _by_transformers(path, names[0], shapes, error)
    return None


def _architectures(path: Path) -> list[str]:
    content = json.loads((path / "config.json").read_text(encoding="utf-8"))
    names = content.get("architectures") if isinstance(content, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _by_transformers(path: Path, name: str, shapes: Mapping[str, Any], reason: MithrilError) -> Opened:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InvalidValueError(
            f"the zoo has no {name}, and it cannot be read through transformers: {error}",
            hint="pip install torch transformers, and its own class is used",
        ) from reason
    model_class = getattr(transformers, name, None)
    if model_class is None or not hasattr(model_class, "from_pretrained"):
        raise InvalidValueError(
            f"neither the zoo nor transformers {transformers.__version__} has {name}",
            hint="code in the folder is not run; convert the module yourself: ml.from_torch(module, args)",
        ) from reason
    has_weights = any(file.suffix in (".safetensors", ".bin") for file in path.iterdir())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
            module = (
                model_class.from_pretrained(path, config=config, local_files_only=True)
                if has_weights
                else model_class(config)
            )
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelFileError(f"transformers cannot read {os.fspath(path)!r}: {text}") from error
    module = module.float().eval()
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    try:
        model, params = from_torch(module, (), _examples(module, shapes, torch))
    except UnsupportedOpError as error:
        note = f"it was read through {name} of transformers and ml.from_torch"
        raise UnsupportedOpError(
            f"{error}\n  note: {note}", message=error.message, notes=(*error.notes, note), hint=error.hint
        ) from error
    way = f"{path}: {name} is not in the zoo; read through transformers and ml.from_torch"
    return Opened(model, params if has_weights else None, f"{way}, with its weights" if has_weights else way)


def _examples(module: Any, shapes: Mapping[str, Any], torch: Any) -> dict[str, Any]:
    """Make example inputs: of the shapes that are given, else small ones that the configuration allows."""
    main, config = module.main_input_name, module.config
    sizes_by_name = {name: list(sizes) for name, sizes in shapes.items()}
    if main not in sizes_by_name:
        sizes_by_name = {main: _usual(main, config), **sizes_by_name}
    if getattr(config, "is_encoder_decoder", False) and main == "input_ids":
        sizes_by_name.setdefault("decoder_input_ids", sizes_by_name[main])
    for name, sizes in sizes_by_name.items():
        if not all(isinstance(n, int) for n in sizes):
            raise InvalidValueError(
                f"the shape of {name} is {sizes}: the module is traced with numbers", hint=f"write --shape {name}=1,16"
            )
    is_whole = {name: name.endswith(("ids", "mask", "positions")) for name in sizes_by_name}
    return {
        name: torch.ones(sizes, dtype=torch.int64) if is_whole[name] else torch.zeros(sizes)
        for name, sizes in sizes_by_name.items()
    }


def _usual(name: str, config: Any) -> list[int]:
    if name == "input_ids":
        return [1, min(16, int(getattr(config, "max_position_embeddings", None) or 16))]
    size = getattr(config, "image_size", None)
    if name == "pixel_values" and size is not None:
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return [1, int(getattr(config, "num_channels", 3)), int(height), int(width)]
    raise InvalidValueError(f"the shape of the input {name!r} is not known", hint=f"give it: --shape {name}=1,…")
