"""Tools that compare, measure and look inside, on any number of backends."""

from .check import CheckResult, check
from .compare import CompareResult, compare

__all__ = ["CheckResult", "CompareResult", "check", "compare"]
