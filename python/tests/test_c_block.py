"""Rows of the data that never meet are computed some at a time: the same results, with less scratch memory."""

import re
import shutil
import subprocess

import mithril as ml
import numpy as np
import pytest
from mithril.errors import MithrilError
from networks import classifier, model_of, normal, texts, two_convolutions

#: Images of which only some at a time stay in the caches, between the layers of `two_convolutions`.
LARGE = [12, 3, 96, 96]
GCC = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")


def pictures():
    """Return a network with branches, whose channels lie in blocks."""
    model = ml.Model()
    model |= ml.Conv2d(16, 3, padding=1)(input="input", output="wide")
    model |= ml.BatchNorm2d(16)(input="wide", output="normed")
    model |= ml.Relu()(input="normed", output="active")
    model |= ml.Conv2d(16, 3, padding=1)(input="active", output="deep")
    model |= ml.Add()(left="deep", right="wide", output="sum")
    model |= ml.MaxPool2d(2)(input="sum", output="small")
    model |= ml.Flatten(1)(input="small", output="flat")
    model |= ml.Linear(5)(input="flat", output="scores")
    model |= ml.Softmax()(input="scores", output="output")
    return model


def merged():
    """Return a model that merges rows with another axis, moves them about, and brings them back."""
    model = ml.Model()
    model |= ml.Reshape((8 * 6, 4))(input="input", output="flat")
    model |= ml.Linear(10)(input="flat", output="wide")
    model |= ml.Reshape((8, 6, 2, 5))(input="wide", output="heads")
    model |= ml.Transpose((2, 1, 0, 3))(input="heads", output="moved")
    model |= ml.Tanh()(input="moved", output="bent")
    model |= ml.Transpose((2, 0, 1, 3))(input="bent", output="back")
    model |= ml.Reshape((16, 30))(input="back", output="output")
    return model


CASES = {
    "dense": (classifier, (8, 5)),
    "pictures": (pictures, (8, 3, 8, 8)),
    "texts": (texts, (8, 6)),
    "merged": (merged, (8, 6, 4)),
}


def turns(compiled):
    """Return how often a call goes through the steps."""
    tiles = re.search(r"^tiles: (\d+) of ", compiled.stages["batch_tiling"], re.MULTILINE)
    return int(tiles.group(1)) if tiles else 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_blocks_of_all_sizes_give_the_same(case, threads):
    make, shape = CASES[case]
    data = {"input": np.arange(48).reshape(shape) % 11 if case == "texts" else normal(*shape)}
    options = {"shapes": {"input": list(shape)}, "inference": True}
    if case == "texts":
        options["dtypes"] = {"input": "int64"}
    reference = ml.compile(make(), ml.NumpyBackend(), **options)
    params = reference.randomize_params(seed=0)
    expected = reference.evaluate(params, data)["output"]
    arenas = []
    for block in (1, 2, 4, 8):
        compiled = ml.compile(make(), ml.CBackend(num_threads=threads, block=block), **options)
        actual = compiled.evaluate(dict(params), data)["output"]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
        assert turns(compiled) == 8 // block
        arenas.append(compiled._current.module.source.arena_bytes)
    assert arenas[0] < arenas[-1] or case in ("dense", "merged")


def test_images_of_a_batch_are_computed_apart_without_being_asked():
    model = two_convolutions()
    shape = LARGE
    options = {"shapes": {"input": shape}, "inference": True}
    compiled = ml.compile(model, ml.CBackend(num_threads=1), **options)
    whole = ml.compile(model, ml.CBackend(num_threads=1, block=12), **options)
    params, data = compiled.randomize_params(seed=0), {"input": normal(*shape)}
    actual, expected = (c.evaluate(dict(params), data)["output"] for c in (compiled, whole))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)
    assert turns(compiled) > 1
    assert turns(whole) == 1
    assert compiled._current.module.source.arena_bytes < whole._current.module.source.arena_bytes / 2
    # A size that is left open is a number in each program.
    opened = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": ["n", *shape[1:]]}, inference=True)
    np.testing.assert_allclose(opened.evaluate(dict(params), data)["output"], expected, rtol=1e-4, atol=1e-6)
    assert turns(opened) == turns(compiled)


