"""Files of ONNX as models: symbols, weights and errors."""

import re
import warnings

import mithril as ml
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402


def _text(body, inputs="float[n, 3] x", opset=21, outputs="float[n, 3] y"):
    header = f'<ir_version: 10, opset_import: ["": {opset}]>'
    return parser.parse_model(f"{header} net ({inputs}) => ({outputs}) {{ {body} }}").SerializeToString()


def _evaluate(data, backend=None, **inputs):
    model, params = ml.from_onnx(data)
    return ml.compile(model, backend or ml.NumpyBackend()).evaluate(params, inputs)


def test_symbols_pass_through_shapes_that_are_computed():
    body = """
        shape = Shape (x)
        zero = Constant <value = int64[1] {0}> ()
        rows = Gather <axis = 0> (shape, zero)
        rest = Constant <value = int64[2] {2, -1}> ()
        sizes = Concat <axis = 0> (rows, rest)
        y = Reshape (x, sizes)"""
    data = _text(body, "float[batch, 6] x", outputs="float[batch, 2, 3] y")
    model, _ = ml.from_onnx(data)
    assert "batch" in str(model.summary())
    compiled = ml.compile(model, ml.NumpyBackend())
    for rows in (1, 4):
        x = np.arange(rows * 6, dtype=np.float32).reshape(rows, 6)
        np.testing.assert_array_equal(compiled.evaluate({}, {"x": x})["y"], x.reshape(rows, 2, 3))


def test_softmax_before_opset_13_is_over_all_axes():
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    e = np.exp(x - x.max())
    shape = "float[2, 3, 4] x"
    old = _evaluate(_text("y = Softmax (x)", shape, 11, "float[2, 3, 4] y"), x=x)["y"]
    new = _evaluate(_text("y = Softmax (x)", shape, 13, "float[2, 3, 4] y"), x=x)["y"]
    np.testing.assert_allclose(old, e / e.sum((1, 2), keepdims=True), rtol=1e-5)
    np.testing.assert_allclose(new, e / e.sum(-1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("index", "axis"), [(0, 0), (2, 1), (-1, 1), (-4, 2)])
def test_a_known_position_is_a_part_of_the_axis(index, axis):
    x = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    gather = f"i = Constant <value = int64 {{{index}}}> () y = Gather <axis = {axis}> (x, i)"
    shape = ", ".join(str(n) for n in np.take(x, index, axis).shape)
    data = _text(gather, "float[2, 3, 4] x", outputs=f"float[{shape}] y")
    np.testing.assert_array_equal(_evaluate(data, x=x)["y"], np.take(x, index, axis))
    source = ml.compile(ml.from_onnx(data)[0], ml.NumpyBackend()).source
    assert not re.search("take|check_indices", source), source


def test_steps_that_are_gathered_are_a_loop():
    steps = "\n".join(
        f"i{t} = Constant <value = int64 {{{t}}}> () x{t} = Gather <axis = 1> (x, i{t})"
        f" a{t} = Add (x{t}, h{t}) h{t + 1} = Tanh (a{t})"
        for t in range(12)
    )
    data = _text(f"h0 = Neg (start) {steps} y = Identity (h12)", "float[2, 12] x, float[2] start", outputs="float[2] y")
    x = np.random.default_rng(0).normal(size=(2, 12)).astype(np.float32)
    start = np.array([0.5, -1], np.float32)
    expected = -start
    for t in range(12):
        expected = np.tanh(x[:, t] + expected)
    np.testing.assert_allclose(_evaluate(data, x=x, start=start)["y"], expected, rtol=1e-6)
    assert "for t in range(12):" in ml.compile(ml.from_onnx(data)[0], ml.NumpyBackend()).source


def test_all_that_is_missing_is_one_error():
    body = "a = NonZero (x) b = NonZero (x) c = Unique (x) y = Relu <new_attribute = 1> (x)"
    with pytest.raises(ml.errors.UnsupportedOpError) as caught:
        ml.from_onnx(_text(body))
    notes = "\n".join(caught.value.notes)
    assert "`NonZero`: Mithril has no op for it (2 times: node `a`, node `b`)" in notes
    assert "`Unique`" in notes
    assert "`Relu`: the attribute `new_attribute` is not supported (once: node `y`)" in notes


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", ml.errors.ModelFileError, "empty"),
        (b"no model", ml.errors.ModelFileError, "not a model of ONNX"),
        (_text("y = Relu (missing)"), ml.errors.ModelFileError, "'missing'|\"missing\""),
        (_text("y = Relu (z) z = Relu (y)"), ml.errors.ModelFileError, "is read before"),
        (_text("y = Relu (x) y = Relu (x)"), ml.errors.ModelFileError, "two values"),
        (_text("y = Relu (x)", opset=99), ml.errors.UnsupportedOpError, "opset 99"),
        (_text("y = MatMul (x, x)", "float[2, 3] x"), ml.errors.ShapeError, "`y`"),
    ],
)
def test_files_that_contradict_themselves(data, error, text):
    with pytest.raises(error, match=text):
        ml.from_onnx(data)


