"""The backend tests of the package onnx: how they are run, and which are not, with the reason.

As a program it runs all of them and prints, or with ``--write`` writes into docs/onnx.md, how many pass::

    PYTHONPATH=python:. python python/tests/onnx_nodes.py numpy c torch jax mlx ggml --write
"""

import re
import sys
import warnings
from collections import Counter
from pathlib import Path

import mithril as ml
import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnx
    from onnx import TensorProto, numpy_helper
    from onnx.backend.test.loader import load_model_tests

    #: All node tests; the networks converted from PyTorch and its tests of ops.
    NODES = {case.name: case for case in load_model_tests(kind="node")}
    CONVERTED = {
        case.name: case
        for kind in ("pytorch-converted", "pytorch-operator", "simple")
        for case in load_model_tests(kind=kind)
    }

#: What is not counted: no tensors, and training.
OUT_OF_SCOPE = {
    "strings": r"dtype string |String|Regex",
    "sequences": r"is not a tensor|Sequence|sequence",
    "optionals": r"Optional|dtype undefined ",
    "training": r"preview\.training|training mode|`ai\.onnx\.preview\.training\.",
}

#: Why others are not run: what the error says, and the reason.
EXCEPTIONS = {
    r"`ImageDecoder`": "files of images (JPEG, PNG, ...) within a tensor",
    r"ai\.onnx\.ml\.|`TfIdfVectorizer`": "vectorizers, trees and encoders of classical machine learning",
    r"`(NonMaxSuppression|NonZero|Unique)`": "the shape of the result depends on data",
    r"`(Bernoulli|RandomUniformLike|RandomNormalLike|RandomUniform|RandomNormal|Multinomial)`": "random numbers differ",
    r"`BitCast`": "bits of a float as an integer",
    r"opset [1-6] is not supported|before opset 9 it has a batch axis": "opsets before 7, scans before opset 9",
    r"max of no elements|min of no elements": "a maximum of nothing is an error",
    r"`AveragePool`: dilations together": "dilations with ceil_mode and count_include_pad",
    r"depends on data|must be known": "control flow and shapes that depend on data",
}


class NotRun(Exception):
    """A case that is not run: whether it counts, and why."""

    def __init__(self, counts, reason):
        super().__init__(reason)
        self.counts, self.reason = counts, reason


def wide(array):
    """Values of narrow dtypes in the dtype that Mithril has for them."""
    name = array.dtype.name
    if re.fullmatch(r"u?int[24]", name):
        return array.astype(np.uint8 if name.startswith("u") else np.int8)
    return array.astype(np.float32) if re.match(r"float[84]_", name) else array


def array_of(value):
    """A value of a data set as an array."""
    return wide(numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value))


def read(proto, values):
    """Read a model; what shapes depend on is an input of many tests, and given as a constant."""
    data = proto.SerializeToString()
    kinds = (lambda v: v.ndim <= 1 and v.dtype.kind in "iub", lambda v: v.ndim <= 1)
    for chosen in (lambda v: False, *kinds):
        constants = {name: value for name, value in values.items() if chosen(value)}
        try:
            return ml.from_onnx(data, constants=constants)
        except ml.errors.UnsupportedOpError as raised:
            error = raised
            if not re.search("must be known|depends on data|must match the data", str(error)):
                break
        except ml.errors.ShapeError as raised:
            error = raised
    raise error


def datasets(case):
    """The inputs and outputs of a case."""
    if case.data_sets:
        return case.data_sets
    datasets = []
    for folder in sorted(Path(case.model_dir).glob("test_data_set_*")):
        pair = []
        for kind in ("input", "output"):
            tensors = []
            for i in range(len(list(folder.glob(f"{kind}_*.pb")))):
                tensor = TensorProto()
                tensor.ParseFromString((folder / f"{kind}_{i}.pb").read_bytes())
                tensors.append(tensor)
            pair.append(tensors)
        datasets.append(tuple(pair))
    return datasets


def model_of(case):
    """The model of a case, from its folder if it lies there."""
    return case.model or onnx.load(Path(case.model_dir) / "model.onnx")


