"""Weights in 8 bits on the backends of generated Python, against the kernels of C and against float32."""

import copy
import pickle

import mithril as ml
import numpy as np
import pytest

KINDS = {"numpy": "NumpyBackend", "torch": "TorchBackend", "jax": "JaxBackend"}


def backend_of(name, **options):
    try:
        return getattr(ml, KINDS[name])(**options)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def perceptron():
    model = ml.Model()
    model |= ml.Linear(128)(input="input", output="hidden")
    model += ml.Relu()()
    model += ml.Linear(64)(output="output")
    return model, {"input": np.random.default_rng(0).normal(size=(6, 96)).astype("f4")}


def residual_network():
    """Convolutions of all kinds, a residual connection, batch norms, and a classifier."""
    model = ml.Model()
    model |= ml.Convolution2D(32, 3, padding=1)(input="input", output="stem")
    model += ml.BatchNorm2d()()
    model += ml.Relu()(output="a")
    model += ml.Convolution2D(32, 3, padding=1, groups=4)()
    model += ml.Relu()(output="b")
    model |= ml.Add()(left="a", right="b", output="c")
    model |= ml.MaxPool2d(2)(input="c", output="d")
    model |= ml.Flatten(1)(input="d", output="e")
    model |= ml.Linear(10)(input="e", output="output")
    return model, {"input": np.random.default_rng(1).normal(size=(2, 16, 12, 12)).astype("f4")}


def transformer():
    """A small GPT, whose embeddings are tied to its last product."""
    model = ml.models.create_gpt(bias=True, block_size=16, dims=64, num_heads=4, num_layers=2, vocab_size=96)
    return model, {"input": np.random.default_rng(2).integers(0, 96, (2, 10))}


NETWORKS = {"mlp": perceptron, "resnet": residual_network, "transformer": transformer}


def shapes_of(data):
    return {name: list(value.shape) for name, value in data.items()}


def evaluated(backend, model, data, params):
    compiled = ml.compile(model, backend, shapes=shapes_of(data), inference=True)
    own = {name: backend.array(np.array(value)) for name, value in params.items()}
    outputs = compiled.evaluate(own, data)
    return compiled, own, np.asarray(backend.to_numpy(next(iter(outputs.values()))), np.float64)


def parameters_of(model, data):
    return ml.compile(model, ml.NumpyBackend(), shapes=shapes_of(data), inference=True).randomize_params(seed=0)


