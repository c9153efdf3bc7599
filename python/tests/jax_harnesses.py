"""JAX's own harnesses of its primitives, put to `from_jax`: functions and arguments that nobody here wrote.

A harness is a function with arguments, in a group that is mostly named like a primitive. Complex numbers go in and out
as two real tensors. `REFUSED` says what `from_jax` refuses and `DIFFERENT` what is not compared, and why. By hand:
``PYTHONPATH=python:python/tests python -m jax_harnesses --help``.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import random
import signal
import sys
import time
import warnings
from fnmatch import fnmatch

import jax
import mithril as ml
import numpy as np
from mithril.errors import MithrilError
from mithril.testing.backend_tests import EPSILON
from mithril.testing.backend_tests import UNITS as CLASSES
from mithril.tools.oracle import off

#: Units of epsilon that results and gradients may be off by, and how often rounding of the inputs may show in them.
UNITS, GRADIENT_UNITS, AMPLIFIED = 16.0, 64.0, 8.0
#: Groups whose ops are decompositions, which may be off by more: see docs/tolerances.md.
DECOMPOSITIONS = ("cholesky", "eigh", "lu", "qr", "svd")
#: Seconds that a harness may take.
LIMIT = 60

#: Group, with wildcards, and a part of the message: why it is refused. What is refused otherwise is a problem.
REFUSED = {
    ("eig", "`eig"): "no op decomposes matrices that are not symmetric",
    ("*", "of complex numbers"): "no op computes it of complex numbers",
    ("igamma*", "`igamma"): "no op",
    ("regularized_incomplete_beta", "regularized_incomplete_beta"): "no op",
    ("random_gamma", "random_gamma of keys"): "draws until a number is accepted, which depends on data",
    ("rng_bit_generator", "rng_bit_generator"): "numbers of a key that is data come from jax.random",
    ("tridiagonal_solve", "tridiagonal_solve"): "no op",
    ("triangular_solve", "in lower precision than float32"): "decompositions are of float32 and float64",
    ("select_and_scatter_add", "of integers"): "the gradient of a maximum, which integers do not have",
    ("bitcast_convert_type", "bool"): "truth values have no bits",
}

#: Harness, with wildcards, or its gradient, and backends: why its results are others than those of JAX.
DIFFERENT = {
    **dict.fromkeys(
        [("gradient:max_inf_nan_*", "*"), ("gradient:min_inf_nan_*", "*")],
        "the slope of what is NaN is 0 in JAX, and goes to what is NaN here",
    ),
    ("gradient:clamp_*", "*"): "where the bounds are in the wrong order, JAX's slope is not that of its value",
    ("gradient:digamma_*", "*"): "JAX's is off by up to a hundredth left of 0",
    ("top_k_sort_inf_nan*", "*"): "JAX puts NaN of negative sign last; NaN has no sign here",
}


@functools.cache
def harnesses():
    """All harnesses that JAX implements on a processor."""
    # Those of 64 bits are in the list if there are such numbers when it is made.
    with warnings.catch_warnings(), jax.enable_x64(True), _no_arguments():
        warnings.simplefilter("ignore")
        from jax._src.internal_test_util.test_harnesses import all_harnesses
    return [h for h in all_harnesses if h.filter("cpu")]


@contextlib.contextmanager
def _no_arguments():
    """Hide the arguments of this program, which JAX's module reads."""
    before, sys.argv = sys.argv, sys.argv[:1]
    try:
        yield
    finally:
        sys.argv = before


def dtype_of(harness):
    """Name of the dtype of a harness."""
    return np.dtype(harness.dtype).name


def sample(limit=None, groups=None, dtypes=None, seed=0):
    """Some harnesses of each group."""
    by_group = collections.defaultdict(list)
    for harness in harnesses():
        name = harness.group_name
        if (not groups or name in groups) and (not dtypes or dtype_of(harness) in dtypes):
            by_group[name].append(harness)
    chosen = []
    for name, some in by_group.items():
        few = limit is not None and len(some) > limit
        chosen += random.Random(f"{name} {seed}").sample(some, limit) if few else some
    return chosen


