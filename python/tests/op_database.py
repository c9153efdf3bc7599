"""PyTorch's own database of ops, put to our rows: inputs that nobody here wrote, and PyTorch in double precision.

An entry is mapped by its name (or an alias) to a row, and its arguments by the names that PyTorch's schema gives them;
`ADAPTED` says how, where the two differ, and `OTHERWISE` what is not compared, and why. All of it by hand:
``PYTHONPATH=python:python/tests python -m op_database --help``.
"""

from __future__ import annotations

import argparse
import collections
import functools
import inspect
import random
import re
import sys
import time
import warnings
from dataclasses import dataclass
from fnmatch import fnmatch

import mithril as ml
import numpy as np
import torch
import torch.nn.functional as F
from mithril import _core
from mithril.backends.exchange import numpy_dtype
from mithril.backends.signatures import canonical, ports
from mithril.errors import MithrilError, TypeInferenceError
from mithril.testing import Case
from mithril.testing.backend_tests import DTYPES, EPSILON, UNITS, known_limitation
from mithril.testing.compiled import run_compiled
from mithril.testing.gradient_tests import UNITS as GRADIENT_UNITS
from mithril.tools.oracle import off
from op_database_names import ADAPTED, CHECKED, DIFFERENT, OTHERWISE, REFUSED, WORDS, Unmapped

BACKENDS = ("interpreter", "numpy", "torch", "jax", "mlx", "c", "ggml")
ROWS = {row["name"]: row for row in _core.op_definitions()}
#: Rounding of the inputs may show in a result as often.
AMPLIFIED = 8.0


@functools.cache
def entries():
    """All entries of the database, by name and variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return {info.name + (f".{info.variant_test_name}" if info.variant_test_name else ""): info for info in op_db}


def row_name(info):
    """Name of the row that an entry is put to; None if there is none."""
    names = [name.rpartition(".")[2] for name in (info.name, *(alias.name for alias in info.aliases))]
    plain = {name.replace("_", ""): name for row in ROWS.values() for name in (row["name"], *row["aliases"])}
    matches = (canonical(plain[name.replace("_", "")]) for name in names if name.replace("_", "") in plain)
    return next(matches, None)


def reason_against(label):
    """Why an entry is not compared; None if it is."""
    info = entries()[label]
    for name in (label, info.name):
        if name in OTHERWISE:
            return OTHERWISE[name]
    if info.name in ADAPTED or label in ADAPTED or row_name(info) is not None:
        return None
    return "Mithril has no such op"


# --- arguments ---------------------------------------------------------------------------------------------------


@functools.cache
def _schemas(name):
    short = name.removeprefix("nn.functional.").replace(".", "_")
    return [s for s in torch._C._jit_get_schemas_for_operator(f"aten::{short}") if "out" not in s.overload_name]


def _takes(argument, value):
    kind = str(argument.type)
    if isinstance(value, torch.Tensor):
        return "Tensor" in kind or (value.ndim == 0 and kind in ("number", "Scalar"))
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
        return "List[Tensor]" in kind or "List[Optional[Tensor]]" in kind
    if value is None:
        return kind.startswith("Optional")
    if isinstance(value, str):
        return "str" in kind
    return not kind.endswith("Tensor") and "Tensor]" not in kind


def named(info, args, kwargs):
    """Arguments of a sample by name, those left out aside."""
    function = getattr(F, info.name.removeprefix("nn.functional."), None) if info.name.startswith("nn.") else None
    if inspect.isfunction(function):
        bound = inspect.signature(function).bind(*args, **kwargs)
        defaults = {k: p.default for k, p in inspect.signature(function).parameters.items()}
        return dict(bound.arguments), defaults
    for schema in _schemas(info.name):
        places = [a for a in schema.arguments if not a.kwarg_only]
        known = {a.name: a for a in schema.arguments}
        if len(args) > len(places) or not set(kwargs) <= set(known):
            continue
        by_name = {a.name: value for a, value in zip(places, args, strict=False)} | kwargs
        needed = {a.name for a in schema.arguments if not a.has_default_value()}
        if needed <= set(by_name) and all(_takes(known[name], value) for name, value in by_name.items()):
            return by_name, {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    raise Unmapped(f"no schema of {info.name} takes these arguments")


def _literal(value):
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple, torch.Size)) and not any(isinstance(v, torch.Tensor) for v in value):
        return tuple(_literal(v) for v in value)
    return value


def our_arguments(label, args, kwargs):
    """Op and arguments, one per port, of a use of an entry; tensors stay PyTorch's."""
    info = entries()[label]
    adapt = ADAPTED.get(label) or ADAPTED.get(info.name)
    if isinstance(adapt, str):
        op, arguments, defaults = adapt, *named(info, args, kwargs)
    elif adapt is not None:
        op, arguments = adapt(*args, **kwargs)
        defaults = {}
    else:
        op = row_name(info)
        arguments, defaults = named(info, args, kwargs)
    known = ports(op)
    values = [known.default(i) for i in range(len(known.names)) if known.rows[i]["kind"] != "variadic"]
    rest = []
    first = next((i for i in range(len(known.names)) if known.is_tensor(i)), 0)
    for name, value in arguments.items():
        words = [word for word in WORDS.get(name, ()) if word in known.names]
        port = first if name == "self" else known.names.index(words[0]) if words else known.find(name)
        if port is None:
            if name in defaults and (value is defaults[name] or value == defaults[name]):
                continue
            raise Unmapped(f"{op} has no `{name}`")
        if known.rows[port]["kind"] == "variadic":
            rest = list(value)
        elif value is None and known.rows[port].get("default") is not None:
            continue
        else:
            values[port] = _literal(value)
    return op, values + rest


