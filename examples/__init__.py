"""The programs of `mithril.examples`, which are installed with Mithril, under a short name."""

from mithril.examples import __path__

__all__ = ["__path__"]
