"""PyTorch without its messages: what it reports is in the error that is raised."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

__all__ = ["quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what PyTorch logs and warns of off the standard error."""
    top = logging.getLogger("torch")
    known = [logger for logger in list(logging.root.manager.loggerDict.values()) if isinstance(logger, logging.Logger)]
    loggers = [logger for logger in known if logger.name.startswith("torch.") and logger.handlers]
    former = [(logger, logger.handlers, logger.propagate) for logger in (top, *loggers)]
    try:
        for logger, _, _ in former:
            logger.handlers, logger.propagate = [logging.NullHandler()], False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, handlers, propagates in former:
            logger.handlers, logger.propagate = handlers, propagates
