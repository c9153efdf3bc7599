"""Exceptions and warnings of Mithril.

Every error has a stable ``code`` that the documentation explains, says where (``path`` in the model and
``where``, the user's own line), why (``notes``) and what to do (``hint``). All derive from `MithrilError`, and
each also from the built-in exception that fits, so that ``except ValueError`` keeps working.
"""

from __future__ import annotations

from typing import Any


class MithrilError(Exception):
    """Root of all errors of Mithril.

    Attributes
    ----------
    code : str
        Stable code, e.g. ``"M0301"``.
    message : str
        What is wrong, one sentence.
    path : str or None
        Path in the model.
    where : str or None
        The user's line, ``"file.py:12"``.
    notes : tuple of str
        Reasons.
    hint : str or None
        What to do.
    """

    code: str = "M0000"

    def __init__(
        self,
        text: str = "",
        *,
        code: str | None = None,
        message: str | None = None,
        path: str | None = None,
        where: str | None = None,
        notes: tuple[str, ...] = (),
        hint: str | None = None,
    ) -> None:
        self.code = code or type(self).code
        if message is None:
            message = text
            text = f"error[{self.code}]: {text}" + (f"\n  help: {hint}" if hint else "")
        super().__init__(text)
        self.message = message
        self.path = path
        self.where = where
        self.notes = notes
        self.hint = hint

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def _rebuild(kind: type[MithrilError], args: tuple[Any, ...], state: dict[str, Any]) -> MithrilError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ShapeError(MithrilError, ValueError):
    """Shapes are inconsistent, or a size is impossible."""

    code = "M0301"


class UnresolvedShapeError(ShapeError):
    """A shape is needed and not known yet."""

    code = "M0304"


class TypeInferenceError(MithrilError, TypeError):
    """A dtype does not fit."""

    code = "M0401"


class KeyNotFoundError(MithrilError, KeyError):
    """A name does not exist."""

    code = "M0102"


class InvalidValueError(MithrilError, ValueError):
    """An option or argument has a value that is not allowed."""

    code = "M0501"


class ConflictingOptionError(InvalidValueError):
    """Two options contradict each other."""

    code = "M0503"


class WiringError(MithrilError, ValueError):
    """Names or connections of a model do not fit."""

    code = "M0107"


class UnsupportedOpError(MithrilError, NotImplementedError):
    """The target cannot run an op or dtype, or an op has no gradient."""

    code = "M0601"


class CompilerError(MithrilError, RuntimeError):
    """The C compiler refuses generated code; its message stands in the notes."""

    code = "M0603"


class ParameterError(MithrilError, ValueError):
    """A parameter or input is missing, superfluous, or of the wrong shape."""

    code = "M0701"


class ModelFileError(MithrilError, ValueError):
    """A saved model is malformed."""

    code = "M0801"


class NumericsError(MithrilError, ArithmeticError):
    """A number is not finite or not representable where it must be."""

    code = "M0901"


class OutOfMemoryError(MithrilError, MemoryError):
    """The device has not enough memory for a call."""

    code = "M1002"


class BackendUnavailableError(MithrilError, ImportError, RuntimeError):
    """A compiler, framework or device is not there; the hint says how to install it."""

    code = "M1001"


class InternalError(MithrilError, RuntimeError):
    """A defect of Mithril; please report it."""

    code = "M0999"


class MithrilWarning(UserWarning):
    """Root of all warnings of Mithril."""


class IgnoredOptionWarning(MithrilWarning):
    """An option means nothing on this backend."""


class BackendWarning(MithrilWarning):
    """A backend does something in another way than its author may expect, or slowly."""


class PartitionWarning(MithrilWarning):
    """What a layout divides does not divide, so that every device computes all of it."""


class UnusedKeyWarning(MithrilWarning):
    """A key names nothing in the model."""


_CLASSES: dict[str, type[MithrilError]] = {
    "Shape": ShapeError,
    "Unresolved": UnresolvedShapeError,
    "Type": TypeInferenceError,
    "Key": KeyNotFoundError,
    "Value": InvalidValueError,
    "Wiring": WiringError,
    "Unsupported": UnsupportedOpError,
    "Parameter": ParameterError,
    "File": ModelFileError,
    "Numerics": NumericsError,
    "Unavailable": BackendUnavailableError,
    "Compiler": CompilerError,
    "Memory": OutOfMemoryError,
    "Internal": InternalError,
}


def from_core(family: str, text: str, **details: Any) -> MithrilError:
    """Make the exception for an error of the core; called from Rust."""
    if details.get("code") == "M0503":
        return ConflictingOptionError(text, **details)
    return _CLASSES.get(family, InternalError)(text, **details)
