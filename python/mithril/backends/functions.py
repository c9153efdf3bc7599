"""Functions that users register with a backend and call by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import InvalidValueError
from ..suggestions import did_you_mean

__all__ = ["RegisteredFunctions"]


class RegisteredFunctions:
    """What a backend knows about functions that are registered with it."""

    _custom_functions: dict[str, Callable[..., Any]]

    def register_function(self, name: str, function: Callable[..., Any]) -> None:
        """Register a function with this backend, to be called by `call_custom`.

        Parameters
        ----------
        name : str
            Its name; one registered before under that name is replaced.
        function : callable
            Takes and returns whatever it likes.

        Examples
        --------
        >>> import mithril as ml
        >>> backend = ml.NumpyBackend()
        >>> backend.register_function("twice", lambda x: backend.multiply(x, 2.0))
        >>> backend.call_custom("twice", backend.tensor([1.0, 2.0]))
        array([2., 4.], dtype=float32)
        """
        if not callable(function):
            raise InvalidValueError(f"{name!r} is registered with {function!r}", hint="register a function")
        self._functions()[name] = function

    def call_custom(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a function that was registered under a name."""
        known = self._functions()
        if name not in known:
            hint = did_you_mean(name, known, "register it with register_function(name, function)")
            raise InvalidValueError(f"Custom function '{name}' not registered", hint=hint)
        return known[name](*args, **kwargs)

    def _functions(self) -> dict[str, Callable[..., Any]]:
        # A subclass may have made the dict itself, or not have called our constructor.
        known: dict[str, Callable[..., Any]] = self.__dict__.setdefault("_custom_functions", {})
        return known
