"""Several devices: meshes and layouts, and how programs run on them."""

from .layout import Layout, Mesh

__all__ = ["Layout", "Mesh"]
