"""Runs pipelines in processes that all run the script: each has the layers of its stage, and keeps what is theirs."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import dtypes
from ..backends.custom import namespace_of
from ..compiled.loading import load
from .divided_array import local
from .layout import Mesh
from .mesh_engine import Spec
from .pieces import holders
from .pipeline import Pipeline
from .pipeline_engine import PipelineEngine, StagedProgram
from .processes import Communicator, check_agreement
from .stage_array import StageArray
from .step_runner import DeviceSteps, Key, StepRun, finished
from .stored import StoredArray
from .workers import block_of, joined

if TYPE_CHECKING:
    from .. import _core

__all__ = ["ProcessPipelineEngine", "StageLink"]

#: Messages name a dtype by its index here.
_DTYPES = tuple(map(str, dtypes.ALL))


class StageLink(Communicator, Protocol):
    """The collectives of the devices of a stage, and messages between any two processes."""

    def open_lines(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Prepare to send from some processes to others; all processes call this with the same pairs."""

    def send(self, peer: int, array: Any) -> None:
        """Begin to send an array to another process."""

    def receive(self, peer: int, shape: Sequence[int], dtype: str) -> Any:
        """Return the next array that another process sends."""

    def finish(self) -> None:
        """Wait until what was sent has arrived."""

    def broadcast(self, array: Any, source: int, shape: Sequence[int], dtype: str) -> Any:
        """Return the array of one process, on all."""


