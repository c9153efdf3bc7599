"""`view`: a model as a page of HTML, a picture, or a Mermaid diagram; with times, and a plan for several devices."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import Model
from ..backends.with_manualgrad.c_backend import CBackend
from ..backends.with_manualgrad.numpy_backend import NumpyBackend
from ..compiled import internals
from ..compiled.compile import compile
from ..compiled.physical_model import PhysicalModel
from ..compiled.stages import RENAMED
from ..errors import ConflictingOptionError, InvalidValueError
from ..tools.chosen import logical as logical_of
from ..tools.chosen import make
from ..tools.plan_report import PlanReport
from ..tools.profile import Profile
from .closed import close
from .data import collect
from .mermaid import mermaid
from .page import page
from .profiles import profile_data
from .svg import svg

if TYPE_CHECKING:
    from ..backends.backend import Backend

__all__ = ["FORMATS", "PICTURES", "View", "view"]


class View:
    """A compiled model to look at; in a notebook it shows itself.

    Attributes
    ----------
    compiled : PhysicalModel
        The model.
    title : str
        Title of the page.
    stage : str
        The stage of the compiler that is shown first, and in pictures.
    profile : Profile or None
        How long its steps take.
    plan : Plan or PipelinePlan or None
        What several devices compute, hold and exchange.
    gradients : bool
        Whether the stages are those of the gradients.
    """

    def __init__(
        self,
        compiled: PhysicalModel,
        title: str,
        stage: str | None = None,
        profile: Profile | None = None,
        plan: PlanReport | None = None,
        gradients: bool = False,
    ) -> None:
        self.compiled = compiled
        self.title = title
        self.profile = profile
        self.plan = plan
        self.gradients = gradients
        stages = compiled.gradient_stages if gradients else compiled.stages
        if stage is None:
            self.stage = next(iter(stages))
        else:
            self.stage = stage if stage in list(stages) else RENAMED.get(stage, stage)
            # An error if there is none of this name.
            stages[self.stage]

    @cached_property
    def data(self) -> dict[str, Any]:
        """What the page shows: graphs, texts and their links, the memory plan, the profile, the plan for devices."""
        profile = None if self.profile is None else profile_data(self.profile, self.title)
        plan = None if self.plan is None else self.plan.contents()
        partitioned = "" if self.plan is None else self.plan.text
        return {**collect(self.compiled, partitioned, gradients=self.gradients), "profile": profile, "plan": plan}

    def html(self) -> str:
        """Return the page: one file of HTML that loads nothing."""
        return page({**self.data, "stage": self.stage}, self.title)

    def svg(self, depth: int = 1, *, picture: str = "graph") -> str:
        """Return a still picture.

        Parameters
        ----------
        depth : int, default 1
            Parts of a graph are shown this deep: with 1, the submodels of the model are boxes.
        picture : str, default "graph"
            ``"graph"``; of a view with a profile ``"flame_graph"`` or ``"roofline"``; of one with a plan ``"plan"``.

        Raises
        ------
        InvalidValueError
            For another picture, or if there is no profile or no plan.
        """
        _check_picture(picture, has_profile=self.profile is not None, has_plan=self.plan is not None)
        if self.plan is not None and picture == "plan":
            return self.plan.picture()
        if self.profile is not None and picture != "graph":
            return self.profile.roofline() if picture == "roofline" else self.profile.flame_graph(self.title)
        return svg(close(self._graph(), _checked(depth)))

    def mermaid(self, depth: int = 1) -> str:
        """Return the text of a Mermaid flowchart, which many sites and editors show.

        Parameters
        ----------
        depth : int, default 1
            Parts are shown this deep; open submodels are subgraphs.
        """
        return mermaid(close(self._graph(), _checked(depth)))

    def _graph(self) -> Mapping[str, Any]:
        index = next(graph for name, graph, _ in self.data["stages"] if name == self.stage)
        result: Mapping[str, Any] = self.data["graphs"][index]
        return result

    def save(
        self, path: str | os.PathLike[str], *, format: str | None = None, depth: int = 1, picture: str = "graph"
    ) -> None:
        """Write a file: the page (``.html``), a picture (``.svg``) or Mermaid (``.mmd``).

        Parameters
        ----------
        path : str or os.PathLike
            The file.
        format : str, optional
            ``"html"``, ``"svg"`` or ``"mermaid"``; default: what the ending of `path` says.
        depth : int, default 1
            Of pictures.
        picture : str, default "graph"
            What is drawn as SVG: ``"graph"``, ``"flame_graph"``, ``"roofline"`` or ``"plan"``.

        Raises
        ------
        InvalidValueError
            For another format, ending or picture, or if there is no profile or plan to draw.
        ConflictingOptionError
            For another picture than the graph in another format than SVG.
        OSError
            If the file cannot be written.
        """
        suffix = Path(path).suffix.lower()
        chosen = format or next((name for name, (endings, _) in FORMATS.items() if suffix in endings), None)
        if chosen is None:
            endings = ", ".join(endings[0] for endings, _ in FORMATS.values())
            raise InvalidValueError(
                f"path is {os.fspath(path)!r}: its ending does not say what to write",
                hint=f"let it end with one of {endings}, or give format (--format)",
            )
        Path(path).write_text(self.text(chosen, depth, picture), encoding="utf-8")

    def text(self, format: str, depth: int = 1, picture: str = "graph") -> str:
        """Return what `save` writes: ``"html"``, ``"svg"`` or ``"mermaid"``.

        Parameters
        ----------
        format : str
            One of these.
        depth : int, default 1
            Of pictures.
        picture : str, default "graph"
            What is drawn as SVG.

        Raises
        ------
        InvalidValueError
            For another format or picture, or if there is no profile or plan to draw.
        ConflictingOptionError
            For another picture than the graph in another format than SVG.
        """
        if format not in FORMATS:
            raise InvalidValueError(f"format is {format!r}", hint=f"use one of {', '.join(FORMATS)}")
        _check_picture(picture, has_profile=self.profile is not None, has_plan=self.plan is not None)
        if picture != "graph":
            if format != "svg":
                raise ConflictingOptionError(
                    f"picture is {picture!r}, and the format is {format}",
                    hint="write it as svg; the page of HTML shows all pictures",
                )
            return self.svg(picture=picture)
        return FORMATS[format][1](self, depth)

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;height:640px;border:0"></iframe>'

    def __repr__(self) -> str:
        return f"<View of {self.title}: {self.data['backend']}, {len(self.data['stages'])} stages>"


#: Name of a format -> endings of its files, and what writes it.
FORMATS: dict[str, tuple[tuple[str, ...], Callable[[View, int], str]]] = {
    "html": ((".html", ".htm"), lambda view, _: view.html()),
    "svg": ((".svg",), lambda view, depth: view.svg(depth)),
    "mermaid": ((".mmd", ".mermaid"), lambda view, depth: view.mermaid(depth)),
}

#: What may be drawn as SVG.
PICTURES = ("graph", "flame_graph", "roofline", "plan")


def view(
    model: Model | PhysicalModel | str,
    path: str | os.PathLike[str] | None = None,
    *,
    shapes: Mapping[str, Any] | None = None,
    backend: Backend | str | None = None,
    stage: str | None = None,
    title: str | None = None,
    depth: int = 1,
    profile: bool | Profile = False,
    plan: PlanReport | None = None,
    picture: str = "graph",
    gradients: bool = False,
) -> View:
    """Show a model: its graph, the stages of the compiler, the generated source, memory, times, and several devices.

    Parameters
    ----------
    model : Model, PhysicalModel or str
        A model, which is compiled for inference, or a compiled one; or the name of one of `mithril.models`.
    path : str or os.PathLike, optional
        Where to write it: a page of a single file (``.html``), a picture (``.svg``), or Mermaid (``.mmd``).
    shapes : mapping, optional
        Shapes of inputs, for a model that is not compiled.
    backend : Backend or str, optional
        The backend, or its name, of a model that is not compiled; default: `NumpyBackend`, with `profile` `CBackend`.
    stage : str, optional
        The stage that is shown first, one of `PhysicalModel.stages`; default: the first, the model as it was written.
        With `gradients` one of `PhysicalModel.gradient_stages`.
    title : str, optional
        Title of the page; default: the model's name.
    depth : int, default 1
        How deep a picture at `path` shows the parts of the model.
    profile : bool or Profile, default False
        Whether to measure the steps of the model, with its parameters and random data, and to show them as a flame
        graph and as a roofline plot; or what ``compiled.profile(params, data)`` returned. Only C can be measured.
    plan : Plan or PipelinePlan, optional
        What `mithril.plan` returned: what several devices compute, hold and exchange. Default: the plan of a compiled
        model that has a layout.
    picture : str, default "graph"
        What an ``.svg`` at `path` shows: ``"graph"``, ``"flame_graph"``, ``"roofline"`` or ``"plan"``.
    gradients : bool, default False
        Whether to show how the gradients are computed: the stages of `PhysicalModel.gradient_stages`, their source and
        the memory that they need. A model that is not compiled is compiled for training then, with Mithril's gradients
        on each backend; of one that is compiled, those of a framework (``autodiff="native"``) have no stages.

    Returns
    -------
    View
        Shows itself in a notebook; has the methods ``html``, ``svg``, ``mermaid`` and ``save``.

    Raises
    ------
    InvalidValueError
        For something that is not a model, another ending of `path`, or a picture of a profile or plan without one.
    ConflictingOptionError
        For `shapes` or `backend` with a compiled model, or another picture than the graph that is not written as SVG.
    UnresolvedShapeError
        If shapes of inputs are needed; to measure, all of them as numbers.
    UnsupportedOpError
        For `profile` with another backend than C.
    KeyNotFoundError
        If there is no such stage.
    OSError
        If the file cannot be written.

    Examples
    --------
    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(4)(input="input", output="hidden")
    >>> model += ml.Relu()(output="output")
    >>> view = ml.view(model, shapes={"input": ["batch", 8]})
    >>> print(view.mermaid())
    flowchart TD
      n0(["input<br>float32[batch, 8]"])
      n1["linear<br>weight: float32[4, 8]<br>bias: float32[4]"]
      n2["relu"]
      n3(["output<br>float32[batch, 4]"])
      n0 -->|"float32[batch, 8]"| n1
      n1 -->|"float32[batch, 4]"| n2
      n2 -->|"float32[batch, 4]"| n3
    <BLANKLINE>
    """
    _checked(depth)
    if not isinstance(profile, (bool, Profile)):
        raise InvalidValueError(
            f"profile is of type {type(profile).__name__}", hint="give True, or what compiled.profile() returns"
        )
    if plan is not None and not isinstance(plan, PlanReport):
        raise InvalidValueError(f"plan is of type {type(plan).__name__}", hint="give what ml.plan() returns")
    if isinstance(model, PhysicalModel):
        for name, value in (("shapes", shapes), ("backend", backend)):
            if value is not None:
                raise ConflictingOptionError(
                    f"{name} is given, but the model is compiled", hint=f"pass {name} to compile, or pass the model"
                )
        compiled = model
    else:
        if backend is None:
            backend = NumpyBackend() if profile is False else CBackend()
        # Frameworks that differentiate by themselves have no graph of it to show.
        options: dict[str, Any] = {"autodiff": "graph"} if gradients else {"inference": True}
        compiled = compile(logical_of(model), make(backend), shapes=shapes, **options)
    if plan is None and internals.program_settings(compiled).layout is not None:
        plan = compiled.parallel_plan
    _check_picture(picture, has_profile=profile is not False, has_plan=plan is not None)
    logical = internals.logical_model(compiled)
    result = View(compiled, title or logical.name or logical.kind or "Model", stage, plan=plan, gradients=gradients)
    if profile is not False:
        result.profile = profile if isinstance(profile, Profile) else compiled.profile()
    if path is not None:
        result.save(path, depth=depth, picture=picture)
    return result


def _checked(depth: int) -> int:
    if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
        raise InvalidValueError(f"depth is {depth!r}", hint="give a number of at least 1")
    return depth


def _check_picture(picture: str, *, has_profile: bool, has_plan: bool) -> None:
    if picture not in PICTURES:
        raise InvalidValueError(f"picture is {picture!r}", hint=f"use one of {', '.join(PICTURES)}")
    if picture == "plan" and not has_plan:
        raise InvalidValueError(
            "picture is 'plan', but the model is not divided over devices",
            hint="compile it with a layout, or give plan=ml.plan(...); on the command line: mithril plan",
        )
    if picture not in ("graph", "plan") and not has_profile:
        raise InvalidValueError(
            f"picture is {picture!r}, but nothing was measured", hint="give profile=True as well (--profile)"
        )
