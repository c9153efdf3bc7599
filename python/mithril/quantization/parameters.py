"""Low-bit weights: arrays of blocks, quantization of parameters, and the report of its error."""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .. import _core, tables
from ..backends.exchange import numpy_dtype, to_host
from ..compiled import internals
from ..errors import InvalidValueError, MithrilError, ParameterError
from ..suggestions import nearest
from .mixtures import MIXTURES, assigned

if TYPE_CHECKING:
    from ..compiled.physical_model import PhysicalModel

__all__ = [
    "FORMATS",
    "OutputError",
    "QuantizationReport",
    "Quantized",
    "QuantizedArray",
    "QuantizedParameters",
    "Skipped",
    "quantize",
]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Format:
    """A form of blocks: its name, the values and the bytes of a block, and whether it can be made here."""

    name: str
    values: int
    bytes: int
    is_writable: bool

    @property
    def bits(self) -> float:
        """Bits per value."""
        return 8 * self.bytes / self.values


#: Forms that can be made without ggml; and those that ggml makes with less error or alone, with its names of them.
_OWN = {name for name, _, _, is_writable in _core.block_formats() if is_writable}
_OF_GGML = {name.lower(): name for name in _core.ggml_types()}
#: Every form of blocks by name.
FORMATS: dict[str, Format] = {
    name: Format(name, values, size, is_writable or name in _OF_GGML)
    for name, values, size, is_writable in _core.block_formats()
}
#: Floats that are a form of their own: each value is rounded.
_HALVES = ("float16", "bfloat16")
_HALF_NAMES = {"f16": "float16", "bf16": "bfloat16"} | {name: name for name in _HALVES}
#: Values that are worked on at once.
_CHUNK = 1 << 22
#: The largest float of 16 bits, in which ggml keeps scales.
_LARGEST = 65504.0


class QuantizedArray:
    """An array whose rows are low-bit blocks. NumPy makes an array of float32 of it.

    Parameters
    ----------
    blocks : ndarray
        Bytes: the sizes of the array, but for the last, which is the number of bytes of a row.
    format : str
        The form of the blocks, e.g. ``"q8_0"``.

    Examples
    --------
    >>> import mithril as ml, numpy as np
    >>> array = ml.quantize({"w": np.ones((2, 32), np.float32)}, "q8_0")["w"]
    >>> array
    QuantizedArray([2, 32], q8_0, 68 bytes)
    >>> array.dequantize().shape
    (2, 32)
    """

    def __init__(self, blocks: Array, format: str) -> None:
        self.format = FORMATS[_form(format)]
        if blocks.dtype != np.uint8 or not blocks.ndim or blocks.shape[-1] % self.format.bytes:
            shape_text = f"{blocks.dtype}{list(blocks.shape)}"
            raise InvalidValueError(
                f"{shape_text} are not rows of blocks of {format}, of {self.format.bytes} bytes each",
                hint="take those of ml.quantize or of a file",
            )
        #: The bytes.
        self.blocks = blocks
        self.shape: tuple[int, ...] = (*blocks.shape[:-1], blocks.shape[-1] // self.format.bytes * self.format.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What its values are once they are read: float32."""
        return np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.blocks.nbytes

    def dequantize(self) -> Array:
        """Return the values as an array of float32."""
        return self._values(self.blocks).reshape(self.shape)

    def _values(self, blocks: Array) -> Array:
        return np.frombuffer(_core.dequantize_blocks(self.format.name, blocks.tobytes()), "<f4")

    def chunks(self) -> Iterator[Array]:
        """Go through the values, some blocks at a time."""
        flat = self.blocks.reshape(-1)
        step = _CHUNK // self.format.values * self.format.bytes
        for start in range(0, flat.size, step):
            yield self._values(flat[start : start + step])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the values of blocks cannot be read without a copy")
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"QuantizedArray({list(self.shape)}, {self.format.name}, {self.nbytes} bytes)"


def in_few_bits(value: Any) -> bool:
    """Whether an array is in blocks, or a NumPy array of floats of 16 bits."""
    return isinstance(value, QuantizedArray) or (isinstance(value, np.ndarray) and value.dtype.name in _HALVES)


# --- report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantized:
    """What became of one array.

    Attributes
    ----------
    path : str
        Its name.
    type : str
        Its form.
    before, after : int
        Bytes.
    bits : float
        Bits per weight, scales included.
    rmse : float
        Root of the mean squared error.
    cosine : float
        Cosine of the angle between the values and what became of them; 1 is the same direction.
    range : (float, float) or None
        The fixed range of the activations that a weight in int8 is applied to.
    method : str or None
        How their range is determined: ``"minmax"``, ``"percentile 99.99"``, ``"entropy"``, ``"quantize_ranges"`` (as
        given to the backend), or ``"each call"``. None: the activations are not quantized.
    """

    path: str
    type: str
    before: int
    after: int
    bits: float
    rmse: float
    cosine: float
    range: tuple[float, float] | None = None
    method: str | None = None


@dataclass(frozen=True)
class Skipped:
    """An array that was to be quantized and stays as it is: its name, the form, the reason."""

    path: str
    type: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} stays as it is: {self.reason}"


