"""Runs the programs of a mesh on workers of this process, which behaves as if it had all of their devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError, InvalidValueError, MithrilError, UnsupportedOpError
from .divided_array import local
from .layout import Layout
from .mesh_engine import Division, MeshEngine, Spec, selected, staying
from .pieces import holders
from .remote import RemoteArray, is_remote
from .sections import encoded, same
from .stored import StoredArray
from .workers import MOST, WorkerFailure, Workers, blocks, joined, workers_on

if TYPE_CHECKING:
    from .. import _core

__all__ = ["WorkerEngine", "WorkerProgram"]


class WorkerEngine(MeshEngine):
    """Hands generated code and arrays to workers; whole arrays come in, and come back.

    Parameters
    ----------
    backend : Backend
        Whose arrays they are.
    layout : Layout
        How tensors are divided.
    devices : list of str
        Device of each worker.
    """

    def __init__(self, backend: Any, layout: Layout, devices: list[str]) -> None:
        super().__init__(backend, layout)
        count = layout.mesh.devices
        if count != len(devices):
            raise BackendUnavailableError(
                f"{layout.mesh!r} has {count} devices, and {backend.name} was given {len(devices)}",
                hint=f"make the mesh as large, or give as many: devices=[{devices[0]!r}] * {count}",
            )
        if count > MOST:
            raise BackendUnavailableError(
                f"{layout.mesh!r} has {count} devices, and at most {MOST} workers are started on a machine",
                hint="start the script in as many processes, on several machines: torchrun or mpirun",
            )
        if backend.engine.overrides:
            raise UnsupportedOpError(
                f"{type(backend).__name__} defines ops, which workers do not have",
                hint=f"let each process run the script: mithril launch -n {count} script.py",
            )
        self.devices = devices

    @property
    def workers(self) -> Workers:
        """The workers; started if there are none."""
        return workers_on(self.backend.name, self.devices)

    def module(self, source: _core.Source, name: str) -> Any:
        """Return the program as it will be handed over."""
        if "host_call(" in source.text:
            raise UnsupportedOpError(
                "the model calls Python functions (ml.Lambda, or ops that run on the host), which workers do not have",
                hint=f"let each process run the script: mithril launch -n {self.layout.mesh.devices} script.py",
            )
        return WorkerProgram(source, name)

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all workers."""
        # Processes start while the model is still being compiled.
        assert self.workers is not None

        def call(*groups: Any) -> Any:
            try:
                return self._run(module, division, groups)
            except WorkerFailure as failure:
                raise module.explained(failure) from None

        return call

    def distribute(self, array: Any, spec: Spec) -> Any:
        """Return an array of which each worker keeps its part."""
        if isinstance(array, RemoteArray) and array.workers is self.workers and _fits(array, self.layout, spec):
            return array
        if isinstance(array, StoredArray):
            return self.workers.read(self.backend, array, self.layout.mesh, spec)
        return self.workers.keep(self.backend, local(array), self.layout.mesh, spec)

    def _run(self, module: WorkerProgram, division: Division, groups: Any) -> Any:
        workers, mesh, engine = self.workers, self.layout.mesh, self.backend.engine
        axes = list(mesh.axes.items())
        program = workers.programs.get(module)
        if program is None:
            program = workers.programs[module] = workers.number()
            constants = module.source.constants()
            message = {
                "do": "load",
                "program": program,
                "text": module.source.text,
                "name": module.name,
                "mesh": axes,
                "constants": list(constants),
            }
            packed = [engine.packed(engine.constant(value)) for value in constants.values()]
            workers.call([(message, packed)] * mesh.devices)
        arguments, arrays = self._arguments(workers, division, groups)
        kept_as, senders = self._destinations(workers, division, groups)
        messages = []
        for rank in range(mesh.devices):
            asked = [
                {name: number if number is not None or rank in senders[i][name] else -1 for name, number in g.items()}
                for i, g in enumerate(kept_as)
            ]
            head = {"do": "run", "program": program, "arguments": arguments, "results": asked}
            messages.append((head, arrays[rank]))
        numbers = [number for group in kept_as for number in group.values() if number is not None]
        try:
            replies = workers.call(messages)
        except KeyboardInterrupt:
            for number in numbers:
                workers.drop(number)
            raise
        kept: dict[str, Any] = replies[0][0]["kept"]
        rest = [iter(arrays) for _, arrays in replies]
        outcomes = []
        for i, (group, specs) in enumerate(zip(kept_as, division.results, strict=True)):
            results: dict[str, Any] = {}
            for name, kept_number in group.items():
                if kept_number is None:
                    parts = {rank: engine.unpacked(next(rest[rank])) for rank in senders[i][name]}
                    results[name] = joined(parts, mesh, specs[name], engine)
                else:
                    results[name] = RemoteArray(
                        workers, self.backend, kept_number, kept[str(kept_number)], mesh, specs[name]
                    )
            outcomes.append(results)
        return outcomes[0] if len(outcomes) == 1 else tuple(outcomes)

    def _arguments(self, workers: Workers, division: Division, groups: Any) -> tuple[list[Any], list[list[Any]]]:
        """Return the arguments of each group by name, as numbers of arrays of the message or as what workers hold."""
        mesh, engine = self.layout.mesh, self.backend.engine
        arrays: list[list[Any]] = [[] for _ in range(mesh.devices)]
        arguments: list[Any] = []
        for group, specs in zip(groups, division.arguments, strict=True):
            entries: dict[str, Any] = {}
            for name, value in selected(group, specs).items():
                if isinstance(value, RemoteArray) and value.workers is workers:
                    entries[name] = {"held": value.number}
                    if not _fits(value, self.layout, specs[name]):
                        held, own = ([*where.axes.items()] for where in (value.mesh, mesh))
                        entries[name] |= {"from": encoded(value.spec), "mesh": held}
                        entries[name] |= {"to": encoded(specs[name]), "own": own}
                    continue
                entries[name] = len(arrays[0])
                for rank, block in enumerate(blocks(local(value), mesh, specs[name], engine)):
                    arrays[rank].append(block)
            arguments.append(entries)
        return arguments, arrays

    def _destinations(
        self, workers: Workers, division: Division, groups: Any
    ) -> tuple[list[dict[str, int | None]], list[dict[str, list[int]]]]:
        """Return for each result the number under which workers keep it, or None; and who sends its parts."""
        numbers: list[dict[str, int | None]] = []
        senders: list[dict[str, list[int]]] = []
        for specs, stays in zip(division.results, staying(division, groups, is_remote), strict=True):
            numbers.append({name: workers.number() if name in stays else None for name in specs})
            senders.append({name: [] if name in stays else holders(self.layout.mesh, specs[name]) for name in specs})
        return numbers, senders


class WorkerProgram:
    """A program as workers are given it, in the place of a loaded module."""

    def __init__(self, source: _core.Source, name: str) -> None:
        self.source = source
        self.name = name

    def explained(self, failure: WorkerFailure) -> MithrilError:
        """Return an error of ours that names the place in the model, if the worker was computing there."""
        for line in reversed(failure.about["lines"]):
            origin = self.source.origin(line)
            if origin is not None and not failure.about["is_memory"]:
                op, path, where = origin
                place = f" in `{path}`" if path else ""
                message = f"{op} failed{place}: {failure}"
                error = failure.error()
                text = f"error[M0504]: {message}" + (f"\n  at {where}" if where else "")
                if "another process of the mesh" in failure.about["message"]:
                    return error
                return InvalidValueError(text, code="M0504", message=message, path=path, where=where)
        return failure.error()

    def explain(self, error: BaseException) -> None:
        """Errors of workers say by themselves where they come from."""
        return


def _fits(array: RemoteArray, layout: Layout, spec: Spec) -> bool:
    return array.mesh == layout.mesh and same(array.spec, spec)
