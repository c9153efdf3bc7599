"""`from_torch(verify=True)` and `from_jax(verify=True)`: what was imported is compared with what it was made of."""

import mithril as ml
import numpy as np
import pytest
from mithril.errors import InvalidValueError, NumericsError

torch = pytest.importorskip("torch")


class Branch(torch.nn.Module):
    """Returns something else while it is exported, as what depends on values may."""

    def forward(self, x):
        return {"sum": x.sum(-1), "rest": x * 2 if torch.compiler.is_compiling() else x * 3}


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, scale, unused, x=None, *, shift):
        self.seen += 1
        y = self.linear(x) * scale + shift + self.seen
        return y, (y.argmax(-1), y > 0, y.double().mean(), None)


def test_a_module_that_agrees():
    module = Counter().eval()
    args, kwargs = (torch.tensor(2.0), torch.ones(5)), {"x": torch.randn(4, 3), "shift": torch.randn(2)}
    before = torch.random.get_rng_state()
    model, params = ml.from_torch(module, args, kwargs, verify=True)
    assert float(module.seen) == 0
    assert torch.equal(torch.random.get_rng_state(), before)
    assert "linear.weight" in params
    # A program that was exported holds its examples.
    program = torch.export.export(module, args, kwargs)
    for given in ((), (args, kwargs)):
        assert ml.from_torch(program, *given, verify=True)[0].input_keys == model.input_keys


def test_a_module_in_training_mode():
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    module[1].running_mean += 5
    image = torch.randn(2, 3, 8, 8)
    for _ in range(2):
        expected = module[1].running_mean.clone()
        ml.from_torch(module, (image,), verify=True)
        assert torch.equal(module[1].running_mean, expected)
        module.eval()


def test_an_export_that_differs_from_its_module():
    with pytest.raises(NumericsError, match=r"computes other numbers than Branch: `rest` differs by 0\.33") as caught:
        ml.from_torch(Branch(), (torch.ones(2, 3),), verify=True)
    assert caught.value.code == "M0902"
    assert "what torch.export makes of the module" in caught.value.hint
    ml.from_torch(Branch(), (torch.ones(2, 3),))


def test_a_conversion_that_is_wrong(monkeypatch):
    from mithril.frontend.torch import ops

    monkeypatch.setitem(ops.OPS, "aten.sin.default", ops.OPS["aten.cos.default"])

    class Sine(torch.nn.Module):
        def forward(self, x):
            return x.sin(), x

    with pytest.raises(NumericsError, match="`output_0` differs by") as caught:
        ml.from_torch(Sine(), (torch.ones(2),), verify=True)
    assert "please report" in caught.value.hint


def test_what_cannot_be_compared(tmp_path):
    dropout = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    with pytest.raises(InvalidValueError, match="draws random numbers"):
        ml.from_torch(dropout, (torch.ones(2, 3),), verify=True)
    ml.from_torch(dropout.eval(), (torch.ones(2, 3),), verify=True)
    torch.export.save(torch.export.export(dropout, (torch.ones(2, 3),)), tmp_path / "a.pt2")
    with pytest.raises(InvalidValueError, match="nothing in a file is run"):
        ml.from_torch(tmp_path / "a.pt2", verify=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype):
    module = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).to(dtype)
    ml.from_torch(module, (torch.randn(4, 6, dtype=dtype),), verify=True)


def test_functions_of_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def network(params, x, key, scale):
        noise = jax.random.uniform(key, x.shape)
        y = jnp.tanh(x @ params["kernel"]) * scale["of"]
        return {"y": y, "noise": noise, "best": y.argmax(-1)}

    params = {"kernel": np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)}
    args = (jnp.ones((4, 3)), jax.random.key(3), {"of": jnp.float32(2)})
    model, _ = ml.from_jax(network, args, params=params, verify=True)
    assert set(model.output_keys) == {"y", "noise", "best"}
    with pytest.raises(InvalidValueError, match="say nothing but shapes"):
        ml.from_jax(jnp.tanh, (jax.ShapeDtypeStruct((2,), jnp.float32),), verify=True)


def test_a_function_of_jax_that_differs(monkeypatch):
    jax = pytest.importorskip("jax")
    from mithril.frontend.jax import ops

    monkeypatch.setitem(ops.OPS, "sin", ops.OPS["cos"])
    with pytest.raises(NumericsError, match="than the function: `output` differs"):
        ml.from_jax(jax.numpy.sin, (jax.numpy.ones(2),), verify=True)
