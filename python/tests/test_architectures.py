"""The comparison of architectures finds what differs, and lets pass what rounding decides."""

import numpy as np
import pytest
from mithril.compiled.physical_model import PhysicalModel

torch = pytest.importorskip("torch")
from tools.architectures import comparison  # noqa: E402
from tools.architectures.network import FirstTensor, Network, NotCompared, smallest  # noqa: E402


def _network():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 2))
    return Network(FirstTensor(module).eval(), (torch.randn(2, 3, 6, 6),))


def test_a_network_agrees_on_backends_through_onnx_and_in_its_gradients():
    pytest.importorskip("onnxruntime")
    outcome, worst = comparison.compare(_network(), ["numpy", "c"], onnx=True, gradients=True)
    assert outcome == "agrees", worst
    assert worst < 1e-5


def test_other_outputs_and_gradients_are_found(monkeypatch):
    right = comparison._on_backend
    monkeypatch.setattr(comparison, "_on_backend", lambda *args: right(*args) * 1.001)
    outcome, different = comparison.compare(_network(), ["numpy"], onnx=False, gradients=False)
    assert (outcome, list(different)) == ("different", ["numpy"])
    monkeypatch.setattr(comparison, "_on_backend", right)
    gradients = PhysicalModel.evaluate_gradients

    def wrong(*args, **options):
        found = gradients(*args, **options)
        return {**found, "model.3.weight": -found["model.3.weight"]}

    monkeypatch.setattr(PhysicalModel, "evaluate_gradients", wrong)
    outcome, different = comparison.compare(_network(), ["numpy"], onnx=False, gradients=True)
    assert (outcome, list(different)) == ("different", ["gradient of model.3.weight"])


def test_results_are_as_close_to_float64_as_those_of_pytorch_are():
    exact = np.array([1.0, 2.0])
    assert comparison._is_rounding(exact + 0.03, exact + 0.02, exact, 1e-4)
    assert not comparison._is_rounding(exact + 0.05, exact + 0.02, exact, 1e-4)
    assert not comparison._is_rounding(np.array([1.0]), exact, exact, 1e-4)


def test_the_smallest_network_that_can_be_built_is_taken():
    def refuses():
        raise ValueError("not without weights")

    large = {"large": lambda: torch.nn.Linear(20000, 20000)}
    small = {"small": lambda: torch.nn.Linear(3, 3), "middle": lambda: torch.nn.Linear(9, 9), "refuses": refuses}
    assert smallest(large | small) == "small"
    with pytest.raises(NotCompared, match="build: 400 million parameters"):
        smallest(large)
    with pytest.raises(NotCompared, match="not without weights"):
        smallest({"refuses": refuses})


def test_architectures_of_transformers_are_made_small():
    pytest.importorskip("transformers")
    from tools.architectures import of_transformers

    assert "bert" in of_transformers.names()
    network = of_transformers.network("bert")
    assert sum(parameter.numel() for parameter in network.module.parameters()) < 1e6
    outcome, apart = comparison.compare(network, ["numpy"], onnx=False, gradients=True)
    assert outcome == "agrees"
    assert 0 < apart < 1e-5
    with pytest.raises(NotCompared, match="build: "):
        of_transformers.network("autoformer")


def test_finite_differences_tell_a_gradient_from_a_wrong_one():
    # By a hundredth is found, whatever PyTorch's is.
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    x, cotangent = torch.randn(4, 3), torch.randn(4, 2)
    right = (cotangent.T @ x).numpy()
    lacking = right.copy()
    lacking[0] = 0
    for wrong in (right * 1.01, lacking, np.zeros_like(right)):
        assert comparison._is_slope(module, (x,), cotangent, "weight", right, wrong)
        assert not comparison._is_slope(module, (x,), cotangent, "weight", wrong, right)
        assert not comparison._is_slope(module, (x,), cotangent, "weight", wrong, -right)
