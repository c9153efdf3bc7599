"""What compiled models and the compiler ask of a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core, dtypes
from ..compiled.loading import load
from ..dtypes import DType
from ..errors import BackendUnavailableError, UnsupportedOpError
from ..parallel.pipeline import Pipeline
from . import custom
from .exchange import numpy_dtype, to_host

if TYPE_CHECKING:
    from ..compiled.program import Program
    from ..parallel.channel import Packed
    from ..parallel.layout import ArrayLayout, Layout, Mesh
    from ..parallel.mesh_engine import MeshEngine
    from ..parallel.pieces import Piece
    from ..parallel.pipeline_devices import StageDevices
    from ..parallel.processes import Communicator, Processes
    from ..parallel.stored import StoredArray

__all__ = ["Engine"]


class Engine:
    """What compiled models and the compiler ask of a backend; `Backend.engine` holds it.

    A backend of a user's own defines methods of `Backend` alone: this class makes everything else of them. Each
    built-in backend has an engine of its own beside it.

    Attributes
    ----------
    backend : Backend
        Whose engine it is.
    strict : bool
        Whether ops that would run on the host are refused where they are applied at once.
    """

    #: Whether there is one device only, so that nothing needs to ask where an array is.
    is_single_device: bool = True
    #: Whether the elements of an array may lie in memory in any order, as those of a transposed view do.
    has_strides: bool = False
    #: Whether its programs check indices into tables and caches themselves, so that no check is needed before a call.
    checks_positions: bool = False
    #: Whether a position that is not there gives no error, but any numbers or the end of the process, so that those in
    #: the data are looked at before a call.
    accepts_any_position: bool = False
    #: Whether generated code may write into the memory of donated data; `memory_span`, `is_writable` and `copy` are
    #: asked only then.
    writes_in_place: bool = False
    #: Whether the standard tests run ops as compiled models, since ops at once are those of another framework.
    tests_compiled_ops: bool = False
    #: Whether programs read parameters in low-bit blocks (`QuantizedArray`) as they are.
    reads_blocks: bool = False

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.strict = False
        #: Whether the text of an array's dtype is a name of the dtype.
        self.names_dtypes = not custom.is_plain(backend)
        self._natives: dict[str, Any] = {}

    # --- what the backend is ----------------------------------------------------------------------------------

    @property
    def autodiff(self) -> tuple[str, ...]:
        """Where gradients can come from; the first is the default."""
        modes: tuple[str, ...] = self.backend._autodiff
        return modes

    @property
    def overrides(self) -> Mapping[str, custom.Override]:
        """Ops that a class of a user's own defines, by canonical name."""
        outputs: Mapping[str, custom.Override] = self.backend._overrides
        return outputs

    @property
    def seed(self) -> int:
        """Seed of the random numbers."""
        own: int = self.backend._seed
        return own

    @property
    def seeding(self) -> object:
        """Another object whenever the random numbers are started again."""
        return self.backend._seeding

    @property
    def table(self) -> Any:
        """Target whose ops compiled models are made of."""
        return self.backend.target

    @property
    def array_type(self) -> Any:
        """The exact type of most arrays: those are taken without a further look."""
        if "array type" not in self._natives:
            self._natives["array type"] = type(self.backend.zeros((1,), dtype=self.backend.default_dtype))
        return self._natives["array type"]

    # --- arrays -----------------------------------------------------------------------------------------------

    def is_here(self, array: Any) -> bool:
        """Whether an array of ours is on the device of the backend."""
        return True

    def beside(self, array: Any, other: Any) -> Any:
        """Return an array on the devices of another one: divided as that if it has its shape, else on each of them."""
        return array

    def memory_span(self, array: Any) -> tuple[int, int]:
        """First address of the memory that an array is in, and the one behind it."""
        raise NotImplementedError

    def is_writable(self, array: Any) -> bool:
        """Whether each element of an array has memory of its own that may be written."""
        raise NotImplementedError

    def copy(self, array: Any) -> Any:
        """Copy an array into memory of its own."""
        raise NotImplementedError

    def native_dtype(self, dtype: str) -> Any:
        """Dtype of the framework's arrays for a dtype of ours."""
        if dtype not in self._natives:
            dtype_of_zeros = self.backend.zeros((), dtype=dtype).dtype
            if dtypes.normalize(dtype_of_zeros) != dtype:
                raise UnsupportedOpError(
                    f"{type(self.backend).__name__} has no {dtype}: zeros((), {str(dtype)!r}) returns {dtype_of_zeros}",
                    hint="add it to what `zeros`, `ones` and `tensor` know, or use another dtype",
                )
            self._natives[dtype] = dtype_of_zeros
        return self._natives[dtype]

    def as_array(self, data: Any, dtype: Any) -> Any:
        """As `tensor`, without a copy of what is an array of that dtype already."""
        if self.is_own(data) and self.backend.dtype(data) == dtype:
            return data
        host = self.to_host(data)
        return custom.make(self.backend, host.astype(numpy_dtype(dtype)), dtype)

    def to_host(self, data: Any) -> np.ndarray[Any, Any]:
        """Convert data to NumPy: arrays of this backend by its own conversion, which others may not have."""
        return to_host(self.backend.to_numpy(data) if self.is_own(data) else data)

    def wrap_host(self, host: np.ndarray[Any, Any], dtype: DType | None) -> Any:
        """As `array`, for a NumPy array that nobody else will change: its memory is shared where that is possible."""
        return self.backend.array(host, dtype)

    def is_own(self, arg: Any) -> bool:
        """Whether something is an array of the backend, on any of its devices."""
        kind = self.array_type
        return isinstance(arg, kind) and (kind is not np.ndarray or arg.dtype.name in dtypes.ALL)

    def adopt(self, arg: Any) -> Any:
        """Array of ours of what has a shape and a dtype."""
        return self.backend.array(arg)

    def on_layout(self, layout: Layout) -> MeshEngine:
        """Return what runs programs that are divided by this layout, or a pipeline of them."""
        return self.on_pipeline(layout) if isinstance(layout, Pipeline) else self.on_mesh(layout)

    @property
    def runs_pipelines(self) -> bool:
        """Whether it can run pipelines, where it has the devices for them."""
        return type(self).on_pipeline is not Engine.on_pipeline

    def on_pipeline(self, pipeline: Pipeline) -> MeshEngine:
        """Return what runs programs whose layers are on several devices."""
        raise BackendUnavailableError(
            f"{type(self.backend).__name__} runs no pipelines, which {pipeline!r} is",
            hint="TorchBackend(devices=['cpu'] * 2), NumpyBackend and JaxBackend do; elsewhere divide tensors: "
            "layout=ml.Layout(ml.Mesh(model=2), parameters='model') in ml.compile",
        )

    def on_device(self, device: Any) -> Any:
        """Return a backend like this one on another device of this process."""
        raise NotImplementedError

    def on_stage(self, devices: list[Any], mesh: Mesh) -> StageDevices:
        """Return the devices of this process, in a mesh, as those of a stage of a pipeline."""
        raise NotImplementedError

    def placed(self, array: Any) -> Any:
        """Return an array of a backend like this one on the device of this one."""
        raise NotImplementedError

    def load_steps(self, source: _core.Source) -> Any:
        """Load the steps of a pipeline."""
        return self.load_source(source, "steps")

    # --- workers: processes of this machine that a process hands programs to ----------------------------------

    def packed(self, array: Any) -> Packed:
        """Return an array as bytes."""
        raise NotImplementedError

    def unpacked(self, array: Packed) -> Any:
        """Return an array of bytes, whose memory nobody else has."""
        raise NotImplementedError

    def joined(self, parts: list[Any], axis: int) -> Any:
        """Join arrays along an axis."""
        raise NotImplementedError

    def taken(self, array: Any, order: Any, axis: int) -> Any:
        """Return the elements of an array at positions along an axis."""
        return self.backend.take(array, order, axis)

    def join_workers(self, rank: int, count: int, folder: str) -> None:
        """Prepare this process to be a worker among others, which have a folder in common."""

    def worker_mesh(self, mesh: Mesh, rank: int, peers: dict[int, Any]) -> Communicator:
        """Return the collectives of this worker."""
        raise NotImplementedError

    def without_gradients(self) -> AbstractContextManager[Any]:
        """Return the context in which programs are run that compute their gradients themselves."""
        return nullcontext()

    # --- programs ---------------------------------------------------------------------------------------------

    def apply_op(self, name: str, args: Sequence[Any]) -> Any:
        """Apply an op by name; see `Backend`."""
        return self.backend._op(name, args)

    def forget_ops(self) -> None:
        """Forget the code of ops that were applied at once."""
        self.backend._eager.clear()

    def layout_of(self, arrays: Mapping[str, Any]) -> ArrayLayout | None:
        """Return how arrays are divided among processes; None if each process has all of them."""
        return None

    def zeros_like(self, array: Any, dtype: str) -> Any:
        """Return zeros of the shape of an array, beside it if it lies on workers."""
        return self.backend.zeros(tuple(array.shape), dtype=dtype)

    def whole(self, array: Any) -> Any:
        """Return all of an array that is divided among processes, on each of them."""
        return array

    def pieces(self, array: Any) -> list[Piece] | None:
        """Return the pieces of an array that is divided among processes; None if each process has all of it."""
        return None

    def piece(self, array: Any, piece: Piece) -> Any:
        """Return a piece that this process has."""
        return array

    def restored(self, array: StoredArray, like: Any = None) -> Any:
        """Return an array of a checkpoint as one of ours; divided as another one, if it has its shape."""
        return self.backend.tensor(array.read(), array.dtype)

    def communicator(self, layout: Layout) -> Processes | None:
        """Return what connects this process with the others of a mesh; None if it runs all devices itself."""
        return None

    def device_count(self) -> int:
        """Return how many devices a mesh can have."""
        return 1

    def on_mesh(self, layout: Layout) -> MeshEngine:
        """Return what runs programs that are divided by this layout."""
        raise BackendUnavailableError(
            f"{type(self.backend).__name__} runs on one device, and {layout.mesh!r} has {layout.mesh.devices}",
            hint="JaxBackend, TorchBackend, MlxBackend and NumpyBackend run on several; or leave out the layout",
        )

    def load(self, core: _core.Compiled) -> Any:
        """Load the functions of a program."""
        return self.load_source(core.source(self.backend.target, self.backend.device), "model")

    def load_checkpointed(self, core: _core.Compiled) -> Any:
        """Load ``evaluate`` in segments that the framework computes again when it differentiates."""
        return self.load_source(core.checkpointed_source(self.backend.target, self.backend.device), "checkpointed")

    def load_gradients(self, core: _core.Compiled, outputs: list[str], inputs: list[str]) -> Any:
        """Load the gradient graph of a program, for these outputs and inputs."""
        return self.load_source(
            core.gradient_source(self.backend.target, outputs, inputs, self.backend.device), "gradients"
        )

    def load_source(self, source: _core.Source, name: str) -> Any:
        """Load generated source; the name is shown in tracebacks."""
        return load(source, name, self.constant, custom.namespace_of(self.backend))

    def report_fallbacks(self, module: Any, told: set[str], strict: bool) -> None:
        """Warn about ops that run on the host since the backend lacks them, once each; refuse them if strict."""
        if referred := getattr(module.source, "referred", None):
            custom.explain_referred(self.backend, referred, told, strict)

    def prepare(self, program: Program, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Make what a program needs for arrays of these shapes, where its code depends on them."""

    def stages(
        self, core: _core.Compiled, module: Any, outputs: Sequence[str] = (), inputs: Sequence[str] = ()
    ) -> dict[str, str]:
        """Text after each stage of compiling, by name; of the gradients of these outputs, if there are any."""
        return {**dict(core.stages(self.backend.target, list(outputs), list(inputs))), "emit": str(module.source.text)}

    def evaluator(self, program: Program) -> Callable[..., Any]:
        """Return ``evaluate(params, data, state)`` of a program, compiled further if it asks for that."""
        function: Callable[..., Any] = program.module.function("evaluate")
        return function

    def differentiator(self, program: Program, outputs: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., Any]:
        """Return ``evaluate_gradients(params, data, state, cotangents)`` by the framework's own gradients."""
        raise self.backend._missing("value_and_grad")

    def compile_graph_gradients(self, program: Program, module: Any) -> Callable[..., Any]:
        """Return the function of a module of our gradient graph, compiled further if the program asks for that."""
        function: Callable[..., Any] = module.function("evaluate_gradients")
        return function

    def load_op(self, name: str, signature: list[Any]) -> Any:
        """Load an op for arguments with this signature."""
        source = _core.eager_source(
            name, signature, self.backend.target, str(self.backend.default_dtype), self.backend.device
        )
        return self.load_source(source, f"op.{name}")

    def constant(self, host: np.ndarray[Any, Any]) -> Any:
        """Array of the backend for a constant of a generated module."""
        return custom.make(self.backend, host, host.dtype.name) if custom.is_plain(self.backend) else host
