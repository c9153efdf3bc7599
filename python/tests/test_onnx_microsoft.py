"""Ops of com.microsoft, compared with ONNX Runtime."""

import mithril as ml
import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
from onnx import helper  # noqa: E402

RNG = np.random.default_rng(0)


def f(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def i32(*values):
    return np.array(values, np.int32)


def u8(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


X, HALF = f(2, 3, 8), f(16, 4)
ATTENTION = {"input": X, "weights": f(8, 24), "bias": f(24)}
HEADS = {"query": X, "key": f(2, 5, 8), "value": f(2, 5, 8)}
CACHE = {"past_key": f(2, 2, 4, 4), "past_value": f(2, 2, 4, 4)}
GROUPS = {"query": f(2, 3, 32), "key": f(2, 3, 16), "value": f(2, 3, 16)}
PROMPT = {"past_key": None, "past_value": None, "seqlens_k": i32(2, 2), "total": i32(3)}
GROWN = {"query": f(1, 3, 32), "key": f(1, 3, 16), "value": f(1, 3, 16), "past_key": f(1, 2, 4, 8)}
GROWN |= {"past_value": f(1, 2, 4, 8), "seqlens_k": i32(6), "total": i32(7)}
TURNED = {"query": f(2, 1, 64), "key": f(2, 1, 32), "value": f(2, 1, 32), "past_key": f(2, 2, 4, 16)}
TURNED |= {"past_value": f(2, 2, 4, 16), "seqlens_k": i32(4, 4), "total": i32(5), "cos": f(16, 8), "sin": f(16, 8)}
STEP = {"query": f(2, 1, 32), "key": f(2, 1, 16), "value": f(2, 1, 16)}
STEP |= {"past_key": f(2, 2, 4, 8), "past_value": f(2, 2, 4, 8), "seqlens_k": i32(4, 4), "total": i32(5)}
BYTES = {"a": u8(2, 3), "a_scale": np.float32(0.02), "a_zero": np.uint8(120)}
OTHER = {"b": u8(2, 3), "b_scale": np.float32(0.03), "b_zero": np.uint8(9)}
RESULT = {"y_scale": np.float32(0.05), "y_zero": np.uint8(100)}

#: Op, inputs, attributes, number of outputs.
CASES = {
    "gelu": ("Gelu", {"x": X}, {}, 1),
    "quick gelu": ("QuickGelu", {"x": X}, {"alpha": 1.5}, 1),
    "bias gelu": ("BiasGelu", {"x": X, "b": f(8)}, {}, 1),
    "fast gelu": ("FastGelu", {"x": X, "b": f(8)}, {}, 1),
    "skip norm": ("SkipLayerNormalization", {"x": X, "s": f(2, 3, 8), "w": f(8), "b": f(8), "c": f(8)}, {}, 1),
    "skip rms": ("SkipSimplifiedLayerNormalization", {"x": X, "s": f(2, 3, 8), "w": f(8)}, {"epsilon": 1e-5}, 1),
    "embed norm": (
        "EmbedLayerNormalization",
        {"ids": i32([1, 2, 0], [3, 1, 1]), "kinds": i32([0, 0, 1], [0, 1, 1])}
        | {"w": f(4, 8), "p": f(3, 8), "s": f(2, 8), "g": f(8), "b": f(8), "mask": i32([1, 1, 0], [1, 0, 0])},
        {},
        2,
    ),
    "fused matmul": ("FusedMatMul", {"a": f(2, 4, 3), "b": f(2, 5, 4)}, {"transA": 1, "transB": 1, "alpha": 0.5}, 1),
    "fused conv": (
        "FusedConv",
        {"x": f(1, 2, 5, 5), "w": f(3, 2, 3, 3), "b": f(3)},
        {"activation": "LeakyRelu", "activation_params": [0.1]},
        1,
    ),
    "fused gemm": ("FusedGemm", {"a": f(2, 3), "b": f(3, 4), "c": f(4)}, {"activation": "Relu"}, 1),
    "attention": ("Attention", ATTENTION, {"num_heads": 2}, 1),
    "attention, causal": ("Attention", ATTENTION, {"num_heads": 2, "unidirectional": 1}, 1),
    "attention, mask": ("Attention", ATTENTION | {"mask": i32([1, 1, 0], [1, 1, 1])}, {"num_heads": 2}, 1),
    "attention, lengths": ("Attention", ATTENTION | {"mask": i32(2, 3)}, {"num_heads": 2, "scale": 0.3}, 1),
    "attention, past": ("Attention", ATTENTION | {"mask": None, "past": f(2, 2, 2, 4, 4)}, {"num_heads": 2}, 2),
    "heads": ("MultiHeadAttention", HEADS, {"num_heads": 2}, 1),
    "heads, bias": ("MultiHeadAttention", HEADS | {"bias": f(24)}, {"num_heads": 2, "scale": 0.4}, 1),
    "heads, mask": (
        "MultiHeadAttention",
        HEADS | {"bias": None, "mask": i32([1, 1, 1, 0, 0], [1, 1, 1, 1, 1]), "added": f(1, 2, 3, 5)},
        {"num_heads": 2},
        1,
    ),
    "heads, past": (
        "MultiHeadAttention",
        {"query": X, "key": f(2, 3, 8), "value": f(2, 3, 8), "bias": None, "mask": None, "added": None} | CACHE,
        {"num_heads": 2, "unidirectional": 1},
        3,
    ),
    "groups, prompt": ("GroupQueryAttention", GROUPS | PROMPT, {"num_heads": 4, "kv_num_heads": 2}, 3),
    "groups, packed": (
        "GroupQueryAttention",
        {"query": f(2, 3, 64), "key": None, "value": None} | PROMPT,
        {"num_heads": 4, "kv_num_heads": 2, "scale": 0.2},
        3,
    ),
    "groups, window": (
        "GroupQueryAttention",
        GROUPS | PROMPT,
        {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 2},
        3,
    ),
    "groups, step": ("GroupQueryAttention", STEP, {"num_heads": 4, "kv_num_heads": 2, "softcap": 2.0}, 3),
    "groups, rotary": (
        "GroupQueryAttention",
        TURNED,
        {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
        3,
    ),
    "groups, grown": ("GroupQueryAttention", GROWN, {"num_heads": 4, "kv_num_heads": 2}, 3),
    "rotary": (
        "RotaryEmbedding",
        {"x": f(2, 2, 3, 8), "places": np.array([[0, 1, 2], [4, 5, 6]]), "cos": HALF, "sin": f(16, 4)},
        {"interleaved": 1},
        1,
    ),
    "rotary, one place": (
        "RotaryEmbedding",
        {"x": f(2, 3, 16), "places": np.array([2]), "cos": HALF, "sin": f(16, 4)},
        {"num_heads": 2},
        1,
    ),
    "4 bits": (
        "MatMulNBits",
        {"x": f(2, 40), "b": u8(6, 3, 8), "scales": f(18), "zeros": u8(12)},
        {"K": 40, "N": 6, "bits": 4, "block_size": 16},
        1,
    ),
    "4 bits, no zeros": (
        "MatMulNBits",
        {"x": f(3, 2, 32), "b": u8(6, 2, 8), "scales": f(12)},
        {"K": 32, "N": 6, "bits": 4, "block_size": 16},
        1,
    ),
    "bytes added": ("QLinearAdd", BYTES | OTHER | RESULT, {}, 1),
    "bytes multiplied": ("QLinearMul", BYTES | OTHER | RESULT, {}, 1),
    "bytes, leaky": ("QLinearLeakyRelu", BYTES | RESULT, {"alpha": 0.2}, 1),
    "bytes to floats": (
        "MatMulIntegerToFloat",
        {"a": u8(2, 3), "b": u8(3, 4), "a_scale": np.float32(0.1), "b_scale": np.float32(0.2)}
        | {"a_zero": np.uint8(7), "b_zero": np.uint8(3), "bias": f(4)},
        {},
        1,
    ),
}


def _model(op, inputs, attributes, outputs):
    """A model with one node; integers that shapes depend on are as constant as in real files."""
    kind = helper.np_dtype_to_tensor_dtype
    known = [onnx.numpy_helper.from_array(v, n) for n, v in inputs.items() if n == "total"]
    input_infos = [
        helper.make_tensor_value_info(n, kind(np.asarray(v).dtype), np.shape(v))
        for n, v in inputs.items()
        if v is not None and n != "total"
    ]
    names = [f"y{i}" for i in range(outputs)]
    first = next(iter(inputs.values()))
    dtype = kind(first.dtype) if first.dtype != np.int32 and op != "MatMulIntegerToFloat" else onnx.TensorProto.FLOAT
    results = [helper.make_tensor_value_info(n, dtype, None) for n in names]
    if op == "EmbedLayerNormalization":
        results[1] = helper.make_tensor_value_info("y1", onnx.TensorProto.INT32, None)
    node = helper.make_node(op, [n if v is not None else "" for n, v in inputs.items()], names, **attributes)
    node.domain = "com.microsoft"
    graph = helper.make_graph([node], "net", input_infos, results, known)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


@pytest.mark.parametrize("name", CASES)
def test_as_in_onnx_runtime(name):
    op, inputs, attributes, outputs = CASES[name]
    data = _model(op, inputs, attributes, outputs)
    values = {n: np.asarray(v) for n, v in inputs.items() if v is not None and n != "total"}
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    expected = session.run(None, values)
    model, params = ml.from_onnx(data)
    results = ml.compile(model, ml.NumpyBackend()).evaluate(params, values)
    for i, array in enumerate(expected):
        actual = results[f"y{i}"]
        assert actual.shape == array.shape
        assert actual.dtype == array.dtype
        # A rounding error may move a byte to its neighbor.
        byte = array.dtype == np.uint8
        np.testing.assert_allclose(actual.astype(float), array.astype(float), rtol=1e-4, atol=1 if byte else 2e-5)
