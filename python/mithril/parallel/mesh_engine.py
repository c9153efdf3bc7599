"""What runs the programs of a mesh of devices; each backend that can has one beside its engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError
from .layout import ArrayLayout
from .sections import Sections, same
from .stored import StoredArray

if TYPE_CHECKING:
    from .. import _core
    from .layout import Layout

__all__ = ["Division", "MeshEngine", "Spec", "placed_axes", "selected", "staying"]

#: For each axis of a tensor the axes of the mesh that divide it, the outermost first.
Spec = tuple[tuple[str, ...], ...]


class Division:
    """How the arguments and results of a program are divided.

    Attributes
    ----------
    arguments : tuple of dict of str to Spec
        Parameters, data, states, and for gradients cotangents.
    results : tuple of dict of str to Spec
        Outputs; for gradients those too; the new states, where there are any.
    """

    def __init__(self, program: _core.Partitioned, layout: Layout) -> None:
        axes = tuple(layout.mesh.axes)
        groups: dict[str, dict[str, Spec]] = {"param": {}, "data": {}, "state": {}, "cotangent": {}}
        for name, role, _, shape, placed in program.inputs():
            groups[role][name] = placed_axes(axes, placed, len(shape))
        arguments = list(groups.values())
        outputs: dict[str, Spec] = {}
        gradients: dict[str, Spec] = {}
        for name, placed in program.outputs():
            kind, _, source = name.partition(":")
            is_gradient = bool(groups["cotangent"]) and kind == "gradient"
            (gradients if is_gradient else outputs)[source if is_gradient else name] = placed_axes(axes, placed)
        states = {name: placed_axes(axes, placed) for name, placed in program.states()}
        self.arguments = tuple(arguments if groups["cotangent"] else arguments[:3])
        self.results = (outputs, *([gradients] if groups["cotangent"] else []), *([states] if states else []))
        if isinstance(layout, ArrayLayout):
            self._follow(layout)

    def _follow(self, layout: ArrayLayout) -> None:
        """Divide arrays section by section that lie so, and their new values.

        Such programs compute each element by itself, for which any order will do, as long as it is that of all.
        """
        tensors: Mapping[str, Any] = layout.tensors
        own = {name: tuple(map(tuple, spec)) for name, spec in tensors.items() if _has_sections(spec)}
        arguments = [(group, name, name) for group in self.arguments for name in group]
        results = [(group, name, layout.results.get(name, "")) for group in self.results for name in group]
        entries = [(group, name, own[like]) for group, name, like in (*arguments, *results) if like in own]
        if all(same(tuple(tuple(map(str, names)) for names in spec), group[name]) for group, name, spec in entries):
            for group, name, spec in entries:
                group[name] = spec


def _has_sections(spec: Any) -> bool:
    return any(isinstance(name, Sections) for names in spec or () if not isinstance(names, str) for name in names)


def placed_axes(axes: tuple[str, ...], placed: list[tuple[int, list[int]] | None], rank: int = 0) -> Spec:
    """Return the axes of the mesh that divide each axis of a tensor."""
    divided = [place[0] for place in placed if place is not None]
    spec: list[tuple[str, ...]] = [()] * max([rank, *(axis + 1 for axis in divided)])
    for name, place in zip(axes, placed, strict=True):
        if place is not None:
            axis, sections = place
            spec[axis] = (*spec[axis], Sections(name, sections) if sections else name)
    return tuple(spec)


class MeshEngine:
    """Loads the programs that a layout divides a model into.

    Parameters
    ----------
    backend : Backend
        Whose devices they are.
    layout : Layout
        How tensors are divided.

    Attributes
    ----------
    divides_sections : bool
        Whether an axis may be divided section by section, as those of fused weights are.
    """

    divides_sections = True

    def __init__(self, backend: Any, layout: Layout) -> None:
        self.backend = backend
        self.layout = layout

    def evaluator(self, core: _core.Compiled) -> tuple[Any, Callable[..., Any]]:
        """Return the module of a program, and ``evaluate(params, data, state)`` of whole arrays."""
        return self._load(core.source(self.backend.target, self.backend.device), "evaluate")

    def differentiator(
        self, core: _core.Compiled, outputs: list[str], inputs: list[str]
    ) -> tuple[Any, Callable[..., Any]]:
        """Return the module of a program, and ``evaluate_gradients(params, data, state, cotangents)``."""
        source = core.gradient_source(self.backend.target, outputs, inputs, self.backend.device)
        return self._load(source, "evaluate_gradients")

    def _load(self, source: _core.Source, name: str) -> tuple[Any, Callable[..., Any]]:
        program = source.partition
        assert program is not None
        division = Division(program, self.layout)
        module = self.module(source, name)
        return module, self.divided(module, name, division)

    @property
    def layout_argument(self) -> Any:
        """The layout as the compiler is given it."""
        return self.layout.argument(sections=self.divides_sections)

    def distribute(self, array: Any, spec: Spec) -> Any:
        """Return an array, a whole one or one in a file, of which each device keeps its part, where that can be."""
        return self.backend.engine.restored(array) if isinstance(array, StoredArray) else array

    def data_parallel(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of arrays that divides their first axis among the devices."""
        raise BackendUnavailableError(
            f"{type(self.backend).__name__} divides models, and no functions",
            hint="make a model of it: ml.compile(ml.Lambda(function), backend, layout=ml.Mesh(data=4))",
        )

    def module(self, source: _core.Source, name: str) -> Any:
        """Load generated source."""
        return self.backend.engine.load_source(source, name)

    def divided(self, module: Any, name: str, division: Division) -> Callable[..., Any]:
        """Return a function of whole arrays that runs the function of that name on all devices."""
        raise NotImplementedError


def selected(group: Mapping[str, Any], specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Return those entries of an argument that a program takes."""
    return {name: group[name] for name in specs}


def staying(
    division: Division, groups: Sequence[Mapping[str, Any]], is_divided: Callable[[Any], bool]
) -> list[set[str]]:
    """Return which results of each kind stay on the devices.

    What was given in parts comes back in parts: gradients of parameters, and a step of an optimizer.
    """
    in_parts = any(map(is_divided, groups[1].values()))
    stays = []
    for i, specs in enumerate(division.results):
        params = groups[0] if i == 1 and len(groups) == 4 else {}
        stays.append({n for n in specs if (i == 0 and in_parts) or (n in params and is_divided(params[n]))})
    return stays
