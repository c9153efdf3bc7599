"""Folders of published checkpoints: config.json, weights, and what else lies beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidValueError, ModelFileError
from ..models import from_config
from ..optional_packages import require
from . import weights

if TYPE_CHECKING:
    from .._core import Model
    from ..backends.backend import Backend
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Folder", "read_json"]


class Folder:
    """A folder of a checkpoint.

    Parameters
    ----------
    path : path-like
        With ``config.json`` and weights.

    Attributes
    ----------
    config : dict
        What ``config.json`` holds.

    Raises
    ------
    ModelFileError
        If there is no such folder, or no ``config.json`` in it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            hint = (
                "put the file into a folder with its config.json"
                if self.path.is_file()
                else "give that of a checkpoint"
            )
            raise ModelFileError(f"{str(path)!r} is not a folder", code="M0802", hint=hint)
        self.config = read_json(self.path / "config.json")
        if not self.config:
            raise ModelFileError(f"{str(path)!r} has no config.json", code="M0802", hint="fetch it with the weights")
        # Settings of texts: what tells about generating goes first.
        inner = self.config.get("text_config")
        settings = (read_json(self.path / "generation_config.json"), self.config, inner)
        self._settings = [mapping for mapping in settings if isinstance(mapping, Mapping)]

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return (self.path / name).is_file()

    def integers(self, name: str) -> list[int]:
        """Read a setting that is an integer, or a list of integers; empty if there is none."""
        result: Any = next((s[name] for s in self._settings if s.get(name) is not None), [])
        several = result if isinstance(result, list) else [result]
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in several):
            raise InvalidValueError(f"{name} is {result!r} in {str(self.path)!r}", hint="it must be an integer")
        return several

    def integer(self, *names: str) -> int | None:
        """Read the first of these settings that is there."""
        return next((several[0] for several in map(self.integers, names) if several), None)

    def model(
        self,
        compile: Callable[[Model], PhysicalModel],
        *,
        part: str | None = None,
        progress: bool = False,
        **arguments: Any,
    ) -> PhysicalModel:
        """Build the model of the configuration, compile it and load its weights.

        Parameters
        ----------
        compile : callable
            Makes a physical model of a model.
        part : str, optional
            Which model it is, where the configuration describes several.
        progress : bool, optional
            Show a progress bar.
        **arguments
            Further arguments of the model.
        """
        return load(lambda: compile(from_config(self.path, part=part, **arguments)), self.path, progress, part)


def load(
    make: Callable[[], PhysicalModel], source: str | os.PathLike[str], progress: bool, part: str | None = None
) -> PhysicalModel:
    """Make a model and load its weights, with a progress bar if that is wanted."""
    if not progress:
        model = make()
        weights.load_weights(model, source)
        return model
    with require("tqdm", "showing progress").tqdm(total=2, unit="step", leave=False) as bar:
        bar.set_description(f"compiling {part or 'the model'}")
        model = make()
        bar.update()
        bar.set_description("loading weights")
        weights.load_weights(model, source)
        bar.update()
    return model


def backend_of(name: Backend | str) -> Backend:
    """Return a backend that is given, or the one of a name."""
    from ..backends import get_backend

    backend: Backend = get_backend(name) if isinstance(name, str) else name
    return backend


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of settings; an empty dict if there is none.

    Raises
    ------
    ModelFileError
        If it cannot be read, or holds no object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error.strerror or error}", code="M0802") from error
    except ValueError as error:
        raise ModelFileError(f"{str(path)!r} is not valid JSON: {error}", hint="fetch the file again") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{str(path)!r} holds no object", hint="fetch the file again")
    return content
