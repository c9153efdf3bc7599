"""What `bench.c` measures: each workload is a model of ours, the same of PyTorch with the same weights, and data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

#: Sizes of BERT-base and of GPT-2 with 124 million parameters.
LAYERS, HEADS, DIMS = 12, 12, 768

#: Tokens of a text.
LENGTH = 128


@dataclass
class Workload:
    """A model in both libraries."""

    #: Ours.
    model: Any
    #: That of PyTorch; it takes the data in their order, and its first output is compared with ours.
    module: Any
    #: The data by our names.
    data: Arrays
    #: Data that PyTorch's side is given instead, in the order in which it takes them.
    theirs: Arrays | None = None
    #: Whose names the weights of PyTorch's side have; `None`: ours, or our order.
    layout: str | None = None
    #: Data that a call of ours may write into.
    donate: list[str] = field(default_factory=list)
    #: Bytes of weights and caches that a call reads, each once, where that is what takes the time.
    reads: int = 0

    @property
    def inputs(self) -> Arrays:
        """The data of PyTorch's side."""
        return self.data if self.theirs is None else self.theirs

    @property
    def weight_bytes(self) -> int:
        """Bytes of the parameters, each once."""
        return sum(p.numel() * p.element_size() for p in self.module.parameters())


def mlp() -> Workload:
    """Return the classifier of the other benchmarks."""
    import torch
    from torch import nn

    from .networks import classifier

    torch.manual_seed(0)
    layers = (nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    return Workload(classifier(), nn.Sequential(*layers), {"input": _noise(1, 784)})


def torchvision(name: str, batch: int) -> Workload:
    """Return a model for images."""
    import torch
    import torchvision
    from mithril import models

    torch.manual_seed(0)
    module = torchvision.models.get_model(name)
    for weight in module.parameters():
        # The last layer of ViT starts at 0, and so would all outputs.
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    from . import networks

    ours = getattr(models if hasattr(models, name) else networks, name)
    return Workload(ours(), module, {"input": _noise(batch, 3, 224, 224)})


def bert(batch: int) -> Workload:
    """Return BERT-base over texts of 128 tokens."""
    import torch
    import transformers
    from mithril import models

    from .wrapped import FirstOutput

    torch.manual_seed(0)
    config = transformers.BertConfig(attn_implementation="sdpa")
    sizes = {"dims": DIMS, "num_heads": HEADS, "num_layers": LAYERS, "hidden": 4 * DIMS}
    model = models.create_bert(vocab_size=config.vocab_size, head="none", **sizes)
    network = transformers.BertModel(config, add_pooling_layer=False)
    data = {"input": _tokens(batch, LENGTH, config.vocab_size)}
    return Workload(model, FirstOutput(network), data, layout="transformers")


def gpt(batch: int) -> Workload:
    """Return GPT-2, which reads texts of 128 tokens."""
    from mithril import models

    from .wrapped import Decoder

    network, sizes = _gpt()
    data = {"input": _tokens(batch, LENGTH, sizes["vocab_size"])}
    return Workload(models.create_gpt(**sizes), Decoder(network), data, layout="transformers")


def decode(batch: int) -> Workload:
    """Return GPT-2 with a cache, which writes token number 128."""
    from mithril import models

    from .wrapped import Decoder

    network, sizes = _gpt()
    past = LENGTH - 1
    tokens = _tokens(batch, 1, sizes["vocab_size"])
    caches = {f"past_{kind}_{i}": _noise(batch, HEADS, past, 64) for i in range(LAYERS) for kind in ("key", "value")}
    slot = ((0, 0), (0, 0), (0, 1), (0, 0))
    ours = {"input": tokens, "position": np.array(past), "padding": np.zeros(batch, np.int64)}
    ours.update({name: np.pad(cache, slot) for name, cache in caches.items()})
    model = models.create_gpt(**sizes, cache=True)
    workload = Workload(model, Decoder(network), ours, {"input": tokens, **caches}, "transformers")
    workload.donate = list(caches)
    # One line of the table of positions is read.
    positions = sizes["block_size"] * DIMS * 4
    workload.reads = workload.weight_bytes - positions + sum(cache.nbytes for cache in caches.values())
    return workload


def _noise(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _tokens(batch: int, length: int, vocabulary: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, vocabulary, (batch, length))


def _gpt() -> tuple[Any, dict[str, int]]:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(attn_implementation="sdpa")
    sizes = {"block_size": config.n_positions, "vocab_size": config.vocab_size}
    return transformers.GPT2LMHeadModel(config), sizes | {"dims": DIMS, "num_heads": HEADS, "num_layers": LAYERS}


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "MLP 784-128-64-10": mlp,
    "ResNet-18": lambda: torchvision("resnet18", 1),
    "ResNet-50": lambda: torchvision("resnet50", 1),
    "ResNet-18, batch 8": lambda: torchvision("resnet18", 8),
    "ResNet-50, batch 8": lambda: torchvision("resnet50", 8),
    "MobileNetV2": lambda: torchvision("mobilenet_v2", 1),
    "ViT-B/16": lambda: torchvision("vit_b_16", 1),
    "ViT-B/16, batch 8": lambda: torchvision("vit_b_16", 8),
    "BERT-base": lambda: bert(1),
    "BERT-base, batch 8": lambda: bert(8),
    "GPT-2": lambda: gpt(1),
    "GPT-2, batch 8": lambda: gpt(8),
    "GPT-2, one token": lambda: decode(1),
    "GPT-2, one token, batch 8": lambda: decode(8),
}
