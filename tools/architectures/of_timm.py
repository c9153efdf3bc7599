"""Architectures of timm: the smallest network of each of its modules, with small images where it takes them."""

from __future__ import annotations

from typing import Any

from .network import FirstTensor, Network, NotCompared, fill_zeros

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

    def size(model: str) -> int:
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in timm.create_model(model).parameters())

    models = timm.list_models(module=name)
    if not models:
        raise NotCompared("build: the module has no network")
    try:
        chosen = min(models, key=size)
    except Exception as failure:
        raise NotCompared(f"build: {type(failure).__name__}: {failure}") from failure
    reason: Exception | None = None
    own = timm.get_pretrained_cfg(chosen).input_size[-1]
    for pixels in (*SIZES, own):
        for options in ({"img_size": pixels}, {}):
            torch.manual_seed(0)
            try:
                return _called(timm.create_model(chosen, **options), pixels)
            except Exception as failure:
                reason = failure
    raise NotCompared(f"call: {type(reason).__name__}: {reason}")


def _called(model: Any, pixels: int) -> Network:
    """Return a model with images that it was called with."""
    import torch

    fill_zeros(model)
    module, images = FirstTensor(model).eval(), torch.randn(2, 3, pixels, pixels)
    with torch.no_grad():
        module(images)
    return Network(module, (images,))
