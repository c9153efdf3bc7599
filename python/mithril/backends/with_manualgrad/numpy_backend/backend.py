"""The NumPy backend: readable generated code that needs nothing but NumPy."""

from __future__ import annotations

from typing_extensions import Unpack

from ...keywords import NumpyOptions, accepts, names
from ...numpy_arrays import NumpyArrays
from ...quantized import QuantizedWeights
from .engine import NumpyProgramEngine

__all__ = ["NumpyBackend"]


class NumpyBackend(QuantizedWeights, NumpyArrays):
    """Runs models with NumPy on the CPU.

    Parameters
    ----------
    dtype : dtype, optional
        Dtype of floats: float16, bfloat16 (needs ``ml_dtypes``), float32 (default) or float64.
        Also spelled ``default_dtype``.
    device : str, optional
        Only ``"cpu"``.
    seed : int, optional
        Seed of the random numbers (default 0). Also spelled ``random_seed``.
    quantize : str or mapping, optional
        Keep the weights of products and convolutions in 8 bits. ``"int8"`` computes products in integers;
        ``"int8_weights"`` converts the weights to float where they are used, and so does ``"int8"`` for convolutions.
        Or a mapping from patterns of names to one of them or None, such as ``{"lm_head.*": None, "*": "int8"}``: the
        first pattern that fits counts. Needs models compiled with ``inference=True``.
    quantize_strict : bool, optional
        Whether a weight that cannot be kept as asked is an error (default False).
    device_mesh : int or tuple of int, optional
        Models are divided over so many processes of this machine, which start by themselves: the batch, and with two
        numbers parameters; see `mithril.Layout`.
    parallel_strategy : str, optional
        What several devices divide: ``"data_parallel"``, ``"fully_sharded"``, ``"model_parallel"``; ``"auto"``
        searches for the fastest.
    devices : sequence, optional
        The device of each process, ``["cpu"] * 4``.

    Examples
    --------
    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(dtype=ml.float64)
    >>> backend.add(backend.tensor([1, 2, 3]), 0.5)
    array([1.5, 2.5, 3.5])
    """

    name = "numpy"
    target = "numpy"
    _engine_type = NumpyProgramEngine
    _options: tuple[str, ...] = names(NumpyOptions)

    @accepts(NumpyOptions)
    def __init__(self, **keywords: Unpack[NumpyOptions]) -> None:
        super().__init__(**keywords)
        self._read_quantize(keywords)
