"""Residual networks (He et al. 2015) with the topology, names and layouts of torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .._core import Model
from .._generated.layers import (
    Add,
    BatchNorm2d,
    Conv2d,
    Linear,
    MaxPool2d,
    Mean,
    Relu,
)
from ..errors import ConflictingOptionError, InvalidValueError, ParameterError

__all__ = ["from_torchvision", "resnet18"]


def resnet18(num_classes: int | None = None, *, n_classes: int | None = None) -> Model:
    """Build ResNet-18.

    Parameters and running statistics are called as in torchvision (``layer1.0.conv1.weight``), so that its weights
    fit: see `from_torchvision`.

    Parameters
    ----------
    num_classes : int, optional
        Number of outputs (default 1000). Also spelled ``n_classes``.
    n_classes : int, optional
        The same.

    Returns
    -------
    Model
        From ``input``, images ``[batch, 3, height, width]``, to ``output``, logits ``[batch, num_classes]``.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> from mithril.models import resnet18
    >>> model = resnet18(num_classes=10)
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 3, 32, 32]}, inference=True)
    >>> compiled(np.zeros((2, 3, 32, 32))).shape
    (2, 10)
    """
    return resnet(basic_block, (2, 2, 2, 2), _classes(num_classes, n_classes))


def resnet(block: Callable[[int, int, int, str], Model], depths: tuple[int, int, int, int], num_classes: int) -> Model:
    """Build a residual network from a block and the numbers of blocks in its four layers."""
    model = Model(name="resnet")
    model |= convolution(64, 7, 2, "conv1")(input="input")
    model += BatchNorm2d(name="bn1")()
    model += Relu()()
    model += MaxPool2d(kernel_size=3, stride=2, padding=1)()
    inside = 64
    for i, depth in enumerate(depths):
        outside = 64 * 2**i
        layer = Model(name=f"layer{i + 1}")
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            layer += block(inside, outside, stride, str(j))()
            inside = outside
        model += layer()
    model += Mean(axis=(2, 3))()
    model += Linear(num_classes, name="fc")(output="output")
    return model


def basic_block(inside: int, outside: int, stride: int, name: str) -> Model:
    """Build two convolutions beside a shortcut, which is projected where its shape changes."""
    block = Model(name=name)
    block |= convolution(outside, 3, stride, "conv1")(input="input")
    block += BatchNorm2d(name="bn1")()
    block += Relu()()
    block += convolution(outside, 3, 1, "conv2")()
    block += BatchNorm2d(name="bn2")(output="residual")
    shortcut = "input"
    if stride != 1 or inside != outside:
        shortcut = "shortcut"
        projection = Model(name="downsample")
        projection |= convolution(outside, 1, stride, "0")(input="input")
        projection += BatchNorm2d(name="1")(output="output")
        block |= projection(input="input", output=shortcut)
    block |= Add()(left="residual", right=shortcut, output="sum")
    block |= Relu()(input="sum", output="output")
    return block


def convolution(filters: int, size: int, stride: int, name: str) -> Model:
    """Build a convolution that keeps the size, divided by its stride; batch norm follows, so it has no bias."""
    return Conv2d(filters, size, stride=stride, padding=size // 2, bias=False, name=name)


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


def _classes(num_classes: int | None, n_classes: int | None) -> int:
    if num_classes is not None and n_classes is not None and num_classes != n_classes:
        raise ConflictingOptionError("`n_classes` and `num_classes` are the same option and differ")
    found = next((n for n in (num_classes, n_classes) if n is not None), 1000)
    if isinstance(found, bool) or not isinstance(found, (int, np.integer)) or found < 1:
        raise InvalidValueError(f"num_classes is {found!r}", hint="give a positive integer, e.g. 1000")
    return int(found)
