"""Indices that are out of range: every backend that looks says which op, which index, where, and what to do."""

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import errors
from mithril.models import create_gpt

#: JAX and MLX compute something for any index: what follows from more than integers and lists is not looked at there.
FIRST = {"jax": ml.JaxBackend, "mlx": ml.MlxBackend}
BACKENDS = {
    "numpy": ml.NumpyBackend,
    "interpreter": ml.InterpreterBackend,
    "c": ml.CBackend,
    "ggml": ml.GGMLBackend,
    "torch": ml.TorchBackend,
}
SIZES = {"block_size": 8, "dims": 8, "num_heads": 2, "num_layers": 1, "vocab_size": 10}


@pytest.fixture(params=[*BACKENDS, *FIRST])
def backend(request):
    return {**BACKENDS, **FIRST}[request.param]()


def words(backend, shape=("n",), **options):
    model = ml.Model()
    model |= ml.Embedding(5, 3, name="words")(input="input", output="output")
    return ml.compile(model, backend, shapes={"input": list(shape)}, **options)


def refused(call, *parts):
    """Call what fails; the error holds these parts."""
    with pytest.raises(errors.InvalidValueError) as problem:
        call()
    error = problem.value
    assert error.code == "M0504"
    for part in parts:
        assert part in str(error), str(error)
    return error


@pytest.mark.parametrize("inference", [True, False])
def test_a_table_of_words(backend, inference):
    run = words(backend, inference=inference)
    params = run.get_parameters()
    for index in (5, 7, -6, 2**40):
        data = {"input": np.array([0, index, 1])}
        error = refused(lambda data=data: run.evaluate(params, data), f"given index {index}", "the axis has size 5")
        assert error.path == "words"
        assert "test_positions.py" in error.where
        assert error.hint.startswith("give numbers from 0 to 4")
        assert error.notes == ("it is element [1] of `input`",)
    # The next call works, with other sizes too; negative indices count from the end, which torch has not in this op.
    table = backend.to_numpy(params["words.weight"])
    for good in ([4, 0], [0, 1, 2, 2 if backend.name == "torch" else -1]):
        np.testing.assert_array_equal(
            backend.to_numpy(run.evaluate(params, {"input": np.array(good)})["output"]), table[good]
        )


def test_gradients(backend):
    run = words(backend, ("n", 2))
    data = {"input": np.array([[0, 1], [2, 9]])}
    for gradients in (True, lambda outputs: {"output": outputs["output"]}):
        error = refused(lambda g=gradients: run.evaluate({}, data, output_gradients=g), "embedding is given index 9")
        assert (error.path, error.notes) == ("words", ("it is element [1, 1] of `input`",))


@pytest.mark.parametrize("padding", [1, -4])
@pytest.mark.parametrize(
    ("make", "autodiff"),
    [(make, "graph") for make in [*BACKENDS.values(), ml.JaxBackend, ml.MlxBackend] if make is not ml.TorchBackend]
    + [(ml.JaxBackend, "native"), (ml.MlxBackend, "native")],
)
def test_the_padding_row_gets_no_gradient_from_either_end(make, autodiff, padding):
    backend = make()
    model = ml.Model()
    model |= ml.Embedding(5, 2, padding_idx=padding, name="words")(input="input", output="output")
    run = ml.compile(model, backend, shapes={"input": [5]}, autodiff=autodiff)
    _, gradients = run.evaluate(run.get_parameters(), {"input": np.array([1, -4, 0, -5, -1])}, output_gradients=True)
    gradient = backend.to_numpy(gradients["words.weight"])
    np.testing.assert_array_equal(gradient[:, 0], [2, 0, 0, 0, 1])


def test_a_token_that_a_model_of_the_zoo_does_not_know(backend):
    run = ml.compile(create_gpt(**SIZES), backend, shapes={"input": ["batch", "length"]}, inference=True)
    for batch in (1, 3):
        data = {"input": np.full((batch, 4), 10)}
        error = refused(
            lambda data=data: run.evaluate({}, data), "index 10, but the axis has size 10", "[0, 0] of `input`"
        )
        assert (error.path, error.hint[:26]) == ("transformer.wte", "give numbers from 0 to 9; ")


