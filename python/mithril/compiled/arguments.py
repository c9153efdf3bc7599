"""The arguments of a call: what the user passes is checked, and converted where that loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..backends.quantized import ByteParameters
from ..errors import MithrilError, ParameterError
from ..parallel.stored import StoredArray
from ..quantization.parameters import in_few_bits
from ..suggestions import did_you_mean, nearest

if TYPE_CHECKING:
    from ..backends.backend import Backend
    from .program import Program

Mapping.register(_core.Packed)

__all__ = ["Arguments", "check_declared", "missing"]


class Arguments:
    """Checks the data and the parameters of a physical model."""

    def __init__(self, backend: Backend, names: Mapping[str, tuple[str, ...]], tolerated: frozenset[str]) -> None:
        self._backend = backend
        self._array_type = backend.engine.array_type
        self._names = names
        self._tolerated = tolerated

    # --- parameters -------------------------------------------------------------------------------------------

    def check_params(self, program: Program, params: Mapping[str, Any]) -> None:
        """Raise if a parameter is missing, superfluous, or of the wrong shape, dtype or kind."""
        if isinstance(params, _core.Packed):
            # The program looks at whose they are.
            if type(getattr(program.module, "source", None)) not in (_core.CProgram, _core.GgmlProgram):
                raise ParameterError(
                    "params are packed for a model in C or on ggml", hint="pass them as they were before"
                )
            return
        if isinstance(params, ByteParameters):
            if program.weights is None:
                raise ParameterError(
                    "params are packed for a model with weights in 8 bits", hint="pass them as they were before"
                )
            program.weights.check(params)
            return
        try:
            values = program.read_params(params)
        except KeyError:
            absent = next(name for name, _, _ in program.param_types if name not in params)
            raise missing("params", absent, program.params, params) from None
        try:
            fits = [v.shape for v in values] == program.shapes and [v.dtype for v in values] == program.natives
        except AttributeError:
            fits = False
        backend = self._backend
        if (
            not fits
            or not all(map(backend.engine.is_own, values))
            or not (backend.engine.is_single_device or all(map(backend.engine.is_here, values)))
        ):
            for value, (name, native, shape) in zip(values, program.param_types, strict=True):
                self._check_parameter(name, value, native, shape)
        self._check_statistics(program, params)
        count = dict.__len__(params) if isinstance(params, dict) else len(params)
        if count != len(values):
            known = {*self._names["param"], *self._names["state"]}
            for name in params:
                if name not in known:
                    hint = did_you_mean(name, known, "leave it out")
                    raise ParameterError(f"params holds {name!r}, which is not in the model", hint=hint)

    def _check_statistics(self, program: Program, params: Mapping[str, Any]) -> None:
        """Raise if running statistics that come with the parameters are not what the program takes."""
        for name, native, shape in program.statistic_types:
            if name in params:
                self._check_parameter(name, params[name], native, shape)

    def _check_parameter(self, name: str, value: Any, native: Any, shape: tuple[Any, ...]) -> None:
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise ParameterError(
                f"parameter {name!r} is a {type(value).__name__}", hint="convert it with backend.array(...)"
            )
        is_stored = isinstance(value, StoredArray)
        if is_stored and value.shape == shape and self._backend.engine.native_dtype(value.dtype) == native:
            # The devices that need it read it, and check it then.
            return
        in_blocks = self._backend.engine.reads_blocks and in_few_bits(value) and native == np.float32
        if not in_blocks and not self._backend.engine.is_own(value):
            raise ParameterError(
                f"parameter {name!r} is a {_kind(value)}, but the model runs on {type(self._backend).__name__}",
                hint="convert it with backend.array(...)",
            )
        if not in_blocks and not self._backend.engine.is_here(value):
            raise ParameterError(
                f"parameter {name!r} is on {getattr(value, 'device', 'another device')}, but the model runs on "
                f"{self._backend.device}",
                hint="move it with backend.array(...)",
            )
        if tuple(value.shape) == shape and (in_blocks or value.dtype == native):
            return
        expected = f"{native} {list(shape)}"
        raise ParameterError(
            f"parameter {name!r} is {value.dtype} {list(value.shape)}, but must be {expected}",
            hint=f"convert it: backend.array(…, {str(native).rpartition('.')[2]!r})"
            if tuple(value.shape) == shape
            else "check where it comes from",
        )

    # --- data -------------------------------------------------------------------------------------------------

    def check_superfluous(self, data: Mapping[str, Any]) -> None:
        """Raise if data holds what the model has no input for."""
        known = {*self._names["data"], *self._tolerated}
        for name in data:
            if name not in known:
                near = nearest(name, known)
                lacking = [n for n in self._names["data"] if n not in data and n not in self._tolerated]
                hint = "leave it out"
                if near:
                    hint = f"did you mean {near!r}?"
                elif name in self._names["param"]:
                    hint = "it is a parameter: pass it in params"
                elif len(lacking) == 1:
                    hint = f"did you mean {lacking[0]!r}, which is missing?"
                elif lacking:
                    hint = f"leave it out; missing: {', '.join(map(repr, lacking))}"
                raise ParameterError(f"data holds {name!r}, which is not a data input of the model", hint=hint)

    def convert(self, name: str, value: Any, dtype: str | None) -> Any:
        """Make an array of the backend of data that is none, or of another dtype."""
        backend = self._backend
        try:
            plain = type(value) is np.ndarray and value.dtype.kind in "biuf"
            array = value if plain or backend.engine.is_own(value) else backend.array(value)
        except (TypeError, ValueError) as error:
            reason = error.message if isinstance(error, MithrilError) else error
            raise ParameterError(f"data {name!r} is not an array: {reason}", hint="pass an array of numbers") from error
        if dtype is None:
            return array if backend.engine.is_own(array) else backend.array(array)
        source, target = str(array.dtype), dtype
        if "float" in source and "int" in target:
            host = backend.to_numpy(array)
            if not np.all(host == np.trunc(host)):
                raise ParameterError(
                    f"data {name!r} is {source}, but must be {target}", hint="pass integers, e.g. class indices"
                )
        elif target == "bool" and "bool" not in source:
            raise ParameterError(f"data {name!r} is {source}, but must be bool", hint="compare it: x != 0")
        return backend.engine.as_array(array, target)

    def convert_all(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Make arrays of data before the dtypes of the model are known."""
        return {n: v if type(v) is self._array_type else self.convert(n, v, None) for n, v in data.items()}


