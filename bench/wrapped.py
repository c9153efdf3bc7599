"""Networks of transformers as modules from tensors to tensors, under the same names of weights; they can be pickled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class FirstOutput(nn.Module):  # type: ignore[misc]
    """An encoder from tokens to what its last block makes of them."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self._modules.update(network._modules)

    def forward(self, tokens: Any) -> Any:
        """Return ``[batch, length, width]`` of ``[batch, length]``."""
        embedded = self.embeddings(tokens)
        for block in self.encoder.layer:
            embedded = block(embedded)
            embedded = embedded[0] if isinstance(embedded, tuple) else embedded
        return embedded


class Decoder(nn.Module):  # type: ignore[misc]
    """GPT-2 from tokens and, if there are any, earlier keys and values to logits and the new caches.

    It is written with the layers of transformers, whose own way of handing caches on cannot be exported.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self._modules.update(network._modules)
        self.heads = network.config.n_head

    def forward(self, tokens: Any, *past: Any) -> Any:
        """Return logits ``[batch, length, vocabulary]``, behind a past with the caches of each layer."""
        start = past[0].shape[2] if past else 0
        positions = torch.arange(start, start + tokens.shape[1])
        x = self.transformer.wte(tokens) + self.transformer.wpe(positions)
        caches = []
        for i, block in enumerate(self.transformer.h):
            attended, *cache = self._attend(block.attn, block.ln_1(x), past[2 * i : 2 * i + 2])
            x = x + attended
            x = x + block.mlp(block.ln_2(x))
            caches += cache
        logits = self.lm_head(self.transformer.ln_f(x))
        return (logits, *caches) if past else logits

    def _attend(self, layer: Any, x: Any, past: Any) -> Any:
        width = x.shape[-1]
        shape = (*x.shape[:2], self.heads, width // self.heads)
        query, key, value = (part.reshape(shape).transpose(1, 2) for part in layer.c_attn(x).split(width, dim=2))
        if past:
            key, value = torch.cat((past[0], key), 2), torch.cat((past[1], value), 2)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=not past)
        return layer.c_proj(mixed.transpose(1, 2).reshape(x.shape)), key, value


class FirstTensor(nn.Module):  # type: ignore[misc]
    """A network of transformers from one tensor to the first tensor that it returns."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, data: Any) -> Any:
        """Return the first output; the encoder's, of a network that has one before its decoder."""
        if self.network.config.model_type == "whisper":
            return self.network.encoder(data)[0]
        return self.network(data, return_dict=False)[0]
