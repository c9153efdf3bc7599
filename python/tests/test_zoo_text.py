"""The language models of `mithril.models` against transformers and against GPT-2 written in PyTorch, on every backend.

Differences are measured relative to the largest number of each array.
"""

import math

import mithril as ml
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mithril.models import create_gpt

BACKENDS = ["numpy", "torch", "jax", "mlx"]
#: dtype -> largest difference of outputs, and of gradients, from PyTorch in float64.
TOLERANCE = {"float64": (1e-12, 1e-10), "float32": (1e-5, 1e-4)}


def get_backend(name, **options):
    try:
        return ml.get_backend(name, **options)
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


# --- GPT-2, op by op --------------------------------------------------------------------------------------------

SIZES = {"block_size": 12, "dims": 24, "num_heads": 3, "num_layers": 2, "vocab_size": 40}


def gpt2(weights, tokens, heads, layers, tied):
    """Compute the logits of GPT-2, op by op; ``weights`` maps the published names to tensors."""

    def get(name):
        return weights.get(f"transformer.{name}")

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], get(f"{name}.weight"), get(f"{name}.bias"))

    def linear(x, name):
        return F.linear(x, get(f"{name}.weight"), get(f"{name}.bias"))

    batch, length = tokens.shape
    x = get("wte.weight")[tokens] + get("wpe.weight")[torch.arange(length)]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    for i in range(layers):
        query, key, value = (
            part.view(batch, length, heads, -1).transpose(1, 2)
            for part in linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").chunk(3, dim=-1)
        )
        scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(hidden, -math.inf)
        attended = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + linear(attended, f"h.{i}.attn.c_proj")
        inner = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(inner, f"h.{i}.mlp.c_proj")
    return F.linear(norm(x, "ln_f"), get("wte.weight") if tied else weights["lm_head.weight"])


@pytest.mark.parametrize(("bias", "tied"), [(True, True), (False, False)])
@pytest.mark.parametrize("shapes", [None, {"input": ["batch", "length"]}, {"input": [2, 10]}])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", BACKENDS)
def test_gpt_is_gpt2(name, dtype, bias, tied, shapes):
    backend = get_backend(name, dtype=dtype)
    rng = np.random.default_rng(0)
    compiled = ml.compile(create_gpt(bias=bias, tied=tied, **SIZES), backend, shapes=shapes)
    tokens = rng.integers(0, SIZES["vocab_size"], (2, 10))
    params = compiled.get_parameters()
    compiled.evaluate(params, {"input": tokens})
    for name, value in params.items():
        params[name] = backend.array(rng.normal(size=value.shape) * 0.3 + ("ln_" in name and "weight" in name))
    given = rng.normal(size=(2, 10, SIZES["vocab_size"]))
    outputs, gradients = compiled.evaluate(params, {"input": tokens}, {"output": given})

    weights = {n: torch.tensor(backend.to_numpy(v), dtype=torch.float64).requires_grad_() for n, v in params.items()}
    logits = gpt2(weights, torch.from_numpy(tokens), SIZES["num_heads"], SIZES["num_layers"], tied)
    logits.backward(torch.from_numpy(given))
    outputs_within, gradients_within = TOLERANCE[dtype]
    assert difference(backend, outputs, {"output": logits}) < outputs_within
    assert difference(backend, gradients, {n: w.grad for n, w in weights.items()}) < gradients_within
    assert ("lm_head.weight" in params) is not tied
    assert any(name.endswith("bias") for name in params) is bias


def test_gpt_of_the_documentation():
    from examples.gpt.model import create_gpt as first
    from mithril.examples.gpt.model import create_gpt as second

    for create in (first, second):
        model = create(bias=True, block_size=128, dims=768, num_heads=12, num_layers=12, vocab_size=50304)
        compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 128]})
        # 124 million: those of the published model, whose tables have 50,257 and 1,024 rows.
        assert "Parameters: 123,787,776" in compiled.summary()


def test_gpt_says_what_is_wrong():
    with pytest.raises(ml.errors.InvalidValueError, match=r"num_heads.*5"):
        create_gpt(**{**SIZES, "num_heads": 5})
    for name in SIZES:
        with pytest.raises(ml.errors.InvalidValueError, match=name):
            create_gpt(**{**SIZES, name: 0})
    for shapes in (None, {"input": ["batch", "length"]}, {"input": [2, 13]}):
        with pytest.raises((ml.errors.ShapeError, ml.errors.InvalidValueError), match="13"):
            ml.compile(create_gpt(**SIZES), ml.NumpyBackend(), shapes=shapes)(np.zeros((2, 13), int))
