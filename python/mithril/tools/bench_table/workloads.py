"""What the tables measure: published models, their data, the loss of a training step, and the same network by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import models
from ..._core import IOKey, Model
from ..._generated.layers import Add, CrossEntropy, Multiply
from . import networks

__all__ = ["TABLES", "WORKLOADS", "Workload"]

Array = np.ndarray[Any, Any]

#: Name of a table -> its title and what its numbers are.
TABLES: dict[str, tuple[str, str]] = {
    "inference": ("Inference", "examples or tokens per second, higher is better"),
    "training": ("Training", "steps per second, higher is better"),
    "memory": ("Memory", "peak GB, lower is better"),
}

#: Examples of a batch, by table.
_BATCH = {"inference": 1, "training": 4, "memory": 1}
#: Tokens of a text, and of each side of an encoder with a decoder.
_LENGTH, _SIDE = 128, 64


@dataclass(frozen=True)
class Workload:
    """A row of the tables.

    Attributes
    ----------
    title : str
        How the row is called.
    unit : str
        What is counted in a second: ``"images"``, ``"pairs"`` or ``"tokens"``.
    sizes, quick : mapping
        Sizes of the published model, and of one that runs in milliseconds.
    build : callable
        Makes Mithril's model of sizes, for training or not.
    draw : callable
        Makes the data of sizes, batch and a generator, without targets.
    network : callable
        The same by hand, see `mithril.tools.bench_table.networks`.
    work : float
        Billions of multiply-adds of an example, roughly: the table starts with what is quick.
    loss : str
        ``"classes"``, ``"tokens"`` or ``"pairs"``; empty: it is not trained.
    tokens : int
        Tokens of an example; 0: examples are counted.
    """

    title: str
    unit: str
    sizes: Mapping[str, Any]
    quick: Mapping[str, Any]
    build: Callable[[Mapping[str, Any], bool], Model]
    draw: Callable[[Mapping[str, Any], int, np.random.Generator], dict[str, Array]]
    network: Callable[[Any, Mapping[str, Any], bool], networks.Network]
    work: float
    loss: str
    tokens: int = 0

    def of(self, is_quick: bool) -> Mapping[str, Any]:
        """Return the sizes."""
        return self.quick if is_quick else self.sizes

    def batch(self, table: str, batch: int | None) -> int:
        """Return how many examples a call takes; a training of pairs needs two."""
        return _BATCH[table] if batch is None else batch

    def units(self, batch: int, is_quick: bool) -> int:
        """Return how many units a call computes."""
        return batch * (min(self.tokens, _quick_length(self.quick)) if is_quick and self.tokens else self.tokens or 1)

    def data(self, table: str, batch: int, is_quick: bool) -> dict[str, Array]:
        """Return the data of a call, of a training step with its ``target``."""
        random = np.random.default_rng(0)
        sizes = self.of(is_quick)
        arrays = self.draw(sizes, batch, random)
        if table == "training":
            if self.loss == "pairs":
                arrays["target"] = np.arange(batch)
            elif self.loss == "classes":
                arrays["target"] = random.integers(0, sizes.get("num_classes", 2), batch)
            else:
                arrays["target"] = random.integers(0, sizes["vocab_size"], arrays["input"].shape)
        return arrays

    def mithril_loss(self) -> Any:
        """Return the loss as `mithril.train.TrainingStep` takes it."""
        if self.loss == "pairs":
            return _contrastive()
        return {"classes": "cross_entropy", "tokens": "token_cross_entropy"}[self.loss]

    def hand_loss(self, f: Any, forward: networks.Network) -> Callable[..., Any]:
        """Return the loss by hand, with the new running statistics."""

        def loss(params: Any, state: Any, data: Any) -> Any:
            outputs, updates = forward(params, state, data)
            target = data["target"]
            if self.loss == "pairs":
                return (f.cross_entropy(outputs[0], target) + f.cross_entropy(outputs[1], target)) / 2, updates
            logits = outputs[0]
            return f.cross_entropy(logits.reshape(-1, logits.shape[-1]), target.reshape(-1)), updates

        return loss


def _contrastive() -> Model:
    """Return the loss of pairs: each image has to find its text, each text its image."""
    model = Model()
    for name in ("image", "text"):
        model |= CrossEntropy()(input=f"logits_per_{name}", target="target", output=f"of_{name}")
    model |= Add()(left="of_image", right="of_text", output="sum")
    model |= Multiply()(left="sum", right=0.5, output=IOKey("output"))
    return model


def _quick_length(sizes: Mapping[str, Any]) -> int:
    return int(sizes.get("length", 1))


def _images(sizes: Mapping[str, Any], batch: int, random: np.random.Generator) -> dict[str, Array]:
    side = sizes.get("image_size", 224)
    return {"input": random.standard_normal((batch, 3, side, side)).astype(np.float32)}


def _text(sizes: Mapping[str, Any], batch: int, random: np.random.Generator) -> dict[str, Array]:
    return {"input": random.integers(0, sizes["vocab_size"], (batch, sizes["length"]))}


def _two_texts(sizes: Mapping[str, Any], batch: int, random: np.random.Generator) -> dict[str, Array]:
    side = sizes["length"] // 2
    return {name: random.integers(0, sizes["vocab_size"], (batch, side)) for name in ("source", "input")}


def _pairs(sizes: Mapping[str, Any], batch: int, random: np.random.Generator) -> dict[str, Array]:
    side = sizes["image_resolution"]
    return {
        "image": random.standard_normal((batch, 3, side, side)).astype(np.float32),
        "text": random.integers(0, sizes["vocab_size"], (batch, sizes["context_length"])),
    }


def _caches(sizes: Mapping[str, Any], batch: int, random: np.random.Generator) -> dict[str, Array]:
    """Return a token behind a text; the last place of the caches is for its keys and values."""
    shape = (batch, sizes["num_heads"], sizes["length"], sizes["dims"] // sizes["num_heads"])
    arrays: dict[str, Array] = {"input": random.integers(0, sizes["vocab_size"], (batch, 1))}
    arrays["position"] = np.array(sizes["length"] - 1)
    arrays["padding"] = np.zeros(batch, np.int64)
    for i in range(sizes["num_layers"]):
        for kind in ("key", "value"):
            arrays[f"past_{kind}_{i}"] = random.standard_normal(shape).astype(np.float32)
            arrays[f"past_{kind}_{i}"][:, :, -1] = 0
    return arrays


def _without(sizes: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in sizes.items() if name not in names}


def _resnet(sizes: Mapping[str, Any], training: bool) -> Model:
    return models.resnet(**_without(sizes, "image_size"))


def _bert(sizes: Mapping[str, Any], training: bool) -> Model:
    return models.create_bert(**_without(sizes, "length"), head="classification" if training else "none")


def _gpt(sizes: Mapping[str, Any], training: bool) -> Model:
    return models.create_gpt(**_without(sizes, "length"))


def _gpt_decode(sizes: Mapping[str, Any], training: bool) -> Model:
    return models.create_gpt(**_without(sizes, "length"), cache=True)


def _t5(sizes: Mapping[str, Any], training: bool) -> Model:
    sizes = _without(sizes, "length")
    model = Model()
    # Both sides read one table of tokens.
    table = {"shared.weight": "shared.weight"}
    model |= models.t5_encode(**sizes)(input="source", output="memory", **table)
    model |= models.t5_decode(**sizes)(input="input", memory="memory", output=IOKey("output"), **table)
    return model


_BERT = {"vocab_size": 30522, "dims": 768, "num_heads": 12, "num_layers": 12, "hidden": 3072, "max_length": 512}
_GPT = {"vocab_size": 50257, "dims": 768, "num_heads": 12, "num_layers": 12, "block_size": 1024}
_TINY = {"vocab_size": 64, "dims": 32, "num_heads": 2, "num_layers": 1}
_TINY_GPT = {**_TINY, "block_size": 16, "length": 8}
_SMALL_IMAGES = {"width": 8, "num_classes": 10, "image_size": 32}


def _residual(title: str, depths: tuple[int, ...], block: str, work: float) -> Workload:
    sizes = {"depths": depths, "block": block, "width": 64, "num_classes": 1000}
    quick = {"depths": (1, 1), "block": block, **_SMALL_IMAGES}
    return Workload(title, "images", sizes, quick, _resnet, _images, networks.resnet, work, "classes")


#: Name -> row, in the order of the tables.
WORKLOADS: dict[str, Workload] = {
    "resnet18": _residual("ResNet-18", (2, 2, 2, 2), "basic", 1.8),
    "resnet50": _residual("ResNet-50", (3, 4, 6, 3), "bottleneck", 4.1),
    "vit_b_16": Workload(
        "ViT-B/16",
        "images",
        {"image_size": 224, "patch_size": 16, "num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
        {"image_size": 32, "patch_size": 16, "num_layers": 1, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64},
        lambda sizes, training: models.vit(**sizes, num_classes=1000),
        _images,
        networks.vit,
        17.6,
        "classes",
    ),
    "bert": Workload(
        "BERT-base",
        "tokens",
        {**_BERT, "length": _LENGTH},
        {**_TINY, "hidden": 64, "max_length": 16, "length": 8},
        _bert,
        _text,
        networks.bert,
        11.2,
        "classes",
        _LENGTH,
    ),
    "gpt2": Workload(
        "GPT-2, prompt",
        "tokens",
        {**_GPT, "length": _LENGTH},
        _TINY_GPT,
        _gpt,
        _text,
        networks.gpt,
        15.8,
        "tokens",
        _LENGTH,
    ),
    "gpt2_decode": Workload(
        "GPT-2, decoding",
        "tokens",
        {**_GPT, "length": _LENGTH},
        _TINY_GPT,
        _gpt_decode,
        _caches,
        networks.gpt_decode,
        0.2,
        "",
    ),
    "t5": Workload(
        "T5-small",
        "tokens",
        {"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
        | {"length": 2 * _SIDE},
        {"vocab_size": 64, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2, "length": 8},
        _t5,
        _two_texts,
        networks.t5,
        3.8,
        "tokens",
        2 * _SIDE,
    ),
    "clip": Workload(
        "CLIP ViT-B/32",
        "pairs",
        {"embed_dim": 512, "image_resolution": 224, "vision_layers": 12, "vision_width": 768}
        | {"vision_patch_size": 32, "context_length": 77, "vocab_size": 49408, "transformer_width": 512}
        | {"transformer_heads": 8, "transformer_layers": 12},
        {"embed_dim": 16, "image_resolution": 32, "vision_layers": 1, "vision_width": 64}
        | {"vision_patch_size": 16, "context_length": 8, "vocab_size": 64, "transformer_width": 32}
        | {"transformer_heads": 2, "transformer_layers": 1},
        lambda sizes, training: models.clip(**sizes),
        _pairs,
        networks.clip,
        7.4,
        "pairs",
    ),
}
