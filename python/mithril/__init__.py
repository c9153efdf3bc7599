"""Mithril: define a machine-learning model once, compile it for every target.

>>> import mithril as ml
>>> model = ml.Model()
>>> model |= ml.Linear(64)(input="input", output="hidden")
>>> model += ml.Relu()(output="output")
"""

from __future__ import annotations

import sys as _sys
import typing as _typing

from . import interrupts as _interrupts  # noqa: F401 - first, so that Ctrl-C is quiet while the rest is imported

# isort: split
from . import errors, generation, optim, train, vision, weights
from ._core import Connection, IOKey, Model, __version__
from ._generated import layers as _layers
from ._generated.layers import *  # noqa: F403 - the layers are the public names of that module
from .backends import (
    Backend,
    CBackend,
    GGMLBackend,
    GgmlBackend,
    InterpreterBackend,
    JaxBackend,
    MLXBackend,
    MlxBackend,
    NumpyBackend,
    RawCBackend,
    TorchBackend,
    get_backend,
    list_backends,
    register_backend,
)
from .checkpoints.files import load, save
from .checkpoints.gguf import save_gguf
from .compiled import parameters as _parameters
from .compiled import physical_model as _physical_model
from .compiled.compile import compile
from .compiled.parameters import Parameters
from .compiled.physical_model import PhysicalModel
from .dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from .errors import MithrilError
from .frontend import from_jax, from_onnx, from_torch
from .parallel import Hardware, Layout, Mesh, Pipeline
from .quantization import quantize
from .suggestions import absent as _absent
from .tools import (
    PipelinePlan,
    Plan,
    benchmark,
    benchmark_table,
    calibrate,
    check,
    compare,
    plan,
    quantization_report,
    suggest_backend,
    to_onnx,
)
from .tracing import Lambda
from .viewer import view
from .weights import load_weights, transfer

LogicalModel = Model
# Pickles of version 0 name the modules in which these classes were.
_sys.modules[f"{__name__}.parameters"] = _parameters
_sys.modules[f"{__name__}.physical"] = _physical_model

__all__ = [
    "Backend",
    "CBackend",
    "Connection",
    "DType",
    "GGMLBackend",
    "GgmlBackend",
    "Hardware",
    "IOKey",
    "InterpreterBackend",
    "JaxBackend",
    "Lambda",
    "Layout",
    "LogicalModel",
    "MLXBackend",
    "Mesh",
    "MithrilError",
    "MlxBackend",
    "Model",
    "NumpyBackend",
    "Parameters",
    "PhysicalModel",
    "Pipeline",
    "PipelinePlan",
    "Plan",
    "RawCBackend",
    "TorchBackend",
    "__version__",
    "benchmark",
    "benchmark_table",
    "bfloat16",
    "bool_",
    "calibrate",
    "check",
    "compare",
    "compile",
    "errors",
    "float16",
    "float32",
    "float64",
    "from_jax",
    "from_onnx",
    "from_torch",
    "generation",
    "get_backend",
    "int8",
    "int16",
    "int32",
    "int64",
    "list_backends",
    "load",
    "load_weights",
    "optim",
    "plan",
    "quantization_report",
    "quantize",
    "register_backend",
    "save",
    "save_gguf",
    "suggest_backend",
    "to_onnx",
    "train",
    "transfer",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "view",
    "vision",
    "weights",
]
__all__ += _layers.__all__


def __getattr__(name: str) -> _typing.Any:
    raise _absent(__name__, globals(), name)
