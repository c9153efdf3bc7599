"""Tools that compare, measure and look inside, on any number of backends."""

from .benchmark import BenchmarkResult, benchmark
from .calibration import calibrate
from .check import CheckResult, check
from .compare import CompareResult, compare
from .nans import NanReport, find_nans
from .overview import doctor, suggest_backend
from .quantization import quantization_report

__all__ = [
    "BenchmarkResult",
    "CheckResult",
    "CompareResult",
    "NanReport",
    "benchmark",
    "calibrate",
    "check",
    "compare",
    "doctor",
    "find_nans",
    "quantization_report",
    "suggest_backend",
]
