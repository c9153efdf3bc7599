"""The GGML backend: models become graphs of ggml, which is linked into the core."""

from __future__ import annotations

from typing_extensions import Unpack

from .... import _core
from ....errors import InvalidValueError
from ... import options
from ...keywords import GgmlOptions, accepts, names
from ..native import NativeBackend
from .engine import GgmlEngine
from .quantization import Rules, rules

__all__ = ["GGMLBackend", "GgmlBackend"]


class GGMLBackend(NativeBackend):
    """Runs models on ggml, with low-bit weights of every type that ggml offers.

    Arrays are NumPy arrays, and ops applied eagerly are NumPy's. A compiled model is a plan of ggml calls for its
    sizes; ops that ggml lacks are custom ops in it, computed as by the reference interpreter. Gradients are such plans
    as well.

    Compiled with ``inference=True`` (``static_inference=True``), a model keeps its parameters in the form that ggml
    needs. The arrays become read-only, so that writing into them is an error rather than silently ignored; other arrays
    take effect at the next call.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats: float32 (default); ggml computes in it. Also spelled ``default_dtype``.
    device : str, optional
        Only ``"cpu"``, the device that this ggml is built for; `devices` lists what ggml itself finds.
    seed : int, optional
        Seed of the random numbers (default 0). Also spelled ``random_seed``.
    jit : bool, optional
        No effect.
    precision : dtype, optional
        Dtype in which models multiply matrices and convolve; see `Backend`.
    num_threads : int, optional
        Threads per call (default: as many as the process may use).
    memory_limit : int or str, optional
        Bytes that weights and planned memory may take together, e.g. ``"4GB"``, for all sizes that a program was called
        with. It is checked before anything runs; the error says how much is needed. Also spelled ``mem_size``.
    quantize : str or mapping, optional
        Type of the weights of matrix products: a ggml type (``"q8_0"``, also spelled ``"int8"``; ``"q4_k"``, ``"f16"``
        …), a mixture of types (``"q4_k_m"`` …), or a mapping from name patterns of weights to one of them or None
        (unchanged), e.g. ``{"lm_head.*": "q6_k", "*": "q4_k"}``: the first matching pattern counts. Requires models
        compiled with ``inference=True``. `mithril.quantization_report` lists the result for each weight.
    quantize_strict : bool, optional
        Raise an error if a weight cannot be stored as requested; otherwise it stays in float32 and is reported (default
        False).
    repack : bool, optional
        Whether rows of low-bit weights are interleaved for products, where ggml has kernels for that (``q4_0``,
        ``q4_k``, ``q2_k``, ``iq4_nl`` … with AVX2 or more). By default weights that are quantized when they are packed
        are; those of a GGUF file are read where they lie. True interleaves those too, in a copy for each choice of
        sizes; False none.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> model = ml.Model()
    >>> model |= ml.Relu()(input="input", output="output")
    >>> backend = ml.GGMLBackend(mem_size="4GB", num_threads=1)
    >>> compiled = ml.compile(model, backend, shapes={"input": [3]}, static_inference=True, static_shapes=True)
    >>> compiled.evaluate({}, {"input": np.array([-1, 0, 2], np.float32)})["output"]
    array([0., 0., 2.], dtype=float32)
    """

    name = "ggml"
    _engine_type = GgmlEngine
    _options = names(GgmlOptions)

    @accepts(GgmlOptions)
    def __init__(self, **keywords: Unpack[GgmlOptions]) -> None:
        super().__init__(**keywords)
        # Of a processor that lacks what ggml was compiled for, before anything else.
        _core.ggml_devices()
        settings = options.normalize(type(self).__name__, keywords, self._options)
        if str(self.default_dtype) != "float32":
            raise InvalidValueError(
                f"ggml computes in float32, not in {self.default_dtype}",
                hint='leave dtype out; quantize="f16" or "bf16" keeps weights in 16 bits',
            )
        #: How weights are kept: patterns of names, and the type or None for as they are; None: all as they are.
        self.quantize: Rules | None = rules(settings.get("quantize"))
        #: Whether a weight that cannot be stored as asked is an error.
        self.quantize_strict: bool = options.switch("quantize_strict", settings.get("quantize_strict", False))
        repack = settings.get("repack")
        #: Whether rows of low-bit weights are interleaved; None: where they are copied anyway.
        self.repack: bool | None = None if repack is None else options.switch("repack", repack)

    @property
    def ggml_devices(self) -> list[tuple[str, str]]:
        """Names and descriptions of the devices that ggml finds."""
        return list(_core.ggml_devices())

    @property
    def ggml_instructions(self) -> str:
        """Instruction set that ggml uses: the best of those that it is built for and that this processor has.

        The environment variable ``MITHRIL_GGML_CPU`` selects another before ggml is first used.

        Examples
        --------
        >>> import mithril as ml
        >>> ml.GGMLBackend().ggml_instructions in ("sse42", "avx2", "avx512", "plain")
        True
        """
        return str(_core.ggml_instructions())


GgmlBackend = GGMLBackend
