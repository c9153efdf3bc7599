"""The web target of `export`: a model in C becomes WebAssembly, in a folder that is an npm package."""

from .files import REGISTERS
from .package import ExportedWeb, package, refuse_options

__all__ = ["REGISTERS", "ExportedWeb", "package", "refuse_options"]