def check_declared(declared: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise if data does not have the shapes given when compiling, as far as these say anything."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        required = declared.get(name)
        if required is None:
            continue
        fits = len(required) == len(shape)
        for size, n in zip(required, shape, strict=False):
            # A symbol is the same size wherever it stands.
            expected = sizes.setdefault(size, n) if isinstance(size, str) else size
            fits = fits and (expected is None or expected == n)
        if not fits:
            bound = tuple(f"{symbol} is {n} in this call" for symbol, n in sizes.items() if symbol in required)
            message = f"data {name!r} has shape {list(shape)}, but must be {list(required)}"
            hint = "give data of the shape that was declared when compiling"
            text = "\n  ".join([f"error[M0701]: {message}", *bound, f"help: {hint}"])
            raise ParameterError(text, message=message, notes=bound, hint=hint)


def missing(group: str, name: str, expected: Any, passed: Mapping[str, Any]) -> ParameterError:
    """Make the error that names are missing in data or params."""
    absent = [n for n, _, _ in expected if n not in passed]
    known = {n for n, _, _ in expected}
    unknown = [n for n in passed if n not in known]
    near = nearest(name, unknown) or (unknown[0] if len(unknown) == len(absent) == 1 else None)
    hint = f"you gave {near!r}; is that it?" if near else f"add it to {group}"
    return ParameterError(f"{group} lacks {', '.join(repr(n) for n in absent)}", hint=hint)


def _kind(value: Any) -> str:
    module = type(value).__module__.partition(".")[0]
    return f"{module}.{type(value).__name__}"
