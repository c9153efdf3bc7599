"""Which model a command is about, and where its weights are from: the model's own file, another file, or drawn."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import models
from .._core import Model
from .._generated import zoo
from ..backends.exchange import to_host
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..checkpoints import weights
from ..checkpoints.files import load
from ..compiled.compile import compile
from ..errors import ConflictingOptionError, InvalidValueError, KeyNotFoundError, ParameterError
from ..frontend.opening import Opened, open_foreign
from ..suggestions import did_you_mean

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = ["Source", "model_of", "shapes_of", "title_of"]

#: Endings of files that hold weights.
_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth")
#: Seed of weights that are drawn.
_SEED = 0


@dataclass(frozen=True)
class Source:
    """A model and its weights, as a command names them.

    Attributes
    ----------
    model : Model
        The model.
    weights : Path or None
        A file or folder of weights; None: they are drawn, or the model has none.
    names : dict
        What parts of the model are called in the weights.
    params : dict or None
        The weights themselves, of a model of another framework.
    """

    model: Model
    weights: Path | None
    names: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Source:
        """Find the model and the weights that arguments name.

        Raises
        ------
        ParameterError
            If the model has parameters, and nothing says where their values are from.
        """
        path = Path(args.model)
        foreign = _foreign(args.model, args.shape)
        model = _native(args.model) if foreign is None else foreign.model
        names = _names(args.name)
        if args.weights is not None and args.random_weights:
            raise ConflictingOptionError(
                f"--weights {args.weights} and --random-weights contradict each other", hint="leave one of them out"
            )
        own = None if args.random_weights else Path(args.weights) if args.weights else _own(path)
        if foreign is not None and foreign.params is not None and not args.random_weights and not args.weights:
            return cls(model, path, names, foreign.params)
        if names and own is None:
            raise InvalidValueError(f"--name is {args.name[0]!r}, but no weights are loaded", hint="add --weights PATH")
        source = cls(model, own, names)
        if own is None and not args.random_weights and source._has_parameters():
            text = f"{args.model!r} holds a model without weights"
            if path.is_dir():
                text = f"the folder {args.model!r} holds no weights"
            elif args.model in zoo.__all__:
                text = f"{args.model} of the zoo comes without weights"
            hint = "give them: --weights PATH, or ask for random numbers: --random-weights"
            if path.name == "config.json" and _own(path.parent) is not None:
                hint = f"give the folder {str(path.parent)!r}, which holds weights too; or add --random-weights"
            raise ParameterError(text, hint=hint)
        return source

    def _has_parameters(self) -> bool:
        compiled = compile(self.model, NumpyBackend(), inference=True)
        return bool(compiled._names["param"])

    @property
    def note(self) -> str:
        """What the output says about the weights; empty for a model that has none."""
        if self.weights is not None:
            return f"weights: {self.weights}"
        return f"weights: random numbers (--random-weights, seed {_SEED})" if self.is_random else ""

    @property
    def is_random(self) -> bool:
        """Whether weights are drawn: the model has some, and nothing says their values."""
        return self.weights is None and self.params is None and self._has_parameters()

    def load_into(self, compiled: PhysicalModel) -> None:
        """Give a compiled model its weights."""
        if self.params is not None:
            compiled.load_params(self.params)
        elif self.weights is not None:
            weights.load_weights(compiled, self.weights, names=self.names)
        else:
            # Parameters whose sizes are not known yet are drawn with the seed of the backend, which is the same.
            compiled.get_parameters()

    def arrays(self, shapes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return parameters and running statistics as NumPy arrays; None if they are drawn."""
        if self.weights is None:
            return None
        compiled = compile(self.model, NumpyBackend(), shapes=shapes, inference=True)
        self.load_into(compiled)
        state = {name: value for name, value in compiled.state.items() if np.asarray(value).dtype.kind not in "biu"}
        return {name: to_host(value) for name, value in {**compiled.get_parameters(), **state}.items()}


def _foreign(name: str, shapes: Sequence[str]) -> Opened | None:
    """Read what another framework has made, and say which way was taken."""
    foreign = open_foreign(Path(name), shapes_of(shapes))
    if foreign is not None:
        print(f"model: {foreign.way}", file=sys.stderr)
    return foreign


