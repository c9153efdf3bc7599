"""CLIP under the import path of the documentation; it is one of `mithril.models`."""

from mithril.models import clip

__all__ = ["clip"]
