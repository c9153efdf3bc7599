"""Recurrent networks of sequences of any length, and what is refused."""

import mithril as ml
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from backends import BACKENDS, backend
from onnx import TensorProto, helper, numpy_helper
from torch import nn

NETWORKS = {
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True),
    "lstm_with_projection": lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True),
    "gru": lambda: nn.GRU(3, 4, bidirectional=True, batch_first=True),
    "gru_without_bias": lambda: nn.GRU(3, 4, bias=False),
    "rnn": lambda: nn.RNN(3, 4, 2),
    "rnn_with_relu": lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True, batch_first=True),
}


def _flat(results):
    output, states = results
    return [output, *(states if isinstance(states, tuple) else (states,))]


# PyTorch itself computes projections without oneDNN, and says so.
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")
@pytest.mark.parametrize("name", [*BACKENDS, "c", "ggml", "interpreter"])
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_of_any_length_agree_with_pytorch(network, name):
    torch.manual_seed(0)
    module = NETWORKS[network]()
    sizes = {axis: torch.export.Dim(f"size{axis}", min=2) for axis in (0, 1)}
    model, params = ml.from_torch(module, (torch.ones(4, 5, 3),), dynamic_shapes=(sizes,))
    device = {"c": ml.CBackend, "ggml": ml.GGMLBackend, "interpreter": ml.InterpreterBackend}.get(name)
    device = backend(name) if device is None else device()
    compiled = ml.compile(model, device)
    (key,) = compiled.input_keys
    arrays = {name: device.array(np.array(value)) for name, value in params.items()}
    for shape in [(3, 2), (2, 6)] if name in BACKENDS else [(3, 2)]:
        x = torch.randn(*shape, 3)
        module.zero_grad()
        expected = _flat(module(x))
        cotangents = [torch.randn_like(y) for y in expected]
        torch.autograd.backward(expected, cotangents)
        given = dict(zip(compiled.output_keys, (device.array(c.numpy()) for c in cotangents), strict=True))
        data = {key: device.array(x.numpy())}
        outputs = compiled.evaluate(arrays, data)
        gradients = compiled.evaluate_gradients(arrays, data, output_gradients=given)
        for y, out in zip(expected, outputs.values(), strict=True):
            np.testing.assert_allclose(np.asarray(out), y.detach().numpy(), atol=1e-5)
        for parameter, tensor in module.named_parameters():
            gradient = np.asarray(gradients[parameter])
            np.testing.assert_allclose(gradient, tensor.grad.numpy(), atol=1e-4 * float(tensor.grad.abs().max()))


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_files_of_any_length_agree_with_onnx_runtime(kind, gates, direction):
    rng = np.random.default_rng(0)
    count = 2 if direction == "bidirectional" else 1
    weights = {
        "w": rng.normal(size=(count, gates * 4, 3)),
        "r": rng.normal(size=(count, gates * 4, 4)),
        "b": rng.normal(size=(count, gates * 8)),
    }
    # Otherwise the reset gate acts before the product.
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    node = helper.make_node(kind, ["x", *weights], ["y", "h"], hidden_size=4, direction=direction, **options)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["t", "n", 3]), ("y", ["t", count, "n", 4]), ("h", [count, "n", 4]))
    ]
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = helper.make_graph([node], "net", ports[:1], ports[1:], initializers)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(file)
    session = onnxruntime.InferenceSession(file.SerializeToString(), providers=["CPUExecutionProvider"])
    model, params = ml.from_onnx(file)
    compiled = ml.compile(model, ml.NumpyBackend(), inference=True)
    for steps, examples in ((1, 2), (7, 3)):
        x = rng.normal(size=(steps, examples, 3)).astype(np.float32)
        outputs = compiled.evaluate(params, {"x": x})
        for expected, actual in zip(session.run(None, {"x": x}), outputs.values(), strict=True):
            np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_layers_take_any_length_unless_it_is_given():
    any_length = ml.compile(ml.LSTM(4), ml.NumpyBackend(), shapes={"input": ("t", 2, 3)})
    params = any_length.randomize_params(seed=0)
    for steps in (1, 5):
        outputs = any_length.evaluate(params, {"input": np.ones((steps, 2, 3), np.float32)})
        assert outputs["output"].shape == (steps, 2, 4)
    assert "_through_steps" in any_length.source
    with pytest.raises(ml.errors.MithrilError, match="6"):
        ml.compile(ml.LSTM(4, length=5), ml.NumpyBackend(), shapes={"input": (6, 2, 3)})


def test_training_at_several_lengths():
    model = ml.Model()
    model |= ml.GRU(8)(input="input", output="states")
    model |= ml.MSELoss()(input="states", target="target", output="loss")
    shapes = {"input": ("t", 2, 3), "target": ("t", 2, 8)}
    losses = {}
    for device in (ml.NumpyBackend(), ml.TorchBackend(), ml.JaxBackend()):
        compiled = ml.compile(model, device, shapes=shapes)
        start = ml.compile(model, ml.NumpyBackend(), shapes=shapes).randomize_params(seed=0)
        compiled.load_params({name: np.asarray(value) for name, value in start.items()})
        step = ml.train.TrainingStep(compiled, ml.optim.Adam(0.05), loss="loss")
        rng = np.random.default_rng(0)
        losses[device.name] = []
        for steps in (3, 5, 3, 9):
            batch = {"input": rng.normal(size=(steps, 2, 3)), "target": rng.uniform(-1, 1, (steps, 2, 8))}
            batch = {name: value.astype(np.float32) for name, value in batch.items()}
            losses[device.name].append(float(np.asarray(step(batch)["loss"])))
    for name in ("torch", "jax"):
        np.testing.assert_allclose(losses[name], losses["numpy"], rtol=1e-4)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(0, 2, 3), (2, 4), (2, 4), (16, 3), (16, 4)], "no elements"),
        ([(5, 2, 3), (2, 0), (2, 0), (0, 3), (0, 0)], "no features"),
        ([(5, 3), (2, 4), (2, 4), (16, 3), (16, 4)], "must have 3 axes"),
        ([(5, 2, 3), (2, 4), (2, 4), (12, 3), (12, 4)], "gates of the state"),
        ([(5, 2, 3), (3, 4), (2, 4), (16, 3), (16, 4)], "sizes of the batch"),
        ([(5, 2, 3), (2, 4), (2, 4), (16, 4), (16, 4)], "features of the weight"),
        ([(5, 2, 3), (2, 4), (2, 5), (20, 3), (20, 4)], "features of the two states"),
    ],
)
def test_shapes_that_do_not_fit_are_named(shapes, words):
    with pytest.raises(ml.errors.MithrilError, match=words):
        ml.NumpyBackend().lstm_sequence(*(np.ones(shape, np.float32) for shape in shapes))


@pytest.mark.parametrize("name", BACKENDS)
def test_relu_of_infinities_is_that_of_pytorch(name):
    states = np.array([[-np.inf, np.inf, np.nan, -1.0]], np.float32)
    device = backend(name)
    zeros = [device.array(np.zeros(shape, np.float32)) for shape in ((1, 4), (4, 4))]
    result = device.rnn_scan(device.array(states[None]), *zeros, nonlinearity="relu")
    np.testing.assert_array_equal(np.asarray(result)[0], torch.relu(torch.from_numpy(states)).numpy())


def test_packed_sequences_are_refused():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
            return self.lstm(packed)[0].data

    with pytest.raises(ml.errors.UnsupportedOpError):
        ml.from_torch(Packed(), (torch.ones(2, 3, 3),))
