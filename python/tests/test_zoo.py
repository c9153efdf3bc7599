"""The models of images of `mithril.models` against torchvision, on every backend.

Differences are measured against the reference in float64, relative to the largest number of each array.
"""

import copy

import mithril as ml
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from mithril.models import resnet18
from mithril.models.resnet import from_torchvision

BACKENDS = ["numpy", "torch", "jax", "mlx"]
#: Where ResNet is compiled by the framework: JAX would compile every op of it alone, which takes longer.
COMPILED = ("jax",)
#: dtype -> largest difference of outputs and running statistics, and of gradients. (In float32 PyTorch itself differs
#: by 1.4e-6 and 6.7e-6 from what it computes in float64.)
TOLERANCE = {"float64": (1e-12, 1e-10), "float32": (1e-5, 1e-4)}


@pytest.fixture(params=[(b, d) for b in BACKENDS for d in TOLERANCE], ids=lambda p: f"{p[0]}-{p[1]}")
def backend(request):
    name, dtype = request.param
    try:
        return ml.get_backend(name, dtype=dtype)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def difference(backend, found, wanted):
    """Largest difference of two dicts of arrays, each relative to the largest number of its array."""
    assert set(found) == set(wanted)
    worst = 0.0
    for name, reference in wanted.items():
        reference = reference.detach().numpy()
        array = backend.to_numpy(found[name])
        assert array.shape == reference.shape, name
        worst = max(worst, float(np.abs(array - reference).max() / np.abs(reference).max()))
    return worst


# --- ResNet -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reference():
    """Make torchvision's ResNet-18 in float64 with running statistics and biases that are not their initial ones."""
    torch.manual_seed(0)
    network = torchvision.models.resnet18(num_classes=10)
    for name, value in network.state_dict().items():
        if name.endswith(("running_mean", "bias")):
            value.normal_(0, 0.1)
        elif name.endswith("running_var") or ("bn" in name and name.endswith("weight")):
            value.uniform_(0.5, 1.5)
    return network.double()


def images(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 3, 64, 64)).astype(np.float32), rng.integers(0, 10, 2)


def with_loss(model):
    trained = copy.copy(model)
    trained |= ml.CrossEntropy()(input=ml.IOKey("output", expose=True), target="target", output="loss")
    return trained


def trained(network, x, y):
    """Outputs, gradients and running statistics of torchvision's network, which is not changed."""
    network = copy.deepcopy(network).train()
    logits = network(torch.from_numpy(x).double())
    loss = F.cross_entropy(logits, torch.from_numpy(y))
    loss.backward()
    kept = {n: v for n, v in network.named_buffers() if n.endswith(("running_mean", "running_var"))}
    return {"output": logits, "loss": loss}, {n: p.grad for n, p in network.named_parameters()}, kept


def test_resnet18_trains_as_that_of_torchvision(backend, reference):
    within = TOLERANCE[str(backend.default_dtype)]
    options = {"shapes": {"input": [2, 3, 64, 64]}, "jit": backend.name in COMPILED}
    compiled = ml.compile(with_loss(resnet18(num_classes=10)), backend, **options)
    # Where rounding takes a number across the kink of relu, the gradients of this batch jump, those of PyTorch too; a
    # defect would show in every batch.
    found = []
    for seed in range(1 if backend.default_dtype == "float64" else 5):
        x, y = images(seed)
        params = compiled.load_params(from_torchvision(reference.state_dict()))
        outputs, gradients = compiled.evaluate(params, {"input": x, "target": y}, {"loss": 1.0})
        wanted = trained(reference, x, y)
        assert difference(backend, outputs, wanted[0]) < within[0]
        assert difference(backend, compiled.state, wanted[2]) < within[0]
        found.append(difference(backend, gradients, wanted[1]))
        if found[-1] < within[1]:
            break
    assert min(found) < within[1], found


@pytest.mark.parametrize("shapes", [None, {"input": ["batch", 3, 64, 64]}, {"input": [2, 3, 64, 64]}])
def test_resnet18_infers_as_that_of_torchvision(backend, reference, shapes):
    x, _ = images()
    compiled = ml.compile(resnet18(n_classes=10), backend, shapes=shapes, inference=True, jit=backend.name in COMPILED)
    compiled.load_params(from_torchvision(reference.state_dict()))
    with torch.no_grad():
        wanted = reference.eval()(torch.from_numpy(x).double())
    assert difference(backend, compiled.evaluate({}, {"input": x}), {"output": wanted}) < TOLERANCE["float32"][0]


def test_resnet18_has_the_names_and_shapes_of_torchvision():
    network = torchvision.models.resnet18()
    compiled = ml.compile(resnet18(), ml.NumpyBackend(), shapes={"input": [1, 3, 224, 224]})
    params = compiled.randomize_params(seed=0)
    assert {n: v.shape for n, v in params.items()} == {n: tuple(p.shape) for n, p in network.named_parameters()}
    kept = {n for n, _ in network.named_buffers() if not n.endswith("num_batches_tracked")}
    assert set(compiled.state) == kept


def test_resnet18_says_what_is_wrong():
    with pytest.raises(ml.errors.ConflictingOptionError, match="n_classes"):
        resnet18(10, n_classes=11)
    for wrong in (0, -1, 2.5, True, "10"):
        with pytest.raises(ml.errors.InvalidValueError, match="num_classes"):
            resnet18(wrong)
    with pytest.raises(ml.errors.ParameterError, match="state dict"):
        from_torchvision([1, 2])
