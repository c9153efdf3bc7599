"""PyTorch's own databases of ops and of modules, each sample exported, imported by `from_torch` and compared.

The arguments that are tensors are the inputs of a module, all others are its constants. `DIFFERENT` says what is not as
in PyTorch, `REFUSED` what cannot be imported, and why. All of it by hand:
``PYTHONPATH=python:python/tests python -m import_database --help``.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import traceback
import unittest.mock
import warnings
from fnmatch import fnmatch

import mithril as ml
import numpy as np
import torch
from torch.utils import _pytree as pytree

DEPENDS = "torch.export gives no graph: it depends on data"
#: Entries of which some samples cannot be imported.
REFUSED = {
    "the shape of a result depends on data": (
        "__getitem__ argwhere masked_select nonzero nonzero_static unique unique_consecutive combinations index_put "
        "repeat_interleave resize_ resize_as_ tensor_split item histogram"
    ),
    DEPENDS: "allclose equal corrcoef cov narrow linalg.lstsq*",
    "an input is written to": (
        "cauchy exponential geometric log_normal uniform normal.in_place _batch_norm_with_update *native_batch_norm* "
        "nn.functional.batch_norm nn.functional.instance_norm nn.functional.embedding nn.functional.embedding_bag"
    ),
    "the memory of a tensor": "as_strided.partial_views as_strided_scatter",
    "a function that no row is for": (
        "special.* igamma igammac nextafter hash_tensor histogramdd _segment_reduce* gcd lcm "
        "max_pool2d_with_indices_backward nn.functional.linear_cross_entropy* nn.LinearCrossEntropyLoss"
    ),
    "a factorization that no row is for": (
        "geqrf ormqr lu linalg.lu_factor_ex linalg.ldl* linalg.matrix_sqrth linalg.polar linalg.pinv"
    ),
    "results beside the first one": (
        "linalg.cholesky_ex linalg.inv_ex linalg.solve_ex native_layer_norm native_group_norm"
    ),
    "a window of nothing": "nn.functional.fractional_max_pool3d nn.functional.grid_sample",
    "one value for each channel": "nn.BatchNorm?d nn.functional.batch_norm",
    "an average over all batches": "nn.BatchNorm?d",
}
#: Entries of which some samples differ.
DIFFERENT = {
    "memory that is not initialized": "empty empty_like empty_strided new_empty new_empty_strided empty_permuted",
    "signs of factors, which are fixed here": "linalg.qr svd linalg.svd svd_lowrank pca_lowrank linalg.eigh",
    "which of equal elements": "topk kthvalue mode",
    "PyTorch exports it as something else": "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    "PyTorch's fast path fills padding with zeros": "nn.Transformer nn.TransformerEncoder*",
    "elements next to the bounds of a bin": "histogram histc",
    "Hurwitz's zeta function below zero": "special.zeta",
}


#: By the bytes of a number: functions and decompositions lose half of its digits at most, and bfloat16 has few.
TOLERANCES = {8: 1e-8, 4: 1e-4}


def reason(table, name):
    """Why an entry is in a table; None if it is not."""
    return next((why for why, names in table.items() if any(fnmatch(name, n) for n in names.split())), None)


class Call(torch.nn.Module):
    """A function of the tensors among its arguments."""

    def __init__(self, function, args, kwargs):
        super().__init__()
        self.function = function
        leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    def forward(self, *tensors):
        """Call the function."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.function(*args, **kwargs)


def op_samples(dtype):
    """Names of the database of ops, and functions that give their samples: modules with their inputs."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if dtype in info.dtypes:
            name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
            yield name, lambda info=info: _of_op(info, dtype)


def _of_op(info, dtype):
    result = []
    for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
        args = (sample.input, *sample.args)
        tensors = [leaf for leaf in pytree.tree_leaves((args, sample.kwargs)) if isinstance(leaf, torch.Tensor)]
        if all(tensor.layout == torch.strided for tensor in tensors):
            result.append((Call(info.op, args, sample.kwargs), tuple(tensors)))
    return result


def module_samples(dtype):
    """Names of the database of modules, and functions that give their samples."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        yield info.name, lambda info=info: _of_module(info, dtype)


