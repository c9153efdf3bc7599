"""Layers and models under the import path of the documentation."""

from .._core import Connection, IOKey, Model
from .._generated import zoo as _zoo
from .._generated.layers import *  # noqa: F403 - the layers are the public names of that module
from .._generated.layers import __all__ as _layers
from .._generated.zoo import *  # noqa: F403 - and so are the models
from .configuration import from_config

LogicalModel = Model

__all__ = ["Connection", "IOKey", "LogicalModel", "Model", "from_config"]
__all__ += _layers
__all__ += _zoo.__all__
