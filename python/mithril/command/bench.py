"""`mithril bench`: a model on several backends, or tables of published models on all of them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..errors import ConflictingOptionError
from ..tools.bench_table import BenchmarkTable, benchmark_table
from ..tools.bench_table.report import check_path
from ..tools.bench_table.workloads import TABLES, WORKLOADS
from ..tools.benchmark import benchmark
from .answer import Answer
from .source import Source, shapes_of

__all__ = ["add_arguments", "run"]

#: Options of the tables, and of a model; what they are if they are not given.
_OF_TABLES: dict[str, Any] = {
    "models": None,
    "batch": None,
    "minutes": None,
    "against": None,
    "quick": False,
    "output": None,
    "note": [],
}
_OF_MODELS: dict[str, Any] = {
    "model": None,
    "shape": [],
    "weights": None,
    "random_weights": False,
    "name": [],
    "inference": False,
    "training": False,
    "num_runs": None,
}


def add_arguments(parser: argparse.ArgumentParser, names: type[argparse.Action]) -> None:
    """Add the options of the command to a parser; ``names`` is the action of options that take several names."""
    parser.add_argument("--training", action="store_true", help="outputs and gradients together")
    parser.add_argument("--num-runs", type=int, metavar="N", help="number of calls (default 100)")
    text = "instead of MODEL: published models on all installed backends; may be given several times"
    parser.add_argument("--table", action=names, choices=tuple(TABLES), metavar="TABLE", help=text)
    text = f"of the table: {', '.join(WORKLOADS)} (default: all)"
    parser.add_argument("--models", action=names, choices=tuple(WORKLOADS), metavar="NAME,…", help=text)
    parser.add_argument("--minutes", type=float, metavar="N", help="how long all tables may take (default 10)")
    parser.add_argument("--batch", type=int, metavar="N", help="examples of a call (default 1, in training 4)")
    text = "native: beside each framework the same network written by hand in it"
    parser.add_argument("--against", choices=("native",), metavar="native", help=text)
    parser.add_argument("--quick", action="store_true", help="small configurations of the models, to try it in seconds")
    parser.add_argument("--output", metavar="FILE", help="write the tables to a file: *.md, *.json or *.svg")
    parser.add_argument("--note", action="append", default=[], metavar="TEXT", help="a sentence below the tables")


def run(given: argparse.Namespace) -> Answer:
    """Measure what the arguments name."""
    if given.table:
        return _tables(given)
    for name, usual in _OF_TABLES.items():
        if getattr(given, name) != usual:
            raise ConflictingOptionError(f"--{name} is for tables", hint="add --table inference, or leave it out")
    if given.model is None:
        hint = "give one: mithril bench resnet18 …, or a table: mithril bench --table inference"
        raise ConflictingOptionError("there is no MODEL to measure", hint=hint)
    if not given.backend:
        raise ConflictingOptionError("there is no backend to measure on", hint="name one: --backend numpy")
    if given.inference and given.training:
        raise ConflictingOptionError("--inference and --training contradict each other", hint="leave one of them out")
    source, shapes = Source.of(given), shapes_of(given.shape)
    runs = 100 if given.num_runs is None else given.num_runs
    options = {"jit": given.jit, "training": given.training, "params": source.arrays(shapes)}
    found = benchmark(source.model, shapes, given.backend, runs, **options)
    return Answer.of(found, given, note=source.note, is_well=bool(found))


def _tables(given: argparse.Namespace) -> Answer:
    for name, usual in _OF_MODELS.items():
        if getattr(given, name) != usual:
            word = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            hint = "--models chooses those of the table, with random weights" if name == "model" else "leave it out"
            raise ConflictingOptionError(f"{word} and --table contradict each other", hint=hint)
    if given.output is not None:
        check_path(given.output)
    found = benchmark_table(
        given.table,
        models=given.models,
        backends=given.backend or None,
        batch=given.batch,
        minutes=10.0 if given.minutes is None else given.minutes,
        jit=given.jit,
        against=given.against,
        quick=given.quick,
        notes=given.note,
        progress=given.waiting.say,
    )
    if given.output is None:
        return Answer(found.to_markdown(), found.to_dict(), bool(len(found)))
    _save(found, given)
    return Answer(f"wrote {given.output}", found.to_dict(), bool(len(found)))


def _save(found: BenchmarkTable, given: argparse.Namespace) -> None:
    is_page = Path(given.output).suffix.lower() == ".md"
    found.save(given.output, title="Benchmarks" if is_page else None)
