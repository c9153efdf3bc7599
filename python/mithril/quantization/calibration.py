"""Ranges of activations from samples: minimum and maximum, percentiles, or least relative entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..errors import ConflictingOptionError, InvalidValueError
from ..suggestions import among

__all__ = ["METHODS", "Histogram", "RangeMethod", "range_method"]

Array = np.ndarray[Any, Any]

#: How a range is determined from samples.
METHODS = ("minmax", "percentile", "entropy")

#: Bins on each side of 0. At least half of those of the longer side are in use.
_BINS = 1 << 14
#: Values that are counted at once.
_CHUNK = 1 << 20
#: Numbers that 8 bits stand for.
_LEVELS = 256
#: Bins on each side for the relative entropy: so few that most of them hold values.
_COARSE_BINS = 1 << 12
#: Ratio of consecutive thresholds that are compared.
_STEP = 1.01


@dataclass(frozen=True)
class RangeMethod:
    """A method with its options.

    Attributes
    ----------
    name : str
        One of ``METHODS``.
    percentile : float
        Percentage of the values that the range of ``"percentile"`` holds.
    """

    name: str = "minmax"
    percentile: float = 99.99

    def __str__(self) -> str:
        return f"{self.name} {self.percentile:g}" if self.name == "percentile" else self.name

    def range(self, histogram: Histogram) -> tuple[float, float]:
        """Return the range, which includes 0: padding and the results of relu have to remain exact."""
        low, high = histogram.low, histogram.high
        if self.name == "percentile":
            tail = (100 - self.percentile) / 200
            low, high = histogram.quantile(tail), histogram.quantile(1 - tail)
        elif self.name == "entropy":
            low, high = histogram.least_entropy_range()
        return min(low, 0.0), max(high, 0.0)


def range_method(method: Any, percentile: Any = None) -> RangeMethod:
    """Read the options ``method`` and ``percentile``.

    Examples
    --------
    >>> from mithril.quantization.calibration import range_method
    >>> str(range_method("minmax")), str(range_method("percentile", 99.9))
    ('minmax', 'percentile 99.9')
    """
    if method not in METHODS:
        hint = among(method, METHODS) if isinstance(method, str) else f"choose one of {', '.join(METHODS)}"
        raise InvalidValueError(f"method is {method!r}", hint=hint)
    if percentile is None:
        return RangeMethod(method)
    if method != "percentile":
        raise ConflictingOptionError(
            f"percentile has no effect with method={method!r}", hint='leave it out, or choose method="percentile"'
        )
    is_number = isinstance(percentile, Real) and not isinstance(percentile, (bool, np.bool_))
    if not is_number or not 50 <= percentile <= 100:
        hint = "give the percentage of the values that the range holds, from 50 to 100, e.g. 99.99"
        raise InvalidValueError(f"percentile is {percentile!r}", hint=hint)
    return RangeMethod(method, float(percentile))


class Histogram:
    """Counts of the numbers of a stream, in memory that does not depend on how many there are.

    The width of bins is the least power of two with which all numbers fit. As the range grows, bins are merged in
    pairs, so that the counts are exact, and the same however the stream is divided into batches and in whatever order
    they come.

    Parameters
    ----------
    bins : int
        Bins on each side of 0, a power of two.

    Attributes
    ----------
    low, high : float
        The least and the greatest number.
    count, zeros : int
        How many numbers there are, and how many of them are 0.
    width : float
        Width of a bin.
    counts : ndarray
        Counts of all bins; those of negative numbers first.

    Examples
    --------
    >>> from mithril.quantization.calibration import Histogram
    >>> histogram = Histogram(bins=4)
    >>> histogram.add([0.5, 1.5, -1.0])
    >>> histogram.width, histogram.counts.tolist()
    (0.5, [0, 0, 1, 0, 0, 1, 0, 1])
    >>> histogram.add([3.0])
    >>> histogram.width, histogram.counts.tolist()
    (1.0, [0, 0, 0, 1, 1, 1, 0, 1])
    """

    def __init__(self, bins: int = _BINS) -> None:
        self.low, self.high = math.inf, -math.inf
        self.count = self.zeros = 0
        self.counts: Array = np.zeros(2 * bins, np.int64)
        self._bins = bins
        self._exponent: int | None = None

    @property
    def width(self) -> float:
        """Width of a bin; 0 as long as all numbers are 0."""
        return 0.0 if self._exponent is None else math.ldexp(1.0, self._exponent)

    def add(self, values: Any) -> None:
        """Count numbers, all of which are finite."""
        flat = np.asarray(values).reshape(-1)
        for start in range(0, flat.size, _CHUNK):
            self._count(flat[start : start + _CHUNK].astype(np.float64))

    def _count(self, values: Array) -> None:
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += values.size
        self.zeros += values.size - int(np.count_nonzero(values))
        largest = max(-low, high)
        if largest > 0:
            # The quotient is less than 2 to the power of the exponent.
            exponent = math.frexp(largest / self._bins)[1]
            if self._exponent is not None and exponent > self._exponent:
                self.counts = _merged(self.counts, exponent - self._exponent)
            self._exponent = exponent if self._exponent is None else max(exponent, self._exponent)
        if self._exponent is None:
            self.counts[self._bins] += values.size
            return
        positions = np.floor(values * math.ldexp(1.0, -self._exponent)).astype(np.int64) + self._bins
        self.counts += np.bincount(positions, minlength=2 * self._bins)

    def quantile(self, share: float) -> float:
        """Return the number that this share of all numbers is below, to within the width of a bin."""
        if not self.count:
            return 0.0
        position = share * (self.count - 1)
        if position <= 0 or position >= self.count - 1:
            return self.low if position <= 0 else self.high
        sums = np.cumsum(self.counts)
        index = min(int(np.searchsorted(sums, position, side="right")), sums.size - 1)
        inside = (position - (sums[index] - self.counts[index]) + 0.5) / self.counts[index]
        value = (index - self._bins + min(float(inside), 1.0)) * self.width
        return min(max(value, self.low), self.high)

    def least_entropy_range(self, levels: int = _LEVELS, bins: int = _COARSE_BINS) -> tuple[float, float]:
        """Return the range for which quantized numbers have the least relative entropy (Kullback-Leibler divergence).

        Ranges extend equally far below and above 0, as far as there are numbers. What is beyond is clipped: the
        distribution of the clipped numbers is compared with that of as many levels, each of which stands for the mean
        of its bins. Numbers that are exactly 0 do not count, since 0 is exact in each range.

        This is the method that was published for TensorRT, with two differences: ranges need not be symmetric, and the
        numbers that are clipped are missing in the distribution of the levels, which is not scaled up instead. Without
        the latter a range of a single bin would have no divergence, and narrow ranges would have to be excluded; but
        most numbers are in a few bins if there are outliers.
        """
        if self._exponent is None:
            return 0.0, 0.0
        shift = max(self._bins // bins, 1).bit_length() - 1
        counts, width = self.counts.copy(), math.ldexp(self.width, shift)
        counts[self._bins] -= self.zeros
        counts = counts.reshape(-1, 1 << shift).sum(1)
        middle, used = counts.size // 2, np.flatnonzero(counts)
        below, above = max(middle - int(used[0]), 0), max(int(used[-1]) + 1 - middle, 0)
        best, bound = math.inf, max(below, above)
        for threshold in _thresholds(max(below, above)):
            start, end = middle - min(threshold, below), middle + min(threshold, above)
            divergence = _divergence(counts, start, end, levels)
            # Of equal ones the widest.
            if divergence <= best:
                best, bound = divergence, threshold
        return max(self.low, -bound * width), min(self.high, bound * width)


def _merged(counts: Array, shift: int) -> Array:
    """Return counts of bins that are 2 to the power of `shift` times as wide."""
    bins = counts.size // 2
    shift = min(shift, bins.bit_length() - 1)
    merged, kept = np.zeros_like(counts), bins >> shift
    merged[bins - kept : bins + kept] = counts.reshape(-1, 1 << shift).sum(1)
    return merged


def _thresholds(most: int) -> list[int]:
    """Return how many bins ranges extend, from one bin up to all."""
    thresholds, bins = [], 1
    while bins < most:
        thresholds.append(bins)
        bins = max(bins + 1, int(bins * _STEP))
    return [*thresholds, most]


def _divergence(counts: Array, start: int, end: int, levels: int) -> float:
    """Return the relative entropy of the numbers clipped to these bins, and the same in so many levels."""
    inside = counts[start:end].astype(np.float64)
    clipped = inside.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[end:].sum()
    is_used = clipped > 0
    if not (inside[is_used] > 0).all():
        return math.inf
    bins = np.arange(inside.size)
    level = (2 * bins + 1) * levels // (2 * inside.size)
    sums = np.bincount(level, inside, levels)
    sizes = np.bincount(level, inside > 0, levels)
    p, q = clipped[is_used], sums[level[is_used]] / sizes[level[is_used]]
    return float(np.sum(p * np.log(p / q)) / p.sum())
