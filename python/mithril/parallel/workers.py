"""Workers of this process: one for each device of a mesh on this machine, started when a model first needs them."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import BackendUnavailableError, MithrilError, ModelFileError, OutOfMemoryError
from .channel import Packed, receive, send
from .divided_array import Home
from .layout import Mesh
from .mesh_engine import Spec
from .pieces import holders, index_of, places
from .processes import TIMEOUT, time_limit
from .remote import RemoteArray
from .sections import arranged, encoded, restored
from .stored import StoredArray

__all__ = ["MOST", "WorkerFailure", "Workers", "workers_on"]

#: The largest number of workers of a machine.
MOST = 64
#: Seconds in which others may fail of the same cause; seconds until workers are ready, if that is more than the limit.
_ECHO, _START = 2.0, 60.0
#: A message to a worker that an array does not concern.
_NOTHING: tuple[dict[str, Any], list[Packed]] = ({"do": "keep", "numbers": []}, [])
_BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from mithril.parallel.worker import main; main()"

_all: dict[tuple[str, tuple[str, ...], str, tuple[int, ...]], Workers] = {}
_lock = threading.RLock()


def workers_on(backend: str, devices: Sequence[str], kind: str = "mesh", stages: Sequence[int] = ()) -> Workers:
    """Return the workers of a backend on these devices; started at the first call, and again if they have ended.

    They run the programs of a mesh in step (``"mesh"``), or the steps of a pipeline (``"steps"``), of which each device
    has a stage; ``stages`` says which, if several have one.
    """
    key = (backend, tuple(devices), kind, tuple(stages))
    with _lock:
        workers = _all.get(key)
        if workers is None or not workers.is_alive or workers.process != os.getpid():
            workers = _all[key] = Workers(*key)
        return workers


class WorkerFailure(Exception):
    """What a worker says of an error in generated code.

    Attributes
    ----------
    rank : int
        Number of the worker.
    about : dict
        Kind, message, traceback, lines of the generated program.
    """

    def __init__(self, rank: int, device: str, about: dict[str, Any]) -> None:
        super().__init__(about["message"])
        self.rank = rank
        self.device = device
        self.about = about

    def __str__(self) -> str:
        return f"{self.about['message']} (on device {self.rank}, {self.device})"

    def error(self) -> MithrilError:
        """Return an error of ours with the traceback of the worker."""
        kind = OutOfMemoryError if self.about["is_memory"] else BackendUnavailableError
        traceback = "\n".join(f"  | {line}" for line in self.about["traceback"].rstrip().splitlines())
        message = f"device {self.rank} ({self.device}) raised {self.about['kind']}: {self.about['message']}"
        hint = self.about["hint"] or "see its traceback; the workers were ended, and start again at the next call"
        return kind(f"error[{kind.code}]: {message}\n{traceback}\n  help: {hint}", message=message, hint=hint)


class Workers:
    """Processes with one device each, which run programs in step.

    Each has a pair of sockets that nobody else can reach; it ends when this process does.

    Parameters
    ----------
    backend : str
        Name of the backend.
    devices : tuple of str
        Device of each worker.
    kind : str
        ``"mesh"`` or ``"steps"``.
    stages : tuple of int
        Stage of each worker, if several have one.
    """

    def __init__(self, backend: str, devices: tuple[str, ...], kind: str, stages: tuple[int, ...] = ()) -> None:
        self.devices = devices
        self.is_alive = True
        self.process = os.getpid()
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._dropped: deque[int] = deque()
        self._is_ready = False
        #: Programs that the workers have.
        self.programs: dict[object, int] = {}
        self._control: list[socket.socket] = []
        self._alive: list[socket.socket] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._beats = [time.monotonic()] * len(devices)
        self._folder = tempfile.mkdtemp(prefix="mithril-workers-")
        atexit.register(self.close)
        try:
            self._start(backend, kind, stages)
        except BaseException:
            self.close()
            raise

    # --- processes --------------------------------------------------------------------------------------------

    def _start(self, backend: str, kind: str, stages: tuple[int, ...]) -> None:
        count = len(self.devices)
        ends: list[dict[str, socket.socket]] = [{} for _ in range(count)]
        for rank in range(count):
            for name, kept in (("control", self._control), ("alive", self._alive)):
                own, ends[rank][name] = socket.socketpair()
                kept.append(own)
            for other in range(rank):
                ends[rank][str(other)], ends[other][str(rank)] = socket.socketpair()
        threads = str(max(1, (os.cpu_count() or 1) // count))
        loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform, "lo")
        environment = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": loopback, **os.environ}
        for rank, channels in enumerate(ends):
            settings = {
                "rank": rank,
                "count": count,
                "backend": backend,
                "kind": kind,
                "stages": stages,
                "device": self.devices[rank],
                "folder": self._folder,
                "beat": min(1.0, time_limit() / 4),
                "channels": {name: channel.fileno() for name, channel in channels.items()},
            }
            # A session of its own: an interrupt from the keyboard is for the process that the user started.
            process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, json.dumps([p for p in sys.path if p] or [""]), json.dumps(settings)],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[channel.fileno() for channel in channels.values()],
                start_new_session=True,
            )
            self._processes.append(process)
        for channels in ends:
            for channel in channels.values():
                channel.close()

    def close(self) -> None:
        """End the workers."""
        if self.process != os.getpid():
            # A copy of the process that started them: they are not its own.
            return
        self.is_alive = False
        for process in self._processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()
        for channel in (*self._control, *self._alive):
            channel.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        atexit.unregister(self.close)

    # --- arrays -----------------------------------------------------------------------------------------------

    def number(self) -> int:
        """Return a number for a new array or program."""
        return next(self._numbers)

    def drop(self, number: int) -> None:
        """Forget an array, at the next call."""
        self._dropped.append(number)

    def keep(self, backend: Any, array: Any, mesh: Mesh, spec: Spec, home: Home | None = None) -> RemoteArray:
        """Return an array of which each worker holds its part, or each of the stage that is its home."""
        number, about = self.number(), None
        messages: list[Any] = [_NOTHING] * len(self.devices)
        ranks = range(mesh.devices) if home is None else home[0].ranks(home[1])
        for rank, block in zip(ranks, blocks(array, mesh, spec, backend.engine), strict=True):
            about = about or (block.dtype, block.shape)
            messages[rank] = ({"do": "keep", "numbers": [number]}, [block])
        self.call(messages)
        return RemoteArray(self, backend, number, about, mesh, spec, home)

    def zeros_like(self, array: RemoteArray, dtype: str) -> RemoteArray:
        """Return zeros that lie as another array does."""
        number = self.number()
        shape = array.block_shape
        messages: list[Any] = [_NOTHING] * len(self.devices)
        for rank in array.ranks:
            messages[rank] = ({"do": "zeros", "number": number, "shape": shape, "dtype": dtype}, [])
        self.call(messages)
        return RemoteArray(self, array.backend, number, (dtype, shape), array.mesh, array.spec, array.home)

    def read(self, backend: Any, array: StoredArray, mesh: Mesh, spec: Spec, home: Home | None = None) -> RemoteArray:
        """Return an array of a checkpoint, of which each worker, or each of its home stage, reads its part."""
        number = self.number()
        message = {"do": "read", "number": number, "array": array.encoded()}
        message |= {"mesh": [*mesh.axes.items()], "spec": encoded(spec)}
        messages: list[Any] = [_NOTHING] * len(self.devices)
        ranks = list(range(mesh.devices)) if home is None else home[0].ranks(home[1])
        for place, rank in enumerate(ranks):
            messages[rank] = ({**message, "place": place}, [])
        shape = self.ask(messages)[ranks[0]]["shape"]
        return RemoteArray(self, backend, number, (array.dtype, shape), mesh, spec, home)

    def whole(self, array: RemoteArray) -> Any:
        """Return all of an array."""
        places = {array.ranks[place]: place for place in holders(array.mesh, array.spec)}
        messages: list[Any] = [
            ({"do": "fetch", "numbers": [array.number] if rank in places else []}, [])
            for rank in range(len(self.devices))
        ]
        engine, replies = array.backend.engine, self.call(messages)
        parts = {place: engine.unpacked(replies[rank][1][0]) for rank, place in places.items()}
        return joined(parts, array.mesh, array.spec, engine)

    # --- calls ------------------------------------------------------------------------------------------------

    def call(
        self, messages: Sequence[tuple[dict[str, Any], Sequence[Packed]]]
    ) -> list[tuple[dict[str, Any], list[Packed]]]:
        """Send each worker a message, and return what they answer.

        Raises
        ------
        WorkerFailure
            If one of them raised; all are ended then.
        BackendUnavailableError
            If one of them has ended, or does not answer within the limit of time.
        """
        with self._lock, _deferred_interrupt():
            if not self.is_alive or self.process != os.getpid():
                raise BackendUnavailableError(
                    "the workers that hold this array have ended",
                    hint="start again from whole arrays, such as those of a checkpoint",
                )
            try:
                if not self._is_ready:
                    self._collect(max(time_limit(), _START))
                    self._is_ready = True
                limit = time_limit()
                dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
                for rank, (head, arrays) in enumerate(messages):
                    self._control[rank].settimeout(limit)
                    try:
                        send(self._control[rank], {**head, "dropped": dropped}, arrays)
                    except TimeoutError:
                        self._hung(rank, limit)
                    except OSError:
                        # It has ended; what it said before is read below.
                        continue
                return self._collect(limit)
            except BaseException:
                # They are no longer in step.
                self.close()
                raise

    def ask(self, messages: Sequence[tuple[dict[str, Any], Sequence[Packed]]]) -> list[dict[str, Any]]:
        """Send each worker a message about files; return what they answer.

        Raises
        ------
        ModelFileError
            If one of them could not read or write; all go on.
        """
        replies = [head for head, _ in self.call(messages)]
        for rank, reply in enumerate(replies):
            if "refused" in reply:
                message, code, hint = reply["refused"]
                raise ModelFileError(f"device {rank} ({self.devices[rank]}): {message}", code=code, hint=hint)
        return replies

    def _collect(self, limit: float) -> list[tuple[dict[str, Any], list[Packed]]]:
        """Return the answers of all; the last ones have to come within the limit after the first."""
        replies: dict[int, tuple[dict[str, Any], list[Packed]]] = {}
        failed: dict[int, dict[str, Any]] = {}
        gone: list[int] = []
        until = math.inf
        self._beats = [time.monotonic()] * len(self.devices)
        waiting = set(range(len(self.devices)))
        while waiting:
            channels = {self._control[rank]: rank for rank in waiting}
            ready, _, _ = select.select(list(channels), [], [], 0.1 if failed or gone else 0.5)
            for channel in ready:
                rank = channels[channel]
                channel.settimeout(limit)
                try:
                    head, arrays = receive(channel)
                except (EOFError, ConnectionError):
                    gone.append(rank)
                except TimeoutError:
                    self._hung(rank, limit)
                else:
                    if "error" in head:
                        failed[rank] = head["error"]
                    else:
                        replies[rank] = head, arrays
                waiting.discard(rank)
            now = time.monotonic()
            if failed or gone:
                until = min(until, now + min(_ECHO, limit))
            elif replies:
                until = min(until, now + limit)
            self._listen()
            for rank in waiting:
                if now > until and not (failed or gone):
                    self._hung(rank, limit)
                if now - self._beats[rank] > limit and not gone:
                    self._hung(rank, limit)
            if now > until:
                break
        self._raise(failed, gone)
        return [replies[rank] for rank in range(len(self.devices))]

    def _listen(self) -> None:
        for rank, channel in enumerate(self._alive):
            with contextlib.suppress(OSError):
                if channel.recv(1 << 16, socket.MSG_DONTWAIT):
                    self._beats[rank] = time.monotonic()

    def _raise(self, failed: dict[int, dict[str, Any]], gone: list[int]) -> None:
        """Raise what went wrong first: others fail since a peer is missing."""
        causes = {
            rank: about for rank, about in failed.items() if "another process of the mesh" not in about["message"]
        }
        if causes:
            rank = min(causes)
            raise WorkerFailure(rank, self.devices[rank], causes[rank])
        if gone:
            rank = gone[0]
            code = self._processes[rank].wait(timeout=10)
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has ended with exit code {code}"
            raise BackendUnavailableError(
                f"the worker of device {rank} ({self.devices[rank]}) {how}",
                hint="SIGKILL may come from the system, where memory runs out; the next call starts new workers",
            )
        if failed:
            rank = min(failed)
            raise WorkerFailure(rank, self.devices[rank], failed[rank])

    def _hung(self, rank: int, limit: float) -> None:
        raise BackendUnavailableError(
            f"the worker of device {rank} ({self.devices[rank]}) does not answer within {limit:g} s",
            hint=f"{TIMEOUT} says how many seconds workers are waited for; the next call starts new ones",
        )


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Let an interrupt wait until the workers have answered, so that they stay in step; a second one does not."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[int] = []

    def note(number: int, frame: Any) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if came:
        signal.raise_signal(signal.SIGINT)


def blocks(array: Any, mesh: Mesh, spec: Spec, engine: Any, pack: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    """Yield the part of each device, packed; equal parts are packed once."""
    array = arranged(array, spec, mesh, engine.taken)
    made: dict[Any, Any] = {}
    pack = pack or engine.packed
    for rank in range(mesh.devices):
        key, block = _cut(array, mesh, spec, rank)
        if key not in made:
            made[key] = pack(block)
        yield made[key]


def block_of(array: Any, mesh: Mesh, spec: Spec, rank: int, engine: Any) -> Any:
    """Return the part of a device."""
    return _cut(arranged(array, spec, mesh, engine.taken), mesh, spec, rank)[1]


def _cut(array: Any, mesh: Mesh, spec: Spec, rank: int) -> tuple[Any, Any]:
    """Return which part of an array, whose order is that of the devices, a device has; and that part."""
    place = places(mesh, rank)
    key = tuple(index_of(mesh, names, place) for names in spec)
    slices = tuple(
        slice(index * (size // count), (index + 1) * (size // count))
        for (index, count), size in zip(key, array.shape, strict=False)
    )
    return key, array[slices] if any(count > 1 for _, count in key) else array


def joined(parts: dict[int, Any], mesh: Mesh, spec: Spec, engine: Any) -> Any:
    """Return the whole array of the parts of devices."""
    blocks = {
        tuple(index_of(mesh, names, places(mesh, rank))[0] for names in spec): part for rank, part in parts.items()
    }
    for axis in reversed(range(len(spec))):
        rows: dict[Any, list[Any]] = {}
        for key in sorted(blocks):
            rows.setdefault(key[:axis], []).append(blocks[key])
        blocks = {key: row[0] if len(row) == 1 else engine.joined(row, axis) for key, row in rows.items()}
    return restored(blocks[()], spec, mesh, engine.taken)
