"""One specialization of a physical model: generated functions for shapes that are known, up to symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.quantized import ByteWeights, QuantizedWeights
from ..errors import MithrilError
from ..parallel.divided import DividedProgram
from ..tracing.host_functions import check_first, differentiated
from .compile_stats import CompileStats
from .donation import Known
from .loading import Module, Runner
from .stages import dump

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..parallel.layout import Layout

__all__ = ["Program", "Settings"]


@dataclass(frozen=True)
class Settings:
    """How programs are run.

    Attributes
    ----------
    jit : bool
        Compile the generated code further by the framework's compiler.
    jit_options : dict
        Options of that compiler.
    autodiff : str
        Where gradients come from: ``"native"``, the framework, or ``"graph"``, our gradient graph.
    strict : bool
        Refuse ops that the backend lacks, instead of running them on the host.
    checkpoint : bool
        Compute intermediate results again for the gradients instead of keeping them.
    layout : Layout, optional
        How programs are divided over a mesh of devices.
    """

    jit: bool = False
    jit_options: Mapping[str, Any] = field(default_factory=dict)
    autodiff: str = "graph"
    strict: bool = False
    checkpoint: bool = False
    layout: Layout | None = None


class Program:
    """One specialization: generated functions for shapes that are known, up to symbols."""

    def __init__(self, core: _core.Compiled, backend: Backend, settings: Settings, stats: CompileStats) -> None:
        self.core = core
        self.settings = settings
        self.stats = stats
        self.backend = backend
        self.params: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("param"))
        self.data: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("data"))
        # Dtypes as objects of the framework: comparing those is fast.
        self.param_types = tuple(
            (name, backend.engine.native_dtype(dtype), shape) for name, dtype, shape in self.params
        )
        self.shapes = [shape for _, _, shape in self.params]
        self.natives = [native for _, native, _ in self.param_types]
        self.read_params = _reader(tuple(name for name, _, _ in self.params))
        self.data_types = tuple((name, backend.engine.native_dtype(dtype), dtype) for name, dtype, _ in self.data)
        self.state: tuple[tuple[str, str, tuple[Any, ...]], ...] = tuple(core.inputs("state"))
        #: Of these, what is measured in training; the others count random numbers.
        self.statistics = tuple(entry for entry in self.state if entry[0] != "key")
        self.statistic_types = tuple(
            (name, backend.engine.native_dtype(dtype), shape) for name, dtype, shape in self.statistics
        )
        self.updates: tuple[str, ...] = tuple(core.updates)
        self.module: Any
        if settings.layout is None:
            self.module = backend.engine.load(core)
            backend.engine.report_fallbacks(self.module, stats.referred, settings.strict)
        else:
            self.module = DividedProgram(core, backend.engine.on_layout(settings.layout))
        if backend.engine.overrides:
            from ..backends import custom

            custom.explain_passed_over(backend, core, stats.referred, settings.strict)
        self.evaluate: Callable[..., Any] = (
            self._checked(self.module, backend.engine.evaluator(self))
            if settings.layout is None
            else self.module.function("evaluate")
        )
        #: Weights in 8 bits, where the backend makes them of parameters before a call.
        self.weights: ByteWeights | None = None
        if isinstance(backend, QuantizedWeights) and backend.quantize is not None:
            self.weights = ByteWeights(core, backend, self.module.source, backend.quantize_strict)
            self.evaluate = _packed(self.weights, self.evaluate)
        self.gradients: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Module | Runner, Callable[..., Any]]] = {}
        self.seen: set[Any] = set()
        #: Where gradients need sizes that are open here: programs for sizes of the data, which have them.
        self.sized: dict[Any, Program] | None = None
        #: Donated data that was found to lie apart.
        self.known_alone = Known()
        self._positions: dict[Any, Any] = {}
        #: Whether a single integer is given as data, which may say where something goes.
        self.has_numbers = any(shape == () and "int" in dtype for _, dtype, shape in self.data)
        #: Whether positions that follow from the data are looked at before a call.
        self.looks_first = (
            any("int" in dtype or len(shape) < 2 for _, dtype, shape in self.data)
            if backend.engine.accepts_any_position
            else self.has_numbers and not backend.engine.checks_positions
        )

    def _checked(self, module: Any, function: Callable[..., Any], name: str = "evaluate") -> Callable[..., Any]:
        """Run methods that users wrote once as they are, where a compiler would leave out that they are checked."""
        if not (self.settings.jit and self.backend.engine.overrides and self.backend.name == "torch"):
            return function
        return check_first(module.function(name), function)

    def call(self, params: Any, data: Mapping[str, Any], state: Any) -> Any:
        """Evaluate by the generated function as it is, for transformations of a framework."""
        arrays = params if self.weights is None else self.weights.of(params)
        return self.module.function("evaluate")(arrays, data, state)

    def run(self, module: Any, function: Callable[..., Any], params: Any, data: Mapping[str, Any], *rest: Any) -> Any:
        """Call a function of a module; what goes wrong is explained."""
        try:
            return function(params, data, *rest)
        except Exception as error:
            explained = self.explain(module, error, data)
            if explained is None:
                raise
            raise explained from error

    def explain(self, module: Any, error: Exception, data: Mapping[str, Any]) -> Exception | None:
        """Return what an error of a call of a module means, or raise what says it better; None: it says all itself."""
        if self.has_numbers:
            self.check_positions(data)
        explained: Exception | None = module.explain(error)
        return self._misplaced(error if explained is None else explained, data) or explained

    def _misplaced(self, error: Exception, data: Mapping[str, Any]) -> Exception | None:
        """Find the index that is out of range, which compiled code does not tell, and frameworks not in our words."""
        if not isinstance(error, MithrilError) or error.code != "M0504":
            return None
        try:
            positions = self.core.positions({name: tuple(data[name].shape) for name, _, _ in self.data}, "data")
            values = None if positions is None else self._values(data, positions.inputs)
            if values is None:
                return None
            problem: Exception | None = positions.check(values)
        except MithrilError:
            return None  # A function of the user's stands before the index: what is known stays.
        return positions.guess() if problem is None and error.path is None else problem

    def _values(self, data: Mapping[str, Any], names: Sequence[str]) -> list[Any] | None:
        """Return data as arrays of NumPy; None while a framework is tracing: there are no values yet."""
        try:
            return [self.backend.to_numpy(data[name]) for name in names]
        except (TypeError, ValueError, RuntimeError):
            return None

    def check_positions(self, data: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
        """Raise if numbers in the data lead to places that are not there, such as those behind the end of a cache.

        Frameworks differ in what they do then: JAX goes on with wrong numbers, MLX reads and writes memory of others.
        Where that is so, all integers and lists in the data are looked at.

        Parameters
        ----------
        data : mapping
            Arrays of the backend, by name.
        given : mapping, optional
            What they were made of. Integers that are on the host already are read there: a device would have to finish
            all that it was asked for before.
        """
        key = tuple(data[name].shape for name, _, _ in self.data)
        if key not in self._positions:
            shapes = {name: tuple(data[name].shape) for name, _, _ in self.data}
            which = "little" if self.backend.engine.accepts_any_position else "numbers"
            self._positions[key] = self.core.positions(shapes, which)
        positions = self._positions[key]
        if positions is None:
            return
        if given is not None and given is not data:
            here = {name: given[name] for name, dtype, _ in self.data if _is_on_host(given[name], dtype)}
            data = {**data, **here}
        values = self._values(data, positions.inputs)
        if values is not None and (problem := positions.check(values)) is not None:
            raise problem

    @cached_property
    def differentiable(self) -> Any:
        """Module with the function ``evaluate`` that the framework differentiates."""
        return self.backend.engine.load_checkpointed(self.core) if self.settings.checkpoint else self.module

    @cached_property
    def output_types(self) -> dict[str, tuple[str, tuple[Any, ...]]]:
        """Dtype and shape of each output; sizes that depend on the data are not numbers."""
        return {
            name: (dtype, tuple(shape))
            for name in self.core.output_names
            for dtype, shape in [self.core.output_type(name)]
        }

    @cached_property
    def float_params(self) -> tuple[str, ...]:
        """Names of the parameters that have gradients."""
        return tuple(self.core.trained)

    def gradient(self, outputs: tuple[str, ...]) -> tuple[Module | Runner, Callable[..., Any]]:
        """Return the module and function that give the gradients of these outputs; made at the first call."""
        names = self.float_params
        program = self.gradients.get((outputs, names))
        if program is None:
            if not (outputs and names) and (self.settings.layout is not None or self.settings.autodiff == "native"):
                program = (self.module, self._constant_gradients(names))
            elif self.settings.layout is not None:
                program = (self.module, self.module.gradients(outputs, names))
            elif self.settings.autodiff == "native":
                function = self.backend.engine.differentiator(self, outputs, names)
                calls_host = "host_call(" in self.module.source.text
                function = self._checked(self.module, function)
                program = (self.differentiable, differentiated(function) if calls_host else function)
            else:
                module = self.backend.engine.load_gradients(self.core, list(outputs), list(names))
                dump(lambda: self.backend.engine.stages(self.core, module, outputs, names), gradients=True)
                self.backend.engine.report_fallbacks(module, self.stats.referred, self.settings.strict)
                compiled = self.backend.engine.compile_graph_gradients(self, module)
                program = (module, self._checked(module, compiled, "evaluate_gradients"))
            self.gradients[(outputs, names)] = program
        return program

    def _constant_gradients(self, names: tuple[str, ...]) -> Callable[..., Any]:
        """Return the function where there is nothing to differentiate, or nothing by which: frameworks refuse that."""
        kinds = {name: dtype for name, dtype, _ in self.params}

        def evaluate_gradients(params: Any, data: Any, state: Any, cotangents: Any) -> Any:
            results = self.evaluate(params, data, state)
            outputs, *updated = results if self.updates else (results,)
            zeros = {name: self.backend.zeros(tuple(params[name].shape), dtype=kinds[name]) for name in names}
            return (outputs, zeros, *updated)

        return evaluate_gradients


def _is_on_host(value: Any, dtype: str) -> bool:
    return type(value) is np.ndarray and value.dtype.name == dtype


def _packed(weights: ByteWeights, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that quantizes parameters before a call."""
    return lambda params, data, state: function(weights.of(params), data, state)


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads these keys of a mapping at once."""
    if len(names) == 1:
        [only] = names
        return lambda mapping: (mapping[only],)
    return itemgetter(*names) if names else lambda mapping: ()