def _with_weight(folder, external):
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = numpy_helper.from_array(weight, "layer.weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "layer.weight"], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [tensor],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path, weight


@pytest.mark.parametrize("external", [False, True])
def test_weights_of_files(tmp_path, external):
    path, weight = _with_weight(tmp_path, external)
    model, params = ml.from_onnx(path)
    np.testing.assert_array_equal(params["layer.weight"], weight)
    x = np.ones((2, 3), np.float32)
    y = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x})["y"]
    np.testing.assert_allclose(y, x @ weight)


def test_numbers_are_constants_and_weights_are_parameters():
    """Operands of one element are numbers of an exporter; biases of products, and all that has a size, are learned."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float[2, 3] x, bool[2, 1] flag) => (float[2, 1] y, float[1] also) {
        scaled = Mul (x, scale)
        power = Pow (scaled, exponent)
        weighted = Mul (power, vector)
        product = MatMul (weighted, matrix)
        biased = Add (product, bias)
        other = Where (flag, biased, otherwise)
        sloped = PRelu (other, slope)
        y = Div (sloped, twice)
        factor = Identity (twice)
        also = Mul (shared, factor)
    }"""
    file = parser.parse_model(text)
    shapes = {
        **dict.fromkeys(("scale", "bias", "slope", "twice", "shared"), (1,)),
        **{"exponent": (1, 1), "otherwise": (), "vector": (3,), "matrix": (3, 1)},
    }
    values = {name: np.full(shape, 2.0, np.float32) for name, shape in shapes.items()}
    file.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    model, params = ml.from_onnx(file.SerializeToString())
    # One that something else reads as well stays what it is there.
    assert set(params) == {"bias", "slope", "twice", "vector", "matrix"}
    x = np.array([[1, 2, 3], [-1, 0, 1]], np.float32)
    flag = np.array([[True], [False]])
    outputs = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x, "flag": flag})
    np.testing.assert_allclose(outputs["y"], [[(4 * (1 + 4 + 9) * 4 + 2) / 2], [1.0]])
    np.testing.assert_allclose(outputs["also"], [4.0])


@pytest.mark.parametrize(("forbidden", "is_mask"), [(-np.inf, True), (np.finfo(np.float32).min, True), (-9.0, False)])
def test_attention_as_exporters_write_it_becomes_the_op(forbidden, is_mask):
    """Scales of both factors, repeated heads that are flattened around a transposition, and zeros instead of NaN."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    net (float[1, 4, 5, 8] q, float[1, 2, 5, 8] k, float[1, 4, 5, 8] v) => (float[1, 4, 5, 8] y)
    <int64[5] all = {1, 2, 2, 5, 8}, int64[3] flat = {4, 5, 8}, int64[4] back = {1, 4, 8, 5}, int64[1] two = {2},
     float root = {0.6}, float zero = {0}> {
        group = Unsqueeze (k, two)
        repeated = Expand (group, all)
        flattened = Reshape (repeated, flat)
        turned = Transpose <perm = [0, 2, 1]> (flattened)
        keys = Reshape (turned, back)
        scaled = Mul (q, root)
        scaled_keys = Mul (keys, root)
        scores = MatMul (scaled, scaled_keys)
        masked = Add (scores, mask)
        shares = Softmax <axis = -1> (masked)
        missing = IsNaN (shares)
        weights = Where (missing, zero, shares)
        y = MatMul (weights, v)
    }"""
    file = parser.parse_model(text)
    mask = np.where(np.tri(5, dtype=bool), 0, forbidden).astype(np.float32)
    file.graph.initializer.append(numpy_helper.from_array(mask.reshape(1, 1, 5, 5), "mask"))
    model, params = ml.from_onnx(file.SerializeToString())
    assert list(params) == ([] if is_mask else ["mask"])
    compiled = ml.compile(model, ml.NumpyBackend())
    rng = np.random.default_rng(1)
    heads = {"q": (1, 4, 5, 8), "k": (1, 2, 5, 8), "v": (1, 4, 5, 8)}
    data = {name: rng.normal(size=shape).astype(np.float32) for name, shape in heads.items()}
    expected = ReferenceEvaluator(file).run(None, data)[0]
    np.testing.assert_allclose(compiled.evaluate(params, data)["y"], expected, rtol=1e-5, atol=1e-6)
    stage = compiled.stages["raise"]
    assert "scaled_dot_product_attention" in stage
    assert "softmax(" not in stage


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/hostname"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, location):
    path, _ = _with_weight(tmp_path, True)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ml.errors.ModelFileError, match="outside of its folder") as caught:
        ml.from_onnx(path)
    assert caught.value.code == "M0803"


