"""Tensors of PyTorch as arrays, in its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["array", "tied"]


def array(tensor: Any) -> Any:
    """View a tensor as a NumPy array: without a copy, if it is in the memory of the CPU."""
    import torch

    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype == torch.bfloat16:
        from ml_dtypes import bfloat16

        return tensor.view(torch.int16).numpy().view(bfloat16)
    return tensor.numpy()


def tied(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Map the name of each tensor to the first name of one in the same memory: tied weights are one parameter."""
    first: dict[Any, str] = {}
    names: dict[str, str] = {}
    for name, tensor in tensors.items():
        is_plain = hasattr(tensor, "data_ptr") and tensor.numel() > 0
        where = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if is_plain else name
        names[name] = first.setdefault(where, name)
    return names