class ProcessPipelineEngine(PipelineEngine):
    """Runs the steps of the stage of this process, among others that run the same script.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.
    layout : Pipeline
        Which layers are on which device.
    link : StageLink
        What connects the processes.
    """

    def __init__(self, backend: Any, layout: Pipeline, link: StageLink) -> None:
        super().__init__(backend, layout, [backend.device] * layout.devices)
        self._link = link
        self._ranks = [layout.ranks(stage) for stage in range(layout.stage_count)]
        self._stage = next(stage for stage, ranks in enumerate(self._ranks) if link.rank in ranks)
        self._place = self._ranks[self._stage].index(link.rank)
        self._loaded: dict[StagedProgram, _Loaded] = {}
        stages = range(layout.stage_count)
        pairs = [(a, b) for a in stages for b in stages if a != b]
        link.open_lines([(self._ranks[a][i], self._ranks[b][i]) for a, b in pairs for i in range(len(self._ranks[0]))])

    @staticmethod
    def mesh_of(layout: Pipeline) -> Mesh:
        """Return the mesh of all processes."""
        return Mesh(**{name: size for name, size in layout.grid.axes.items() if name})

    # --- arrays -----------------------------------------------------------------------------------------------

    def distribute_to(self, array: Any, stage: int, spec: Spec) -> Any:
        """Return an array that a stage keeps."""
        if self._is_kept(array, spec) and array.stage == stage:
            return array
        mesh, is_own, value = self.layout.inner_mesh, stage == self._stage, None
        if isinstance(array, StoredArray):
            if is_own:
                value = self.backend.tensor(array.block(mesh, spec, self._place), array.dtype)
            dtype, shape = array.dtype, array.shape
        else:
            array = local(array)
            if is_own:
                value = self.backend.engine.copy(block_of(array, mesh, spec, self._place, self.backend.engine))
            dtype, shape = str(self.backend.dtype(array)), tuple(array.shape)
        return self._kept(value, dtype, _block_shape(shape, mesh, spec), spec, stage)

    def zeros_on(self, stage: int, shape: tuple[int, ...], dtype: str, spec: Spec) -> Any:
        """Return zeros that a stage keeps; ``shape`` is that of the part of a device."""
        value = self.backend.zeros(shape, dtype=dtype) if stage == self._stage else None
        return self._kept(value, dtype, shape, spec, stage)

    def gathered_from(self, array: StageArray) -> Any:
        """Return the whole of an array that a stage keeps, on all processes."""
        mesh, engine = array.mesh, self.backend.engine
        dtype = str(self.backend.dtype(array))
        parts = {
            place: self._link.broadcast(array.value, array.ranks[place], array.block_shape, dtype)
            for place in holders(mesh, array.spec)
        }
        return joined(parts, mesh, array.spec, engine)

    def _kept(self, value: Any, dtype: str, shape: tuple[int, ...], spec: Spec, stage: int) -> StageArray:
        return StageArray(self, value, dtype, shape, self.layout.inner_mesh, spec, stage)

    def _is_kept(self, array: Any, spec: Spec | None) -> bool:
        """Whether a stage keeps an array, divided so."""
        return isinstance(array, StageArray) and array.is_on(self.layout, spec)

    # --- programs ---------------------------------------------------------------------------------------------

    def call(self, program: StagedProgram, groups: Any) -> Any:
        """Run a program on whole arrays, or those that stages keep."""
        if program not in self._loaded:
            self._loaded[program] = self._load_steps(program)
        loaded = self._loaded[program]
        try:
            with self.backend.engine.without_gradients():
                return self._run(program, loaded, groups)
        except Exception as error:
            explained = loaded.module.explain(error)
            if explained is None:
                raise
            raise explained from error

    def _load_steps(self, program: StagedProgram) -> _Loaded:
        source: _core.Source = program.source
        check_agreement(self._link, source.text + repr((self.layout, program.orders)))
        namespace = {**namespace_of(self.backend), "mesh": self._link}
        module = load(source, "steps", self.backend.engine.constant, namespace)
        link = self._link
        if self.layout.layout is not None:
            module.around = lambda function: finished(function, link)
        steps = DeviceSteps(
            module, program.steps, program.orders[self._stage], program.sends(self._stage), program.count
        )
        return _Loaded(module, steps)

    def _run(self, program: StagedProgram, loaded: _Loaded, groups: Any) -> Any:
        stage, engine = self._stage, self.backend.engine
        stays = program.staying(groups, lambda array: isinstance(array, StageArray))
        groups = program.converted(groups, lambda array, spec: array if self._is_kept(array, spec) else local(array))
        values: dict[Key, Any] = {}
        shared: dict[str, Any] = {}
        for name, m, array, spec in program.arguments(stage, groups):
            if isinstance(array, StageArray):
                if array.stage == stage:
                    shared[name] = array.value
                continue
            block = block_of(array, program.mesh, spec, self._place, engine)
            if m is None:
                shared[name] = block
            else:
                values[name, m] = block
        kept = [
            (name, array, [reader for reader in readers if reader != array.stage])
            for name, array, readers in program.kept_arguments(groups, lambda array: isinstance(array, StageArray))
        ]
        peers = [own[self._place] for own in self._ranks]
        messages = _Messages(self.backend, self._link, loaded, program, kept, stage, peers)
        for name, array, readers in kept:
            # What this stage keeps, and others read, too.
            for reader in readers if array.stage == stage else ():
                messages.send(reader, (name, -1), array.value)
        for name, array, readers in kept:
            if stage in readers:
                shared[name] = messages.receive((name, -1), array.stage)
        for name, array in shared.items():
            values.update(dict.fromkeys(((name, m) for m in range(program.count)), array))
        run = StepRun(loaded.steps, self.backend, values, program.kept(stage), messages.await_made, messages.send)
        for task in program.orders[stage]:
            run.do(task)
        self._link.finish()
        return program.outcomes(groups, self._results(program, loaded, run, stays), engine)

    def _results(self, program: StagedProgram, loaded: _Loaded, run: StepRun, stays: set[str]) -> dict[Key, Any]:
        """Return the results that stages keep as they are, and all others whole, on all processes."""
        computed: dict[Key, Any] = {}
        engine, link = self.backend.engine, self._link
        if loaded.described is None:
            loaded.described = [self._described(program, run, stage) for stage in range(len(self._ranks))]
        for stage, ranks in enumerate(self._ranks):
            names = dict.fromkeys(name for name, _ in program.kept(stage))
            for name in names:
                dtype, shape = loaded.described[stage][name]
                spec, count = program.spec(name), sum(key[0] == name for key in program.kept(stage))
                if name in stays:
                    value = run.values[name, 0] if stage == self._stage else None
                    computed[name, 0] = self._kept(value, dtype, shape, spec, stage)
                    continue
                parts: list[dict[int, Any]] = [{} for _ in range(count)]
                for place in holders(program.mesh, spec):
                    own = None
                    if link.rank == ranks[place]:
                        # All micro-batches at once, one behind another along an axis in front.
                        own = engine.joined([run.values[name, m].reshape(1, *shape) for m in range(count)], 0)
                    whole = link.broadcast(own, ranks[place], (count, *shape), dtype)
                    for m in range(count):
                        parts[m][place] = whole[m]
                computed |= {(name, m): joined(own, program.mesh, spec, engine) for m, own in enumerate(parts)}
        return computed

    def _described(self, program: StagedProgram, run: StepRun, stage: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of what a device of a stage has of its results, which its first process broadcasts."""
        source, described = self._ranks[stage][0], {}
        if stage == self._stage:
            described = {
                name: [str(self.backend.dtype(run.values[name, m])), list(run.values[name, m].shape)]
                for name, m in program.kept(stage)
            }
        text = np.frombuffer(json.dumps(described).encode(), np.uint8)
        size = self._broadcast(np.array([len(text)], np.int64), source, (1,), "int64")
        encoded = self._broadcast(text, source, (int(size[0]),), "uint8")
        return {name: (dtype, tuple(shape)) for name, (dtype, shape) in json.loads(bytes(encoded)).items()}

    def _broadcast(self, array: Any, source: int, shape: tuple[int, ...], dtype: str) -> Any:
        own = self.backend.tensor(array, dtype) if self._link.rank == source else None
        return self.backend.to_numpy(self._link.broadcast(own, source, shape, dtype))


class _Loaded:
    """A program as this process runs it.

    Attributes
    ----------
    described : list of dict, or None
        Of each stage dtypes and shapes of the results; known after the first call.
    known : dict
        Dtypes and shapes of messages between stages, which are sent with the first of each.
    """

    def __init__(self, module: Any, steps: DeviceSteps) -> None:
        self.module, self.steps = module, steps
        self.described: list[dict[str, tuple[str, tuple[int, ...]]]] | None = None
        self.known: dict[tuple[int, int, str], tuple[str, tuple[int, ...]]] = {}


class _Messages:
    """Arrays between stages in a call; a process receives them in the order in which another one sends them."""

    def __init__(
        self,
        backend: Any,
        link: StageLink,
        loaded: _Loaded,
        program: StagedProgram,
        kept: Sequence[tuple[str, StageArray, list[int]]],
        stage: int,
        peers: list[int],
    ) -> None:
        self._backend, self._link, self._known, self._keys = backend, link, loaded.known, loaded.steps.keys
        self._program, self._stage, self._peers = program, stage, peers
        self._came: dict[Key, Any] = {}
        self._coming: dict[int, deque[Key]] = {
            source: deque(self._order(source, kept)) for source in range(len(peers)) if source != stage
        }

    def _order(self, source: int, kept: Sequence[tuple[str, StageArray, list[int]]]) -> Iterator[Key]:
        """Yield what another stage sends to this one."""
        for name, array, readers in kept:
            if array.stage == source and self._stage in readers:
                yield name, -1
        program = self._program
        sends = program.sends(source)
        for i, m in program.orders[source]:
            for name in program.steps[i].makes:
                if self._stage in sends.get(name, ()):
                    yield from self._keys([name], m)

    def send(self, peer: int, key: Key, array: Any) -> None:
        """Send an array to another stage; the first time its dtype and shape before."""
        about = self._stage, peer, key[0]
        if about not in self._known:
            dtype, shape = str(self._backend.dtype(array)), tuple(array.shape)
            self._known[about] = dtype, shape
            tensor = self._backend.tensor
            self._link.send(self._peers[peer], tensor(np.array([_DTYPES.index(dtype), len(shape)], np.int64), "int64"))
            self._link.send(self._peers[peer], tensor(np.array(shape, np.int64), "int64"))
        self._link.send(self._peers[peer], array)

    def await_made(self, key: Key) -> Any:
        """Return an array that a step of another stage makes."""
        return self.receive(key, self._program.routes[key[0]][0])

    def receive(self, key: Key, source: int) -> Any:
        """Return an array of another stage."""
        coming = self._coming[source]
        while key not in self._came:
            came = coming.popleft()
            self._came[came] = self._next(came, source)
        return self._came.pop(key)

    def _next(self, key: Key, source: int) -> Any:
        about, peer = (source, self._stage, key[0]), self._peers[source]
        if about not in self._known:
            to_numpy = self._backend.to_numpy
            number, rank = (int(n) for n in to_numpy(self._link.receive(peer, (2,), "int64")))
            sizes = to_numpy(self._link.receive(peer, (rank,), "int64"))
            self._known[about] = _DTYPES[number], tuple(int(size) for size in sizes)
        dtype, shape = self._known[about]
        return self._link.receive(peer, shape, dtype)


def _block_shape(shape: Sequence[int], mesh: Mesh, spec: Spec) -> tuple[int, ...]:
    names = (*spec, *[()] * (len(shape) - len(spec)))
    return tuple(
        size // int(np.prod([mesh.axes[axis] for axis in axes], dtype=int))
        for size, axes in zip(shape, names, strict=True)
    )