# --- uses --------------------------------------------------------------------------------------------------------


@dataclass
class Use:
    """One use of an entry: what PyTorch is called with, and what our op is."""

    label: str
    dtype: str
    args: tuple
    kwargs: dict
    op: str
    op_args: list
    is_extremal: bool = False

    def __str__(self):
        def short(value):
            if isinstance(value, torch.Tensor):
                return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
            if isinstance(value, (list, tuple)):
                return "(" + ", ".join(map(short, value)) + ")"
            return repr(value)

        words = [*map(short, self.args), *(f"{k}={short(v)}" for k, v in self.kwargs.items())]
        return f"{self.label} of {self.dtype}{' (extremal)' if self.is_extremal else ''}: {', '.join(words)}"

    def truth(self, wide=True, noise=None):
        """What PyTorch gives, as a list of arrays; in double precision unless told otherwise."""

        def change(x):
            x = x.detach().double() if wide and (x.is_floating_point() or wide == "all") else x.detach()
            if noise is not None and x.is_floating_point():
                signs = torch.from_numpy(np.asarray(noise.choice([-1.0, 1.0], tuple(x.shape))))
                x = x * (1 + EPSILON.get(self.dtype, 2.0**-23) * signs)
            return x

        return _arrays(call(self.label, *_mapped(change, (self.args, self.kwargs))))


