"""Layouts that `compile` decides: of strategies, and the one of the shortest step of a model over a mesh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._core import Model
from ..errors import BackendUnavailableError, UnsupportedOpError
from ..parallel.auto import named, search
from ..parallel.auto_pipeline import PipelineRunner
from ..parallel.hardware import as_hardware
from .internals import known_program, names_by_role
from .physical_model import PhysicalModel
from .program import Settings

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..parallel.hardware import Hardware
    from ..parallel.layout import Layout
    from ..parallel.pipeline import Pipeline
    from ..parallel.strategies import PlannedLayout

__all__ = ["best_layout"]

#: Bytes that an optimizer like Adam keeps for each byte of a parameter.
_SLOTS = 2.0
#: The description of hardware that stands for a kind of device.
_KINDS = {"cuda": "a100", "gpu": "a100", "tpu": "tpu-v5e"}


def best_layout(
    model: Model,
    options: Mapping[str, Any],
    backend: Backend,
    planned: PlannedLayout,
    hardware: Hardware | str | None,
    *,
    pipelines: bool = True,
) -> Layout:
    """Return the layout that is planned; the step has gradients and an optimizer like Adam, unless for inference.

    It may be a `Pipeline` that the backend can run on its devices, unless there are to be no ``pipelines``.
    """
    from ..backends.with_manualgrad.numpy_backend import NumpyBackend

    kind = _KINDS.get(str(backend.device).partition(":")[0].lower(), "cpu")
    single = PhysicalModel(model, NumpyBackend(), dict(options), Settings())
    core = known_program(single).core
    trained = list(core.trained)
    gradients = (list(names_by_role(single)["output"]), trained) if options["training"] and trained else None
    mesh = planned.mesh
    if planned.strategies is not None:
        return named(core, mesh, planned.strategies, gradients)
    runner = None
    if pipelines:
        # In a training, stages keep their parameters.
        hands_over = gradients is None
        runner = PipelineRunner(lambda pipeline: _runs(backend, pipeline), hands_over, target=backend.target)
    slots = _SLOTS if gradients else 0.0
    return search(core, mesh, as_hardware(hardware or kind), slots=slots, gradients=gradients, runner=runner).layout


def _runs(backend: Backend, pipeline: Pipeline) -> bool:
    """Whether a backend can run a pipeline on its devices."""
    try:
        backend.engine.on_layout(pipeline)
    except (BackendUnavailableError, UnsupportedOpError):
        return False
    return True