def test_several_data_some_of_which_all_rows_share():
    model = ml.Model()
    model |= ml.Multiply()(left="input", right="weights", output="scaled")
    model |= ml.Add()(left="scaled", right="other", output="sum")
    model |= ml.Sum(axis=1)(input="sum", output="output")
    shapes = {"input": [6, 4], "weights": [4], "other": [6, 1]}
    data = {name: normal(*shape) for name, shape in shapes.items()}
    keys = {"shapes": shapes, "data_keys": list(shapes), "inference": True}
    compiled = ml.compile(model, ml.CBackend(num_threads=1, block=3), **keys)
    expected = (data["input"] * data["weights"] + data["other"]).sum(1)
    np.testing.assert_allclose(compiled.evaluate({}, data)["output"], expected, rtol=1e-5, atol=1e-6)
    assert turns(compiled) == 2


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ml.Sum(axis=0), "does not treat each row by itself|does not have one row"),
        (ml.Softmax(axis=0), "does not treat each row by itself"),
        (ml.CumSum(axis=0), "does not treat each row by itself"),
        (ml.Flip(axis=0), "does not treat each row by itself"),
        (ml.Transpose(), "does not have one row for each row of the data"),
        (ml.Reshape((6, 2)), "does not treat each row by itself|does not have one row"),
    ],
    ids=["sum", "softmax", "cumsum", "flip", "transpose", "reshape"],
)
def test_rows_that_meet_refuse_a_block(layer, message):
    options = {"shapes": {"input": [4, 3]}, "inference": True}
    with pytest.raises(MithrilError, match=message) as caught:
        ml.compile(model_of(layer), ml.CBackend(num_threads=1, block=1), **options)
    assert "leave out the option block" in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [ml.Sum(axis=0), ml.Softmax(axis=0), ml.CumSum(axis=0), ml.Flip(axis=0), ml.Transpose()],
    ids=["sum", "softmax", "cumsum", "flip", "transpose"],
)
def test_rows_that_meet_at_the_end_keep_large_batches_together(layer):
    model = ml.Model()
    model |= two_convolutions()(input="input", output="means")
    model |= layer(input="means", output="output")
    options = {"shapes": {"input": LARGE}, "inference": True}
    assert turns(ml.compile(two_convolutions(), ml.CBackend(num_threads=1), **options)) > 1
    compiled, reference = (ml.compile(model, b, **options) for b in (ml.CBackend(num_threads=1), ml.NumpyBackend()))
    assert turns(compiled) == 1
    params, data = reference.randomize_params(seed=0), {"input": normal(*LARGE)}
    expected, actual = (c.evaluate(dict(params), data)["output"] for c in (reference, compiled))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_training_needs_all_rows():
    options = {"shapes": {"input": [8, 3, 8, 8]}}
    with pytest.raises(MithrilError, match=r"does not treat each row by itself|does not have one row"):
        ml.compile(pictures(), ml.CBackend(num_threads=1, block=1), **options)
    compiled = ml.compile(classifier(), ml.CBackend(num_threads=1, block=1), shapes={"input": [8, 5]})
    params, data = compiled.get_parameters(), {"input": normal(8, 5)}
    cotangents = {name: np.ones_like(y) for name, y in compiled.evaluate(params, data).items()}
    with pytest.raises(MithrilError, match="does not"):
        compiled.evaluate_gradients(params, data, output_gradients=cotangents)


@pytest.mark.parametrize("block", [0, -1, 1.5, True, "2", 1 << 40])
def test_a_block_is_a_number_of_rows(block):
    with pytest.raises(MithrilError, match="block is"):
        ml.CBackend(block=block)


def test_a_block_that_does_not_divide_the_rows_is_named():
    with pytest.raises(MithrilError, match="block is 3, which does not divide the 8 rows of the data"):
        ml.compile(classifier(), ml.CBackend(block=3), shapes={"input": [8, 5]}, inference=True)


def test_no_rows_are_no_error():
    compiled = ml.compile(classifier(), ml.CBackend(num_threads=1, block=2), shapes={"input": ["n", 5]}, inference=True)
    params = compiled.randomize_params(seed=0)
    for rows in (0, 2, 4):
        outputs = compiled.evaluate(params, {"input": normal(rows, 5)})
        assert [len(value) for value in outputs.values()] == [rows]


def test_steps_are_measured_with_all_that_they_do():
    options = {"shapes": {"input": [8, 3, 8, 8]}, "inference": True}
    whole, apart = (ml.compile(pictures(), ml.CBackend(num_threads=1, block=b), **options) for b in (8, 1))
    params, data = whole.randomize_params(seed=0), {"input": normal(8, 3, 8, 8)}
    first, second = (c.profile(dict(params), data, runs=3) for c in (whole, apart))
    of = lambda report: sum(step.operations or 0 for step in report.rows if "convolution" in step.what)  # noqa: E731
    assert of(first) == of(second) > 0
    assert all(step.seconds > 0 for step in second.rows)


def test_positions_outside_of_a_table_are_told_as_ever():
    options = {"shapes": {"input": [4, 6]}, "dtypes": {"input": "int64"}, "inference": True}
    compiled = ml.compile(texts(), ml.CBackend(num_threads=2, block=1), **options)
    params, tokens = compiled.randomize_params(seed=0), np.zeros((4, 6), np.int64)
    compiled.evaluate(params, {"input": tokens})
    tokens[3, 2] = 11
    with pytest.raises(MithrilError, match="11"):
        compiled.evaluate(params, {"input": tokens})


@GCC
@pytest.mark.parametrize("threads", [1, 2])
def test_an_exported_model_still_takes_all_rows(tmp_path, threads):
    options = {"shapes": {"input": [8, 3, 8, 8]}, "inference": True}
    compiled = ml.compile(pictures(), ml.CBackend(num_threads=1, block=2), **options)
    params = compiled.randomize_params(seed=0)
    # It is built, run on all rows, and compared with NumPy. The block is that of the model.
    exported = compiled.export(tmp_path / "2", prefix="net", params=params)
    whole = compiled.export(tmp_path / "8", prefix="net", params=params, block=8)
    assert "ok" in exported.check
    assert exported.arena_bytes < whole.arena_bytes / 2
    assert "inputs[0]: float[8][3][8][8] input" in (tmp_path / "2" / "net.h").read_text()
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-fsanitize=address,undefined"]
    checked = tmp_path / "sanitized"
    sources = [tmp_path / "2" / name for name in ("main.c", "net.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", checked, "-lm", "-lpthread"], check=True)
    subprocess.run([checked, str(threads)], cwd=tmp_path / "2", check=True)


def test_whole_numbers_keep_the_ranges_of_a_call():
    backend = ml.CBackend(num_threads=1, quantize="int8")
    compiled = ml.compile(two_convolutions(), backend, shapes={"input": LARGE}, inference=True)
    assert turns(compiled) == 1
    options = {"shapes": {"input": LARGE}, "inference": True}
    asked = ml.compile(two_convolutions(), ml.CBackend(num_threads=1, quantize="int8", block=1), **options)
    assert turns(asked) == LARGE[0]
