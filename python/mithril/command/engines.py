"""What each engine of several processes needs in their environment; all of it on this machine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ..errors import BackendUnavailableError
from ..optional_packages import install, is_installed

__all__ = ["ENGINES", "Rank", "free_ports"]

_LOOPBACK = "127.0.0.1"


class Lane(NamedTuple):
    """Where a process that something else starts writes to: two named pipes."""

    name: str
    prefix: str
    output: Path
    errors: Path

    def release(self) -> None:
        """Let those end who wait for a writer that never came."""
        for path in (self.output, self.errors):
            with suppress(OSError):
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


class Rank(NamedTuple):
    """A process to start.

    Attributes
    ----------
    name : str
        What it is called in messages.
    prefix : str
        What its lines begin with.
    lanes : tuple of Lane
        Output of further processes that it starts.
    """

    name: str
    prefix: str
    command: list[str]
    environment: dict[str, str]
    lanes: tuple[Lane, ...] = ()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens at."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((_LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _ranks(command: list[str], settings: Sequence[Mapping[str, str]]) -> list[Rank]:
    count = len(settings)
    # Threads of all processes share the cores.
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    # Lines come when they are printed; what the user has set stays.
    common = {"PYTHONUNBUFFERED": "1", **threads, **os.environ}
    width = len(str(count - 1))
    return [Rank(f"rank {i}", f"[{i:{width}}] ", command, {**common, **setting}) for i, setting in enumerate(settings)]


def _need(module: str, engine: str, extra: str) -> None:
    if not is_installed(module):
        raise BackendUnavailableError(f"--engine {engine} needs {module}, which is not installed", hint=install(extra))


@contextmanager
def _torch(count: int, command: list[str]) -> Iterator[list[Rank]]:
    """Set the variables of `torchrun`."""
    _need("torch", "torch", "torch")
    [port] = free_ports(1)
    same = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": _LOOPBACK,
        "MASTER_PORT": str(port),
    }
    yield _ranks(command, [{**same, "RANK": str(i), "LOCAL_RANK": str(i)} for i in range(count)])


@contextmanager
def _jax(count: int, command: list[str]) -> Iterator[list[Rank]]:
    """Say where the processes of `jax.distributed` meet; `JaxBackend` connects them."""
    _need("jax", "jax", "jax")
    [port] = free_ports(1)
    same = {"JAX_COORDINATOR_ADDRESS": f"{_LOOPBACK}:{port}", "JAX_NUM_PROCESSES": str(count)}
    settings = [{**same, "JAX_PROCESS_ID": str(i)} for i in range(count)]
    yield _ranks(command, settings)


@contextmanager
def _mlx(count: int, command: list[str]) -> Iterator[list[Rank]]:
    """Write the file of hosts of MLX's ring."""
    _need("mlx", "mlx", "mlx")
    with tempfile.TemporaryDirectory(prefix="mithril-launch-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps([[f"{_LOOPBACK}:{port}"] for port in free_ports(count)]))
        yield _ranks(command, [{"MLX_HOSTFILE": str(hosts), "MLX_RANK": str(i)} for i in range(count)])


@contextmanager
def _mpi(count: int, command: list[str]) -> Iterator[list[Rank]]:
    """Use ``mpiexec``, which starts the processes itself; the one beside this Python comes first."""
    _need("mpi4py", "mpi", "mpi")
    beside = Path(sys.executable).parent / "mpiexec"
    path = str(beside) if beside.is_file() else shutil.which("mpiexec")
    if path is None:
        raise BackendUnavailableError("--engine mpi needs mpiexec, which is not installed", hint=install("mpi"))
    with tempfile.TemporaryDirectory(prefix="mithril-launch-") as folder:
        lanes = []
        for i in range(count):
            lane = Lane(
                f"rank {i}", f"[{i:{len(str(count - 1))}}] ", *(Path(folder) / f"{n}.{i}" for n in ("out", "err"))
            )
            os.mkfifo(lane.output)
            os.mkfifo(lane.errors)
            lanes.append(lane)
        [rank] = _ranks([path, "-n", str(count), sys.executable, "-c", _REDIRECT, folder, *command], [{}])
        threads = max(1, (os.cpu_count() or 1) // count)
        environment = {**rank.environment, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
        # Open MPI starts no more processes than there are cores otherwise.
        environment = {
            "OMPI_MCA_rmaps_base_oversubscribe": "1",
            "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            **environment,
        }
        yield [Rank("mpiexec", "", rank.command, environment, tuple(lanes))]


#: What runs in the place of each process of MPI until its output goes to a pipe of its own.
_REDIRECT = """
import os, sys
number = next(os.environ[n] for n in ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK") if n in os.environ)
for stream, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(os.path.join(sys.argv[1], name + "." + number), os.O_WRONLY), stream)
os.execv(sys.argv[2], sys.argv[2:])
"""

#: Engine -> what makes the processes for a number of them and a command.
ENGINES: dict[str, Callable[[int, list[str]], AbstractContextManager[list[Rank]]]] = {
    "torch": _torch,
    "jax": _jax,
    "mlx": _mlx,
    "mpi": _mpi,
}
