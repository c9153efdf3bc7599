"""Weights whose names no layout knows, such as the numbers of torch.nn.Sequential: given, suggested, never guessed."""

from __future__ import annotations

import re

import mithril as ml
import numpy as np
import pytest
import safetensors.torch
import torch


def of_torch(seed=0):
    torch.manual_seed(seed)
    layers = [torch.nn.Conv2d(2, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    for value in (net[1].running_mean, net[1].running_var, net[1].weight, net[1].bias):
        value.data.copy_(torch.rand(4) + 0.5)
    return net


def of_mithril(backend):
    model = ml.Model()
    model |= ml.Convolution2D(4, 3, use_bias=True, name="conv")(input="input", output="a")
    model |= ml.BatchNorm2D(4, name="norm")(input="a", output="b")
    model |= ml.Relu()(input="b", output="c")
    model |= ml.Flatten(start_dim=1)(input="c", output="d")
    model |= ml.Linear(8, name="hidden")(input="d", output="e")
    model |= ml.Relu()(input="e", output="f")
    model |= ml.Linear(3, name="head")(input="f", output="output")
    return ml.compile(model, backend, shapes={"input": [2, 2, 6, 6]}, inference=True)


NAMES = {"conv": "0", "norm": "1", "hidden": "4", "head": "6"}


def files(net, folder):
    state = net.state_dict()
    yield "a dict", state
    yield "a wrapped model", {f"module.{name}": value for name, value in state.items()}
    torch.save(state, folder / "a.pt")
    yield "torch", folder / "a.pt"
    # The library sorts by name.
    safetensors.torch.save_file(state, folder / "a.safetensors")
    yield "safetensors", folder / "a.safetensors"


@pytest.mark.parametrize("backend", [ml.NumpyBackend(), ml.TorchBackend(), ml.CBackend(num_threads=1)], ids=str)
def test_a_sequential_network_gives_its_answers(backend, tmp_path):
    net, data = of_torch(), torch.randn(2, 2, 6, 6)
    expected = net(data).detach().numpy()
    for label, source in files(net, tmp_path):
        model = of_mithril(backend)
        report = ml.load_weights(model, source, names=NAMES if label != "a wrapped model" else behind("module", NAMES))
        assert (report.is_complete, report.layout, len(report.loaded)) == (True, None, 10), label
        assert "with the names given" in str(report)
        actual = model.evaluate(model.get_parameters(), {"input": backend.array(data.numpy())})["output"]
        np.testing.assert_allclose(backend.to_numpy(actual), expected, rtol=1e-5, atol=1e-5, err_msg=label)
    packed = ml.CBackend(num_threads=1)
    model = of_mithril(packed)
    actual = model.evaluate(model.pack(tmp_path / "a.pt", names=NAMES), {"input": data.numpy()})["output"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def behind(prefix, names):
    return {ours: f"{prefix}.{theirs}" for ours, theirs in names.items()}


def test_the_names_to_give_are_said_where_order_and_sizes_agree(tmp_path):
    for label, source in files(of_torch(), tmp_path):
        model = of_mithril(ml.NumpyBackend())
        with pytest.raises(ml.errors.ParameterError, match="the sizes agree in order") as problem:
            ml.load_weights(model, source)
        text = re.search(r"names=(\{.*?\})", str(problem.value))
        assert text, label
        said = eval(text[1])
        assert said == (NAMES if label != "a wrapped model" else behind("module", NAMES))
        assert ml.load_weights(model, source, names=said).is_complete


def test_more_than_ten_layers_are_in_the_order_of_their_numbers(tmp_path):
    net = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(12)))
    model = ml.Model()
    model |= ml.Linear(3, name="l0")(input="input", output="o0")
    for i in range(1, 12):
        model |= ml.Linear(3, name=f"l{i}")(input=f"o{i - 1}", output=f"o{i}")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]})
    report = ml.load_weights(compiled, {**net.state_dict(), "l0.weight": np.eye(3)}, strict=False)
    assert report.renamed == {}, "one array of a layer is there, the other is not"
    with pytest.raises(ml.errors.ParameterError) as problem:
        ml.load_weights(compiled, net.state_dict())
    assert "'l2': '2'" in problem.value.hint
    assert "'l11': '11'" in problem.value.hint
    # Sorted by name it reads 0, 1, 10, 11, 2: sizes agree in either order, so nothing is said.
    by_name = dict(sorted(net.state_dict().items()))
    with pytest.raises(ml.errors.ParameterError) as problem:
        ml.load_weights(compiled, by_name)
    assert "sizes agree" not in problem.value.hint
    assert "names={'l0.weight': '0.weight', …}" in problem.value.hint


def test_layers_of_equal_size_are_taken_as_named():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model = ml.Model()
    model |= ml.Linear(4, name="first")(input="input", output="a")
    model |= ml.Linear(4, name="second")(input="a", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 4]})
    ml.load_weights(compiled, net.state_dict(), names={"first": "1", "second": "0"})
    np.testing.assert_array_equal(compiled.parameters["first.weight"], net[1].weight.detach().numpy())
    np.testing.assert_array_equal(compiled.parameters["second.bias"], net[0].bias.detach().numpy())
    # One array for two of ours, and an array apart from its part.
    ml.load_weights(
        compiled, net.state_dict(), names={"first": "0", "second": "0", "second.bias": "1.bias"}, strict=False
    )
    np.testing.assert_array_equal(compiled.parameters["second.weight"], net[0].weight.detach().numpy())
    np.testing.assert_array_equal(compiled.parameters["second.bias"], net[1].bias.detach().numpy())


def test_wrong_names_are_errors_and_load_nothing():
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    model = ml.Model()
    model |= ml.Linear(4, name="first")(input="input", output="a")
    model |= ml.Linear(2, name="second")(input="a", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 4]})
    before = {name: np.array(value) for name, value in compiled.parameters.items()}
    wrong = ml.errors.ParameterError
    for names, kind, problem in [
        ({"frist": "0", "second": "2"}, wrong, 'did you mean "first"'),
        ({"first": "1", "second": "2"}, wrong, '"1", which is not in the weights'),
        ({"first": "2", "second": "0"}, wrong, r"first.weight \(\[4, 4\] in the model, \[2, 4\] in the weights"),
        ({"first": "0"}, wrong, r"names={'first': '0', 'second': '2'}"),
        ({"first": "0", "second": "0"}, wrong, "2 unexpected"),
        ({"0": "first", "2": "second"}, wrong, '"0", which is not in the model'),
        (["first"], ml.errors.InvalidValueError, "names is a list"),
        ({"first": 0}, ml.errors.InvalidValueError, "'first': 0"),
    ]:
        with pytest.raises(kind, match=problem):
            ml.load_weights(compiled, net.state_dict(), names=names)
        for name, value in before.items():
            np.testing.assert_array_equal(compiled.parameters[name], value)
    with pytest.raises(ml.errors.InvalidValueError, match="leave `prefix` out"):
        ml.load_weights(compiled, net.state_dict(), names={"first": "0"}, prefix="first")
