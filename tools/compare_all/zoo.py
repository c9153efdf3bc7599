"""Small configurations of every known model, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mithril import models

Build = tuple[Callable[[], Any], dict[str, Any]]

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 90, (2, 9))
TEXT: dict[str, Any] = {"vocab_size": 90, "num_layers": 2, "num_heads": 4}
T5: dict[str, Any] = {**TEXT, "d_model": 32, "d_kv": 8, "d_ff": 48}
CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "image_resolution": 32,
    "vision_width": 64,
    "context_length": 9,
    "vocab_size": 90,
    "transformer_width": 32,
    "transformer_heads": 4,
    "transformer_layers": 2,
}


def images(count: int, size: int) -> Any:
    """Draw images."""
    return RANDOM.standard_normal((count, 3, size, size)).astype(np.float32)


#: Name -> the model and data for it; odd sizes on purpose.
MODELS: dict[str, Build] = {
    "resnet18": (lambda: models.resnet18(num_classes=10), {"input": images(2, 45)}),
    "resnet50": (lambda: models.resnet50(num_classes=7), {"input": images(1, 64)}),
    "vit": (lambda: models.vit(32, 8, 2, 4, 32, 48, num_classes=10), {"input": images(2, 32)}),
    "gpt": (lambda: models.create_gpt(**TEXT, dims=32, block_size=16), {"input": TOKENS}),
    "llama": (lambda: models.create_llama(**TEXT, num_kv_heads=2, dims=32, hidden=48), {"input": TOKENS}),
    "bert": (lambda: models.create_bert(**TEXT, dims=32, hidden=48, max_length=16), {"input": TOKENS}),
    "t5_encode": (lambda: models.t5_encode(**T5), {"input": TOKENS}),
    "t5_decode": (
        lambda: models.t5_decode(**T5),
        {"input": TOKENS, "memory": RANDOM.standard_normal((2, 5, 32)).astype(np.float32)},
    ),
    "clip": (
        lambda: models.clip(**CLIP, vision_layers=2, vision_patch_size=8),
        {"image": images(2, 32), "text": TOKENS},
    ),
    "clip of residual networks": (
        lambda: models.clip(**CLIP, vision_layers=(1, 1, 1, 1), vision_patch_size=None),
        {"image": images(2, 32), "text": TOKENS},
    ),
}


def _cached(layers: int = 2) -> dict[str, Any]:
    """Draw what a decoder with a cache takes besides its tokens."""
    pasts = {
        f"past_{kind}_{i}": RANDOM.standard_normal((2, 4, 12, 8)).astype(np.float32)
        for i in range(layers)
        for kind in ("key", "value")
    }
    return {"position": np.array(3), "padding": np.array([0, 2]), **pasts}


#: Further ways to configure them.
VARIANTS: dict[str, Build] = {
    "resnet of basic blocks": (
        lambda: models.resnet((1, 2, 1), "basic", width=8, num_classes=5),
        {"input": images(2, 33)},
    ),
    "resnet of bottlenecks": (lambda: models.resnet((1, 1), width=8, num_classes=5), {"input": images(2, 33)}),
    "gpt with a cache": (
        lambda: models.create_gpt(**TEXT, dims=32, block_size=16, bias=False, tied=False, cache=True, last_only=True),
        {"input": TOKENS[:, :2], **_cached()},
    ),
    "llama with a cache": (
        lambda: models.create_llama(
            **TEXT, dims=32, hidden=48, tied=True, biases="all", rope_factor=8.0, rope_length=16, cache=True
        ),
        {"input": TOKENS[:, :2], **_cached()},
    ),
    "bert with a mask": (
        lambda: models.create_bert(
            **TEXT, dims=32, hidden=48, max_length=16, head="masked_lm", mask=True, types=True, activation="gelu_new"
        ),
        {"input": TOKENS, "mask": np.arange(9) < np.array([[9], [6]]), "types": TOKENS % 2},
    ),
    "bert that classifies": (
        lambda: models.create_bert(
            **TEXT, dims=32, hidden=48, max_length=16, head="classification", num_classes=3, activation="relu"
        ),
        {"input": TOKENS},
    ),
    "t5_encode of version 1.1": (
        lambda: models.t5_encode(**T5, feed_forward_proj="gated-gelu", mask=True),
        {"input": TOKENS, "mask": np.arange(9) < np.array([[9], [6]])},
    ),
    "t5_decode of version 1.1": (
        lambda: models.t5_decode(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, last_only=True),
        {"input": TOKENS, "memory": RANDOM.standard_normal((2, 5, 32)).astype(np.float32)},
    ),
    "t5_memory": (
        lambda: models.t5_memory(**T5),
        {"memory": RANDOM.standard_normal((2, 5, 32)).astype(np.float32)},
    ),
}

#: Known models that are one of the others in larger sizes -> that one.
SIZES = {
    "resnet34": "resnet18",
    "resnet101": "resnet50",
    "resnet152": "resnet50",
    **dict.fromkeys(("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"), "vit"),
}
