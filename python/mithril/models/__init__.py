"""Layers and models under the import path of the documentation."""

from .._core import Connection, IOKey, Model
from .._generated.layers import *  # noqa: F403 - the layers are the public names of that module
from .._generated.layers import __all__ as _layers
from .gpt import create_gpt
from .resnet import resnet18

LogicalModel = Model

__all__ = ["Connection", "IOKey", "LogicalModel", "Model", "create_gpt", "resnet18"]
__all__ += _layers
