"""The programs of `mithril.examples`, under a short name, in a checkout."""

from mithril.examples import __path__

__all__ = ["__path__"]
