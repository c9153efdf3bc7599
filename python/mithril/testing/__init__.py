"""What tests of ops and backends are made of."""

from .cases import Case, cases

__all__ = ["Case", "cases"]
