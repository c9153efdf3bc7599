"""Tools that compare, measure and look inside, on any number of backends."""

from .check import CheckResult, check

__all__ = ["CheckResult", "check"]