def model_of(name: str, shapes: Sequence[str] = ()) -> Model:
    """Build the model of a folder, of a file, or of a name."""
    foreign = _foreign(name, shapes)
    if foreign is not None:
        return foreign.model
    return _native(name)


def title_of(name: str) -> str:
    """Return what a model is called on its page: the name of its file or folder, or its own."""
    path = Path(name)
    return path.stem if path.suffix or path.exists() else name


def _native(name: str) -> Model:
    path = Path(name)
    if path.is_dir() or path.name == "config.json" or path.suffix == ".gguf":
        return models.from_config(path)
    if path.suffix in _WEIGHTS:
        hint = f"give a model, and these as its weights: --weights {name}"
        if (path.parent / "config.json").is_file():
            hint = f"give the folder, whose config.json says which model they are of: {path.parent}"
        raise InvalidValueError(f"{name!r} holds weights, and no model", hint=hint)
    if path.suffix or path.exists():
        loaded = load(name)
        if not isinstance(loaded, Model):
            raise InvalidValueError(f"{name!r} holds parameters", hint="give the file of a model")
        return loaded
    if name not in zoo.__all__:
        hint = did_you_mean(name, zoo.__all__, f"give a file of ml.save, or one of {', '.join(zoo.__all__)}")
        raise KeyNotFoundError(f"{name!r} is neither a file nor the name of a model", hint=hint)
    model: Model = getattr(zoo, name)()
    return model


def _own(path: Path) -> Path | None:
    """Return the path of a model if weights lie there too."""
    if path.suffix == ".gguf":
        return path
    if path.is_dir() and any(file.suffix in _WEIGHTS or file.name.endswith(".index.json") for file in path.iterdir()):
        return path
    return None


def shapes_of(texts: Sequence[str]) -> dict[str, list[int | str]]:
    """Read shapes of inputs: ``input=1,3,224,224``; a name instead of a number is a size that stays open.

    Raises
    ------
    InvalidValueError
        If one is written in another way, or given twice.

    Examples
    --------
    >>> shapes_of(["input=batch,784", "scale="])
    {'input': ['batch', 784], 'scale': []}
    """
    shapes: dict[str, list[int | str]] = {}
    for entry in texts:
        name, equals, sizes = (part.strip() for part in entry.partition("="))
        if not equals or not name:
            names = [word for word in re.findall(r"\w+", entry) if not (word.isdigit() or word == "x")]
            usual = ",".join(re.findall(r"\d+", entry)) or "1,3,224,224"
            hint = f"write it as NAME=SIZES: --shape {names[0] if names else 'input'}={usual}"
            raise InvalidValueError(f"--shape is {entry!r}, which has no {'name' if equals else '='}", hint=hint)
        if name in shapes:
            raise InvalidValueError(f"--shape gives {name!r} twice", hint="give each input once")
        words = [size.strip() for size in sizes.split(",") if size.strip()]
        for word in words:
            if not (word.isascii() and (word.isdigit() or word.isidentifier())) or _JOINED.fullmatch(word):
                raise InvalidValueError(
                    f"--shape is {entry!r}: the size {word!r} is neither a number nor a name",
                    hint=_shape_hint(name, sizes),
                )
        shapes[name] = [int(word) if word.isdigit() else word for word in words]
    return shapes


#: Sizes that are written with an x between them, which would be a name if it started with a letter.
_JOINED = re.compile(r"\d+(x\d+)+", re.IGNORECASE)


def _shape_hint(name: str, sizes: str) -> str:
    """Return how a shape is written that was written in another way."""
    if "-" in sizes or "?" in sizes or "*" in sizes:
        return f"a size that is not known is a name: --shape {name}=batch,4"
    words = [part for word in re.findall(r"[A-Za-z_]\w*|\d+(?:x\d+)*", sizes) for part in _parts(word)]
    return f"sizes are separated by commas: --shape {name}={','.join(words) or '1,3,224,224'}"


def _parts(word: str) -> list[str]:
    return re.split("[xX]", word) if _JOINED.fullmatch(word) else [word]


def _names(texts: Sequence[str]) -> dict[str, str]:
    for entry in texts:
        if "=" not in entry:
            raise InvalidValueError(f"--name is {entry!r}", hint="write it as OURS=THEIRS, e.g. linear=0")
    return dict((ours, theirs) for ours, _, theirs in (entry.partition("=") for entry in texts))