def run(case, backend):
    """Run a case and compare values and dtypes; without a backend it is read only."""
    proto = model_of(case)
    inputs, outputs = datasets(case)[0]
    graph = proto.graph
    operands = [*inputs, *outputs]
    if any(isinstance(value, (list, dict)) or value is None for value in operands):
        raise NotRun(False, "sequences" if any(isinstance(value, list) for value in operands) else "optionals")
    stored = {tensor.name for tensor in graph.initializer}
    names = [i.name for i in graph.input if i.name not in stored]
    values = {name: array_of(value) for name, value in zip(names, inputs, strict=False)}
    try:
        model, params = read(proto, values)
        if backend is None:
            return
        compiled = ml.compile(model, backend)
        params = {name: backend.array(value) for name, value in params.items()}
        results = compiled.evaluate(params, {name: v for name, v in values.items() if name in model.input_keys})
    except (ml.errors.UnsupportedOpError, ml.errors.ShapeError) as error:
        text = f"{error} "
        for reason, pattern in OUT_OF_SCOPE.items():
            if re.search(pattern, text):
                raise NotRun(False, reason) from error
        for pattern, reason in EXCEPTIONS.items():
            if re.search(pattern, text):
                raise NotRun(True, reason) from error
        raise AssertionError(f"no exception is listed for {error}") from error
    for output, value in zip(graph.output, outputs, strict=True):
        expected, actual = array_of(value), np.asarray(backend.to_numpy(results[output.name]))
        assert actual.shape == expected.shape, output.name
        assert str(actual.dtype) == str(expected.dtype), output.name
        if actual.dtype.kind in "fV":
            tolerance = {"bfloat16": 1.6e-2, "float16": 2e-3}.get(str(actual.dtype), max(case.rtol, 1e-4))
            actual, expected = actual.astype(np.float64), expected.astype(np.float64)
            np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=max(case.atol, tolerance / 100))
        else:
            np.testing.assert_array_equal(actual, expected)


#: Backends by the name that the program takes.
BACKENDS = {
    "numpy": ml.NumpyBackend,
    "c": ml.CBackend,
    "torch": ml.TorchBackend,
    "jax": ml.JaxBackend,
    "mlx": ml.MlxBackend,
    "ggml": ml.GgmlBackend,
}


def counted(cases, backend=None):
    """How many of the cases pass, why others are not run, and what fails: passed, not run, out of scope, failures."""
    passed, unread, outside, failed = 0, Counter(), Counter(), {}
    for name, case in cases.items():
        try:
            run(case, backend)
            passed += 1
        except NotRun as reason:
            (unread if reason.counts else outside)[reason.reason] += 1
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
    return passed, unread, outside, failed


#: Where the program writes.
PAGE = Path(__file__).parents[2] / "docs" / "onnx.md"
START, END = "<!-- node tests: by python/tests/onnx_nodes.py -->\n", "<!-- end of node tests -->"


def reading_table():
    """Markdown of what is read, and of the exceptions."""
    _, unread, outside, failed = counted(NODES)
    assert not failed, failed
    total = len(NODES) - outside.total()
    rows = [f"| {reason} | {count} |" for reason, count in unread.most_common()]
    left = ", ".join(f"{count} of {reason}" for reason, count in outside.most_common())
    count = total - unread.total()
    return (
        f"Of {len(NODES)} node tests {outside.total()} are out of scope ({left}). "
        f"Of the other {total}, {count} are read, {count / total:.1%}. Exceptions:\n\n"
        "| reason | tests |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def main():
    """Run all cases on the backends that are named."""
    # Backends that are not named keep their rows.
    old = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    kept = {name: re.search(rf"^\| {name} \|.*$", old, re.MULTILINE) for name in BACKENDS}
    rows = {name: row[0] for name, row in kept.items() if row}
    for name in sys.argv[1:]:
        if name not in BACKENDS:
            continue
        cells = []
        for cases in (NODES, CONVERTED):
            passed, unread, outside, failed = counted(cases, BACKENDS[name]())
            cells.append(f"{passed} of {passed + len(failed)}")
            for case, error in failed.items():
                print(name, case, error.replace("\n", " ")[:300])
            print(name, passed, "passed", len(failed), "failed", dict(unread), dict(outside), flush=True)
        rows[name] = f"| {name} | {' | '.join(cells)} |"
    text = reading_table()
    if rows:
        text += "\n| backend | node tests that are read and pass | networks and tests by PyTorch |\n|---|---|---|\n"
        text += "\n".join(rows[name] for name in BACKENDS if name in rows) + "\n"
    print(text)
    if "--write" in sys.argv:
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(START)
        PAGE.write_text(before + START + "\n" + text + "\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
