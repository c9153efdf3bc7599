"""One use of an op as a compiled model: how backends are tested whose ops at once are another framework's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..compiled.compile import compile
from .cases import Case

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["run_compiled"]


def run_compiled(backend: Backend, case: Case) -> Any:
    """Return what a case gives as a model compiled for inference: an array, or a tuple of them.

    Examples
    --------
    >>> import mithril as ml, numpy as np
    >>> from mithril.testing import Case
    >>> from mithril.testing.compiled import run_compiled
    >>> run_compiled(ml.GGMLBackend(), Case("negative", "", (np.ones(2, np.float32),)))
    array([-1., -1.], dtype=float32)
    """
    arguments: list[Any] = []
    data: dict[str, Any] = {}
    for i, arg in enumerate(case.args):
        if isinstance(arg, np.ndarray):
            arguments.append(_core.Connection.input(f"x{i}", list(arg.shape), arg.dtype.name))
            data[f"x{i}"] = arg
        else:
            arguments.append(arg)
    result = _core.apply_op(case.op, arguments)
    outputs = list(result) if isinstance(result, (tuple, list)) else [result]
    model = _core.Model.create(**{f"y{i}": output for i, output in enumerate(outputs)})
    outcome = compile(model, backend, inference=True, data_keys=list(data)).evaluate({}, data)
    values = [outcome[f"y{i}"] for i in range(len(outputs))]
    return tuple(values) if isinstance(result, (tuple, list)) else values[0]
