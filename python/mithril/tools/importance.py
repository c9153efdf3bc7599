"""How much the columns of matrices count: the mean squares of what samples of data multiply them with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends import NumpyBackend
from ..compiled import internals
from ..errors import InvalidValueError
from ..quantization.parameters import QuantizedArray
from .calibration import read_samples
from .inspection import make_program, nodes

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program

__all__ = ["column_importance"]

#: What a column counts at least, in parts of the mean: samples do not show all that comes.
_LEAST = 1e-4


def column_importance(model: PhysicalModel, params: Mapping[str, Any], samples: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return for the matrix of each linear layer how much its columns count, 1 in the mean.

    Parameters
    ----------
    model : PhysicalModel
        The model, on any backend.
    params : mapping
        Its parameters.
    samples : mapping, or iterable of mappings
        Data of some typical calls.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> from mithril.tools.importance import column_importance
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="output")
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 2]}, inference=True)
    >>> params = compiled.randomize_params(seed=0)
    >>> column_importance(compiled, params, [{"input": np.array([[1.0, 3.0]], np.float32)}])
    {'linear.weight': array([0.2, 1.8], dtype=float32)}
    """
    values = {name: np.asarray(v) if isinstance(v, QuantizedArray) else v for name, v in params.items()}
    sums: dict[str, np.ndarray[Any, Any]] = {}
    programs: dict[int, Program] = {}
    before = dict(internals.state_for(model, values))
    for number, sample in enumerate(read_samples(samples)):
        program, data = internals.prepare_call(model, values, sample)
        core = program.core
        exposed = programs.get(id(core)) or programs.setdefault(
            id(core), make_program(_core.exposed(core), NumpyBackend())
        )
        arrays = {name: np.asarray(value) for name, value in data.items()}
        result = exposed.evaluate({n: np.asarray(v) for n, v in values.items()}, arrays, before)
        captured: dict[str, Any] = result[0] if exposed.updates else result
        for node in nodes(core):
            if node.op != "linear" or node.inputs[1].role != "param" or node.inputs[1].name is None:
                continue
            source = node.inputs[0]
            rows = arrays[source.name] if source.role == "data" and source.name else captured[str(source.position)]
            squares = np.square(np.asarray(rows, np.float64).reshape(-1, rows.shape[-1])).sum(0)
            if not np.isfinite(squares).all():
                raise InvalidValueError(
                    f"sample {number}: the operand multiplied by {node.inputs[1].name!r} is not finite",
                    hint="leave such samples out, or see where it comes from with model.find_nans",
                )
            sums[node.inputs[1].name] = sums.get(node.inputs[1].name, 0.0) + squares
    means = {name: total.mean() for name, total in sums.items()}
    return {
        name: np.maximum(total / means[name], _LEAST).astype(np.float32) for name, total in sums.items() if means[name]
    }