# --- one harness -------------------------------------------------------------------------------------------------


class Use:
    """A harness as a function of real arrays."""

    def __init__(self, harness, seed=0):
        self.harness = harness
        self.own = harness.dyn_args_maker(np.random.RandomState(seed))
        self.args = []
        for x in self.own:
            self.args += [np.real(x), np.imag(x)] if np.iscomplexobj(x) else [] if x is None else [x]
        self.args = [jax.numpy.asarray(x) for x in self.args]

    def __call__(self, *xs):
        """Results, of complex ones both parts."""
        rest = iter(xs)
        args = [
            None if x is None else jax.lax.complex(next(rest), next(rest)) if np.iscomplexobj(x) else next(rest)
            for x in self.own
        ]
        results = []
        for x in jax.tree_util.tree_leaves(self.harness.dyn_fun(*args)):
            results += [x.real, x.imag] if np.iscomplexobj(x) else [x]
        return results

    def results(self, xs):
        """What JAX computes."""
        return [np.asarray(x) for x in self(*xs)]

    def moved(self, seed):
        """Arguments that are moved by their own rounding."""
        rng = np.random.default_rng(seed)

        def move(x):
            dtype = str(x.dtype)
            sign = rng.choice([-1.0, 1.0], x.shape) * EPSILON.get(dtype, 0.0)
            return jax.numpy.asarray((np.asarray(x) * (1 + sign)).astype(x.dtype)) if dtype in EPSILON else x

        return [move(x) for x in self.args]

    def cotangents(self, results):
        """A direction for each result that is a float."""
        rngs = [np.random.default_rng(i) for i in range(len(results))]
        return [
            (rng.integers(-8, 9, x.shape) / 8).astype(x.dtype) if str(x.dtype) in EPSILON else None
            for rng, x in zip(rngs, results, strict=True)
        ]

    def gradients(self, xs, directions):
        """JAX's gradients by the arguments that are floats; None where there are none."""
        floats = [i for i, x in enumerate(xs) if str(x.dtype) in EPSILON]
        if all(d is None for d in directions):
            return None

        def part(*leaves):
            own = list(xs)
            for i, leaf in zip(floats, leaves, strict=True):
                own[i] = leaf
            return [y for y, d in zip(self(*own), directions, strict=True) if d is not None]

        try:
            _, back = jax.vjp(part, *(xs[i] for i in floats))
            gradients = back([d for d in directions if d is not None])
        except Exception:  # JAX has many errors for what has no gradient.
            return None
        return {i: np.asarray(g) for i, g in zip(floats, gradients, strict=True)}


def put(harness, backends, gradients=False, make=ml.from_jax):
    """Put a harness to `from_jax`: pairs of a kind and a text, by backend, or by "from_jax" if it gives no model.

    Kinds are "right", "refused", "different", "skipped" (JAX does not run it), and "problem".
    """
    is_wide = dtype_of(harness) in ("float64", "int64", "uint64", "complex128")
    with jax.enable_x64(is_wide), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            use = Use(harness)
            expected = use.results(use.args)
        except Exception as error:  # of JAX
            return {"jax": ("skipped", f"{type(error).__name__}: {str(error)[:100]}")}
        try:
            with _limited():
                model, _ = make(use, use.args)
        except Exception as error:
            return {"from_jax": _failure(harness, error)}
        directions = use.cotangents(expected)
        slopes = use.gradients(use.args, directions) if gradients else None
        results = {}
        for name, backend in backends.items():
            try:
                with _limited():
                    problem = compare_values(use, backend, model, expected)
                    if problem is None and slopes:
                        problem = compare_gradients(use, backend, model, expected, directions, slopes)
            except Exception as error:
                results[name] = _failure(harness, error)
                continue
            reason = known_difference(harness, name, problem) if problem else None
            results[name] = ("different", reason) if reason else ("problem", problem) if problem else ("right", "")
        return results


