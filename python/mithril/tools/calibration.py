"""`calibrate`: the ranges of what a model convolves, found once on samples rather than at every call."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.with_manualgrad.c_backend import CBackend
from ..compiled import internals
from ..errors import InvalidValueError
from .inspection import Node, make_program, nodes

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program

__all__ = ["calibrate"]


def calibrate(model: PhysicalModel, params: Mapping[str, Any] | None = None, samples: Any = None) -> PhysicalModel:
    """Return a quantized model that takes the ranges of its images from samples.

    With ``CBackend(quantize="int8")`` a convolution looks for the smallest and the largest number of each image before
    it is brought into 8 bits. Calibrated, it knows them: that is quicker, and numbers beyond are cut off.

    Parameters
    ----------
    model : PhysicalModel
        Compiled with ``CBackend(quantize="int8")`` and ``inference=True``.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    samples : mapping or iterable of mappings
        Data of one or more typical calls. The ranges are those of all of them; the model is run in float32.

    Returns
    -------
    PhysicalModel
        The same model; ``backend.quantize_ranges`` holds the ranges by the names of the weights. Convolutions of
        which the weights alone are in low precision need none.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Convolution2D(8, 3)(input="input", output="output")
    >>> backend = ml.CBackend(quantize="int8", num_threads=1)
    >>> compiled = ml.compile(model, backend, shapes={"input": [1, 4, 9, 9]}, inference=True)
    >>> samples = [{"input": np.full((1, 4, 9, 9), x, np.float32)} for x in (-1, 0.5, 3)]
    >>> ml.calibrate(compiled, samples=samples).backend.quantize_ranges
    {'conv2d.weight': (-1.0, 3.0)}
    """
    backend = getattr(model, "backend", None)
    if not isinstance(backend, CBackend) or backend.quantize is None:
        raise InvalidValueError("the model is not quantized", hint='compile it for ml.CBackend(quantize="int8")')
    params = model.get_parameters() if params is None else params
    batches = read_samples(samples)
    before = internals.saved_state(model)
    # Also tells what does not fit in a sample, and which convolutions are quantized.
    model.evaluate(params, batches[0])
    internals.restore_state(model, before)
    ranges = _ranges(model, params, batches)
    new = copy.copy(backend)
    new.quantize_ranges = ranges
    calibrated = internals.recompiled(model, new)
    internals.share_parameters(model, calibrated)
    return calibrated


def read_samples(samples: Any) -> list[Mapping[str, Any]]:
    """Return the data of typical calls as a list."""
    batches = [samples] if isinstance(samples, Mapping) else list(samples) if isinstance(samples, Iterable) else []
    wrong = next((type(sample).__name__ for sample in batches if not isinstance(sample, Mapping)), None)
    if not batches or wrong is not None:
        raise InvalidValueError(
            "there are no samples to calibrate with" if wrong is None else f"a sample is a {wrong}, and no mapping",
            hint='pass the data of some typical calls, e.g. samples=[{"input": image}, ...]',
        )
    return batches


def _ranges(
    model: PhysicalModel, params: Mapping[str, Any], samples: list[Mapping[str, Any]]
) -> dict[str, tuple[float, float]]:
    plain = CBackend(dtype=model.backend.default_dtype, num_threads=1)
    ranges: dict[str, tuple[float, float]] = {}
    programs: dict[int, Program] = {}
    for number, sample in enumerate(samples):
        program, data = internals.prepare_call(model, params, sample)
        core = program.core
        exposed = programs.get(id(core)) or programs.setdefault(id(core), make_program(_core.exposed(core), plain))
        result = exposed.evaluate(params, data, internals.state_for(model, params))
        values: dict[str, Any] = result[0] if exposed.updates else result
        for weight, position, name in _images(program, nodes(core)):
            image = np.asarray(values[str(position)] if name is None else data[name])
            low, high = float(image.min(initial=0)), float(image.max(initial=0))
            if not np.isfinite([low, high]).all():
                raise InvalidValueError(
                    f"sample {number}: the input convolved with {weight!r} holds NaN or infinities",
                    hint="remove such samples, or find their origin with model.find_nans",
                )
            before = ranges.get(weight, (0.0, 0.0))
            ranges[weight] = (min(low, before[0]), max(high, before[1]))
    if not ranges:
        raise InvalidValueError(
            "no convolution of the model runs in integers, and matrix products determine their ranges at every call",
            hint="ml.quantization_report tells what is kept as int8, and what as int8_weights",
        )
    return ranges


def _images(program: Program, all_nodes: list[Node]) -> Iterable[tuple[str, int, str | None]]:
    """Quantized convolutions: the weight, and the image by its position or, if it was given as data, its name."""
    decisions = program.module.source.decisions
    weights = {d["weight"] for d in decisions if d["is_convolution"] and d["scheme"] == "int8"}
    for node in all_nodes:
        of = [value.name for value in node.inputs if value.role == "param" and value.name in weights]
        images = [value for value in node.inputs if value.role in ("value", "data")]
        if len(of) == 1 and of[0] is not None and len(images) == 1:
            yield of[0], images[0].position, images[0].name if images[0].role == "data" else None
