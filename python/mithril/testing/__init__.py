"""What tests of ops and backends are made of."""

from .backend_tests import run_backend_tests
from .cases import Case, cases

__all__ = ["Case", "cases", "run_backend_tests"]
