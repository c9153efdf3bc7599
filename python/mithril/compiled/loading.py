"""Loading generated source: executed once, readable in tracebacks and debuggers, errors traced to the model."""

from __future__ import annotations

import hashlib
import io
import linecache
import os
import threading
import traceback
from collections.abc import Callable, Mapping
from contextvars import copy_context
from typing import Any

import numpy as np

from .. import _core
from ..errors import InvalidValueError, MithrilError, NumericsError, OutOfMemoryError

__all__ = [
    "Module",
    "Runner",
    "is_out_of_memory",
    "is_refused_by_kernel",
    "load",
    "out_of_memory",
    "refused_by_kernel",
    "save",
]


def save(path: str | os.PathLike[str], source: Any) -> None:
    """Write generated source to a file, and its large constants to the file ``.npz`` beside it."""
    from ..checkpoints.files import write  # It imports backends, and these import this module.

    write(path, source.text)
    constants = source.constants() if hasattr(source, "constants") else {}
    if constants:
        buffer = io.BytesIO()
        np.savez(buffer, **constants)
        write(str(path).removesuffix(".py") + ".npz", buffer.getvalue())


class Module:
    """A loaded module of generated functions."""

    def __init__(
        self,
        source: _core.Source,
        name: str,
        constant: Callable[[np.ndarray[Any, Any]], Any],
        namespace: Mapping[str, Any],
    ) -> None:
        self.source = source
        #: Wraps every function, in what a backend needs around a call.
        self.around: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
        digest = hashlib.blake2b(source.text.encode(), digest_size=6).hexdigest()
        self.filename = f"<mithril {name} {digest}>"
        constants = {key: constant(value) for key, value in source.constants().items()}
        self.namespace: dict[str, Any] = {"__name__": f"mithril_generated_{digest}", "_CONSTANTS": constants}
        self.namespace.update(namespace)
        # What users wrote may call generated code again, for which a thread's context could not be entered twice.
        self._calls_users = "backend" in namespace or "host_call(" in source.text
        code = compile(source.text, self.filename, "exec")
        # Without a modification time the entry is never dropped as stale.
        linecache.cache[self.filename] = (len(source.text), None, source.text.splitlines(keepends=True), self.filename)
        exec(code, self.namespace)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function of the module."""
        function: Callable[..., Any] = self.namespace[name]
        return self.around(function if self._calls_users else _quiet(function))

    def explain(self, error: BaseException) -> MithrilError | None:
        """Make an error of ours of one that generated code raised; None if it came from elsewhere."""
        if is_out_of_memory(error):
            return None if isinstance(error, MithrilError) else out_of_memory(error)
        if is_refused_by_kernel(error):
            return refused_by_kernel(error)
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == self.filename]
        if not lines or isinstance(error, MithrilError):
            return None
        for line in reversed(lines):
            origin = self.source.origin(line) if line is not None else None
            if origin is not None:
                op, path, where = origin
                is_numeric = "LinAlg" in type(error).__name__
                family, code = (NumericsError, "M0901") if is_numeric else (InvalidValueError, "M0504")
                place = f" in `{path}`" if path else ""
                notes = (f"the generated line is: {linecache.getline(self.filename, line or 0).strip()}",)
                message = f"{op} failed{place}: {error}"
                text = f"error[{code}]: {message}" + (f"\n  at {where}" if where else "") + f"\n  {notes[0]}"
                return family(text, code=code, message=message, path=path, where=where, notes=notes)
        return None


#: What the frameworks write when memory runs out.
_EXHAUSTED = (
    "out of memory",
    "resource_exhausted",
    "can't allocate memory",
    "unable to allocate",
    "bad_alloc",
    "alloc_failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception of any framework says that memory ran out."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _EXHAUSTED)
    )


def out_of_memory(error: BaseException) -> MithrilError:
    """Make an error of ours of one of a framework that says that memory ran out."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return OutOfMemoryError(
        f"memory ran out: {first}",
        hint="make the batch smaller; train with gradient_checkpointing=True; compile for inference=True where no "
        'gradients are needed; use precision="bfloat16"; on a GPU, JAX reserves most of the memory unless '
        "JaxBackend(pre_allocate=False) is constructed first",
    )


def is_refused_by_kernel(error: BaseException) -> bool:
    """Whether a kernel of CUDA has found what it cannot compute, at some call before."""
    return isinstance(error, RuntimeError) and "device-side assert" in str(error)


def refused_by_kernel(error: BaseException) -> MithrilError:
    """Make an error of ours of one for which `is_refused_by_kernel` holds."""
    first = str(error).strip().splitlines()[0]
    return InvalidValueError(
        f"a kernel of the device found a number that it cannot compute with, such as an index out of range: {first}",
        code="M0504",
        hint="the device takes no more calls of this process: start it again, and run the model on the CPU, "
        "which says which op it is",
    )


class _Quiet(threading.local):
    """A context per thread in which NumPy reports no division by zero, overflow or invalid value."""

    def __init__(self) -> None:
        self.run = copy_context().run
        self.run(np.seterr, all="ignore")


_thread = _Quiet()


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take off the decorator ``np.errstate`` and call the function in such a context, at a fifth of the cost."""
    inner: Callable[..., Any] | None = getattr(function, "__wrapped__", None)
    if inner is None:
        return function

    def call(*args: Any) -> Any:
        return _thread.run(inner, *args)

    return call


class Runner:
    """A graph run by the reference interpreter, in the place of a module."""

    def __init__(self, runner: _core.Runner) -> None:
        self.source = runner

    def function(self, name: str) -> Callable[..., Any]:
        """Return the one function there is."""
        runner: Callable[..., Any] = self.source
        return runner

    def explain(self, error: BaseException) -> MithrilError | None:
        """Errors of the interpreter say by themselves where they come from."""
        return None


def load(
    source: _core.Source,
    name: str,
    constant: Callable[[np.ndarray[Any, Any]], Any] = lambda host: host,
    namespace: Mapping[str, Any] | None = None,
) -> Module:
    """Execute generated source.

    Parameters
    ----------
    source : Source
        What the compiler wrote.
    name : str
        Shown in tracebacks.
    constant : callable, optional
        Makes an array of the framework of a NumPy array that is too large to be written into the source.
    namespace : mapping, optional
        Globals that it reads besides ``_CONSTANTS``.

    Returns
    -------
    Module
    """
    return Module(source, name, constant, namespace or {})
