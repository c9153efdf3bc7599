"""Tools that compare, measure and look inside, on any number of backends."""

from .benchmark import BenchmarkResult, benchmark
from .check import CheckResult, check
from .compare import CompareResult, compare

__all__ = ["BenchmarkResult", "CheckResult", "CompareResult", "benchmark", "check", "compare"]