def _of_module(info, dtype):
    result = []
    for training in (False, True):
        for sample in info.module_inputs_func(info, "cpu", dtype, requires_grad=False, training=training):
            if sample.forward_input is None:
                continue
            module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs)
            module = module.to(dtype).train(training)
            args, kwargs = sample.forward_input.args, sample.forward_input.kwargs
            # Lazy modules take their shapes from a first call.
            if any(isinstance(p, torch.nn.UninitializedParameter) for p in (*module.parameters(), *module.buffers())):
                module(*args, **kwargs)
            tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            call = Call(module, args, kwargs).train(training)
            result.append((call, tuple(tensors)))
    return result


def compare(module, inputs, backend):
    """Import and compare: "passed", "refused: why", "random", "invalid" (for PyTorch), or what is wrong."""
    state = {name: value.clone() for name, value in module.state_dict().items()}

    def expected(seed):
        torch.manual_seed(seed)
        # The database gives some ops a seed of its own.
        with torch.no_grad(), unittest.mock.patch("torch.manual_seed"):
            results = module(*(tensor.clone() for tensor in inputs))
        if state:
            module.load_state_dict(state)
        return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]

    try:
        right, again = expected(0), expected(1)
    except Exception as problem:
        return f"invalid: {problem}"
    if any(value.is_complex() or value.layout != torch.strided for value in right):
        return "invalid: complex or sparse results are not for backends"
    if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(right, again, strict=True)):
        return "random"
    try:
        model, params = ml.from_torch(module, inputs)
        compiled = ml.compile(model, backend)
        data = {f"tensors_{i}": tensor for i, tensor in enumerate(inputs)}
        params, data = ({k: backend.asarray(v) for k, v in values.items()} for values in (params, data))
        results = compiled.evaluate(params, {key: data[key] for key in model.input_keys if key not in params})
    except ml.errors.MithrilError as refusal:
        return f"refused: {refusal}"
    except Exception:
        return f"raised {traceback.format_exc(limit=-2)}"
    results = [backend.to_numpy(value) for value in results.values()]
    problems = (_problem(actual, exact) for actual, exact in zip(results, right, strict=True))
    return next((problem for problem in problems if problem), "passed")


def _problem(actual, right):
    if "bfloat16" in str(right.dtype):
        actual, right = np.asarray(actual).astype("float32"), right.float()
    right = right.resolve_conj().resolve_neg().numpy()
    if (actual.shape, actual.dtype) != (right.shape, right.dtype):
        return f"{actual.dtype}{list(actual.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        is_close = actual == right
    else:
        off = TOLERANCES.get(right.dtype.itemsize, 0.02)
        is_close = np.isclose(actual, right, rtol=off, atol=off / 10, equal_nan=True)
    if is_close.all():
        return None
    return f"{actual[~is_close][:4]} for {right[~is_close][:4]} ({(~is_close).sum()} of {is_close.size})"


class Tally:
    """What came of a run."""

    def __init__(self):
        self.counts = collections.Counter()
        self.problems = []

    def add(self, name, result):
        """Count what came of a sample."""
        kind = result.partition(":")[0]
        if kind not in ("passed", "refused", "random", "invalid"):
            kind = "known" if reason(DIFFERENT, name) else "problem"
        if kind == "refused" and reason(REFUSED, name) is None:
            kind = "problem"
        self.counts[kind] += 1
        if kind == "problem":
            self.problems.append(f"{name}: {result}")


def run(samples, backend, limit, seed=0, say=None):
    """Compare up to `limit` samples of each entry."""
    tally, draw = Tally(), random.Random(seed)
    for name, build in samples:
        torch.manual_seed(seed)
        np.random.seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                cases = build()
            except Exception as problem:
                tally.add(name, f"invalid: {problem}")
                continue
            before = len(tally.problems)
            for module, inputs in draw.sample(cases, min(limit, len(cases))):
                tally.add(name, compare(module, inputs, backend))
        if say:
            for problem in tally.problems[before:]:
                say(problem)
    return tally


def main():
    """Compare by hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--limit", type=int, default=6, help="samples of each entry")
    parser.add_argument("--names", default="*", help="a pattern")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    backend = ml.get_backend(options.backend, dtype=options.dtype if "float" in options.dtype else "float32")
    samples = [*op_samples(dtype), *module_samples(dtype)]
    samples = [(name, build) for name, build in samples if fnmatch(name, options.names)]
    tally = run(samples, backend, options.limit, options.seed, lambda text: print(text, file=sys.stderr, flush=True))
    print(dict(tally.counts))


if __name__ == "__main__":
    main()
