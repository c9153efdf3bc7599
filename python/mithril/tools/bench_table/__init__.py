"""`benchmark_table`: published models on all installed backends, as tables of speed and memory."""

from .report import BenchmarkTable, Cell
from .schedule import benchmark_table

__all__ = ["BenchmarkTable", "Cell", "benchmark_table"]