@dataclass(frozen=True)
class OutputError:
    """How far an output is from that of the same model with its parameters as they were.

    Attributes
    ----------
    name : str
        The output.
    largest : float
        The largest difference, in parts of the largest number.
    rmse : float
        Root of the mean squared difference.
    cosine : float
        Cosine of the angle between the two.
    """

    name: str
    largest: float
    rmse: float
    cosine: float

    def __str__(self) -> str:
        error = f"largest error {self.largest:.1e} of the largest number, RMSE {self.rmse:.1e}"
        return f"output {self.name}: {error}, cosine {self.cosine:.6f}"


@dataclass(frozen=True, repr=False)
class QuantizationReport(tables.Report):
    """What quantizing did. ``print(report)`` shows it.

    Attributes
    ----------
    rows : tuple of Quantized
        What was quantized.
    skipped : tuple of Skipped
        What was to be, and could not.
    before, after : int
        Bytes of all parameters, those included that nobody asked to quantize.
    outputs : tuple of OutputError
        The outputs, if there was data to compute them of.
    """

    rows: tuple[Quantized, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    before: int = 0
    after: int = 0
    outputs: tuple[OutputError, ...] = ()

    _schema: ClassVar[str] = "mithril.quantization/1"

    def _facts(self) -> dict[str, Any]:
        names = ("rows", "skipped", "before", "after", "outputs")
        return {name: getattr(self, name) for name in names}

    def _cells(self, size: Callable[[int], str] | None = None) -> tuple[list[str], list[list[str]]]:
        size = size or _bytes
        lines = [
            [r.path, r.type, size(r.before), size(r.after), f"{r.bits:.4g}", f"{r.rmse:.3g}", f"{r.cosine:.6f}"]
            for r in self.rows
        ]
        if all(r.method is None for r in self.rows):
            return _HEADS, lines
        ranges = [[_range(r.range), r.method or ""] for r in self.rows]
        return [*_HEADS, *_RANGE_HEADS], [[*line, *of] for line, of in zip(lines, ranges, strict=True)]

    def _sentences(self) -> list[str]:
        return [self._total(), *map(str, self.skipped), *map(str, self.outputs)]

    def __str__(self) -> str:
        heads, lines = self._cells()
        text = _columns([heads, *lines]) if lines else ""
        return "\n".join([*([text] if text else []), *self._sentences()])

    def to_markdown(self) -> str:
        """Return the report as a table of Markdown."""
        heads, cells = self._cells(str)
        lines = [f"| {' | '.join(line)} |" for line in cells]
        head = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        notes = [f"- {note}" for note in (*self.skipped, *self.outputs)]
        return "\n".join([*head, *lines, "", self._total(), *([""] if notes else []), *notes])

    def _total(self) -> str:
        share = f", {self.before / self.after:.2f} times smaller" if 0 < self.after < self.before else ""
        return f"{len(self.rows)} arrays quantized: {_bytes(self.before)} before, {_bytes(self.after)} after{share}"


_HEADS = ["path", "type", "before", "after", "bits", "rmse", "cosine"]
#: Of the activations that weights are applied to, where these are quantized.
_RANGE_HEADS = ["range", "range from"]


def _range(range: tuple[float, float] | None) -> str:
    return "" if range is None else f"{range[0]:.4g} to {range[1]:.4g}"


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**power:.4g} {'KMGT'[power - 1]}B"


