"""`from_onnx(verify=…)`: what is right passes, what is wrong is found, and what cannot be compared is said."""

import sys

import mithril as ml
import numpy as np
import pytest
from mithril import _core, errors

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import parser  # noqa: E402

NET = """<ir_version: 10, opset_import: ["": 21]>
net (float[batch, 3] x, int64[batch] rows, bool[batch, 2] mask) => (float[batch, 2] y, int64[batch] most)
<float[2, 3] weight = {1, 2, 3, 4, 5, 6}, float[2, 2] table = {0.5, -1, 2, 4}, float zero = {0}> {
  h = Gemm <transB = 1> (x, weight)
  t = Gather (table, rows)
  s = Add (h, t)
  y = Where (mask, s, zero)
  most = ArgMax <axis = 1, keepdims = 0> (s)
}"""
QUANTIZED = """<ir_version: 10, opset_import: ["": 21]>
net (float[8, 3] x) => (float[8, 2] y)
<float[2, 3] weight = {1, 2, 3, 4, 5, 6}, float scale = {0.05}, uint8 zero = {128}> {
  q = QuantizeLinear (x, scale, zero)
  d = DequantizeLinear (q, scale, zero)
  y = Gemm <transB = 1> (d, weight)
}"""


def content(text):
    return parser.parse_model(text).SerializeToString()


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx"])
@pytest.mark.parametrize("text", [NET, QUANTIZED])
def test_a_file_that_is_read_right(text, runtime, tmp_path, monkeypatch):
    if runtime == "onnx":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    ml.from_onnx(content(text), verify=True)
    (tmp_path / "net.onnx").write_bytes(content(text))
    _, params = ml.from_onnx(tmp_path / "net.onnx", verify={"x": np.ones((8, 3))})
    assert "weight" in params


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnx"])
def test_a_file_that_is_read_wrong(runtime, monkeypatch):
    if runtime == "onnx":
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    other = content(NET.replace("{1, 2, 3,", "{1, 2, 3.2,"))
    read = _core.read_onnx
    monkeypatch.setattr(_core, "read_onnx", lambda _, *options: read(other, *options))
    ml.from_onnx(content(NET))
    with pytest.raises(errors.NumericsError, match=r"other numbers than ONNX.*`y` differs by .* of its"):
        ml.from_onnx(content(NET), verify={"x": np.ones((4, 3)), "mask": np.ones((4, 2), bool)})


def test_sizes_and_constants_are_those_that_are_given():
    shapes = {"x": [5, 3], "rows": [5], "mask": [5, 2]}
    ml.from_onnx(content(NET), shapes=shapes, verify=True)
    ml.from_onnx(content(NET), shapes=shapes, constants={"rows": np.array([1, 0, 1, 1, 0])}, verify=True)
    ml.from_onnx(content(NET), verify={"rows": np.array([1, 0, 1])})


def test_old_files_list_their_weights_among_the_inputs():
    model = parser.parse_model(NET)
    model.ir_version = 3
    for weight in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims))
    ml.from_onnx(model.SerializeToString(), verify=True)


@pytest.mark.parametrize(
    ("verify", "message"),
    [
        (1, "verify is 1"),
        ({"row": 1}, "verify names 'row', which is no input of the file.*did you mean"),
        ({"x": np.ones((2, 5))}, "verify=True cannot run the file: ONNX Runtime: .*; ONNX: .*give data that it takes"),
        ({"rows": np.array([0, 9])}, "cannot run the file"),
    ],
)
def test_what_cannot_be_compared(verify, message):
    with pytest.raises(errors.InvalidValueError, match=f"(?s){message}"):
        ml.from_onnx(content(NET), verify=verify)


def test_neither_runtime_is_installed(monkeypatch):
    text = content(NET)
    for name in ("onnxruntime", "onnx", "onnx.reference"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.BackendUnavailableError, match="pip install onnxruntime"):
        ml.from_onnx(text, verify=True)
