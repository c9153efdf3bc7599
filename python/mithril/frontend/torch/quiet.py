"""PyTorch without its messages: what it reports is in the error that is raised."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
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
    printed = io.StringIO()
    try:
        for logger, _, _ in former:
            logger.handlers, logger.propagate = [logging.NullHandler()], False
        # It prints whole graphs where it fails.
        with warnings.catch_warnings(), contextlib.redirect_stderr(printed):
            warnings.simplefilter("ignore")
            yield
    except BaseException:
        printed.truncate(0)
        raise
    finally:
        # What the user's own code prints is kept.
        sys.stderr.write(printed.getvalue())
        for logger, handlers, propagates in former:
            logger.handlers, logger.propagate = handlers, propagates
