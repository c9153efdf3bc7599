"""Architectures of torchvision: the smallest network of each of its modules, with small images and short videos."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .network import Network, NotCompared, called, fill_zeros, smallest

#: Sizes of images to try.
SIZES = (64, 96, 128, 224, 256, 299)

#: Frames of a video.
FRAMES = 16


def _modules() -> dict[str, dict[str, Callable[[], Any]]]:
    """Functions that build networks by name, by the name of their module behind ``torchvision.models.``."""
    from torchvision import models

    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name in models.list_models():
        builder = models.get_model_builder(name)
        module = builder.__module__.removeprefix("torchvision.models.")
        found.setdefault(module, {})[name] = partial(_build, builder)
    return found


def names() -> list[str]:
    """Names of all modules: ``resnet``, ``segmentation.fcn``, ``video.swin_transformer`` and so on."""
    return list(_modules())


def _build(builder: Callable[..., Any]) -> Any:
    try:
        return builder(weights=None, weights_backbone=None)
    except TypeError:
        return builder(weights=None)


def network(name: str) -> Network:
    """Return the smallest network of a module."""
    import torch

    networks = _modules()[name]
    build = networks[smallest(networks)]
    frames = (FRAMES,) if name.startswith("video") else ()
    reason: Exception | None = None
    for pixels in SIZES:
        torch.manual_seed(0)
        images = torch.randn(2, 3, *frames, pixels, pixels)
        # Optical flow is between two images.
        args = (images, images.flip(-1)) if name.startswith("optical_flow") else (images,)
        try:
            model = build()
            fill_zeros(model)
            return called(model, args)
        except Exception as failure:
            reason = failure
    raise NotCompared(f"call: {type(reason).__name__}: {reason}")
