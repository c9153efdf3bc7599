"""What plans of meshes and of pipelines have in common: a picture beside the table."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

from .. import tables

__all__ = ["PlanReport"]


class PlanReport(tables.Report):
    """A plan, which is also drawn."""

    @property
    def text(self) -> str:
        """The program that each device runs; empty if it is not the same one."""
        return ""

    @abstractmethod
    def picture(self) -> str:
        """Return a picture as SVG."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file.

        Parameters
        ----------
        path : path-like
            The file, ``*.svg``.

        Raises
        ------
        InvalidValueError
            For another ending, or if its folder does not exist.
        """
        tables.check_path(path, "a plan is", [".svg"])
        Path(path).write_text(self.picture(), encoding="utf-8")

    @abstractmethod
    def _places(self) -> list[list[str]]:
        """Return for each row of the table the paths of the layers that it is about; none for results."""

    def contents(self) -> dict[str, Any]:
        """Return what the page of a model shows of the plan.

        Returns
        -------
        dict
            ``picture``: SVG. ``head``, ``rows``: the table. ``places``: for each row the paths of the layers that it is
            about. ``sentences``: what follows from the table.
        """
        head, rows = self._cells()
        return {
            "picture": "".join(self.picture().splitlines()),
            "head": head,
            "rows": rows,
            "places": self._places(),
            "sentences": self._sentences(),
        }

    def _repr_html_(self) -> str:
        return self.picture() + super()._repr_html_()
