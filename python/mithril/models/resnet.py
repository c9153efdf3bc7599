"""Weights of torchvision's residual networks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ParameterError

__all__ = ["from_torchvision"]


def from_torchvision(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Read a state dict of torchvision's ResNet.

    Parameters
    ----------
    state_dict : mapping
        Name to tensor: what ``state_dict()`` of the torchvision model returns.

    Returns
    -------
    dict
        Parameters and running statistics by name, the same arrays; pass it to `PhysicalModel.load_params`.

    Examples
    --------
    >>> import numpy as np
    >>> from mithril.models.resnet import from_torchvision
    >>> state_dict = {"bn1.running_mean": np.zeros(64), "bn1.num_batches_tracked": np.array(0)}
    >>> list(from_torchvision(state_dict))
    ['bn1.running_mean']
    """
    if not isinstance(state_dict, Mapping):
        raise ParameterError(
            f"the state dict is a {type(state_dict).__name__}", hint="pass model.state_dict() of the torchvision model"
        )
    # The names are the same; only the count of batches has no place here: the momentum is a constant.
    return {name: value for name, value in state_dict.items() if not name.endswith("num_batches_tracked")}