def error(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", KINDS)
def test_int8_agrees_with_c_and_with_floats(name, network, jit):
    if jit and (name == "numpy" or (name == "torch" and network != "mlp")):
        pytest.skip("NumPy has no compiler, and that of PyTorch takes long")
    model, data = NETWORKS[network]()
    params = parameters_of(model, data)
    exact = evaluated(ml.NumpyBackend(), model, data, params)[2]
    in_c = evaluated(ml.CBackend(quantize="int8", num_threads=1), model, data, params)[2]
    for scheme in ("int8", "int8_weights"):
        backend = backend_of(name, quantize=scheme, jit=jit)
        compiled, own, output = evaluated(backend, model, data, params)
        assert 1e-5 < error(output, exact) < 0.05
        if scheme == "int8":
            # The same roundings, but for convolutions, which C does in integers where the processor is made for it.
            assert error(output, in_c) < (1e-5 if network == "mlp" else 0.05)
            assert "_matmul_integer(" in compiled.source
        packed = compiled.pack(own)
        again = next(iter(compiled.evaluate(packed, data).values()))
        np.testing.assert_array_equal(backend.to_numpy(again), output.astype("f4"))


@pytest.mark.parametrize("name", KINDS)
def test_packed_weights_are_bytes(name):
    model, data = perceptron()
    backend = backend_of(name, quantize="int8")
    compiled = ml.compile(model, backend, shapes={"input": ["batch", 96]}, inference=True)
    params = compiled.randomize_params(seed=0)
    before = sum(value.nbytes for value in params.values())
    packed = compiled.pack(params)
    assert packed.bytes == sum(value.nbytes for value in packed.values())
    assert before / 4 < packed.bytes < before / 3.5
    numbers = [value for key, value in packed.items() if key.endswith(".int8")]
    assert [str(value.dtype).removeprefix("torch.") for value in numbers] == ["int8", "int8"]
    assert "linear.weight" not in packed
    # Any number of rows, one included.
    for rows in (1, 6):
        output = compiled.evaluate(packed, {"input": data["input"][:rows]})["output"]
        assert tuple(output.shape) == (rows, 64)
    other = ml.compile(ml.Linear(3), backend, shapes={"input": [2, 4]}, inference=True)
    with pytest.raises(ml.errors.ParameterError, match="packed for another model"):
        other.evaluate(packed, {"input": np.ones((2, 4), "f4")})
    plain = ml.compile(model, backend_of(name), shapes={"input": [6, 96]}, inference=True)
    with pytest.raises(ml.errors.ParameterError, match="packed for a model with weights in 8 bits"):
        plain.evaluate(packed, data)


@pytest.mark.parametrize("name", KINDS)
def test_other_parameters_are_quantized_again(name):
    model, data = perceptron()
    backend = backend_of(name, quantize="int8")
    compiled = ml.compile(model, backend, shapes=shapes_of(data), inference=True)
    first, second = compiled.randomize_params(seed=0), compiled.randomize_params(seed=1)
    outputs = [backend.to_numpy(compiled.evaluate(p, data)["output"]) for p in (first, second, first)]
    np.testing.assert_array_equal(outputs[0], outputs[2])
    assert not np.allclose(outputs[0], outputs[1])
    # A bias may change in place; what is quantized may not on NumPy, and is noticed on PyTorch.
    changed = {**first, "linear_1.bias": first["linear_1.bias"] + 1}
    np.testing.assert_allclose(backend.to_numpy(compiled.evaluate(changed, data)["output"]), outputs[0] + 1, atol=1e-5)
    if name == "numpy":
        with pytest.raises(ValueError, match="read-only"):
            first["linear.weight"][0] = 0
    if name == "torch":
        first["linear_1.weight"].zero_()
        actual = backend.to_numpy(compiled.evaluate(first, data)["output"])
        np.testing.assert_allclose(actual, np.broadcast_to(backend.to_numpy(first["linear_1.bias"]), actual.shape))


@pytest.mark.parametrize("name", KINDS)
def test_names_choose_what_is_quantized(name):
    model, data = perceptron()
    backend = backend_of(name, quantize={"linear.*": None, "*": "int8_weights"})
    compiled = ml.compile(model, backend, shapes=shapes_of(data), inference=True)
    packed = compiled.pack(compiled.randomize_params(seed=0))
    assert {"linear.weight", "linear_1.weight.int8", "linear_1.weight.scale"} < set(packed)
    report = ml.quantization_report(compiled, compiled.get_parameters(), data)
    assert [(row.path, row.type) for row in report.rows] == [("linear_1.weight", "int8_weights")]
    assert report.outputs[0].largest < 0.05
    for duplicate in (copy.deepcopy, lambda program: pickle.loads(pickle.dumps(program))):
        assert "linear_1.weight.int8" in duplicate(compiled).source


@pytest.mark.parametrize("name", KINDS)
def test_rows_that_are_not_finite(name):
    model, data = perceptron()
    backend = backend_of(name, quantize="int8")
    compiled = ml.compile(model, backend, shapes=shapes_of(data), inference=True)
    params = compiled.randomize_params(seed=0)
    whole = data["input"].copy()
    whole[0, 3], whole[1, 4], whole[2] = np.nan, np.inf, 0
    output = backend.to_numpy(compiled.evaluate(params, {"input": whole})["output"])
    np.testing.assert_array_equal(np.isfinite(output).all(1), [False, False, True, True, True, True])
    assert np.isnan(output[:2]).all()
    weight = np.array(backend.to_numpy(params["linear_1.weight"]))
    weight[5, 0] = np.inf
    output = compiled.evaluate({**params, "linear_1.weight": backend.array(weight)}, data)["output"]
    np.testing.assert_array_equal(np.isnan(backend.to_numpy(output)).all(0), np.arange(64) == 5)
    assert np.isfinite(backend.to_numpy(output)[:, :5]).all()


@pytest.mark.parametrize("name", KINDS)
def test_what_cannot_be(name):
    model, data = perceptron()
    with pytest.raises(ml.errors.InvalidValueError, match="keeps weights in 8 bits") as caught:
        backend_of(name, quantize="int4_weights")
    assert "CBackend and GGMLBackend have 4 bits" in caught.value.hint
    with pytest.raises(ml.errors.InvalidValueError, match="quantize is 'int9'"):
        backend_of(name, quantize="int9")
    with pytest.raises(ml.errors.ConflictingOptionError, match="inference=True"):
        ml.compile(model, backend_of(name, quantize="int8"), shapes=shapes_of(data))
    unknown = backend_of(name, quantize={"head.*": "int8"})
    with pytest.raises(ml.errors.InvalidValueError, match=r"no parameter of the model has a name like 'head\.\*'"):
        ml.compile(model, unknown, shapes=shapes_of(data), inference=True)
    wide = backend_of(name, quantize="int8", quantize_strict=True, dtype="float64")
    with pytest.raises(ml.errors.UnsupportedOpError, match="its product is not of float32"):
        ml.compile(model, wide, shapes=shapes_of(data), inference=True)
    with pytest.raises(TypeError, match=r'NumpyBackend and CBackend do with quantize="int8"'):
        ml.InterpreterBackend(quantize="int8")


@pytest.mark.parametrize("scheme", ["int8", "int8_weights"])
@pytest.mark.parametrize("axes", [None, (1, 0), (-1, -2)], ids=str)
def test_a_weight_may_be_turned_in_any_way(axes, scheme):
    # Twice, in two ways: a product with a weight that is turned once is a linear layer.
    turns = [ml.MatrixTranspose(), ml.Transpose(axes=axes)]
    for first, second in (turns, turns[::-1]):
        model = ml.Model()
        weight = ml.IOKey("weight", shape=[96, 40], differentiable=True)
        model |= copy.deepcopy(first)(input=weight, output="turned")
        model |= copy.deepcopy(second)(input="turned", output="again")
        model |= ml.MatrixMultiply()(left="input", right="again", output="output")
        rng = np.random.default_rng(0)
        w, x = rng.standard_normal((96, 40), np.float32), rng.standard_normal((5, 96), np.float32)
        backend = ml.NumpyBackend(quantize=scheme, quantize_strict=True)
        compiled = ml.compile(model, backend, shapes={"input": [5, 96]}, inference=True)
        output = compiled.evaluate({"weight": w}, {"input": x})["output"]
        assert 1e-5 < error(output, x @ w) < 0.02


#: The shape of a weight, and what happens to it before its product.
CHANGES = {
    "reshaped": ([96, 40], lambda: [ml.Reshape(shape=(40, 96))]),
    "permuted": ([2, 20, 96], lambda: [ml.Transpose(axes=(1, 0, 2)), ml.Reshape(shape=(40, 96))]),
    "changed": ([40, 96], lambda: [ml.Tanh()]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", KINDS)
def test_a_weight_that_is_changed_before_its_product_is_reported(name, change):
    shape, layers = CHANGES[change]
    model, weight = ml.Model(), ml.IOKey("weight", shape=shape, differentiable=True)
    for layer in [*layers(), ml.MatrixTranspose()]:
        model |= layer(input=weight, output=(weight := f"after_{len(model.layer_keys)}"))
    model |= ml.MatrixMultiply()(left="input", right=weight, output="output")
    options = {"shapes": {"input": [5, 96]}, "inference": True}
    reason = "weight: it is reshaped or changed before its product"
    with pytest.raises(ml.errors.UnsupportedOpError, match=reason):
        ml.compile(model, backend_of(name, quantize="int8", quantize_strict=True), **options)
    report = str(ml.quantization_report(ml.compile(model, backend_of(name, quantize="int8"), **options)))
    assert "reshaped or changed" in report
    # It is one if the rest is made of data.
    data = ml.Model()
    data |= ml.MatrixMultiply()(left="input", right="other", output="output")
    shapes = {"input": [5, 96], "other": [96, 3]}
    ml.compile(data, backend_of(name, quantize="int8", quantize_strict=True), shapes=shapes, inference=True)