def test_running_statistics_are_frozen():
    names = ["scale", "bias", "mean", "var"]
    graph = helper.make_graph(
        [helper.make_node("BatchNormalization", ["x", *names], ["y"])],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, 4])],
        [numpy_helper.from_array(np.full(3, i + 1, np.float32), name) for i, name in enumerate(names)],
    )
    model, params = ml.from_onnx(helper.make_model(graph).SerializeToString())
    assert list(params) == names
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    compiled = ml.compile(model, ml.NumpyBackend())
    results = compiled.evaluate(params, {"x": x})
    np.testing.assert_allclose(results["y"], (x - 3) / np.sqrt(4 + 1e-5) + 2, rtol=1e-5)
    gradients = compiled.evaluate_gradients(params, {"x": x}, output_gradients={"y": np.ones_like(x)})
    assert set(gradients) == {"scale", "bias"}


def _microsoft(op, inputs, outputs=("y",), **attributes):
    """A file with one node of com.microsoft on float32 arrays."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), list(outputs), domain="com.microsoft", **attributes)],
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape) for name, x in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return _evaluate(helper.make_model(graph, opset_imports=opsets).SerializeToString(), **inputs)


def test_ops_of_onnx_runtime():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    names = ("x", "skip", "weight", "shift", "bias")
    arrays = {n: rng.normal(size=(2, 3, 8) if i < 2 else 8).astype(np.float32) for i, n in enumerate(names)}
    x, skip, weight, shift, bias = (torch.from_numpy(arrays[n]) for n in names)
    functional = torch.nn.functional

    actual = _microsoft("SkipLayerNormalization", arrays, ("y", "", "", "sum"), epsilon=1e-5)
    total = x + skip + bias
    np.testing.assert_allclose(actual["sum"], total, rtol=1e-5, atol=1e-6)
    expected = functional.layer_norm(total, (8,), weight, shift, 1e-5)
    np.testing.assert_allclose(actual["y"], expected, rtol=1e-4, atol=1e-5)

    three = {n: arrays[n] for n in ("x", "skip", "weight")}
    actual = _microsoft("SkipSimplifiedLayerNormalization", three, epsilon=1e-5)["y"]
    np.testing.assert_allclose(actual, functional.rms_norm(x + skip, (8,), weight, 1e-5), rtol=1e-4, atol=1e-5)

    two = {n: arrays[n] for n in ("x", "bias")}
    for op, how in (("BiasGelu", "none"), ("FastGelu", "tanh")):
        expected = functional.gelu(x + bias, approximate=how)
        np.testing.assert_allclose(_microsoft(op, two)["y"], expected, rtol=1e-4, atol=1e-5)
    actual = _microsoft("QuickGelu", {"x": arrays["x"]})["y"]
    np.testing.assert_allclose(actual, x * torch.sigmoid(1.702 * x), rtol=1e-4, atol=1e-5)


def _exported(module, args, **options):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(module.eval(), args, dynamo=True, verbose=False, **options)
    return program.model_proto.SerializeToString()


def test_networks_of_pytorch():
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
    networks = [
        (torchvision.models.resnet18(), torch.randn(1, 3, 32, 32)),
        (torchvision.models.mobilenet_v3_small(), torch.randn(1, 3, 32, 32)),
        (layer, torch.randn(2, 5, 16)),
        (torch.nn.LSTM(4, 6, batch_first=True, bidirectional=True), torch.randn(2, 5, 4)),
    ]
    for module, x in networks:
        data = _exported(module, (x,))
        model, params = ml.from_onnx(data)
        name = onnx.load_from_string(data).graph.input[0].name
        results = ml.compile(model, ml.NumpyBackend()).evaluate(params, {name: x.numpy()})
        expected = module(x)
        expected = expected[0] if isinstance(expected, tuple) else expected
        actual = next(iter(results.values()))
        np.testing.assert_allclose(actual, expected.detach().numpy(), rtol=1e-3, atol=1e-4)


def test_a_loop_that_lacks_a_carried_value_is_refused():
    body = onnx.helper.make_graph([], "body", [], [])
    node = onnx.helper.make_node("Loop", ["turns", "", "", "turns"], ["y"], body=body)
    turns = onnx.helper.make_tensor("turns", onnx.TensorProto.INT64, [], [1])
    graph = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_tensor_value_info("y", 1, [1])], [turns])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    with pytest.raises(ml.errors.ModelFileError, match="a value that a loop carries is missing"):
        ml.from_onnx(model.SerializeToString())
