"""Files of ONNX as models: the node tests of the package onnx, symbols, weights and errors."""

import re
import warnings
from collections import Counter

import mithril as ml
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper, parser  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests

    CASES = {case.name: case for case in load_model_tests(kind="node")}

#: Why node tests are not run: what the note of the error says, and the reason.
EXCEPTIONS = {
    r"dtype (uint(64|4|2)|u?int(4|2)|float(8|4|6)\w*|complex\w*) ": "Mithril does not have the dtype",
    r"dtype string ": "texts are no tensors",
    r"is not a tensor|Sequence|Optional|`ImageDecoder`|String|Regex": "texts, sequences, optionals",
    r"dtype undefined ": "an optional or a sequence",
    r"ai\.onnx\.ml|ai\.onnx\.preview|TfIdfVectorizer": "domains beside the default one, training",
    r"`(NonMaxSuppression|NonZero|Unique)`": "the shape of the result depends on data",
    r"depends on data": "control flow that depends on data",
    r"`(Bernoulli|RandomUniformLike|RandomNormalLike|RandomUniform|RandomNormal|Multinomial)`": "random numbers differ",
    r"training mode": "files for training",
    r"opset [1-6] is not supported": "opsets before 7",
    r"before opset 9 it has a batch axis": "opsets before 9",
    r"`(LinearAttention|CausalConvWithState|SwiGLU|BitCast)`": "ops of opset 26 and later without a row",
    r"`(DFT|STFT|MelWeightMatrix|BlackmanWindow|HammingWindow|HannWindow)`": "signal processing is not converted yet",
    r"`(Col2Im|DeformConv|RoiAlign|MaxUnpool)`|its second output, the positions": "not converted yet",
    r"`Attention`": "masks by length or window, limits of scores, and scores as an output are not converted yet",
    r"`Resize`|`Upsample`": "only what `interpolate` computes is converted",
    r"`AveragePool`: dilations together": "dilations with both options",
    r"the attribute `\w+` is not supported|input \d+ is not supported": "an argument without a counterpart",
    r"must be known when the file is read": "a shape that depends on data",
    r"max of no elements|min of no elements|the shape is \[": "a maximum of nothing is an error",
}


def _array(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _read(case, values):
    """Read a case; what shapes depend on is an input of many tests, and given as a constant."""
    graph = case.model.graph
    data = case.model.SerializeToString()
    try:
        return ml.from_onnx(data)
    except ml.errors.UnsupportedOpError as error:
        if "must be known" not in str(error):
            raise
    names = {name for node in graph.node for name in list(node.input)[1:]}
    if graph.node[0].op_type in ("ConstantOfShape", "Range"):
        names |= set(graph.node[0].input)
    constants = {i.name: values[i.name] for i in graph.input if i.name in names and values[i.name].ndim <= 1}
    return ml.from_onnx(data, constants=constants)


def _run(case, backend):
    """Run a case and compare; without a backend it is read only."""
    inputs, outputs = case.data_sets[0]
    graph = case.model.graph
    if any(isinstance(value, (list, dict)) or value is None for value in [*inputs, *outputs]):
        pytest.skip("sequences and optionals are no tensors")
    values = {i.name: _array(value) for i, value in zip(graph.input, inputs, strict=False)}
    try:
        model, params = _read(case, values)
        if backend is None:
            return
        compiled = ml.compile(model, backend)
        results = compiled.evaluate(params, {name: v for name, v in values.items() if name in model.input_keys})
    except (ml.errors.UnsupportedOpError, ml.errors.ShapeError) as error:
        listed = [reason for pattern, reason in EXCEPTIONS.items() if re.search(pattern, f"{error} ")]
        assert listed, f"no exception is listed for {error}"
        pytest.skip(listed[0])
    for output, wanted in zip(graph.output, outputs, strict=True):
        wanted, found = _array(wanted), np.asarray(backend.to_numpy(results[output.name]))
        assert found.shape == wanted.shape, output.name
        assert str(found.dtype) == str(wanted.dtype), output.name
        if found.dtype.kind in "fV":
            tolerance = {"bfloat16": 1.6e-2, "float16": 2e-3}.get(str(found.dtype), max(case.rtol, 1e-4))
            found, wanted = found.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=max(case.atol, tolerance / 100))
        else:
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", CASES)
def test_nodes_on_numpy(name):
    _run(CASES[name], ml.NumpyBackend())


