"""Arrays that lie on workers: each holds its part."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from .divided_array import DividedArray, Home
from .layout import Mesh
from .mesh_engine import Spec

if TYPE_CHECKING:
    from .stored import StoredArray
    from .workers import Workers

__all__ = ["RemoteArray", "is_remote"]


class RemoteArray(DividedArray):
    """An array of which each worker holds its part; it cannot be changed.

    Attributes
    ----------
    workers : Workers
        The workers.
    number : int
        By which they know it.
    """

    def __init__(
        self, workers: Workers, backend: Any, number: int, about: Any, mesh: Mesh, spec: Spec, home: Home | None = None
    ) -> None:
        dtype, shape = about
        super().__init__(backend, dtype, tuple(shape), mesh, spec, home)
        self.workers = workers
        self.number = number
        weakref.finalize(self, workers.drop, number)

    def full_tensor(self) -> Any:
        """Return the whole array, on this process."""
        return self.workers.whole(self)

    def like(self, array: Any) -> RemoteArray:
        """Return a whole array of the same shape that is kept as this one is."""
        return self.workers.keep(self.backend, array, self.mesh, self.spec, self.home)

    def zeros(self, dtype: str) -> RemoteArray:
        """Return zeros that are kept as this one is."""
        return self.workers.zeros_like(self, dtype)

    def read(self, array: StoredArray) -> RemoteArray:
        """Return an array of a checkpoint that is kept as this one is; each worker reads its part."""
        return self.workers.read(self.backend, array, self.mesh, self.spec, self.home)


def is_remote(array: Any) -> bool:
    """Whether an array lies on workers."""
    return isinstance(array, RemoteArray)
