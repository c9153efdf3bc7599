"""ONNX files whose sizes stay open: what is computed from shapes, compared with ONNX Runtime for several sizes."""

import mithril as ml
import numpy as np
import pytest
from mithril import errors

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

#: Bodies of graphs of `x`, float[n, c, t], whose result is `y`. `length` is the vector [t].
BODIES = {
    "padded": """
        opposite = Neg(length)
        rest = Mod(opposite, four)
        nothing = ConstantOfShape <value = int64[1] {0}> (five)
        pads = Concat <axis = 0> (nothing, rest)
        y = Pad(x, pads)
    """,
    "from_end": """
        opposite = Neg(length)
        start = Div(opposite, two)
        y = Slice(x, start, length, axis)
    """,
    "remainder": """
        rest = Mod <fmod = 1> (length, four)
        y = Slice(x, zero, rest, axis)
    """,
    "spectrum": """
        last = Constant <value_ints = [-1]> ()
        signal = Unsqueeze(x, last)
        place = Constant <value_int = 2> ()
        number = Squeeze(length)
        y = DFT(signal, number, place)
    """,
    "resized": """
        ends = Shape <start = 0, end = 2> (x)
        more = Add(length, two)
        sizes = Concat <axis = 0> (ends, more)
        y = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"> (x, , , sizes)
    """,
    "resized_by_corners": """
        ends = Shape <start = 0, end = 2> (x)
        more = Mul(length, two)
        sizes = Concat <axis = 0> (ends, more)
        y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (x, , , sizes)
    """,
}

HEADER = """
<ir_version: 9, opset_import: ["" : 20]>
graph (float[n, c, t] x) => (float[] y) {
    length = Shape <start = 2> (x)
    zero = Constant <value_ints = [0]> ()
    two = Constant <value_ints = [2]> ()
    four = Constant <value_ints = [4]> ()
    five = Constant <value_ints = [5]> ()
    axis = Constant <value_ints = [2]> ()
"""


@pytest.mark.parametrize("name", BODIES)
def test_sizes_that_follow_from_shapes(name):
    file = onnx.parser.parse_model(HEADER + BODIES[name] + "}")
    del file.graph.output[0].type.tensor_type.shape.dim[:]
    file.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(file.SerializeToString())
    model, params = ml.from_onnx(file)
    assert not params
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"x": ["n", "c", "t"]})
    for sizes in ((2, 3, 8), (1, 2, 7), (3, 1, 9), (1, 1, 5)):
        x = np.random.default_rng(0).standard_normal(sizes, np.float32)
        (expected,) = session.run(None, {"x": x})
        actual = np.asarray(compiled.evaluate({}, {"x": x})["y"])
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_what_is_no_file_is_an_error():
    with pytest.raises(errors.InvalidValueError, match=r"a dict is no ONNX file(.|\n)*onnx.ModelProto"):
        ml.from_onnx({"x": 1})


def test_programs_of_pytorch_are_files():
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = torch.nn.Linear(3, 2).eval()
    program = torch.onnx.export(module, (torch.ones(4, 3),), dynamo=True, verbose=False)
    model, params = ml.from_onnx(program)
    result = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"input": np.ones((4, 3), np.float32)})
    np.testing.assert_allclose(next(iter(result.values())), module(torch.ones(4, 3)).detach().numpy(), rtol=1e-6)
