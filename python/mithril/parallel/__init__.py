"""Several devices: meshes and layouts, and how programs run on them."""

from .layout import Layout, Mesh
from .pipeline import Pipeline

__all__ = ["Layout", "Mesh", "Pipeline"]
