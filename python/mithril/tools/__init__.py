"""Tools that compare, measure and look inside, on any number of backends."""

from .bench_table import BenchmarkTable, benchmark_table
from .benchmark import BenchmarkResult, benchmark
from .calibration import calibrate
from .check import CheckResult, check
from .compare import CompareResult, compare
from .nans import NanReport, find_nans
from .onnx import to_onnx
from .overview import doctor, suggest_backend
from .pipeline_plan import PipelinePlan
from .plan import Communication, Plan, plan
from .quantization import quantization_report

__all__ = [
    "BenchmarkResult",
    "BenchmarkTable",
    "CheckResult",
    "Communication",
    "CompareResult",
    "NanReport",
    "PipelinePlan",
    "Plan",
    "benchmark",
    "benchmark_table",
    "calibrate",
    "check",
    "compare",
    "doctor",
    "find_nans",
    "plan",
    "quantization_report",
    "suggest_backend",
    "to_onnx",
]
