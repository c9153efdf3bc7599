"""Architectures of timm: the smallest network of each of its modules, with small images where it takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .network import Network, NotCompared, called, fill_zeros, smallest

#: Sizes of images to try, before the one that a network was made for.
SIZES = (64, 96, 128)


def names() -> list[str]:
    """Names of all modules: ``resnet``, ``vision_transformer`` and so on."""
    import timm

    return timm.list_modules()


def network(name: str) -> Network:
    """Return the smallest network of a module."""
    import timm
    import torch

    def builder(model: str) -> Callable[[], Any]:
        return lambda: timm.create_model(model)

    chosen = smallest({model: builder(model) for model in timm.list_models(module=name)})
    reason: Exception | None = None
    for pixels in (*SIZES, timm.get_pretrained_cfg(chosen).input_size[-1]):
        for options in ({"img_size": pixels}, {}):
            torch.manual_seed(0)
            try:
                model = timm.create_model(chosen, **options)
                fill_zeros(model)
                return called(model, (torch.randn(2, 3, pixels, pixels),))
            except Exception as failure:
                reason = failure
    raise NotCompared(f"call: {type(reason).__name__}: {reason}")
