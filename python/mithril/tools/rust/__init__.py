"""The Rust target: a Cargo package around the C of a model."""

from .package import package, refuse_foreign, refuse_options

__all__ = ["package", "refuse_foreign", "refuse_options"]
