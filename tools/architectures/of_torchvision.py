"""Architectures of torchvision: the smallest network of each of its modules, with small images and short videos."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .network import FirstTensor, Network, NotCompared, check_size, fill_zeros

#: Sizes of images to try.
SIZES = (64, 96, 128, 224, 256, 299)

#: Frames of a video.
FRAMES = 16


def _builders() -> dict[str, list[Callable[..., Any]]]:
    """Functions that build networks by the name of their module behind ``torchvision.models.``."""
    from torchvision import models

    found: dict[str, list[Callable[..., Any]]] = {}
    for name in models.list_models():
        builder = models.get_model_builder(name)
        found.setdefault(builder.__module__.removeprefix("torchvision.models."), []).append(builder)
    return found


def names() -> list[str]:
    """Names of all modules: ``resnet``, ``segmentation.fcn``, ``video.swin_transformer`` and so on."""
    return list(_builders())


def _build(builder: Callable[..., Any]) -> Any:
    try:
        return builder(weights=None, weights_backbone=None)
    except TypeError:
        return builder(weights=None)


def network(name: str) -> Network:
    """Return the smallest network of a module."""
    import torch

    try:
        smallest = min(_builders()[name], key=lambda builder: check_size(lambda: _build(builder)))
    except NotCompared:
        raise
    except Exception as failure:
        raise NotCompared(f"build: {type(failure).__name__}: {failure}") from failure
    frames = (FRAMES,) if name.startswith("video") else ()
    reason: Exception | None = None
    for pixels in SIZES:
        torch.manual_seed(0)
        images = torch.randn(2, 3, *frames, pixels, pixels)
        # Optical flow is between two images.
        args = (images, images.flip(-1)) if name.startswith("optical_flow") else (images,)
        try:
            model = _build(smallest)
            fill_zeros(model)
            module = FirstTensor(model).eval()
            with torch.no_grad():
                module(*args)
        except Exception as failure:
            reason = failure
        else:
            return Network(module, args)
    raise NotCompared(f"call: {type(reason).__name__}: {reason}")
