"""What goes wrong with exported C: what export refuses, what the program that checks says, where a call failed."""

from __future__ import annotations

import subprocess

import mithril as ml
import numpy as np
import pytest
from mithril import IOKey, Model


def network(backend=None, hidden=16, rows=1, **options):
    model = Model()
    model |= ml.Linear(hidden)(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(3)(output="output")
    compiled = ml.compile(model, backend or ml.NumpyBackend(), shapes={"input": [rows, 5]}, inference=True, **options)
    compiled.randomize_params(seed=0)
    return compiled


def test_files_of_somebody_else_are_not_replaced(tmp_path):
    (tmp_path / "README.md").write_text("# My project\n")
    with pytest.raises(ml.errors.ModelFileError, match=r"README.md already exists and is not part of an export"):
        network().export(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["README.md"]
    (tmp_path / "README.md").unlink()
    for _ in range(2):
        assert network().export(tmp_path).check.endswith("ok\n")


def test_options_that_say_nothing_are_errors(tmp_path):
    wrong = ml.errors.InvalidValueError
    params = network().get_parameters()
    infinite = {**params, "linear_1.weight": np.full((3, 16), np.inf, np.float32)}
    for options, kind, problem in [
        ({"loss": "output"}, wrong, "minimized by an optimizer"),
        ({"weights_inside": "no"}, wrong, "weights_inside is 'no'"),
        ({"batch": "n"}, ml.errors.KeyNotFoundError, "available: batch"),
        ({"params": infinite}, wrong, r"'linear_1.weight' holds NaN or an infinity"),
        ({"data": {"input": np.full((1, 5), np.nan, np.float32)}}, wrong, "data 'input' holds NaN"),
    ]:
        with pytest.raises(kind, match=problem):
            network(rows="batch" if "batch" in options else 1).export(tmp_path / "out", **options)
    with pytest.raises(wrong, match="the folder has no name"):
        network().export("")
    with pytest.raises(ml.errors.ParameterError, match=r"help: give data of the shape") as problem:
        network().export(tmp_path / "out", data={"input": np.ones((2, 5), np.float32)})
    assert "[2, 5], but must be [1, 5]" in str(problem.value)


def test_wrong_weights_are_named_by_the_program(tmp_path):
    network(hidden=64).export(tmp_path / "one", prefix="classifier", weights_inside=False)
    network(hidden=32).export(tmp_path / "other", prefix="classifier", weights_inside=False)
    one = tmp_path / "one"
    subprocess.run(["make", "-s", "check"], cwd=one, check=True)
    whole = (one / "classifier.weights").read_bytes()
    (one / "cut.weights").write_bytes(whole[: len(whole) // 2])
    for weights, problem in [
        ("cut.weights", "cut.weights: these are not the weights of classifier.c, all of them"),
        ("../other/classifier.weights", "these are not the weights of classifier.c"),
        ("classifier.check", "these are not the weights of classifier.c"),
        ("nowhere", "nowhere: No such file"),
    ]:
        completed = subprocess.run(
            ["./check", "1", weights, "classifier.check"], cwd=one, capture_output=True, text=True
        )
        assert completed.returncode == 1
        assert problem in completed.stderr


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_matrix_without_a_result_says_where(num_threads):
    count = 64
    x, y = IOKey("x", shape=[count, 24, 24]), IOKey("y", shape=[count, 24, 24])
    block = Model.create(first=x.inv(), second=y.cholesky())
    block.name = 'block"??/'
    model = Model()
    model |= block(x="x", y="y", first="first", second="second")
    backend = ml.CBackend(num_threads=num_threads)
    compiled = ml.compile(model, backend, inference=True)
    good = np.tile(np.eye(24, dtype=np.float32), (count, 1, 1))
    singular = good.copy()
    singular[-1] = 0
    indefinite = good.copy()
    indefinite[0] *= -1
    for data, problem in [
        ({"x": singular, "y": good}, "a matrix is singular: inverse in `block"),
        ({"x": good, "y": indefinite}, "a matrix is not positive definite: cholesky in `block"),
        # The first of two, by whichever thread it is met.
        ({"x": singular, "y": indefinite}, "a matrix is singular: inverse in `block"),
    ]:
        for _ in range(4):
            with pytest.raises(ml.errors.NumericsError, match=problem) as caught:
                compiled.evaluate({}, data)
            assert "test_c_export_mistakes.py" in caught.value.where
    assert set(compiled.evaluate({}, {"x": good, "y": good})) >= {"second"}


def test_code_in_which_no_step_asks_for_the_number_of_threads_compiles_without_a_warning(tmp_path):
    model = ml.Model()
    model |= ml.Convolution2D(132, 7, padding=3, stride=(1, 2), dilation=(2, 3), groups=4)(
        input="input", output="output"
    )
    compiled = ml.compile(model, ml.CBackend(), shapes={"input": [2, 16, 17, 13]}, inference=True)
    exported = compiled.export(tmp_path, flags=["-Wall", "-Wextra", "-Werror"])
    assert exported.check.endswith("ok\n")


@pytest.mark.parametrize("shapes", [None, {"input": [2, 5]}])
def test_data_of_a_name_that_is_not_there_is_told_as_data(tmp_path, shapes):
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="output")
    x = np.ones((2, 5), np.float32)
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
    for data in ({"imput": x}, {"input": x, "imput": x}):
        with pytest.raises(ml.errors.KeyNotFoundError, match="data names 'imput'") as problem:
            compiled.export(tmp_path, data=data)
        assert problem.value.hint == "did you mean 'input'?"


POINTERS = """
#include <stdio.h>
#include <stdlib.h>
#include "tiny.h"
int main(void) {
    _Alignas(64) float x[10] = {0}, y[6], z[6];
    _Alignas(64) static char packed[4096], arena[4096];
    const void *inputs[PARAMS + 2] = {0};
    void *outputs[2] = {y, z};
    for (int i = 0; i < PARAMS; i++) inputs[i] = packed;
    int start = PARAMS;
    inputs[start] = x;
    inputs[start + 1] = x;
    puts(tiny_error(tiny_run(inputs, outputs, packed, arena, NULL)));
    inputs[start + 1] = NULL;
    puts(tiny_error(tiny_run(inputs, outputs, packed, arena, NULL)));
    inputs[start + 1] = x;
    outputs[1] = (char *)z + 2;
    puts(tiny_error(tiny_run(inputs, outputs, packed, arena, NULL)));
    outputs[1] = y + 1;
    puts(tiny_error(tiny_run(inputs, outputs, packed, arena, NULL)));
    outputs[1] = z;
    puts(tiny_error(tiny_run(inputs, outputs, packed, arena + 4, NULL)));
    puts(tiny_error(5));
    return 0;
}
"""


def test_a_pointer_that_does_not_fit_is_named(tmp_path):
    model = ml.Model()
    model |= ml.Linear(3, name="fc")(input="first", output="sum")
    model |= ml.Softmax(axis=0)(input="sum", output="chances")
    model |= ml.Multiply()(left="second", right=2.0, output="double?")
    shapes = {"first": [2, 5], "second": [2, 3]}
    compiled = ml.compile(model, ml.CBackend(), shapes=shapes, data_keys=set(shapes), inference=True)
    compiled.export(tmp_path, prefix="tiny")
    header = (tmp_path / "tiny.h").read_text()
    names = {n: header.partition(f"{n} ")[2] for n in ("inputs[0]:", "inputs[1]:", "inputs[2]:", "inputs[3]:")}
    assert "second" in names["inputs[3]:"].splitlines()[0], header
    (tmp_path / "pointers.c").write_text(POINTERS)
    program = tmp_path / "pointers"
    command = ["cc", "-DPARAMS=2", "-Wall", "-Wextra", "-Werror", "-o", program, tmp_path / "pointers.c"]
    subprocess.run([*command, tmp_path / "tiny.c", "-lm", "-lpthread"], check=True)
    fits, missing, odd, overlaps, arena, other = subprocess.run(
        [program], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    problem = "is a null pointer, is not aligned, or overlaps another"
    assert fits == "no error"
    assert missing == f"inputs[3], `second`, {problem}"
    assert odd == overlaps == f"outputs[1], `double `, {problem}"
    assert arena == f"arena {problem}"
    assert other.startswith("an argument of the call")


def test_an_index_in_loops_of_several_ops_is_told_with_their_place(tmp_path):
    model = ml.Model()
    model |= ml.Embedding(3, 2, name="words")(input="best", output="rows")
    model |= ml.Add(name="plus")(left="rows", right="more", output="output")
    shapes = {"best": [2], "more": [2, 2]}
    compiled = ml.compile(
        model, ml.CBackend(), shapes=shapes, dtypes={"best": "int64"}, data_keys=set(shapes), inference=True
    )
    compiled.export(tmp_path)
    text = (tmp_path / "model.c").read_text()
    assert 'case 17:\n        return "an index is out of range: in the loops that compute output in `plus`";' in text
    with pytest.raises(ml.errors.InvalidValueError, match="embedding is given index 7"):
        compiled.evaluate({}, {"best": np.array([0, 7]), "more": np.ones((2, 2), np.float32)})