def _columns(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = []
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        texts.append("  ".join([*left, *right]).rstrip())
    return "\n".join(texts)


# --- quantizing -------------------------------------------------------------------------------------------------


class QuantizedParameters(dict[str, Any]):
    """Parameters by name, some of them quantized: `QuantizedArray`, the others as they were.

    They are accepted wherever parameters are: `load_weights` and `PhysicalModel.load_params` take their values,
    `save_gguf` writes their blocks.

    Attributes
    ----------
    report : QuantizationReport
        What quantizing did.
    mixtures : tuple of str
        The mixtures that were asked for, such as ``"q4_k_m"``.
    """

    def __init__(self, arrays: Mapping[str, Any], report: QuantizationReport, mixtures: tuple[str, ...] = ()) -> None:
        super().__init__(arrays)
        self.report = report
        self.mixtures = mixtures


def quantize(
    params: Mapping[str, Any],
    type: str | Mapping[str, str | None],
    *,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    strict: bool = False,
    model: PhysicalModel | None = None,
    data: Mapping[str, Any] | None = None,
    calibration: Any = None,
) -> QuantizedParameters:
    """Quantize parameters: matrices and larger arrays become low-bit blocks.

    Parameters
    ----------
    params : mapping
        Arrays by name, of any backend.
    type : str or mapping
        A format: ``"q8_0"``, ``"q4_k"`` … (`mithril.quantization.FORMATS`), ``"f16"`` or ``"bf16"``. Or formats by name
        pattern, of which the first match counts: ``{"*.ffn_down.weight": "q6_k", "*": "q4_k"}``; arrays without a
        match, or with None, are not quantized. Or a mixture (`mithril.quantization.MIXTURES`): ``"q4_k_m"``,
        ``"q4_k_s"``, ``"q5_k_m"``, ``"q3_k_m"`` … give more bits to matrices that matter more, by their names.
    include : str or sequence of str, optional
        Name patterns of arrays to quantize. Default: float arrays of two axes or more; a pattern selects vectors too.
    exclude : str or sequence of str
        Name patterns of arrays that are not quantized.
    strict : bool
        Whether an array that cannot be quantized as requested is an error.
    model : PhysicalModel, optional
        The model that the parameters belong to, on any backend: the report then compares its outputs for ``data`` with
        those of the original parameters.
    data : mapping, optional
        A sample of the data of the model, by name.
    calibration : mapping, or iterable of mappings, optional
        Data of typical calls of the model: columns of the matrices of its linear layers are then weighted by the
        magnitude of their activations. Requires ``model``.

    Returns
    -------
    QuantizedParameters
        A dict with the report of sizes and errors.

    Raises
    ------
    ParameterError
        With ``strict``, if something cannot be quantized.
    InvalidValueError
        If a pattern fits no name.

    Examples
    --------
    >>> import mithril as ml, numpy as np
    >>> params = {"fc.weight": np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32), "fc.bias": np.zeros(2)}
    >>> print(ml.quantize(params, "q8_0").report)
    path       type  before  after  bits     rmse    cosine
    fc.weight  q8_0   256 B   68 B   8.5  0.00225  0.999993
    1 arrays quantized: 272 B before, 84 B after, 3.24 times smaller
    """
    forms = _forms(type)
    patterns = [include] if isinstance(include, str) else include
    spared = [exclude] if isinstance(exclude, str) else exclude
    if not isinstance(params, Mapping):
        raise ParameterError(f"params is a {params.__class__.__name__}", hint="pass a dict of arrays by name")
    for pattern in (*(pattern for pattern, _ in forms), *(patterns or ()), *spared):
        if pattern != "*" and not fnmatch.filter(params, pattern):
            hint = f"there are {', '.join(list(params)[:5])}{' ...' if len(params) > 5 else ''}"
            raise InvalidValueError(f"no array has a name like {pattern!r}", hint=hint)
    mixed = {
        form: assigned(form, {n: getattr(v, "shape", None) for n, v in params.items()}) for form in _mixtures(forms)
    }
    counts = {} if calibration is None else _importance(model, params, calibration)
    arrays: dict[str, Any] = {}
    rows: list[Quantized] = []
    skipped: list[Skipped] = []
    before = 0
    for name, value in params.items():
        form = _chosen(name, forms, patterns, spared)
        form = mixed[form][name] if form is not None and form in mixed else form
        if form is not None and isinstance(value, QuantizedArray):
            skipped.append(Skipped(name, form, f"it is quantized already, as {value.format.name}"))
            form = None
        if form is None:
            arrays[name] = value
            before += _size(name, value)
            continue
        host = _host(name, value)
        before += host.nbytes
        arrays[name] = value
        if patterns is None and (host.ndim < 2 or not _is_float(host)):
            continue
        try:
            arrays[name], row = _quantized(name, host, form, counts.get(name))
            rows.append(row)
        except _Unfit as reason:
            skipped.append(Skipped(name, form, str(reason)))
    if strict and skipped:
        notes = tuple(map(str, skipped))
        raise ParameterError(
            f"{len(skipped)} arrays cannot be quantized: {'; '.join(notes[:5])}",
            hint="exclude them, or give them a format of their own: {pattern: format}",
        )
    after = sum(_size(name, value) for name, value in arrays.items())
    outputs: tuple[OutputError, ...] = ()
    if model is not None and (data is not None or calibration is None):
        outputs = _outputs(model, params, arrays, data or {})
    report = QuantizationReport(tuple(rows), tuple(skipped), before, after, outputs)
    return QuantizedParameters(arrays, report, tuple(mixed))


def _outputs(
    model: PhysicalModel, params: Mapping[str, Any], quantized: Mapping[str, Any], data: Mapping[str, Any]
) -> tuple[OutputError, ...]:
    """Evaluate the model with both kinds of parameters, its states as they are."""
    backend, before, state = model.backend, internals.saved_state(model), internals.state_for(model, params)

    def evaluated(arrays: Mapping[str, Any]) -> dict[str, Any]:
        own = {}
        for name in model.parameter_keys:
            value = arrays[name] if name in arrays else params[name]
            own[name] = backend.tensor(_floats(value), backend.dtype(params[name]))
        internals.update_state(model, state)
        outputs = model.evaluate(own, data)
        return {name: backend.to_numpy(value) for name, value in outputs.items()}

    try:
        return output_errors(evaluated(quantized), evaluated(params))
    finally:
        internals.restore_state(model, before)


def _floats(value: Any) -> Array:
    host = value.dequantize() if isinstance(value, QuantizedArray) else to_host(value)
    return host.astype(np.float32) if host.dtype.itemsize < 4 and _is_float(host) else host


def output_errors(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> tuple[OutputError, ...]:
    """How far outputs are from others, those of floats."""
    errors = []
    for name, exact in expected.items():
        if not exact.size or not _is_float(exact):
            continue
        exact, value = exact.astype(np.float64), np.asarray(actual[name]).astype(np.float64)
        size = float(np.abs(exact).max())
        largest = float(np.abs(value - exact).max()) / size if size else 0.0
        errors.append(OutputError(name, largest, *distance(value, exact)))
    return tuple(errors)


def distance(actual: Array, expected: Array) -> tuple[float, float]:
    """Root of the mean squared error, and the cosine of the angle."""
    a, b = actual.astype(np.float64).reshape(-1), expected.astype(np.float64).reshape(-1)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    cosine = float(a @ b) / lengths if lengths else float(np.array_equal(a, b))
    return float(np.sqrt(np.mean((a - b) ** 2))), cosine


_TOO_LARGE = "its values are too large for the scales"


class _Unfit(Exception):
    """Why an array cannot be quantized."""


def _forms(forms: Any) -> list[tuple[str, str | None]]:
    """Return patterns, and forms of those names; None for as they are."""
    if not isinstance(forms, Mapping):
        return [("*", _form(forms))]
    wrong = next((pattern for pattern in forms if not isinstance(pattern, str)), None)
    if wrong is not None:
        raise InvalidValueError(f"the pattern {wrong!r} is not a string", hint='e.g. {"*": "q8_0"}')
    return [(pattern, None if form is None else _form(form)) for pattern, form in forms.items()]


def _form(name: object) -> str:
    """Return the form of that name: one of `FORMATS`, or a dtype of two bytes."""
    if not isinstance(name, str):
        raise InvalidValueError(f"the format {name!r} is not a string", hint='give a name such as "q8_0"')
    lower = name.lower()
    if lower not in (*FORMATS, *MIXTURES, *_HALF_NAMES):
        near = nearest(lower, [*FORMATS, *MIXTURES, *_HALF_NAMES])
        known = ", ".join(form for form, known in FORMATS.items() if known.is_writable)
        guess = f"did you mean {near!r}? " if near else ""
        raise InvalidValueError(
            f"there is no weight format called {name!r}",
            hint=f"{guess}There are {known}, f16, bf16, and the mixtures {', '.join(MIXTURES)}",
        )
    return _HALF_NAMES.get(lower, lower)


def _mixtures(forms: list[tuple[str, str | None]]) -> list[str]:
    return list(dict.fromkeys(form for _, form in forms if form is not None and form in MIXTURES))


def _chosen(name: str, forms: list[tuple[str, str | None]], include: Any, exclude: Any) -> str | None:
    def fits(patterns: Any) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    if fits(exclude) or (include is not None and not fits(include)):
        return None
    return next((form for pattern, form in forms if fnmatch.fnmatchcase(name, pattern)), None)


def _host(name: str, value: Any) -> Array:
    try:
        return to_host(value)
    except (TypeError, ValueError) as error:
        reason = error.message if isinstance(error, MithrilError) else error
        raise ParameterError(f"{name!r} is not an array: {reason}", hint="pass a dict of arrays by name") from error


def _is_float(host: Array) -> bool:
    return bool(host.dtype.kind == "f" or host.dtype.name == "bfloat16")


def _size(name: str, value: Any) -> int:
    size = getattr(value, "nbytes", None)
    return int(size) if isinstance(size, int) else _host(name, value).nbytes


def _importance(model: PhysicalModel | None, params: Mapping[str, Any], samples: Any) -> dict[str, Array]:
    from ..tools.importance import column_importance

    if model is None:
        raise InvalidValueError("calibration runs a model", hint="pass model=..., compiled for any backend")
    return column_importance(model, params, samples)


def _quantized(name: str, host: Array, form: str, importance: Array | None) -> tuple[Any, Quantized]:
    if not _is_float(host):
        raise _Unfit(f"its dtype is {host.dtype.name}")
    if host.size == 0:
        raise _Unfit("it is empty")
    packed: Array | QuantizedArray
    if form in _HALVES:
        packed = _halved(host, form)
        parts = iter([np.asarray(packed, np.float32).reshape(-1)])
    else:
        packed = _blocks(host, form, importance)
        parts = packed.chunks()
    rmse, cosine = _errors(host.reshape(-1), parts)
    bits = 8 * packed.nbytes / host.size
    return packed, Quantized(name, form, host.nbytes, packed.nbytes, bits, rmse, cosine)


def _halved(host: Array, form: str) -> Array:
    with np.errstate(over="ignore"):
        array: Array = host.astype(numpy_dtype(form))
    return array


def _blocks(host: Array, form: str, importance: Array | None) -> QuantizedArray:
    known = FORMATS[form]
    if not known.is_writable:
        # The core says what there is.
        _core.quantize_blocks(form, b"")
    row = host.shape[-1] if host.ndim else 1
    if not host.ndim or row % known.values:
        raise _Unfit(f"rows of {row} cannot be cut into blocks of {known.values}")
    blocks = np.empty((*host.shape[:-1], row // known.values * known.bytes), np.uint8)
    flat, target, at = np.ascontiguousarray(host).reshape(-1), blocks.reshape(-1), 0
    step = max(_CHUNK // row, 1) * row
    for start in range(0, flat.size, step):
        values = flat[start : start + step].astype("<f4", copy=False)
        if not np.isfinite(values).all():
            raise _Unfit("it holds values that are not finite")
        content = values.tobytes()
        is_large = float(np.abs(values).max()) > _LARGEST
        if is_large and form not in _OWN:
            raise _Unfit(_TOO_LARGE)
        # ggml refuses what is large, and needs a processor that has what it was compiled for.
        is_plain = form not in _OF_GGML or (form in _OWN and (is_large or not _has_ggml()))
        counts = None if importance is None else importance.tobytes()
        packed = (
            _core.quantize_blocks(form, content)
            if is_plain
            else _core.ggml_blocks(_OF_GGML[form], content, row, counts)
        )
        target[at : at + len(packed)] = np.frombuffer(packed, np.uint8)
        at += len(packed)
    return QuantizedArray(blocks, form)


@functools.cache
def _has_ggml() -> bool:
    """Whether the processor has what ggml was compiled for."""
    try:
        _core.ggml_devices()
    except MithrilError:
        return False
    return True


def _errors(expected: Array, parts: Iterator[Array]) -> tuple[float, float]:
    """Root of the mean squared error, and cosine."""
    squares = products = ours = theirs = 0.0
    at = 0
    for part in parts:
        if not np.isfinite(part).all():
            raise _Unfit(_TOO_LARGE)
        approximate, exact = part.astype(np.float64), expected[at : at + part.size].astype(np.float64)
        at += part.size
        squares += float(((approximate - exact) ** 2).sum())
        products += float(approximate @ exact)
        ours += float(approximate @ approximate)
        theirs += float(exact @ exact)
    lengths = math.sqrt(ours) * math.sqrt(theirs)
    cosine = products / lengths if lengths else float(ours == theirs)
    return math.sqrt(squares / at), cosine
