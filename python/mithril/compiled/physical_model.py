"""Physical models: a compiled model that evaluates, differentiates and shows what it is made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from .. import _core, dtypes
from ..backends.exchange import remember
from ..backends.options import seed as read_seed
from ..backends.quantized import choose_weights
from ..errors import (
    InvalidValueError,
    KeyNotFoundError,
    ParameterError,
    ShapeError,
    UnresolvedShapeError,
    UnsupportedOpError,
)
from ..suggestions import did_you_mean
from . import parameter_loading
from .arguments import Arguments, check_declared, missing
from .compile_stats import CompileStats
from .donation import alone, check_pure, donated_names
from .loading import save
from .parameter_patterns import matching, read_initializers, refuse_both
from .parameters import Parameters, gradients_like
from .program import Program, Settings
from .sources import Sources
from .stages import dump
from .state import Stateful
from .tool_methods import Tools
from .verbose import describe

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from ..tools.pipeline_plan import PipelinePlan
    from ..tools.plan import Plan

__all__ = ["PhysicalModel"]


class PhysicalModel(Stateful, Sources, Tools):
    """A model compiled for a backend. Made by `compile`.

    Any number of threads may evaluate one physical model at once; with random or batch-norm state they share
    that state, and each call replaces it as a whole.

    Attributes
    ----------
    backend : Backend
        Where it runs.
    state : dict
        What is kept from call to call: running statistics, the counter of the random numbers.
    compile_stats : CompileStats
        What was compiled, by us and by the framework, how long it took, and why it was compiled again.
    """

    def __init__(
        self,
        model: _core.Model,
        backend: Backend,
        options: dict[str, Any],
        settings: Settings,
        *,
        static_shapes: bool = False,
        file_path: str | None = None,
        verbose: bool = False,
    ) -> None:
        remember(backend)
        self.backend = backend
        self._model = model
        self._options = options
        self._settings = settings
        self.compile_stats = CompileStats()
        self._tolerated = frozenset(options.pop("tolerated", ()))
        self._file_path = file_path
        self._verbose = verbose
        self._static_shapes = static_shapes
        self._programs: dict[Any, Program] = {}
        self._current: Program | None = None
        self._unresolved: UnresolvedShapeError | None = None
        self._edges: tuple[str, ...] = ()
        self._store: Parameters | None = None
        self._lock = threading.RLock()
        self._state, self._written, self._drawn = {}, {}, {}
        #: What the seed was when parameters were drawn last, and how often since.
        self._draws: tuple[Any, int] = (None, 0)
        patterns = {name: options.pop(name, None) for name in ("freeze", "initializers")}
        roles = _core.roles(model, options)
        self._names: dict[str, tuple[str, ...]] = {role: tuple(names) for role, names in roles.items()}
        self._choose_parameters(**patterns)
        self._tolerated |= frozenset(self._names["unneeded"])
        choose_weights(backend, options, self._names["param"])
        self._arguments = Arguments(backend, self._names, self._tolerated)
        self._engine = backend.engine
        self._array_type = self._engine.array_type
        self._donated = donated_names(options["donate"], self._names["data"], backend)
        try:
            program = self._compile({})
            # Parameters of open size are drawn at the first call, which tells their sizes.
            if static_shapes or all(isinstance(n, int) for _, _, shape in program.params for n in shape):
                self._adopt(program, ())
        except UnresolvedShapeError as error:
            if static_shapes:
                raise
            # Kept: where a shape is asked for later, this says which ones are missing.
            self._unresolved = error
            self._refuse_hopeless()
        except ShapeError:
            # Sizes left open may decide how shapes broadcast: the first call tells.
            if static_shapes or not self._open_sizes_decide():
                raise
        if static_shapes and self._current is not None:
            self._demand_numbers(self._current)

    def __reduce__(self) -> Any:
        # Programs hold code: a copy compiles again when it is made.
        options = {**self._options, "tolerated": tuple(self._tolerated)}
        settings = {"static_shapes": self._static_shapes, "file_path": self._file_path, "verbose": self._verbose}
        store = self._store if self._store is not None and self._store._resolved else None
        return _restore, (self._model, self.backend, options, self._settings, settings, self._saved_state(), store)

    @cached_property
    def _key_step(self) -> Any:
        """What the key of the random numbers grows by at a call."""
        return self.backend.tensor(np.array([0, 1]), "int64")

    def _choose_parameters(self, freeze: Any, initializers: Any) -> None:
        """Find the parameters that patterns name."""
        names, options = self._names["param"], self._options
        chosen = matching("freeze", freeze, names)
        refuse_both(options["trainable_keys"], chosen)
        frozen = {*self._names["frozen"], *options.get("frozen", ()), *chosen}
        self._names["frozen"] = tuple(name for name in names if name in frozen)
        options["frozen"] = list(self._names["frozen"])
        options["initializers"] = read_initializers({} if initializers is None else initializers, names)

    # --- compiling --------------------------------------------------------------------------------------------

    def _compile(self, shapes: dict[str, Any]) -> Program:
        start = time.perf_counter()
        options = {**self._options, "shapes": {**self._options["shapes"], **shapes}, "edges": list(self._edges)}
        core = _core.compile(self._model, str(self.backend.default_dtype), options)
        typed = time.perf_counter()
        program = Program(core, self.backend, self._settings, self.compile_stats)
        if self._file_path is not None:
            save(self._file_path, program.module.source)
        dump(lambda: self.backend.engine.stages(core, program.module))
        end = time.perf_counter()
        self.compile_stats.note(
            "generate", end - start, {"data": {n: SimpleNamespace(dtype=d, shape=s) for n, d, s in program.data}}
        )
        if self._verbose:
            phases = {"infer and optimize": typed - start, "generate and load": end - typed}
            print(describe(self._model, program, phases))
        return program

    def _open_sizes_decide(self) -> bool:
        """Whether shapes that do not fit would fit for some choice of the sizes given as None."""
        if not self._has_open_sizes():
            return False
        return self._error_with(1) is None

    def _has_open_sizes(self) -> bool:
        return any(size is None for shape in self._options["shapes"].values() for size in shape)

    def _error_with(self, number: int) -> ShapeError | None:
        """Error of compiling with that number for each size that is given as None."""
        shapes = {name: list(shape) for name, shape in self._options["shapes"].items()}
        filled = {name: [number if size is None else size for size in shape] for name, shape in shapes.items()}
        try:
            _core.compile(
                self._model, str(self.backend.default_dtype), {**self._options, "shapes": filled, "edges": []}
            )
        except ShapeError as error:
            return error
        return None

    def _refuse_hopeless(self) -> None:
        """Raise what is wrong whatever the open sizes are, where they hide it: a window larger than the image."""
        if not self._has_open_sizes():
            return
        errors = []
        for number in (1, 64):
            error = self._error_with(number)
            if error is None or isinstance(error, UnresolvedShapeError):
                return
            errors.append(error)
        if errors[0].code == errors[1].code:
            raise errors[-1]

    def _adopt(self, program: Program, key: Any) -> None:
        self._programs[key] = program
        self._current = program
        self._initialize_state(program)

    def _demand_numbers(self, program: Program) -> None:
        loose = [name for name, _, shape in program.data if not all(isinstance(n, int) for n in shape)]
        if loose:
            raise UnresolvedShapeError(
                f"static_shapes=True, but sizes of {', '.join(loose)} are not known",
                hint=f"pass shapes={{{loose[0]!r}: [...]}} with numbers only",
            )

    def _specialize(self, data: Mapping[str, Any], params: Mapping[str, Any]) -> Program:
        """Find or make the program for the shapes of these arrays."""
        shapes = {name: tuple(np.shape(value)) for name, value in data.items() if name in self._names["data"]}
        check_declared(self._options["shapes"], shapes)
        key = tuple(sorted(shapes.items()))
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                known = self._shapes_of(params)
                program = self._generalized(shapes, known) or self._compile({**known, **shapes})
                self._adopt(program, key)
            self._current = program
            return program

    def _shapes_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        resolved = params if _is_resolved(params) else {}
        return {n: tuple(v.shape) for n, v in resolved.items() if n in self._names["param"] and hasattr(v, "shape")}

    def _generalized(self, shapes: dict[str, tuple[int, ...]], known: dict[str, Any]) -> Program | None:
        """After two different sizes, a program for any size: the axes that changed become symbols."""
        previous = [dict(key) for key in self._programs if key and {n for n, _ in key} == set(shapes)]
        for old in reversed(previous):
            symbols: dict[tuple[int, int], str] = {}
            mixed: dict[str, Any] = {}
            for name, shape in shapes.items():
                if len(old[name]) != len(shape):
                    break
                sizes = zip(old[name], shape, strict=True)
                mixed[name] = [a if a == b else symbols.setdefault((a, b), f"size_{len(symbols)}") for a, b in sizes]
            else:
                try:
                    return self._compile({**known, **mixed})
                except (ValueError, TypeError):
                    return None
        return None

    # --- parameters -------------------------------------------------------------------------------------------

    def randomize_params(self, seed: int | None = None) -> Parameters:
        """Draw fresh parameters.

        Parameters
        ----------
        seed : int, optional
            The same seed gives the same values on every backend. Default: fresh values at every call; the first time
            those of the seed of the backend.

        Returns
        -------
        dict
            Name to array: parameters, and running statistics, which start anew, too. The parameters that belong to the
            model stay as they are. If shapes are not known yet, they fill themselves at the first `evaluate`.
        """
        params = self._parameters(self._fresh_seed() if seed is None else read_seed(seed))
        if self._current is not None:
            params._resolve(self._draw(self._current, params))
        return params

    def get_parameters(self) -> Parameters:
        """Return the parameters that belong to this model; the first call draws them.

        Returns
        -------
        dict
            The same dict at every call: what a training loop stores in it stays. It holds the parameters and the
            running statistics (those in `state`), so that a copy of all entries is a copy of the trained model.
        """
        with self._lock:
            if self._store is None:
                self._store = self._parameters(None, self)
                if self._current is not None:
                    self._store._resolve(self._draw(self._current, self._store))
                if self._draws[0] is not self.backend.engine.seeding:
                    self._draws = (self.backend.engine.seeding, 0)
            return self._store

    def load_params(self, params: Mapping[str, Any], *, strict: bool = True) -> Parameters:
        """Take over parameters and running statistics from elsewhere; after an error, none of them.

        Parameters
        ----------
        params : mapping
            Name to array, of any backend or of NumPy, such as what `get_parameters` of another model returns.
        strict : bool, optional
            Whether every parameter must be there, and the running statistics unless this model has its own, and
            nothing else. Otherwise what is missing stays as it is.

        Returns
        -------
        dict
            The parameters that belong to this model; see `get_parameters`.

        Raises
        ------
        ParameterError
            If something is missing, superfluous, or of the wrong shape.
        """
        return parameter_loading.store(self, *parameter_loading.read(self, params, strict))

    @property
    def parameters(self) -> Parameters:
        """The parameters that belong to this model; see `get_parameters`."""
        return self.get_parameters()

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Names of the data inputs."""
        return self._names["data"]

    @property
    def output_keys(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._names["output"]

    @property
    def parameter_keys(self) -> tuple[str, ...]:
        """Names of the parameters, frozen ones included; running statistics are not among them."""
        return self._names["param"]

    @property
    def frozen_keys(self) -> tuple[str, ...]:
        """Names of the parameters that have no gradients, since training leaves them as they are."""
        return self._names["frozen"]

    # --- evaluation -------------------------------------------------------------------------------------------

    @overload
    def evaluate(
        self, params: Mapping[str, Any], data: Mapping[str, Any] | None = None, output_gradients: None = None
    ) -> dict[str, Any]: ...

    @overload
    def evaluate(
        self, params: Mapping[str, Any], data: Mapping[str, Any] | None = None, output_gradients: Any = ...
    ) -> tuple[dict[str, Any], dict[str, Any]]: ...

    def evaluate(
        self,
        params: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        output_gradients: Any = None,
    ) -> Any:
        """Compute the outputs, and the gradients if output gradients are given.

        Parameters
        ----------
        params : mapping
            Parameter name to array. Empty: the parameters that belong to the model (`get_parameters`).
        data : mapping, optional
            Input name to array; converted to the dtype of the input where needed.
        output_gradients : mapping, callable, array or True, optional
            Gradients of what is minimized with respect to outputs or other named connections: a mapping by
            name; a callable that makes one of the outputs; an array if there is one output; True for ones.

        Returns
        -------
        dict or (dict, dict)
            Outputs by name; with ``output_gradients`` also the gradients by parameter name.

        Raises
        ------
        ParameterError
            If something is missing, superfluous, or of the wrong shape or dtype.
        """
        data = {} if data is None else data
        if type(data) is not dict and not isinstance(data, Mapping):
            raise ParameterError(f"data is a {type(data).__name__}", hint="pass a dict of arrays by name")
        # `not params` would ask lazy parameters for their length, at a cost in every call.
        if type(params) is not Parameters:
            if params is not None and type(params) is not dict and not isinstance(params, Mapping):
                raise ParameterError(f"params is a {type(params).__name__}", hint="pass a dict of arrays by name")
            params = params or (self.get_parameters() if self._store is None else self._store)
        given = data
        program, data = self._prepare(params, data)
        if program.looks_first:
            program.check_positions(data, given)
        if output_gradients is not None:
            return self._differentiate(program, params, data, output_gradients)
        try:
            result = program.evaluate(params, data, self._next_state(program, params) if program.state else self.state)
        except Exception as error:
            explained = program.explain(program.module, error, data)
            if explained is None:
                raise
            raise explained from error
        return self._keep(program, params, result) if program.updates else result

    def evaluate_gradients(
        self,
        params: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        output_gradients: Any = True,
        *,
        include_output: bool = False,
    ) -> Any:
        """Compute the gradients of the parameters; see `evaluate`.

        Returns
        -------
        dict or (dict, dict)
            Gradients by parameter name, or outputs and gradients if ``include_output``.
        """
        outputs, gradients = self.evaluate(params, data, output_gradients)
        return (outputs, gradients) if include_output else gradients

    def __call__(self, *arrays: Any, params: Mapping[str, Any] | None = None, **named: Any) -> Any:
        """Compute the output for data given by place or by name.

        Returns
        -------
        array or dict
            The output, or all of them by name if there are several.
        """
        names = self._names["data"]
        if len(arrays) > len(names):
            raise ParameterError(
                f"{len(arrays)} arrays are given, but the model has {len(names)} data inputs",
                hint=f"they are: {', '.join(names)}",
            )
        if len(arrays) == 1 and len(names) > 1 and not named:
            raise ParameterError(
                "one array is given, but the model has several data inputs", hint=f"name them: {', '.join(names)}"
            )
        data = dict(zip(names, arrays, strict=False))
        twice = data.keys() & named.keys()
        if twice:
            raise ParameterError(f"{', '.join(sorted(twice))} is given by position and by name", hint="give it once")
        data.update(named)
        outputs = self.evaluate(params if params is not None else self.get_parameters(), data)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _prepare(self, params: Any, data: Mapping[str, Any]) -> tuple[Program, Mapping[str, Any]]:
        program = self._current
        if program is None or (type(params) is Parameters and not params._resolved):
            data = self._arguments.convert_all(data)
            self._arguments.check_superfluous(data)
            absent = [n for n in self._names["data"] if n not in data]
            if absent:
                raise ParameterError(f"data lacks {', '.join(repr(n) for n in absent)}", hint="add it to data")
            program = self._specialize(data, params)
            if type(params) is Parameters and not params._resolved:
                params._resolve(self._draw(program, params))
                self._share_statistics(program, params)
        shapes = []
        converted: dict[str, Any] | None = None
        array_type, engine = self._array_type, self._engine
        for name, native, dtype in program.data_types:
            value = data.get(name)
            if value is None:
                if name in data:
                    raise ParameterError(f"data {name!r} is None", hint="pass an array of numbers")
                raise missing("data", name, program.data, data)
            if (
                type(value) is not array_type
                or (value.dtype is not native and value.dtype != native)
                or not (engine.is_single_device or engine.is_here(value))
            ):
                converted = dict(data) if converted is None else converted
                value = converted[name] = self._arguments.convert(name, value, dtype)
            shapes.append(value.shape)
        if len(data) != len(program.data):
            self._arguments.check_superfluous(data)
        key = tuple(shapes)
        data = data if converted is None else converted
        if key not in program.seen:
            program = self._fit(program, params, data, key)
        if type(params) is not Parameters:
            self._arguments.check_params(program, params)
        elif params._fits is not program:
            self._arguments.check_params(program, params)
            params._fits = program
        return program, alone(self.backend, data, self._donated, program.known_alone) if self._donated else data

    def _fit(self, program: Program, params: Any, data: Mapping[str, Any], key: Any) -> Program:
        """Check the shapes of data not seen before; other shapes may need another program."""
        problem = program.core.check({name: tuple(data[name].shape) for name, _, _ in program.data})
        if problem is not None:
            if self._fixed():
                raise problem
            other = self._specialize({name: data[name] for name, _, _ in program.data}, params)
            if other.core.check({name: tuple(data[name].shape) for name, _, _ in other.data}) is not None:
                raise problem
            program = other
        if self._file_path is not None:
            arrays = {**params, **data}
            self.backend.engine.prepare(program, {name: tuple(np.shape(value)) for name, value in arrays.items()})
            save(self._file_path, program.module.source)
        if len(program.seen) > 10_000:
            program.seen.clear()
        program.seen.add(key)
        return program

    def _fixed(self) -> bool:
        """Whether shapes were given when compiling, so that others are errors."""
        return () in self._programs

    # --- gradients --------------------------------------------------------------------------------------------

    def _differentiate(self, program: Program, params: Any, data: Any, output_gradients: Any) -> Any:
        if not self._options["training"]:
            raise UnsupportedOpError(
                "the model was compiled for inference and has no gradients", hint="compile it without inference=True"
            )
        cotangents = self._cotangents(program, params, data, output_gradients)
        unknown = [name for name in cotangents if name not in program.output_types]
        if unknown:
            program = self._with_edges(unknown, params, data)
        cotangents = {name: self._cotangent(program, name, value, data) for name, value in cotangents.items()}
        program, module, function = self._gradient(program, tuple(sorted(cotangents)), params, data)
        result = program.run(module, function, params, data, self._next_state(program, params), cotangents)
        outputs, gradients = self._keep(program, params, result)
        gradients = gradients_like(params, gradients, partial(self._zeros, program), self.backend.name == "jax")
        if self._edges:
            outputs = {name: value for name, value in outputs.items() if name in self._names["output"]}
        return outputs, gradients

    def _gradient(self, program: Program, names: tuple[str, ...], params: Any, data: Any) -> tuple[Program, Any, Any]:
        if program.sized is None:
            try:
                return program, *program.gradient(names)
            except UnresolvedShapeError:
                program.sized = {}  # A gradient may need sizes that the outputs do not need.
        key = tuple((name, tuple(data[name].shape)) for name, _, _ in program.data)
        if key not in program.sized:
            program.sized[key] = self._compile({**self._shapes_of(params), **dict(key)})
        return program.sized[key], *program.sized[key].gradient(names)

    def _cotangents(self, program: Program, params: Any, data: Any, gradients: Any) -> dict[str, Any]:
        if callable(gradients):
            # The state is not kept: the gradients are of this very call, with the same random numbers.
            outputs = program.run(program.module, program.evaluate, params, data, self._state_for(params))
            gradients = gradients(outputs[0] if program.updates else outputs)
        outputs = [n for n in self._names["output"] if "float" in program.output_types[n][0]]
        if gradients is True:
            return {name: None for name in outputs}
        if isinstance(gradients, Mapping):
            if not gradients:
                raise InvalidValueError("output_gradients is empty", hint=f"give one of {', '.join(outputs)}")
            return dict(gradients)
        if len(outputs) != 1:
            raise InvalidValueError(
                "output_gradients is one array, but there are several outputs",
                hint=f"pass a dict with some of {', '.join(outputs)}",
            )
        return {outputs[0]: gradients}

    def _with_edges(self, names: list[str], params: Any, data: Any) -> Program:
        """Compile again with further connections as outputs, so that they take gradients."""
        for name in names:
            if not isinstance(name, str) or not self._model.has_connection(name):
                known = self._model.connection_names
                hint = did_you_mean(name, known, f"outputs are {', '.join(self._names['output'])}")
                raise KeyNotFoundError(f"output_gradients names {name!r}, which is not in the model", hint=hint)
        with self._lock:
            self._edges = tuple(sorted({*self._edges, *names}))
            keys = list(self._programs)
            self._programs.clear()
            self._current = None
            if () in keys:
                self._adopt(self._compile({}), ())
            else:
                self._specialize(data, params)
            assert self._current is not None
            return self._current

    def _cotangent(self, program: Program, name: str, value: Any, data: Any) -> Any:
        dtype, expected = program.output_types[name]
        if not all(isinstance(size, int) for size in expected):
            expected = tuple(program.core.output_shape(name, {n: tuple(data[n].shape) for n, _, _ in program.data}))
        if value is None:
            return self.backend.ones(expected, dtype=dtype)
        value = self.backend.engine.as_array(value, dtypes.normalize(dtype))
        if tuple(value.shape) != expected:
            raise ParameterError(
                f"the gradient of output {name!r} has shape {list(value.shape)}, but must be {list(expected)}",
                hint="an output gradient has the shape of its output",
            )
        return value

    # --- looking inside ---------------------------------------------------------------------------------------

    @property
    def function(self) -> Callable[..., Any]:
        """The model as a pure function ``fn(params, data, state=None)``, for the transformations of a framework.

        Returns the outputs by name; with ``state`` (such as `state`) the pair of outputs and next state. Nothing
        is kept, so that `jax.jit`, `jax.grad`, `mlx.core.compile` or `torch.func.vmap` may run it as they like.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> model = ml.Model()
        >>> model |= ml.Linear(2)(input="input", output="output")
        >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
        >>> compiled.function(compiled.get_parameters(), {"input": np.ones((4, 3))})["output"].shape
        (4, 2)
        """
        check_pure(self._donated)

        def function(params: Mapping[str, Any], data: Mapping[str, Any], state: Any = None) -> Any:
            program, data = self._prepare(params, data)
            result = program.call(params, data, self._state_for(params) if state is None else state)
            outputs, updated = result if program.updates else (result, {})
            return outputs if state is None else (outputs, {**state, **updated})

        return function

    def loss_function(self, loss: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a pure function ``fn(params, data, *further)`` whose result is one number, to be differentiated.

        Parameters
        ----------
        loss : callable, optional
            Called as ``loss(outputs, *further)`` with the outputs by name. Default: the model's only output,
            which must be one number.

        Examples
        --------
        >>> import mithril as ml
        >>> import numpy as np
        >>> model = ml.Model()
        >>> model |= ml.Linear(1)(input="input", output="output")
        >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
        >>> fn = compiled.loss_function(lambda outputs, target: ((outputs["output"] - target) ** 2).mean())
        >>> fn(compiled.get_parameters(), {"input": np.ones((4, 3))}, 0.5).shape
        ()
        """
        if loss is None and len(self._names["output"]) != 1:
            raise InvalidValueError(
                f"the model has {len(self._names['output'])} outputs", hint="pass a loss that makes one number of them"
            )
        evaluate = self.function

        def function(params: Mapping[str, Any], data: Mapping[str, Any], *further: Any) -> Any:
            outputs = evaluate(params, data)
            value = loss(outputs, *further) if loss is not None else next(iter(outputs.values()))
            if tuple(getattr(value, "shape", ())) != ():
                raise InvalidValueError(
                    f"the loss has shape {list(value.shape)}", hint="return one number: a mean or sum"
                )
            return value

        return function

    def summary(self) -> str:
        """Return a table of the layers: name, output shape, number of parameters."""
        if self._current is not None:
            return str(self._current.core.summary())
        return str(self._model.summary())

    @property
    def parallel_plan(self) -> Plan | PipelinePlan:
        """What the devices of the layout hold and exchange, with gradients if they are trained; see `mithril.plan`."""
        from ..tools.plan import plan

        return plan(self, gradients=bool(self._options["training"]))

    def _known(self) -> Program:
        if self._current is None:
            raise UnresolvedShapeError(
                "the shapes of the inputs are not known yet" + self._missing_shapes(),
                hint="pass shapes={'input': [...]} to compile, or call evaluate once",
            )
        return self._current

    def _missing_shapes(self) -> str:
        """Return which shapes are missing, where some were given."""
        known = self._unresolved is not None and self._options["shapes"]
        return f": {self._unresolved.message}" if known and self._unresolved is not None else ""

    def __repr__(self) -> str:
        names = ", ".join(self._names["output"])
        return f"PhysicalModel({self._model}, backend={self.backend}, outputs=[{names}])"


def _restore(
    model: Any, backend: Any, options: Any, settings: Settings, further: Any, state: Any, store: Any
) -> PhysicalModel:
    physical = PhysicalModel(model, backend, options, settings, **further)
    physical._restore_state(state)
    if store is not None:
        store._link(physical)
        physical._store = store
    return physical


def _is_resolved(params: Any) -> bool:
    return not isinstance(params, Parameters) or params._resolved
