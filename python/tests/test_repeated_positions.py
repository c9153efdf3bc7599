"""Slices that `index_copy` writes to one position several times: the last one stays, and alone gets a gradient."""

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend

AXES = [(0, (5, 3)), (1, (2, 5, 3)), (-1, (2, 5))]
AT = np.array([3, 0, -2, 3, 0, 1, 3])


def case(axis, shape):
    random = np.random.default_rng(0)
    x, size = random.standard_normal(shape).astype(np.float32), shape[axis]
    source = np.moveaxis(random.standard_normal((len(AT), *np.delete(shape, axis))), 0, axis).astype(np.float32)
    expected = np.moveaxis(x.copy(), axis, 0)
    last = {at % size: i for i, at in enumerate(AT)}
    for at, i in last.items():
        expected[at] = np.moveaxis(source, axis, 0)[i]
    return x, source, np.moveaxis(expected, 0, axis), last


def backend_named(name):
    return backend(name) if name in BACKENDS else ml.get_backend(name)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "int8"])
@pytest.mark.parametrize("name", ["interpreter", *BACKENDS, "c"])
def test_the_last_slice_stays(name, dtype):
    on = backend_named(name)
    for axis, shape in AXES:
        x, source, expected_output, last = case(axis, shape)
        size = shape[axis]
        at = AT if dtype != "uint8" else AT % size
        model = ml.IndexCopy(axis=axis)
        compiled = ml.compile(
            model,
            on,
            shapes={"input": shape, "source": source.shape, "indices": at.shape},
            dtypes={"indices": dtype},
            trainable_keys=["input", "source"],
        )
        cotangent = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        params = {"input": on.array(x), "source": on.array(source)}
        outputs, gradients = compiled.evaluate(params, {"indices": at.astype(dtype)}, {"output": on.array(cotangent)})
        np.testing.assert_array_equal(np.asarray(on.to_numpy(outputs["output"])), expected_output)
        lines = np.moveaxis(cotangent, axis, 0)
        of_source = np.zeros((len(at), *lines.shape[1:]), np.float32)
        of_input = lines.copy()
        for place, i in last.items():
            of_source[i], of_input[place] = lines[place], 0
        for key, expected in (("source", of_source), ("input", of_input)):
            actual = np.asarray(on.to_numpy(gradients[key]))
            np.testing.assert_array_equal(actual, np.moveaxis(expected, 0, axis), err_msg=key)


def test_ggml_refuses_them():
    x, source, _, _ = case(0, (5, 3))
    model = ml.compile(
        ml.IndexCopy(),
        ml.GGMLBackend(),
        shapes={"input": (5, 3), "source": source.shape, "indices": AT.shape},
        dtypes={"indices": "int64"},
        data_keys=["input", "source", "indices"],
        inference=True,
    )
    with pytest.raises(ml.MithrilError, match="index 3 is repeated, and GGML writes slices in any order"):
        model.evaluate({}, {"input": x, "source": source, "indices": AT})
    distinct = np.array([4, 0, -2, 1, 2])
    model = ml.compile(
        ml.IndexCopy(),
        ml.GGMLBackend(),
        shapes={"input": (5, 3), "source": (5, 3), "indices": (5,)},
        dtypes={"indices": "int64"},
        data_keys=["input", "source", "indices"],
        inference=True,
    )
    actual = model.evaluate({}, {"input": x, "source": source[:5], "indices": distinct})["output"]
    expected = x.copy()
    expected[distinct] = source[:5]
    np.testing.assert_array_equal(actual, expected)