class TooLong(Exception):
    """A harness that takes longer than `LIMIT`."""


@contextlib.contextmanager
def _limited():
    def stop(*ignored):
        raise TooLong(f"longer than {LIMIT} seconds")

    before, start = signal.signal(signal.SIGALRM, stop), time.monotonic()
    rest, _ = signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        # The test has a limit of its own.
        signal.setitimer(signal.ITIMER_REAL, max(rest - (time.monotonic() - start), 0.001) if rest else 0)


def _failure(harness, error):
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MithrilError):
        for (group, part), reason in REFUSED.items():
            if fnmatch(harness.group_name, group) and part in text:
                return "refused", reason
    return "problem", text


def known_difference(harness, backend, problem):
    """Why the results of a harness are not those of JAX, where that is meant or known."""
    label = harness.fullname if problem.startswith("result") else f"gradient:{harness.fullname}"
    for (name, backends), reason in DIFFERENT.items():
        if fnmatch(label, name) and (backends == "*" or backend in backends.split()):
            return reason
    return None


def _data(use, backend, model):
    wanted = set(model.input_keys)
    names = _names(len(use.args))
    return {
        name: backend.tensor(np.asarray(x), str(x.dtype))
        for name, x in zip(names, use.args, strict=True)
        if name in wanted
    }


def _names(count):
    return [f"input_{i}" for i in range(count)]


def compare_values(use, backend, model, expected):
    """What is wrong with the values on a backend; None if nothing is."""
    compiled = ml.compile(model, backend)
    outputs = compiled.evaluate({}, _data(use, backend, model)).values()
    actual = [np.asarray(backend.to_numpy(x)) for x in outputs]
    for i, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return f"result {i} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
    check = next((check for name, check in CHECKED.items() if fnmatch(use.harness.fullname, name)), None)
    a, b = (check(use, x) for x in (actual, expected)) if check else (actual, expected)

    def moved(seed):
        results = use.results(use.moved(seed))
        return check(use, results) if check else results

    allowed = CLASSES["Decomposition"] if use.harness.group_name in DECOMPOSITIONS else UNITS
    return _problem(
        "result", dict(enumerate(a)), dict(enumerate(b)), allowed, lambda seed: dict(enumerate(moved(seed)))
    )


def compare_gradients(use, backend, model, expected, directions, slopes):
    """What is wrong with the gradients on a backend; None if nothing is."""
    names, wanted = _names(len(use.args)), set(model.input_keys)
    by = {names[i]: g for i, g in slopes.items() if names[i] in wanted and np.isfinite(g).all()}
    if not by or any(fnmatch(use.harness.fullname, name) for name in CHECKED):
        return None
    compiled = ml.compile(model, backend, trainable_keys=list(by))
    data = _data(use, backend, model)
    cotangents = {
        name: backend.tensor(d, str(d.dtype))
        for name, d in zip(model.output_keys, directions, strict=True)
        if d is not None
    }
    params = {name: data.pop(name) for name in by}
    gradients = compiled.evaluate(params, data, cotangents)[1]
    actual = {name: np.asarray(backend.to_numpy(gradients[name])) for name in by}

    def moved(seed):
        return {names[i]: g for i, g in (use.gradients(use.moved(seed), directions) or {}).items()}

    return _problem("gradient by", actual, by, GRADIENT_UNITS, moved)


def _problem(what, actual, expected, allowed, moved):
    for key, b in expected.items():
        a, dtype = actual[key], b.dtype.name
        units = off(a, b, dtype)
        if units > allowed and dtype in EPSILON and np.isfinite(units):
            change = max(off(moved(seed)[key], b, dtype) for seed in range(2))
            units = 0.0 if units <= allowed + AMPLIFIED * change else units
        if units > allowed:
            numbers = f"{a.ravel()[:4]} is not {b.ravel()[:4]}"
            return f"{what} {key}: {units:.0f} epsilon off: {numbers}"
    return None


