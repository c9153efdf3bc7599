"""Quantized models of ONNX (QDQ, ``QLinear*``) in the integer kernels of C, against exact arithmetic."""

import os

import mithril as ml
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


class Graph:
    """A graph of ONNX that is written op by op."""

    def __init__(self, rng):
        self.rng, self.nodes, self.constants = rng, [], []

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, op, *inputs, domain="", **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=f"n{name}", domain=domain, **attributes))
        return name

    def grid(self, dtype, spread):
        """Scale and zero point of activations."""
        low = 0 if dtype == np.uint8 else -128
        zero = dtype(low + self.rng.integers(0, 200))
        return self.constant(np.float32(spread * self.rng.uniform(0.7, 1.3) / 64)), self.constant(zero)

    def quantize(self, x, scale, zero):
        return self.node("QuantizeLinear", x, scale, zero)

    def dequantize(self, x, scale, zero):
        return self.node("DequantizeLinear", x, scale, zero)

    def bytes(self):
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)]
        outputs = [helper.make_tensor_value_info(self.output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        return model.SerializeToString()


def weights(g, shape, kind, filters):
    """Return integers with a scale, dequantized; and the scales."""
    unsigned = kind in ("asymmetric", "centered")
    dtype = np.uint8 if unsigned else np.int8
    zero = {"asymmetric": 120, "centered": 128}.get(kind, 0)
    values = g.rng.integers(0, 256, shape) - (0 if unsigned else 128)
    one = kind == "tensor" or unsigned
    scales = np.float32(0.01) if one else g.rng.uniform(0.005, 0.02, filters).astype(np.float32)
    name = g.constant(values.astype(dtype))
    zeros = np.full(scales.shape, zero, dtype)
    return (name, g.constant(scales), g.constant(zeros)), scales


def graph_of(seed):
    """A random graph, the scale of its output, and what it is like."""
    g = Graph(np.random.default_rng(seed))
    rng = g.rng
    dtype = [np.uint8, np.int8][rng.integers(2)]
    kind = ["channel", "tensor", "asymmetric", "centered"][rng.integers(4)]
    op = ["Conv", "Conv", "MatMul", "Gemm", "QLinearConv", "QLinearMatMul"][rng.integers(6)]
    near = ["", "", "", "two readers", "other scale", "pooled", "added"][rng.integers(7)]
    g.kind, g.near, g.op = kind, near, op
    channels, filters = int(rng.choice([3, 16, 32])), int(rng.choice([32, 64, 20]))
    is_image = op.endswith("Conv")
    g.shape = [int(rng.integers(1, 3)), channels, 9, 8] if is_image else [int(rng.choice([1, 5, 17])), 64]
    into, out = g.grid(dtype, 1.5), g.grid(dtype, 10)
    quantized = g.quantize("x", *into)
    other = (g.constant(np.float32(0.031)), into[1]) if near == "other scale" else into
    if op.startswith("QLinear"):
        shape = (filters, channels, 3, 3) if is_image else (64, filters)
        if not is_image and kind == "channel":
            kind = g.kind = "tensor"
        (w, scale, zero), scales = weights(g, shape, kind, filters)
        inputs = [quantized, *into, w, scale, zero, *out]
        if is_image and rng.integers(2):
            bias = rng.integers(-2000, 2000, filters).astype(np.int32)
            inputs.append(g.constant(bias))
        pads = {"pads": [1, 1, 1, 1]} if is_image else {}
        quantized = g.dequantize(g.node(op, *inputs, **pads), *out)
        g.output, g.unit = quantized, numpy_helper.to_array(g.constants[int(out[0][1:])])
        return g
    x = g.dequantize(quantized, *other)
    if is_image:
        groups = int(rng.choice([1, 1, 1, channels if channels < filters and filters % channels == 0 else 1]))
        size = int(rng.choice([1, 3]))
        (w, scale, zero), scales = weights(g, (filters, channels // groups, size, size), kind, filters)
        w = g.node("DequantizeLinear", w, scale, zero, axis=0)
        inputs = [x, w]
        if rng.integers(3):
            bias = g.constant(rng.integers(-2000, 2000, filters).astype(np.int32))
            scales = (numpy_helper.to_array(g.constants[int(other[0][1:])]) * scales).astype(np.float32)
            inputs.append(g.node("DequantizeLinear", bias, g.constant(scales), axis=0))
        stride = int(rng.integers(1, 3))
        y = g.node("Conv", *inputs, pads=[size // 2] * 4, group=groups, strides=[stride, stride])
    else:
        turned = op == "Gemm" and bool(rng.integers(2))
        (w, scale, zero), _ = weights(g, (filters, 64) if turned else (64, filters), kind, filters)
        w = g.node("DequantizeLinear", w, scale, zero, axis=0 if turned else 1)
        y = g.node(op, x, w, **({"transB": 1} if op == "Gemm" else {})) if turned else g.node(op, x, w)
    if rng.integers(2):
        y = g.node("Relu", y)
    if near == "added":
        y = g.node("Add", y, g.dequantize(g.quantize(y, *out), *out))
    y = g.dequantize(g.quantize(y, *out), *out)
    if near == "pooled" and is_image:
        y = g.node("MaxPool", y, kernel_shape=[2, 2], strides=[2, 2])
        y = g.dequantize(g.quantize(y, *out), *out)
    if near == "two readers":
        y = g.node("Concat", y, y, axis=1) if not is_image else g.node("Mul", y, g.node("Sigmoid", y))
    g.output, g.unit = y, numpy_helper.to_array(g.constants[int(out[0][1:])])
    return g


def results(model, params, data, backend):
    compiled = ml.compile(model, backend, shapes={"x": list(data["x"].shape)}, inference=True)
    (output,) = compiled.evaluate(params, data).values()
    return np.asarray(output), compiled


COUNT = 400 if os.environ.get("MITHRIL_TEST_ALL") else 24


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_graphs(seed):
    """C differs from the exact arithmetic by a unit of the output where a sum lies between two, which is seldom."""
    g = graph_of(seed)
    model, params = ml.from_onnx(g.bytes())
    data = {"x": g.rng.normal(size=g.shape).astype(np.float32)}
    exact, _ = results(model, params, data, ml.NumpyBackend())
    ours, _ = results(model, params, data, ml.CBackend(num_threads=1 + seed % 2))
    apart = np.abs(ours - exact) / g.unit
    assert apart.max() <= (2.01 if g.near in ("added", "two readers") else 1.01), (g.op, g.kind, g.near)
    assert (apart > 0.01).mean() < 0.01


def test_random_graphs_as_onnxruntime():
    onnxruntime = pytest.importorskip("onnxruntime")
    options, compared = onnxruntime.SessionOptions(), 0
    options.log_severity_level = 4
    # Without instructions for sums of bytes it would let sums of two products saturate.
    options.add_session_config_entry("session.x64quantprecision", "1")
    for seed in range(COUNT // 2):
        g = graph_of(seed)
        contents = g.bytes()
        try:
            session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented:
            assert g.op.startswith("QLinear")  # not of these two dtypes
            continue
        compared += 1
        model, params = ml.from_onnx(contents)
        data = {"x": g.rng.normal(size=g.shape).astype(np.float32)}
        (expected,) = session.run(None, data)
        ours, _ = results(model, params, data, ml.CBackend(num_threads=1))
        apart = np.abs(ours - expected) / g.unit
        assert apart.max() <= (2.01 if g.near in ("added", "two readers") else 1.01), (seed, g.op, g.kind, g.near)
    assert compared >= COUNT // 4


def one(kind, op):
    """A graph of one product, the inputs and outputs of which are quantized."""
    for seed in range(2000):
        g = graph_of(seed)
        if (g.kind, g.op, g.near) == (kind, op, "") and g.shape[1] in (32, 64) and np.prod(g.shape) > 64:
            weights = next(c for c in g.constants if len(c.dims) > 1)
            if weights.dims[0] % 32 == 0 and weights.dims[1] in (32, 64):
                return g
    raise AssertionError("no such graph")


@pytest.mark.parametrize("op", ["Conv", "MatMul", "Gemm", "QLinearConv", "QLinearMatMul"])
@pytest.mark.parametrize("kind", ["tensor", "centered", "asymmetric"])
def test_which_kernels(op, kind):
    """Weights that fit signed bytes are multiplied as integers; others stay floats."""
    g = one(kind, op)
    model, params = ml.from_onnx(g.bytes())
    backend = ml.CBackend(num_threads=1)
    data = {"x": g.rng.normal(size=g.shape).astype(np.float32)}
    _, compiled = results(model, params, data, backend)
    assert ("mithril_int8_" in compiled.stages["emit"]) == (kind != "asymmetric")
