"""Arrays of which this process has no part, or only its own: devices keep them from one call to the next."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .array_pipeline import ArrayPipeline
from .layout import ArrayLayout, Mesh
from .mesh_engine import Spec
from .pieces import Piece, pieces
from .sections import same

if TYPE_CHECKING:
    from .pipeline import Pipeline
    from .stored import StoredArray

__all__ = ["DividedArray", "Home", "is_divided", "layout_of", "local"]

#: A pipeline, and the number of one of its stages.
Home: TypeAlias = "tuple[Pipeline, int]"


class DividedArray:
    """An array of which each device keeps its part; it cannot be changed.

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
        The devices that have it.
    spec : Spec
        For each axis the axes of the mesh that divide it.
    home : tuple of Pipeline and int, or None
        The stage of a pipeline that has it, if all devices are not of one mesh.
    ranks : list of int
        Numbers of the devices of the mesh among all.
    """

    requires_grad = False

    def __init__(
        self, backend: Any, dtype: str, block: tuple[int, ...], mesh: Mesh, spec: Spec, home: Home | None = None
    ) -> None:
        self.backend = backend
        self.mesh = mesh
        self.home = home
        self.ranks = list(range(mesh.devices)) if home is None else home[0].ranks(home[1])
        self.spec = (*spec, *[()] * (len(block) - len(spec)))
        sizes = mesh.axes
        parts = [_product(sizes[name] for name in names) for names in self.spec]
        self.shape = tuple(size * count for size, count in zip(block, parts, strict=True))
        self.dtype = backend.engine.native_dtype(dtype)
        #: Sizes of the part of a device.
        self.block_shape = block

    @property
    def device(self) -> Any:
        """Device of the backend."""
        return getattr(self.backend, "_device", self.backend.device)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def pieces(self) -> list[Piece]:
        """Return the pieces of the array, and which devices hold each."""
        return [
            Piece(piece.start, piece.shape, piece.offset, tuple(self.ranks[place] for place in piece.holders))
            for piece in pieces(self.shape, self.mesh, self.spec)
        ]

    def is_on(self, pipeline: Pipeline, spec: Spec | None) -> bool:
        """Whether a stage of a pipeline on the same devices keeps it, divided so."""
        if self.home is None or spec is None:
            return False
        own = self.home[0]
        return (own.grid, own.axis, self.mesh) == (pipeline.grid, pipeline.axis, pipeline.inner_mesh) and same(
            self.spec, spec
        )

    def full_tensor(self) -> Any:
        """Return the whole array, on this process."""
        raise NotImplementedError

    def like(self, array: Any) -> DividedArray:
        """Return a whole array of the same shape that is kept as this one is."""
        raise NotImplementedError

    def zeros(self, dtype: str) -> DividedArray:
        """Return zeros that are kept as this one is."""
        raise NotImplementedError

    def read(self, array: StoredArray) -> DividedArray:
        """Return an array of a checkpoint that is kept as this one is; each device reads its part."""
        raise NotImplementedError

    def detach(self) -> DividedArray:
        """Return the array: it takes part in no gradients of the framework."""
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.backend.to_numpy(self.full_tensor())
        return array if dtype is None else array.astype(dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name.endswith("_"):
            # What changes an array in place would change a copy.
            raise AttributeError(f"an array in parts has no attribute {name!r}; `full_tensor()` returns a whole one")
        return getattr(self.full_tensor(), name)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*map(_whole, args), **{name: _whole(value) for name, value in (kwargs or {}).items()})

    def __repr__(self) -> str:
        where = self.mesh if self.home is None else f"stage {self.home[1]} of {self.home[0].stage_count}"
        return f"{type(self).__name__}(shape={list(self.shape)}, {self.dtype}, on {where})"

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
    if isinstance(value, DividedArray):
        return value.full_tensor()
    return type(value)(map(_whole, value)) if type(value) in (list, tuple) else value


def _operator(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)
    return lambda self, *others: function(self.full_tensor(), *map(_whole, others))


def _reversed(name: str) -> Callable[..., Any]:
    function = getattr(operator, name)
    return lambda self, other: function(_whole(other), self.full_tensor())


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(DividedArray, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(DividedArray, f"__r{_name}__", _reversed(f"__{_name}__"))
for _name in ("neg", "abs", "getitem", "lt", "le", "gt", "ge"):
    setattr(DividedArray, f"__{_name}__", _operator(f"__{_name}__"))


def _product(sizes: Any) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def layout_of(arrays: Mapping[str, Any]) -> ArrayLayout | None:
    """Return how devices keep arrays; None if they keep none of them."""
    divided = {name: array for name, array in arrays.items() if isinstance(array, DividedArray)}
    if not divided:
        return None
    first = next(iter(divided.values()))
    alike = {name: array for name, array in divided.items() if array.mesh == first.mesh}
    specs = {name: array.spec for name, array in alike.items()}
    if first.home is None:
        return ArrayLayout(first.mesh, specs)
    stages = {name: array.home[1] for name, array in alike.items() if array.home is not None}
    return ArrayPipeline(first.home[0], stages, specs)


def is_divided(array: Any) -> bool:
    """Whether devices keep an array."""
    return isinstance(array, DividedArray)


def local(array: Any) -> Any:
    """Return an array of this process; one of devices that are gone is an error."""
    return array.full_tensor() if isinstance(array, DividedArray) else array