# --- what is compared of results that are not unique --------------------------------------------------------------


def _transposed(x):
    return np.swapaxes(x, -1, -2)


def _svd(use, results):
    if len(results) == 1:
        return results
    s, u, vh = results
    n = s.shape[-1]
    product = (u[..., :n] * s[..., None, :]) @ vh[..., :n, :]
    return [s, product, _transposed(u) @ u, vh @ _transposed(vh)]


def _qr(use, results):
    q, r = results
    return [q @ r, _transposed(q) @ q, np.tril(r, -1)]


def _eigh(use, results):
    vectors, values = results
    return [values, (vectors * values[..., None, :]) @ _transposed(vectors), _transposed(vectors) @ vectors]


def _sorted(use, results):
    order = np.lexsort(results[::-1])
    return [x[order] for x in results]


def _taken(use, results):
    values, places = results
    return [values, np.take_along_axis(np.asarray(use.args[0]), places, -1)]


#: Harnesses with results that are not unique, and what is.
CHECKED = {
    "cholesky_*": lambda use, results: [np.tril(x) for x in results],
    "svd_*": _svd,
    "qr_*": _qr,
    "eigh_*": _eigh,
    "sort_multiple_arrays_*isstable_False*": _sorted,
    "approx_top_k_*": _taken,
}

# --- running -----------------------------------------------------------------------------------------------------


class Tally:
    """What came of a run, by group."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)
        self.reasons = collections.Counter()
        self.problems = []

    def add(self, harness, name, kind, text):
        """Count what came of a harness."""
        self.counts[harness.group_name][kind] += 1
        if kind in ("refused", "different"):
            self.reasons[f"{kind}, {harness.group_name}: {text}"] += 1
        if kind == "problem":
            self.problems.append(f"{name}: {harness.fullname}: {text}")

    @property
    def total(self):
        """What came of all groups."""
        return sum(self.counts.values(), collections.Counter())

    def table(self):
        """Lines of a table, one for each group."""
        kinds = ("right", "refused", "different", "skipped", "problem")
        lines = [f"{'group':30}" + "".join(f"{kind:>10}" for kind in kinds)]
        for name, counts in [*sorted(self.counts.items()), ("total", self.total)]:
            lines.append(f"{name:30}" + "".join(f"{counts[kind] or '':>10}" for kind in kinds))
        return lines


def run(names, chosen, gradients=False, say=None, **options):
    """Put harnesses to `from_jax`, and to backends."""
    tally, backends = Tally(), {name: ml.get_backend(name) for name in names}
    for harness in chosen:
        start = time.time()
        for name, (kind, text) in put(harness, backends, gradients, **options).items():
            tally.add(harness, name, kind, text)
            if say and kind == "problem":
                say(f"PROBLEM {tally.problems[-1]}")
        if say and time.time() - start > 5:
            say(f"{harness.fullname}: {time.time() - start:.1f} s")
    return tally


def main():
    """Compare by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="numpy")
    parser.add_argument("--groups", help="with commas between; all of them otherwise")
    parser.add_argument("--dtypes", help="with commas between; all of them otherwise")
    parser.add_argument("--limit", type=int, help="harnesses of each group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", action="store_true", help="compare those of floats, too")
    options = parser.parse_args()
    groups, dtypes = (text.split(",") if text else None for text in (options.groups, options.dtypes))
    chosen = sample(options.limit, groups, dtypes, options.seed)
    say = functools.partial(print, file=sys.stderr, flush=True)
    tally = run(options.backends.split(","), chosen, options.gradients, say)
    print(*tally.table(), sep="\n")
    print(*(f"{count:5} {reason}" for reason, count in sorted(tally.reasons.items())), sep="\n")
    print(*tally.problems, sep="\n")


if __name__ == "__main__":
    main()