@pytest.mark.parametrize("name", ["numpy", "interpreter", "c", "ggml"])
def test_classes_in_a_training_step(name):
    model = ml.Model()
    model |= ml.Linear(4, name="fc")(input="input", output="output")
    run = ml.compile(model, BACKENDS[name](), shapes={"input": ["batch", 3]})
    step = ml.train.TrainingStep(run, ml.optim.Adam(0.1), loss="cross_entropy")
    x = np.ones((3, 3), np.float32)
    good = {"input": x, "target": np.array([0, 3, -100])}
    step(good)
    before = {key: np.array(value) for key, value in step.params.items()}
    error = refused(
        lambda: step({"input": x, "target": np.array([0, -100, 4])}),
        "cross_entropy is given index 4, but the axis has size 4",
    )
    assert error.notes == ("it is element [2] of `target`",)
    assert "test_positions.py" in error.where
    # Nothing was learnt from it.
    for key, value in before.items():
        np.testing.assert_array_equal(step.params[key], value)
    step(good)
    assert any((before[key] != value).any() for key, value in step.params.items())


LOOKUPS = {
    "take": (lambda: ml.Take(axis=1), {"input": (2, 3), "indices": (2,)}, 3),
    "take of all": (lambda: ml.Take(), {"input": (2, 3), "indices": (2,)}, 6),
    "take_along_axis": (lambda: ml.TakeAlongAxis(axis=1), {"input": (2, 3), "indices": (2, 1)}, 3),
    "take_along_axis, broadcast": (lambda: ml.TakeAlongAxis(axis=0), {"input": (3, 1), "indices": (2, 4)}, 3),
    "scatter_add": (lambda: ml.ScatterAdd(axis=1), {"input": (2, 3), "indices": (2, 2), "source": (2, 2)}, 3),
    "index_add": (lambda: ml.IndexAdd(axis=1), {"input": (2, 3), "indices": (2,), "source": (2, 2)}, 3),
    "index_copy": (lambda: ml.IndexCopy(axis=0), {"input": (3, 2), "indices": (2,), "source": (2, 2)}, 3),
    "one_hot": (lambda: ml.OneHot(depth=4), {"indices": (2,)}, 4),
}


@pytest.mark.parametrize("case", list(LOOKUPS))
def test_every_op_that_looks_something_up(backend, case):
    make, shapes, size = LOOKUPS[case]
    model = ml.Model()
    model |= make()(**{name: name for name in shapes}, output="output")
    run = ml.compile(model, backend, shapes={n: list(s) for n, s in shapes.items()}, data_keys=set(shapes))
    data = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    indices = np.arange(np.prod(shapes["indices"])).reshape(shapes["indices"]) % size
    run.evaluate({}, {**data, "indices": indices})
    for wrong in (size, -size - 1):
        indices.flat[-1] = wrong
        last = [n - 1 for n in indices.shape]
        op = case.split(",")[0].split(" ")[0]
        call = lambda: run.evaluate({}, {**data, "indices": indices})  # noqa: E731
        refused(
            call, f"{op} is given index {wrong}, but the axis has size {size}", f"it is element {last} of `indices`"
        )


@pytest.mark.parametrize("make", list(FIRST.values()))
def test_integers_that_are_on_the_host_are_read_there(make, monkeypatch):
    backend = make()
    run = words(backend)
    params, read = run.get_parameters(), []
    convert = backend.to_numpy
    monkeypatch.setattr(backend, "to_numpy", lambda array: read.append(type(array)) or convert(array))
    run.evaluate(params, {"input": np.array([0, 4])})
    assert read == [np.ndarray]
    for wrong in (np.array([0, 7]), np.array([0, 7], np.uint8), [0, 7]):
        refused(lambda wrong=wrong: run.evaluate(params, {"input": wrong}), "given index 7", "element [1] of `input`")
    refused(lambda: run.evaluate(params, {"input": backend.array([0, 7])}), "given index 7", "element [1] of `input`")
    assert read[-1] is not np.ndarray


@pytest.mark.parametrize("make", list(BACKENDS.values()))
def test_indices_that_follow_from_data(make):
    backend = make()
    if backend.device.startswith("cuda"):
        pytest.skip("on a GPU, an index that the model computes ends the process; see test_accelerator.py")
    model = ml.Model()
    model |= ml.ArgMax(axis=-1)(input="input", output="best")
    model |= ml.Embedding(3, 2, name="words")(input="best", output="output")
    run = ml.compile(model, backend, shapes={"input": [2, 5]}, inference=True)
    data = {"input": np.eye(5, dtype=np.float32)[2:4]}
    error = refused(lambda: run.evaluate({}, data), "embedding is given index 3, but the axis has size 3")
    assert (error.path, error.notes) == ("words", ("it follows from `input`",))


