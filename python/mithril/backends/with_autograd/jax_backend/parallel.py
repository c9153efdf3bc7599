"""Several devices of JAX; see `mithril.backends.parallel`."""

from ...parallel import data_parallel

__all__ = ["data_parallel"]
