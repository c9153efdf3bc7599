"""The error of a training that has nothing to train."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidValueError

__all__ = ["check_trainable"]


def check_trainable(params: Sequence[str], trained: Sequence[str], what: str = "train") -> None:
    """Raise if a model has no parameters to train.

    Parameters
    ----------
    params : sequence of str
        Names of the parameters.
    trained : sequence of str
        Those that are not frozen.
    what : str, optional
        What was to be done with them.

    Examples
    --------
    >>> from mithril.compiled.trainable import check_trainable
    >>> check_trainable(["weight", "bias"], ["weight"])
    """
    if trained:
        return
    if not params:
        raise InvalidValueError(
            f"the model has no parameters to {what}",
            hint="add a layer with parameters; to compute outputs only, call evaluate",
        )
    which = f"parameter {params[0]!r}" if len(params) == 1 else f"all {len(params)} parameters"
    verb = "is" if len(params) == 1 else "are"
    raise InvalidValueError(
        f"{which} {verb} frozen, so there is nothing to {what}",
        hint="freeze fewer of them: freeze of compile, fit and the optimizer takes patterns such as 'encoder.*'",
    )
