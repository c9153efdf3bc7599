"""Arrays that lie on workers: each holds its part."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .layout import Layout, Mesh
from .mesh_engine import Spec

if TYPE_CHECKING:
    from .workers import Workers

__all__ = ["RemoteArray", "remote_layout"]


class RemoteArray:
    """An array of which each worker holds its part; it cannot be changed.

    Operators and functions gather it and compute on this process; `full_tensor` returns all of it.

    Attributes
    ----------
    backend : Backend
        Whose array it is.
    shape : tuple of int
        Of the whole array.
    dtype : object
        Dtype of the framework.
    mesh : Mesh
        The devices.
    spec : Spec
        For each axis the axes of the mesh that divide it.
    """

    requires_grad = False

    def __init__(self, workers: Workers, backend: Any, number: int, about: Any, mesh: Mesh, spec: Spec) -> None:
        dtype, shape = about
        self.workers = workers
        self.backend = backend
        self.number = number
        self.mesh = mesh
        self.spec = (*spec, *[()] * (len(shape) - len(spec)))
        sizes = mesh.axes
        parts = [_product(sizes[name] for name in names) for names in self.spec]
        self.shape = tuple(size * count for size, count in zip(shape, parts, strict=True))
        self.dtype = backend.engine.native_dtype(dtype)
        weakref.finalize(self, workers.drop, number)

    @property
    def device(self) -> Any:
        """Device of the backend."""
        return getattr(self.backend, "_device", self.backend.device)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def full_tensor(self) -> Any:
        """Return the whole array, on this process."""
        return self.workers.whole(self)

    def detach(self) -> RemoteArray:
        """Return the array: it takes part in no gradients of the framework."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.backend.to_numpy(self.full_tensor())
        return array if dtype is None else array.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name.endswith("_"):
            # What changes an array in place would change a copy.
            raise AttributeError(f"an array on workers has no attribute {name!r}; `full_tensor()` returns a whole one")
        return getattr(self.full_tensor(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(_whole, args), **{name: _whole(value) for name, value in (kwargs or {}).items()})

    def __repr__(self) -> str:
        return f"RemoteArray(shape={list(self.shape)}, {self.dtype}, on {self.mesh})"

    def __len__(self) -> int:
        return len(self.full_tensor())

    def __bool__(self) -> bool:
        return bool(self.full_tensor())

    def __float__(self) -> float:
        return float(self.full_tensor())

    def __reduce__(self) -> Any:
        # A copy elsewhere is a whole array.
        return _itself, (self.full_tensor(),)


def _itself(array: Any) -> Any:
    return array


def _whole(value: Any) -> Any:
    if isinstance(value, RemoteArray):
        return value.full_tensor()
    return type(value)(map(_whole, value)) if type(value) in (list, tuple) else value


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)
    return lambda self, *others: function(self.full_tensor(), *map(_whole, others))


def _reversed(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)
    return lambda self, other: function(_whole(other), self.full_tensor())


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(RemoteArray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(RemoteArray, f"__r{_name}__", _reversed(f"__{_name}__"))
for _name in ("neg", "abs", "getitem", "lt", "le", "gt", "ge"):
    setattr(RemoteArray, f"__{_name}__", _operator(f"__{_name}__"))


def _product(sizes: Any) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def remote_layout(arrays: Mapping[str, Any]) -> Layout | None:
    """Return how arrays are divided among workers; None if none of them lies there."""
    remote = {name: array for name, array in arrays.items() if isinstance(array, RemoteArray)}
    if not remote:
        return None
    mesh = next(iter(remote.values())).mesh
    return Layout(mesh, {name: array.spec for name, array in remote.items() if array.mesh == mesh})
