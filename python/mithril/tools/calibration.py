"""`calibrate`: the ranges of images that are convolved in integers, determined on samples instead of at every call."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.with_manualgrad.c_backend import CBackend
from ..compiled import internals
from ..errors import InvalidValueError
from ..quantization.calibration import Histogram, RangeMethod, range_method
from .inspection import Node, make_program, nodes

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel
    from ..compiled.program import Program

__all__ = ["calibrate"]


def calibrate(
    model: PhysicalModel,
    params: Mapping[str, Any] | None = None,
    samples: Any = None,
    *,
    method: str = "minmax",
    percentile: float | None = None,
) -> PhysicalModel:
    """Return a quantized model whose convolutions have fixed ranges, determined from samples.

    With ``CBackend(quantize="int8")`` a convolution computes the minimum and maximum of each image before it quantizes
    the image to 8 bits. With calibrated ranges it does not have to, which is faster; values outside of the range are
    clipped.

    Parameters
    ----------
    model : PhysicalModel
        Compiled with ``CBackend(quantize="int8")`` and ``inference=True``.
    params : mapping, optional
        Parameters. Default: those that belong to the model.
    samples : mapping or iterable of mappings
        Data of one or more typical calls. The ranges are those of all of them. The model is run in float32 on one
        sample after another, so that an iterator that reads them from a disk needs memory for one.
    method : str, optional
        How the range of a tensor is determined.

        - ``"minmax"`` (default): its minimum and maximum. Nothing in the samples is clipped.
        - ``"percentile"``: the range that holds ``percentile`` percent of its values; half of the others are below,
          half above. Choose it where a few outliers make a range many times wider than what most values need.
        - ``"entropy"``: the range, as far below 0 as above, whose quantized values have the least relative entropy
          (Kullback-Leibler divergence) with respect to the clipped values. It needs no option, and many samples.

        The last two count values in histograms, 256 KB for each convolution, however many samples there are. The ranges
        depend on the values only, not on their order or on how they are divided into samples.
    percentile : float, optional
        Percentage for ``method="percentile"``, from 50 to 100 (default 99.99).

    Returns
    -------
    PhysicalModel
        The same model; ``backend.quantize_ranges`` holds the ranges by the names of the weights. Convolutions of
        which the weights alone are in low precision need none. `mithril.quantization_report` lists them.

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

    An outlier, and a percentile that clips it:

    >>> image = np.linspace(0, 1, 4 * 81, dtype=np.float32).reshape(1, 4, 9, 9)
    >>> image[0, 0, 0, 0] = 100
    >>> clipped = ml.calibrate(compiled, samples={"input": image}, method="percentile", percentile=99)
    >>> clipped.backend.quantize_ranges["conv2d.weight"][1] < 1.1
    True
    """
    range_of = range_method(method, percentile)
    backend = getattr(model, "backend", None)
    if not isinstance(backend, CBackend) or backend.quantize is None:
        raise InvalidValueError("the model is not quantized", hint='compile it for ml.CBackend(quantize="int8")')
    params = model.get_parameters() if params is None else params
    batches = read_samples(samples)
    first = next(batches)
    before = internals.saved_state(model)
    # Also reports what is incompatible in a sample, and which convolutions are quantized.
    model.evaluate(params, first)
    internals.restore_state(model, before)
    new = copy.copy(backend)
    new.quantize_ranges = _ranges(model, params, itertools.chain([first], batches), range_of)
    new.calibration = str(range_of)
    calibrated = internals.recompiled(model, new)
    internals.share_parameters(model, calibrated)
    return calibrated


def read_samples(samples: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the data of typical calls, one after another."""
    hint = 'pass the data of some typical calls, e.g. samples=[{"input": image}, ...]'
    batches = [samples] if isinstance(samples, Mapping) else samples if isinstance(samples, Iterable) else []
    is_empty = True
    for sample in batches:
        if not isinstance(sample, Mapping):
            raise InvalidValueError(f"a sample is a {type(sample).__name__}, not a mapping", hint=hint)
        is_empty = False
        yield sample
    if is_empty:
        raise InvalidValueError("there are no samples to calibrate with", hint=hint)


def _ranges(
    model: PhysicalModel, params: Mapping[str, Any], samples: Iterable[Mapping[str, Any]], method: RangeMethod
) -> dict[str, tuple[float, float]]:
    plain = CBackend(dtype=model.backend.default_dtype, num_threads=1)
    extremes: dict[str, tuple[float, float]] = {}
    histograms: dict[str, Histogram] = {}
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
            before = extremes.get(weight, (0.0, 0.0))
            extremes[weight] = (min(low, before[0]), max(high, before[1]))
            if method.name != "minmax":
                histograms.setdefault(weight, Histogram()).add(image)
    if not extremes:
        raise InvalidValueError(
            "no convolution of the model runs in integers, and matrix products determine their ranges at every call",
            hint="ml.quantization_report tells what is kept as int8, and what as int8_weights",
        )
    return extremes | {weight: method.range(histogram) for weight, histogram in histograms.items()}


def _images(program: Program, all_nodes: list[Node]) -> Iterable[tuple[str, int, str | None]]:
    """Quantized convolutions: the weight, and the image by its position or, if it is an input, its name."""
    decisions = program.module.source.decisions
    weights = {d["weight"] for d in decisions if d["is_convolution"] and d["scheme"] == "int8"}
    for node in all_nodes:
        of = [value.name for value in node.inputs if value.role == "param" and value.name in weights]
        images = [value for value in node.inputs if value.role in ("value", "data")]
        if len(of) == 1 and of[0] is not None and len(images) == 1:
            yield of[0], images[0].position, images[0].name if images[0].role == "data" else None
