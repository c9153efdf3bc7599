"""The C backend: models become one file of C, compiled by the C compiler of the machine."""

from __future__ import annotations

import warnings

from typing_extensions import Unpack

from .... import _core
from ....errors import BackendWarning
from ... import options
from ...keywords import COptions, accepts, names
from ..native import NativeBackend
from .engine import CEngine, plain_options
from .quantization import Ranges, Rules, ranges, rules

__all__ = ["CBackend", "RawCBackend"]


class CBackend(NativeBackend):
    """Runs models as C, generated for their sizes and for this processor.

    Arrays are NumPy arrays, and ops applied eagerly are NumPy's. A compiled model is one C file: calls read and write
    the memory of the arrays, other Python threads keep running meanwhile, and gradients are C as well.

    Compiled with ``inference=True``, a model keeps its parameters packed in the order in which the code reads them. The
    arrays become read-only, so that writing into them is an error rather than silently ignored; other arrays take
    effect at the next call.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats: float16, bfloat16 (needs ``ml_dtypes``), float32 (default) or float64.
        Also spelled ``default_dtype``.
    device : str, optional
        Only ``"cpu"``.
    seed : int, optional
        Seed of the random numbers (default 0). Also spelled ``random_seed``.
    jit : bool, optional
        No effect: generated C is always compiled.
    precision : dtype, optional
        Dtype in which models multiply matrices and convolve; see `Backend`.
    num_threads : int, optional
        Threads per call (default: as many as the process may use). A call that finds them busy with another call runs
        on its own thread.
    cc : str, optional
        The C compiler, e.g. ``"gcc-13"`` or ``"ccache clang"``. Default: the environment variable ``CC``, otherwise
        ``cc``, ``gcc`` or ``clang``, otherwise the package ``ziglang``.
    flags : iterable of str, optional
        Further flags of the compiler.
    memory_limit : int or str, optional
        Bytes that packed parameters and the scratch memory of a call may take together, e.g. ``"64MB"``; a model that
        needs more is an error. Also spelled ``mem_size``.
    autotune : bool, optional
        Measure the candidates of each kernel (convolution algorithms, block sizes) when it is first compiled on this
        processor, instead of estimating which is the fastest. Tuning records are kept in the cache (default False).
    quantize : str or mapping, optional
        Scheme for the weights of matrix products: ``"int8_weights"`` or ``"int4_weights"``, which are dequantized when
        they are read; ``"int8"``, which quantizes the activations too and multiplies integers; or a mapping from name
        patterns of weights to one of these or None (float32), e.g. ``{"lm_head.*": None, "*": "int8"}``: the first
        matching pattern counts. Requires models compiled with ``inference=True``. `mithril.quantization_report` lists
        the result for each weight. Convolutions run in integers with ``"int8"`` only.
    quantize_ranges : mapping, optional
        For the weights of convolutions, by name, the minimum and maximum of the images that they are applied to, as
        `mithril.calibrate` determines them. Without it, ranges are computed at each call.
    quantize_strict : bool, optional
        Raise an error if a weight cannot be quantized as requested; otherwise it stays in float32 and is reported
        (default False).
    batch : str, optional
        A symbolic size that becomes a run-time argument of the compiled code: one program serves any number of rows.
        Every op must process each row independently, and the size must be the leading axis of inputs and outputs.
    block : int, optional
        Tile size along the batch: rows that are computed at a time; for a fixed number of rows, a divisor of it.
        Smaller tiles need less scratch memory. Default: the estimated optimum, for example a few images of a batch,
        whose tensors then stay in the caches; with ``batch`` at most 8. The whole batch if rows depend on each other or
        weights are quantized.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Relu()(input="input", output="output")
    >>> compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [3]})
    >>> compiled.evaluate({}, {"input": np.array([-1, 0, 2], np.float32)})["output"]
    array([0., 0., 2.], dtype=float32)
    """

    name = "c"
    _engine_type = CEngine
    _options = names(COptions)

    @accepts(COptions)
    def __init__(self, **keywords: Unpack[COptions]) -> None:
        super().__init__(**keywords)
        settings = options.normalize(type(self).__name__, keywords, self._options)
        plain = {name: settings[name] for name in plain_options() if name in settings}
        checked = _core.c_options({**plain, "memory_limit": self.memory_limit})
        #: The C compiler; None: the one that is found.
        self.cc: str | None = checked["cc"]
        #: Further flags of the compiler.
        self.flags: tuple[str, ...] = checked["flags"]
        #: How weights are kept: patterns of names, and the scheme or None for float32; None: all in float32.
        self.quantize: Rules | None = rules(settings.get("quantize"))
        #: Ranges of images by the names of the weights that are applied to them.
        self.quantize_ranges: Ranges = ranges(settings.get("quantize_ranges"), self.quantize)
        #: How `mithril.calibrate` determined them, e.g. ``"minmax"``; None: they are those of the option.
        self.calibration: str | None = None
        #: Whether a weight that cannot be quantized is an error.
        self.quantize_strict: bool = options.switch("quantize_strict", settings.get("quantize_strict", False))

        #: Whether the candidates of kernels are measured.
        self.autotune: bool = checked["autotune"]

        #: The size that is an argument of a program.
        self.batch: str | None = checked["batch"]
        #: Rows that are computed at a time; None: as estimated.
        self.block: int | None = checked["block"]
        if (refusal := _core.c_cache_refusal()) is not None:
            warnings.warn(refusal, BackendWarning, stacklevel=2)


RawCBackend = CBackend
