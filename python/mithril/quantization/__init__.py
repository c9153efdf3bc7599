"""Quantization: weights in low-bit blocks, mixtures of block formats, and reports of the error."""

from .mixtures import MIXTURES
from .parameters import (
    FORMATS,
    OutputError,
    QuantizationReport,
    Quantized,
    QuantizedArray,
    QuantizedParameters,
    Skipped,
    distance,
    quantize,
)

__all__ = [
    "FORMATS",
    "MIXTURES",
    "OutputError",
    "QuantizationReport",
    "Quantized",
    "QuantizedArray",
    "QuantizedParameters",
    "Skipped",
    "distance",
    "quantize",
]