@pytest.mark.parametrize("tables", [1, 2])
@pytest.mark.parametrize("name", ["c", "ggml"])
def test_indices_that_the_model_computes(name, tables):
    """Compiled code does not tell which: the op is named if it can be no other."""
    backend = BACKENDS[name]()
    model = ml.Model()
    model |= ml.Linear(5, False, name="fc")(input="input", output="scores")
    model |= ml.ArgMax(axis=-1)(input="scores", output="best")
    for i in range(tables):
        model |= ml.Embedding(3 + i, 2, name=f"words{i}")(input="best", output=f"output{i}")
    run = ml.compile(model, backend, shapes={"input": [1, 5]}, inference=True)
    params = {**run.get_parameters(), "fc.weight": np.eye(5, dtype=np.float32)}
    run.evaluate(params, {"input": np.eye(5, dtype=np.float32)[2:3]})
    error = refused(lambda: run.evaluate(params, {"input": np.eye(5, dtype=np.float32)[4:]}), "InterpreterBackend")
    if tables == 1:
        assert (error.path, error.notes) == ("words0", ("the axis has size 3",))
    else:
        assert error.path is None
        assert error.notes == ("it is of one of these: embedding in `words0`, embedding in `words1`",)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("make", list(FIRST.values()))
def test_classes_of_a_loss_on_frameworks_that_take_any(make, jit):
    model = ml.Model()
    model |= ml.Linear(4, name="fc")(input="input", output="output")
    run = ml.compile(model, make(), shapes={"input": ["batch", 3]}, jit=jit)
    step = ml.train.TrainingStep(run, ml.optim.Adam(0.1), loss="cross_entropy")
    x = np.ones((3, 3), np.float32)
    step({"input": x, "target": np.array([0, 3, -100])})
    error = refused(
        lambda: step({"input": x, "target": np.array([0, -100, 4])}),
        "cross_entropy is given index 4, but the axis has size 4",
    )
    assert error.notes == ("it is element [2] of `target`",)


@pytest.mark.parametrize("make", list(FIRST.values()))
def test_what_is_no_integer_is_not_looked_at_before_a_call(make):
    """An index that follows from floats would have to be computed twice."""
    model = ml.Model()
    model |= ml.ArgMax(axis=-1)(input="input", output="best")
    model |= ml.Embedding(5, 2, name="words")(input="best", output="output")
    run = ml.compile(model, make(), shapes={"input": [2, 5]}, inference=True)
    run.evaluate({}, {"input": np.eye(5, dtype=np.float32)[2:4]})
    assert not run._current.looks_first


def test_an_index_behind_a_function_of_the_users():
    """It is not called again for the message: what the framework says stays."""
    calls = []

    def triple(x):
        calls.append(1)
        return x * 3

    model = ml.Model()
    model |= ml.Lambda(triple, opaque=True)(input="input", output="more")
    model |= ml.Cast("int64")(input="more", output="at")
    model |= ml.Embedding(3, 2, name="words")(input="at", output="output")
    run = ml.compile(model, ml.NumpyBackend(), shapes={"input": [2]}, inference=True)
    calls.clear()
    data = {"input": np.array([0.0, 1.0], np.float32)}
    error = refused(lambda: run.evaluate({}, data), "embedding failed in `words`: index 3 is out of bounds")
    assert error.path == "words"
    assert len(calls) == 1


def test_a_matrix_that_is_singular_is_no_index():
    model = ml.Model()
    model |= ml.Inverse()(input="input", output="output")
    for make in BACKENDS.values():
        run = ml.compile(model, make(), shapes={"input": [2, 2]}, inference=True)
        with pytest.raises(errors.NumericsError, match=r"(?i)singular") as problem:
            run.evaluate({}, {"input": np.ones((2, 2), np.float32)})
        assert problem.value.code == "M0901"


def test_positions_in_a_framework_that_traces():
    """Where there are no values, the framework's own error stays."""
    run = words(ml.TorchBackend(), inference=True)
    with pytest.raises((errors.MithrilError, IndexError, RuntimeError)):
        torch.func.vmap(lambda x: run.function(run.get_parameters(), {"input": x})["output"])(torch.full((2, 3), 9))
