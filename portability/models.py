"""Small models that together use what generated C consists of; each is exported with recorded data and outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
from mithril.tools.export import Exported


@dataclass(frozen=True)
class Model:
    """A model that was exported.

    Attributes
    ----------
    name : str
        What its files and symbols start with.
    exported : Exported
        The files.
    lanes : int or None
        Floats in a vector that it is shaped for; None: those of this machine.
    """

    name: str
    exported: Exported
    lanes: int | None

    @property
    def source(self) -> Path:
        """The C file."""
        return self.exported.folder / f"{self.name}.c"

    @property
    def header(self) -> Path:
        """Its header."""
        return self.exported.folder / f"{self.name}.h"


def export_all(folder: Path, lanes: int | None) -> list[Model]:
    """Export all models, with their weights in the C files; each into a folder of its own."""
    entries = []
    for build in MODELS:
        model, shapes, options = build()
        export: dict[str, Any] = {"weights_inside": True, "lanes": lanes, **options.pop("export", {})}
        # C compiles nothing here: what is exported is compared with NumPy.
        compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference="optimizer" not in export, **options)
        name = build.__name__
        exported = compiled.export(folder / name, prefix=name, flags=["-O1"], **export)
        entries.append(Model(name, exported, lanes))
    return entries


def mlp() -> Any:
    """Linear layers, relu, softmax: also what runs on a microcontroller."""
    model = ml.Model()
    model |= ml.Linear(16)(input="input", output="hidden")
    model += ml.Relu()()
    model += ml.Linear(3)()
    model += ml.Softmax()(output="output")
    return model, {"input": [3, 8]}, {}


def cnn() -> Any:
    """Convolutions, plain, strided and depthwise, batch norm, pooling, a residual connection; one image at a time."""
    model = ml.Model()
    model |= ml.Conv2d(8, 3, padding=1)(input="input", output="stem")
    model |= ml.BatchNorm2d(8)(input="stem", output="normal")
    model |= ml.Relu()(input="normal", output="active")
    model |= ml.MaxPool2d(2)(input="active", output="pooled")
    model |= ml.Conv2d(8, 3, padding=1, groups=8)(input="pooled", output="depthwise")
    model |= ml.Add()(left="pooled", right="depthwise", output="residual")
    model |= ml.Conv2d(12, 5, stride=2, padding=2)(input="residual", output="strided")
    model |= ml.HardSwish()(input="strided", output="bent")
    model |= ml.AvgPool2d(2)(input="bent", output="averaged")
    model |= ml.Flatten()(input="averaged", output="flat")
    model |= ml.Linear(5)(input="flat", output="output")
    return model, {"input": [2, 3, 12, 12]}, {"export": {"block": 1}}


def gpt() -> Any:
    """Tokens, attention, layer norm, gelu."""
    model = ml.Model()
    model |= ml.Embedding(11, 16)(input="input", output="tokens")
    model |= ml.TransformerEncoderLayer(16, 2, 32, 0.0)(input="tokens", output="mixed")
    model |= ml.LayerNorm(16)(input="mixed", output="normal")
    model |= ml.Linear(24)(input="normal", output="wide")
    model |= ml.Gelu()(input="wide", output="bent")
    model |= ml.Linear(11)(input="bent", output="output")
    data = {"input": np.arange(7, dtype=np.int32)[None] * 3 % 11}
    return model, {"input": [1, 7]}, {"export": {"data": data}}


def halves() -> Any:
    """float16 and bfloat16: kept in 16 bits, computed in float32."""
    model = ml.Model()
    model |= ml.Cast("float16")(input="input", output="narrow")
    model |= ml.Sigmoid()(input="narrow", output="squashed")
    model |= ml.Cast("bfloat16")(input="squashed", output="brief")
    model |= ml.Tanh()(input="brief", output="output")
    return model, {"input": [4, 9]}, {}


def integers() -> Any:
    """Integers and booleans: wrapping products, shifts, comparisons, a look-up, sorting."""
    numbers = ml.IOKey("input", shape=[5, 6], dtype="int32")
    index = ml.IOKey("index", shape=[4], dtype="int32")
    model = ml.Model()
    model |= ml.Multiply()(left=numbers, right=123456789, output="product")
    model |= ml.Remainder()(left="product", right=17, output="rest")
    model |= ml.RightShift()(left="product", right=3, output="shifted")
    model |= ml.Less()(left="rest", right="shifted", output="is_less")
    model |= ml.Sort()(input="rest", output="sorted")
    model |= ml.Take(axis=0)(input="sorted", indices=index, output="taken")
    model |= ml.Sum(dim=1)(input="shifted", output="sum")
    model.set_outputs("is_less", "taken", "sum")
    draw = np.random.default_rng(0).integers
    data = {"input": draw(-100, 100, (5, 6)).astype(np.int32), "index": draw(0, 5, (4,)).astype(np.int32)}
    return model, {}, {"export": {"data": data}}


def training() -> Any:
    """Train in one step: gradients of convolution, pooling and linear layers, and Adam."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1)(input="input", output="features")
    model |= ml.Tanh()(input="features", output="bent")
    model |= ml.MaxPool2d(2)(input="bent", output="pooled")
    model |= ml.Flatten()(input="pooled", output="flat")
    model |= ml.Linear(3)(input="flat", output="found")
    model |= ml.MSELoss()(input="found", target="target", output="loss")
    shapes = {"input": [2, 1, 6, 6], "target": [2, 3]}
    return model, shapes, {"export": {"optimizer": ml.optim.AdamW(0.01), "loss": "loss"}}


MODELS: list[Callable[[], Any]] = [mlp, cnn, gpt, halves, integers, training]