@pytest.mark.parametrize("name", list(CASES)[::40])
def test_nodes_in_c(name):
    _run(CASES[name], ml.CBackend())


@pytest.mark.parametrize("name", list(CASES)[7::40])
def test_nodes_on_torch(name):
    pytest.importorskip("torch")
    _run(CASES[name], ml.TorchBackend())


def test_how_many_nodes_can_be_read():
    """The list of exceptions does not grow unseen."""
    unread = Counter()
    for case in CASES.values():
        try:
            _run(case, None)
        except pytest.skip.Exception as skipped:
            unread[str(skipped)] += 1
    print(len(CASES) - unread.total(), "of", len(CASES), dict(unread))
    assert len(CASES) - unread.total() >= 1360


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


def test_all_that_is_missing_is_one_error():
    body = "a = NonZero (x) b = NonZero (x) c = STFT (x, x) y = Relu <new_attribute = 1> (x)"
    with pytest.raises(ml.errors.UnsupportedOpError) as caught:
        ml.from_onnx(_text(body))
    notes = "\n".join(caught.value.notes)
    assert "`NonZero`: Mithril has no op for it (2 times: node `a`, node `b`)" in notes
    assert "`STFT`" in notes
    assert "`Relu`: the attribute `new_attribute` is not supported (once: node `y`)" in notes


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", ml.errors.ModelFileError, "empty"),
        (b"no model", ml.errors.ModelFileError, "not a model of ONNX"),
        (_text("y = Relu (missing)"), ml.errors.ModelFileError, "'missing'|\"missing\""),
        (_text("y = Relu (z) z = Relu (y)"), ml.errors.ModelFileError, "is read before"),
        (_text("y = Relu (x) y = Relu (x)"), ml.errors.ModelFileError, "two values"),
        (_text("y = Relu (x)", opset=6), ml.errors.UnsupportedOpError, "opset 6"),
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

    found = _microsoft("SkipLayerNormalization", arrays, ("y", "", "", "sum"), epsilon=1e-5)
    total = x + skip + bias
    np.testing.assert_allclose(found["sum"], total, rtol=1e-5, atol=1e-6)
    wanted = functional.layer_norm(total, (8,), weight, shift, 1e-5)
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-4, atol=1e-5)

    three = {n: arrays[n] for n in ("x", "skip", "weight")}
    found = _microsoft("SkipSimplifiedLayerNormalization", three, epsilon=1e-5)["y"]
    np.testing.assert_allclose(found, functional.rms_norm(x + skip, (8,), weight, 1e-5), rtol=1e-4, atol=1e-5)

    two = {n: arrays[n] for n in ("x", "bias")}
    for op, how in (("BiasGelu", "none"), ("FastGelu", "tanh")):
        wanted = functional.gelu(x + bias, approximate=how)
        np.testing.assert_allclose(_microsoft(op, two)["y"], wanted, rtol=1e-4, atol=1e-5)
    found = _microsoft("QuickGelu", {"x": arrays["x"]})["y"]
    np.testing.assert_allclose(found, x * torch.sigmoid(1.702 * x), rtol=1e-4, atol=1e-5)


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
        wanted = module(x)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        found = next(iter(results.values()))
        np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=1e-3, atol=1e-4)


def test_a_loop_that_lacks_a_carried_value_is_refused():
    body = onnx.helper.make_graph([], "body", [], [])
    node = onnx.helper.make_node("Loop", ["turns", "", "", "turns"], ["y"], body=body)
    turns = onnx.helper.make_tensor("turns", onnx.TensorProto.INT64, [], [1])
    graph = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_tensor_value_info("y", 1, [1])], [turns])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])
    with pytest.raises(ml.errors.ModelFileError, match="a value that a loop carries is missing"):
        ml.from_onnx(model.SerializeToString())