def call(label, args, kwargs):
    """Call PyTorch's op of an entry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entries()[label].op(*args, **kwargs)


def _mapped(change, value):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _mapped(change, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return type(value)(_mapped(change, v) for v in value)
    return value


def _arrays(result):
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    arrays = []
    for x in results:
        x = torch.as_tensor(x).detach()
        parts = [x.real, x.imag] if x.is_complex() else [x]
        arrays += [_host(part) for part in parts]
    return arrays


def _host(x):
    x = x.detach().resolve_conj().resolve_neg()
    return x.float().numpy().astype(numpy_dtype("bfloat16")) if x.dtype == torch.bfloat16 else x.numpy()


def uses(label, dtype, limit=None, seed=0):
    """Uses of an entry in a dtype: its sample inputs and, of functions of elements, extremal values."""
    info, collected = entries()[label], []
    torch.manual_seed(seed)
    np.random.seed(seed)
    native = getattr(torch, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = [(s, False) for s in info.sample_inputs("cpu", native, requires_grad=False)]
        samples += [(s, True) for s in _extremal(info, native)]
    if limit is not None and len(samples) > limit:
        samples = random.Random(f"{label} {dtype} {seed}").sample(samples, limit)
    unmapped = collections.Counter()
    for sample, is_extremal in samples:
        args, kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        try:
            op, arguments = our_arguments(label, args, kwargs)
        except Unmapped as reason:
            unmapped[str(reason)] += 1
            continue
        collected.append(Use(label, dtype, args, kwargs, op, arguments, is_extremal))
    return collected, unmapped


def _extremal(info, dtype):
    from torch.testing._internal.opinfo import core

    kind = "unary" if isinstance(info, core.UnaryUfuncInfo) else "binary"
    if not isinstance(info, (core.UnaryUfuncInfo, core.BinaryUfuncInfo)) or dtype == torch.bool:
        return
    for what in ("large_value", "extremal_value"):
        if what == "extremal_value" and not dtype.is_floating_point:
            continue
        if what == "large_value" and dtype in (torch.uint8, torch.int8):
            continue
        make = getattr(core, f"generate_elementwise_{kind}_{what}_tensors")
        yield from make(info, device="cpu", dtype=dtype, requires_grad=False)


# --- comparing ---------------------------------------------------------------------------------------------------


def _case(use):
    arguments = [_host(x).copy() if isinstance(x, torch.Tensor) else x for x in use.op_args]
    return Case(use.op, "", tuple(arguments))


def compare_values(backend, use):
    """What is wrong with the values of a use on a backend; None if nothing is, and the text "refused" of a refusal."""
    case = _case(use)
    try:
        # What PyTorch refuses is no use of the op.
        expected = use.truth(wide="float" in use.dtype)
        if any("float" in x.dtype.name for x in expected) and "float" not in use.dtype:
            expected = use.truth(wide="all")
    except (RuntimeError, IndexError, ValueError, TypeError):
        return "refused"
    try:
        actual = run_compiled(backend, case) if backend.engine.tests_compiled_ops else _at_once(backend, case)
    except TypeInferenceError:
        return "refused"
    except MithrilError as error:
        text = f"{type(error).__name__}: {error.message}"
        return f"refused: {text}" if refusal(use.label, error.message) else text
    except Exception as error:  # of a framework
        return f"{type(error).__name__}: {str(error)[:200]}"
    results = actual if isinstance(actual, tuple) else (actual,)
    actual = [np.asarray(backend.to_numpy(x)) for x in results]
    if use.op in CHECKED:
        actual, expected = CHECKED[use.op](use, actual, expected)
    return _problem(use, actual, expected)


def refusal(label, message):
    """Why Mithril refuses what PyTorch takes, where that is meant."""
    fits = (reason for (entry, text), reason in REFUSED.items() if fnmatch(label, entry) and re.search(text, message))
    return next(fits, None)


def _at_once(backend, case):
    args = [backend.tensor(a, a.dtype.name) if isinstance(a, np.ndarray) else a for a in case.args]
    return backend._op(case.op, args)


def _problem(use, actual, expected):
    row = ROWS[use.op]
    allowed = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
    for i, (a, b) in enumerate(zip(actual, expected, strict=False)):
        if a.shape != b.shape:
            return f"shape {a.shape}, not {b.shape}"
        kinds = [("f" if "float" in x.dtype.name else x.dtype.name) for x in (a, b)]
        if kinds[0] != kinds[1]:
            return f"{a.dtype}, not {b.dtype}"
        if kinds[0] != "f":
            if not np.array_equal(a, b):
                return f"other integers: {a.ravel()[:6]}, not {b.ravel()[:6]}"
            continue
        if "float" in use.dtype and a.dtype.name != use.dtype and "dtype" not in use.kwargs:
            return f"{a.dtype}, not {use.dtype}"
        units = off(a, b.astype(np.float64), a.dtype.name)
        if units > allowed:
            wide = True if "float" in use.dtype else "all"
            moved = [use.truth(wide, noise=np.random.default_rng(seed)) for seed in range(2)]
            if use.op in CHECKED:
                moved = [CHECKED[use.op](use, m, m)[1] for m in moved]
            moved = [m[i] for m in moved]
            change = max(off(m, b.astype(np.float64), a.dtype.name) for m in moved)
            if not units <= allowed + AMPLIFIED * change:
                return f"{units:.1f} epsilon off, {allowed} are allowed"
    return None


def compare_gradients(backend, use, autodiff=None):
    """What is wrong with the gradients of a use on a backend."""
    tensors, leaves = [], {}

    def leaf(x):
        if x.is_floating_point() and id(x) not in leaves:
            leaves[id(x)] = x.detach().double().requires_grad_()
            tensors.append(x)
        return leaves.get(id(x), x)

    args, kwargs = _mapped(leaf, (use.args, use.kwargs))
    try:
        results = call(use.label, args, kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return "refused"
    results = list(results) if isinstance(results, (tuple, list)) else [results]
    results = [part for x in results for part in ([x.real, x.imag] if x.is_complex() else [x])]
    outputs = len(ROWS[use.op]["outputs"]) if ROWS[use.op]["outputs"] else len(results)
    results = results[: max(outputs, 1)] if use.op != "split" else results
    floats = [i for i, x in enumerate(results) if x.is_floating_point()]
    if not leaves or not any(results[i].requires_grad for i in floats):
        return "refused"
    random_cotangents = [
        torch.from_numpy(np.asarray(np.random.default_rng(i).integers(-8, 9, tuple(results[i].shape)) / 8))
        for i in floats
    ]
    expected = torch.autograd.grad(
        [results[i] for i in floats], list(leaves.values()), random_cotangents, allow_unused=True
    )
    by_id = dict(zip(leaves, expected, strict=True))
    inputs, arrays, trained = [], {}, {}
    for i, x in enumerate(use.op_args):
        if isinstance(x, torch.Tensor):
            name = f"x{i}"
            arrays[name] = _host(x).copy()
            inputs.append(_core.Connection.input(name, list(x.shape), arrays[name].dtype.name))
            if x.is_floating_point() and by_id.get(id(x)) is not None:
                trained[name] = by_id[id(x)].numpy()
        else:
            inputs.append(x)
    if not trained:
        return "refused"
    try:
        result = _core.apply_op(use.op, inputs)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        model = _core.Model.create(**{f"y{i}": output for i, output in enumerate(outputs)})
        options = {} if autodiff is None else {"autodiff": autodiff}
        compiled = ml.compile(model, backend, trainable_keys=list(trained), **options)
        params = {name: backend.tensor(arrays[name], arrays[name].dtype.name) for name in trained}
        data = {n: backend.tensor(a, a.dtype.name) for n, a in arrays.items() if n not in trained}
        cotangents = {
            f"y{i}": backend.tensor(g.numpy().astype(numpy_dtype(use.dtype)), use.dtype)
            for i, g in zip(floats, random_cotangents, strict=True)
        }
        actual = compiled.evaluate(params, data, cotangents)[1]
    except MithrilError as error:
        text = f"{type(error).__name__}: {error.message}"
        return f"refused: {text}" if refusal(use.label, error.message) else text
    except Exception as error:  # of a framework
        return f"{type(error).__name__}: {str(error)[:200]}"
    for name, exact in trained.items():
        units = _gradient_error(np.asarray(backend.to_numpy(actual[name])), exact, use.dtype)
        if units > GRADIENT_UNITS:
            return f"gradient by {name}: {units:.0f} epsilon off, {GRADIENT_UNITS} are allowed"
    return None


def _gradient_error(actual, exact, dtype):
    if actual.shape != exact.shape or not np.array_equal(np.isfinite(actual), np.isfinite(exact)):
        return np.inf
    finite = np.isfinite(exact)
    if not finite.any():
        return 0.0
    scale = max(float(np.abs(exact[finite]).max()), 1.0)
    return float(np.abs(actual[finite].astype(np.float64) - exact[finite]).max()) / scale / EPSILON[dtype]


# --- running -----------------------------------------------------------------------------------------------------


def dtypes_of(label):
    """Dtypes that an entry and Mithril both have."""
    native = {str(d).removeprefix("torch.") for d in entries()[label].dtypes}
    return [dtype for dtype in DTYPES if dtype in native]


def plan(labels=None, dtypes=DTYPES):
    """All pairs of an entry that is compared and a dtype."""
    chosen = labels or entries()
    compared = [label for label in chosen if reason_against(label) is None]
    return [(label, dtype) for label in compared for dtype in dtypes_of(label) if dtype in dtypes]


class Tally:
    """What came of a run."""

    def __init__(self):
        self.counts = collections.Counter()
        self.problems = []
        self.known = collections.Counter()

    def add(self, backend, name, use, problem, prefix=""):
        """Count what came of a comparison."""
        kind = "passed" if problem is None else "refused" if problem.startswith("refused") else "problem"
        if kind == "problem":
            reason = known_difference(backend, name, prefix + use.label, use) or known_limitation(
                backend.limitations, prefix + use.op, use.dtype
            )
            if reason:
                self.known[reason] += 1
                kind = "known"
            else:
                self.problems.append(f"{name}: {prefix}{use}: {problem}")
        self.counts[kind] += 1


def known_difference(backend, name, label, use):
    """Why a use is not as in PyTorch, where that is meant or known."""
    for (entry, dtypes, backends, extremal), reason in DIFFERENT.items():
        fits = fnmatch(label, entry) and (dtypes == "*" or use.dtype in dtypes.split())
        if fits and (backends == "*" or name in backends.split()) and (use.is_extremal or not extremal):
            return reason
    return None


def run(names, pairs, limit=None, seed=0, gradients=True, values=True, say=None):
    """Compare uses on backends."""
    tally = Tally()
    backends = {name: ml.get_backend(name) for name in names}
    for label, dtype in pairs:
        cases, unmapped = uses(label, dtype, limit, seed)
        tally.counts["unmapped"] += unmapped.total()
        for name, backend in backends.items():
            start, before = time.time(), len(tally.problems)
            for use in cases:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    if values:
                        tally.add(backend, name, use, compare_values(backend, use))
                    is_smooth = gradients and dtype in ("float64", "float32") and not use.is_extremal
                    if is_smooth and entries()[label].supports_autograd:
                        tally.add(backend, name, use, compare_gradients(backend, use), "gradient:")
            if say:
                say(f"{label} of {dtype} on {name}: {len(cases)} uses, {time.time() - start:.1f} s")
                for problem in tally.problems[before:]:
                    say(f"PROBLEM {problem}")
    return tally


def main():
    """Compare by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--ops", help="entries, with commas between; all of them otherwise")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--limit", type=int, help="uses of each entry in each dtype")
    parser.add_argument("--pairs", type=int, help="so many pairs of an entry and a dtype, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--unmapped", action="store_true", help="print what is not compared, and why")
    options = parser.parse_args()
    labels = options.ops.split(",") if options.ops else list(entries())
    if options.unmapped:
        for label in labels:
            if reason := reason_against(label):
                print(f"{label}: {reason}")
        return
    pairs = plan(labels, options.dtypes.split(","))
    if options.pairs:
        pairs = random.Random(options.seed).sample(pairs, min(options.pairs, len(pairs)))
    say = functools.partial(print, file=sys.stderr, flush=True)
    tally = run(options.backends.split(","), pairs, options.limit, options.seed, not options.no_gradients, say=say)
    print(*tally.problems, sep="\n")
    print(*(f"known, {count} times: {reason}" for reason, count in tally.known.items()), sep="\n")
    print(dict(tally.counts))


if __name__ == "__main__":
    main()
