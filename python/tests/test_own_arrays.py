"""Training on a backend of one's own whose arrays do not become arrays of NumPy by themselves, as those of CuPy."""

import warnings

import mithril as ml
import numpy as np
import pytest
from mithril.backends.backend import Backend


class Array:
    """Numbers that only `OwnBackend.to_numpy` brings to the host."""

    def __init__(self, held):
        self.held = np.asarray(held)

    shape = property(lambda self: self.held.shape)
    dtype = property(lambda self: self.held.dtype)
    ndim = property(lambda self: self.held.ndim)

    def __array__(self, *args, **named):
        raise TypeError("implicit conversion to a NumPy array is not allowed")

    def __len__(self):
        return len(self.held)


class OwnBackend(Backend):
    """The three methods, and the way to the host."""

    def tensor(self, data, dtype=None):
        return Array(np.array(data.held if isinstance(data, Array) else data, dtype=dtype))

    def zeros(self, shape, dtype=None):
        return Array(np.zeros(shape, dtype))

    def ones(self, shape, dtype=None):
        return Array(np.ones(shape, dtype))

    def to_numpy(self, tensor):
        return tensor.held if isinstance(tensor, Array) else np.asarray(tensor)


@pytest.fixture(autouse=True)
def quiet():
    """Nearly all ops run on the host here, which is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ml.errors.BackendWarning)
        yield


def fit(backend, data, epochs, **options):
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model += ml.BatchNorm1d()()
    model += ml.Linear(3)(output="output")
    compiled = ml.compile(model, backend, shapes={"input": ["batch", 5]})
    options |= {"metrics": ["accuracy", ml.CrossEntropy()], "validation": data, "ema": ml.optim.EMA(0.9)}
    history = ml.train.fit(compiled, data, epochs=epochs, batch_size=8, progress=False, **options)
    return compiled, [{key: row[key] for key in row if key != "seconds"} for row in history.epochs]


@pytest.mark.parametrize("form", ["arrays of NumPy", "own arrays", "batches"])
def test_fit_metrics_and_checkpoints(form, tmp_path):
    random = np.random.default_rng(0)
    inputs, target = random.normal(size=(32, 5)).astype("f4"), random.integers(0, 3, 32)
    backend = OwnBackend()

    def batches_of(array):
        data = {"input": array(inputs), "target": array(target)}
        return [{"input": array(inputs[:8]), "target": array(target[:8])}] * 3 if form == "batches" else data

    _, expected = fit(ml.NumpyBackend(), batches_of(np.asarray), 3)
    own = batches_of(np.asarray if form == "arrays of NumPy" else backend.tensor)
    fit(backend, own, 2, checkpoint=tmp_path)
    compiled, rows = fit(backend, own, 3, checkpoint=tmp_path)
    for ours, theirs in zip(rows, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    ml.save(compiled.parameters, tmp_path / "params.safetensors")
    moved = ml.transfer(compiled.parameters, to=ml.NumpyBackend())
    for key, value in ml.load(tmp_path / "params.safetensors").items():
        np.testing.assert_array_equal(value, moved[key])
