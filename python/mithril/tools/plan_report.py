"""What plans of meshes and of pipelines have in common: a picture beside the table."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path

from .. import tables

__all__ = ["PlanReport"]


class PlanReport(tables.Report):
    """A plan, which is also drawn."""

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

    def _repr_html_(self) -> str:
        return self.picture() + super()._repr_html_()
