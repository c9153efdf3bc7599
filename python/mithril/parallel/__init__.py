"""Several devices: meshes and layouts, and how programs run on them."""

from .hardware import Hardware
from .layout import Layout, Mesh
from .pipeline import Pipeline

__all__ = ["Hardware", "Layout", "Mesh", "Pipeline"]
