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
from .backends import on_device
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


def run(args: argparse.Namespace) -> Answer:
    """Measure what the arguments name."""
    if args.table:
        return _tables(args)
    for name, usual in _OF_TABLES.items():
        if getattr(args, name) != usual:
            raise ConflictingOptionError(f"--{name} is for tables", hint="add --table inference, or leave it out")
    if args.model is None:
        hint = "give one: mithril bench resnet18 …, or a table: mithril bench --table inference"
        raise ConflictingOptionError("there is no MODEL to measure", hint=hint)
    if not args.backend:
        raise ConflictingOptionError("there is no backend to measure on", hint="name one: --backend numpy")
    if args.inference and args.training:
        raise ConflictingOptionError("--inference and --training contradict each other", hint="leave one of them out")
    source, shapes = Source.of(args), shapes_of(args.shape)
    runs = 100 if args.num_runs is None else args.num_runs
    options = {"jit": args.jit, "training": args.training, "params": source.arrays(shapes)}
    table = benchmark(source.model, shapes, on_device(args.backend, args.device), runs, **options)
    return Answer.of(table, args, note=source.note, is_well=bool(table))


def _tables(args: argparse.Namespace) -> Answer:
    for name, usual in _OF_MODELS.items():
        if getattr(args, name) != usual:
            word = "MODEL" if name == "model" else f"--{name.replace('_', '-')}"
            hint = "--models chooses those of the table, with random weights" if name == "model" else "leave it out"
            raise ConflictingOptionError(f"{word} and --table contradict each other", hint=hint)
    if args.output is not None:
        check_path(args.output)
    table = benchmark_table(
        args.table,
        models=args.models,
        backends=args.backend or None,
        batch=args.batch,
        device=args.device,
        minutes=10.0 if args.minutes is None else args.minutes,
        jit=args.jit,
        against=args.against,
        quick=args.quick,
        notes=args.note,
        progress=args.waiting.say,
    )
    if args.output is None:
        return Answer(table.to_markdown(), table.to_dict(), bool(len(table)))
    _save(table, args)
    return Answer(f"wrote {args.output}", table.to_dict(), bool(len(table)))


def _save(table: BenchmarkTable, args: argparse.Namespace) -> None:
    is_page = Path(args.output).suffix.lower() == ".md"
    table.save(args.output, title="Benchmarks" if is_page else None)
