"""A size that is an argument of generated C: one program for any number of rows."""

import ctypes
import shutil
import subprocess

import mithril as ml
import numpy as np
import pytest
from mithril.errors import MithrilError
from networks import classifier, model_of, normal, texts, two_convolutions


def pictures():
    model = ml.Model()
    model |= ml.Conv2d(16, 3, padding=1)(input="input", output="wide")
    model += ml.BatchNorm2d(16)
    model += ml.Relu()
    model += ml.MaxPool2d(2)
    model += ml.Flatten(1)
    model += ml.Linear(5)
    model += ml.Softmax()(output="output")
    return model


CASES = {
    "dense": (classifier, ["batch", 5], None),
    "pictures": (pictures, ["batch", 3, 8, 8], None),
    "texts": (texts, ["batch", 6], "int64"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_program_serves_any_number_of_rows(case):
    make, shape, dtype = CASES[case]
    shapes, dtypes = {"input": shape}, {"input": dtype} if dtype else None
    options = {"shapes": shapes, "dtypes": dtypes, "inference": True}
    backend = ml.CBackend(num_threads=2, batch="batch", block=4)
    compiled, reference = ml.compile(make(), backend, **options), ml.compile(make(), ml.NumpyBackend(), **options)
    params = reference.randomize_params(seed=0)
    for rows in (3, 4, 0, 1, 9, 8):
        data = normal(rows, *shape[1:]) if dtype is None else np.arange(rows * 6).reshape(rows, 6) % 11
        expected = reference.evaluate(params, {"input": data})["output"]
        actual = compiled.evaluate(dict(params), {"input": data})["output"]
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert compiled._current.module.source.specializations == 1


def test_as_many_rows_are_computed_at_a_time_as_stay_in_the_caches():
    model = two_convolutions()
    texts = {}
    for size in (8, 96):
        options = {"shapes": {"input": ["batch", 3, size, size]}, "inference": True}
        compiled = ml.compile(model, ml.CBackend(num_threads=1, batch="batch"), **options)
        reference = ml.compile(model, ml.NumpyBackend(), **options)
        params = reference.randomize_params(seed=0)
        for rows in (0, 1, 3, 9):
            data = {"input": normal(rows, 3, size, size)}
            expected, actual = (c.evaluate(dict(params), data)["output"] for c in (reference, compiled))
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
        source = compiled._current.module.source
        assert source.specializations == 1
        texts[size] = source.text
    assert "first += 8" in texts[8]
    assert "first += 8" not in texts[96]


@pytest.mark.parametrize("quantize", [None, "int8", "int8_weights", "int4_weights"])
def test_parameters_in_few_bits_are_packed_for_any_number_of_rows(quantize):
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(32)(output="output")
    options = {"shapes": {"input": ["batch", 64]}, "inference": True}
    backend = ml.CBackend(num_threads=1, batch="batch", block=4, quantize=quantize, autotune=True)
    counted, fixed = ml.compile(model, backend, **options), ml.CBackend(num_threads=1, quantize=quantize)
    params = counted.randomize_params(seed=0)
    packed, sized = counted.pack(dict(params)), ml.compile(model, fixed, **options)
    data = normal(9, 64)
    expected = sized.evaluate(dict(params), {"input": data})["output"]
    for rows in (1, 3, 8, 0, 9):
        actual = counted.evaluate(packed, {"input": data[:rows]})["output"]
        np.testing.assert_allclose(actual, expected[:rows], rtol=1e-4, atol=1e-4)
    assert counted._current.module.source.specializations == 1


def test_gradients_and_states_of_any_number_of_rows_are_refused():
    backend = ml.CBackend(num_threads=1, batch="batch")
    compiled = ml.compile(classifier(), backend, shapes={"input": ["batch", 5]})
    data = {"input": normal(3, 5)}
    cotangents = {name: np.ones_like(y) for name, y in compiled.evaluate(compiled.get_parameters(), data).items()}
    with pytest.raises(MithrilError, match="does not treat each row of batch by itself"):
        compiled.evaluate_gradients(compiled.get_parameters(), data, output_gradients=cotangents)
    compiled = ml.compile(pictures(), backend, shapes={"input": ["batch", 3, 8, 8]})
    with pytest.raises(MithrilError, match="changes states, which all rows of batch would do together"):
        compiled.evaluate(compiled.randomize_params(seed=0), {"input": normal(3, 3, 8, 8)})


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ml.Sum(axis=0), "is not the first size of the result|does not treat each row"),
        (ml.Softmax(axis=0), "does not treat each row of batch by itself"),
        (ml.CumSum(axis=0), "does not treat each row of batch by itself"),
        (ml.Transpose(), "is not the first size of the result"),
        (ml.Flip(axis=0), "does not treat each row of batch by itself"),
    ],
    ids=["sum", "softmax", "cumsum", "transpose", "flip"],
)
def test_rows_that_mix_are_refused_by_name(layer, message):
    backend = ml.CBackend(num_threads=1, batch="batch")
    compiled = ml.compile(model_of(layer), backend, shapes={"input": ["batch", 3]}, inference=True)
    with pytest.raises(MithrilError, match=message):
        compiled.evaluate({}, {"input": normal(4, 3)})


def test_a_size_that_is_not_there_is_named():
    compiled = ml.compile(classifier(), ml.CBackend(batch="n"), shapes={"input": ["batch", 5]}, inference=True)
    with pytest.raises(MithrilError, match="the model has no size called"):
        compiled.evaluate(compiled.randomize_params(seed=0), {"input": normal(2, 5)})


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_an_exported_model_takes_any_number_of_rows(tmp_path):
    shapes = {"input": ["batch", 3, 8, 8]}
    compiled = ml.compile(pictures(), ml.NumpyBackend(), shapes=shapes, inference=True)
    params = compiled.randomize_params(seed=0)
    # It is built, run on more rows than a block has, and compared.
    exported = compiled.export(tmp_path, prefix="net", params=params, batch="batch", block=4)
    assert "ok" in exported.check
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined"]
    checked = tmp_path / "sanitized"
    subprocess.run(["gcc", *flags, "main.c", "net.c", "-o", checked, "-lm", "-lpthread"], cwd=tmp_path, check=True)
    subprocess.run([checked, "2"], cwd=tmp_path, check=True)
    (tmp_path / "header.c").write_text('#include "net.h"\n')
    subprocess.run(["gcc", "-std=c99", "-pedantic", "-Werror", "-c", "header.c"], cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "net.c", "-o", "net.so", "-lm", "-lpthread"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    library.net_open.restype = ctypes.c_void_p
    model = ctypes.c_void_p(library.net_open(str(tmp_path / "net.weights").encode(), 1))
    pointer = ctypes.c_void_p * 1
    for rows in (0, 1, 4, 11):
        data, output = normal(rows, 3, 8, 8), np.full((rows + 1, 5), 7, np.float32)
        source, taken = pointer(data.ctypes.data), pointer(output.ctypes.data)
        assert library.net_call_batch(model, source, taken, ctypes.c_int64(rows)) == 0
        np.testing.assert_allclose(
            output[:rows], compiled.evaluate(params, {"input": data})["output"], rtol=1e-4, atol=1e-5
        )
        assert (output[rows] == 7).all()
    assert library.net_call_batch(model, source, taken, ctypes.c_int64(-1)) != 0
    library.net_close(model)
