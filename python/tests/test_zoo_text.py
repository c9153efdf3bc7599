"""The decoders of `mithril.models` against those of transformers, and against GPT-2 written in PyTorch.

Differences are measured relative to the largest number of each array.
"""

import math

import mithril as ml
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from mithril.generation import compile_decoder, generate_tokens
from mithril.models import create_gpt, create_llama, from_config

BACKENDS = ["numpy", "torch", "jax", "mlx"]
#: dtype -> largest difference of outputs, and of gradients, from PyTorch in float64.
TOLERANCE = {"float64": (1e-12, 1e-10), "float32": (1e-5, 1e-4)}
#: Where JAX would compile every op alone, which takes longer.
COMPILED = ("jax",)


def get_backend(name, **options):
    try:
        return ml.get_backend(name, **options)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def difference(backend, actual, expected):
    """Largest difference of two dicts of arrays, each relative to the largest number of its array."""
    assert set(actual) == set(expected)
    worst = 0.0
    for name, reference in expected.items():
        reference = reference.detach().numpy()
        array = backend.to_numpy(actual[name])
        assert array.shape == reference.shape, name
        worst = max(worst, float(np.abs(array - reference).max() / np.abs(reference).max()))
    return worst


# --- transformers -----------------------------------------------------------------------------------------------

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
#: Name -> class, configuration: odd numbers of heads, sizes and tokens.
NETWORKS = {
    "gpt2": (
        transformers.GPT2Config,
        {"vocab_size": 53, "n_positions": 64, "n_embd": 36, "n_layer": 2, "n_head": 3},
    ),
    "gpt2 untied": (
        transformers.GPT2Config,
        {"vocab_size": 40, "n_positions": 64, "n_embd": 20, "n_layer": 3, "n_head": 5, "tie_word_embeddings": False},
    ),
    "llama": (
        transformers.LlamaConfig,
        {"vocab_size": 61, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
        | {"num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5},
    ),
    "llama3": (
        transformers.LlamaConfig,
        {"vocab_size": 37, "hidden_size": 21, "intermediate_size": 28, "num_hidden_layers": 3}
        | {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True}
        | {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 16}, "attention_bias": True},
    ),
    "llama with biases": (
        transformers.LlamaConfig,
        {"vocab_size": 30, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 1}
        | {"num_attention_heads": 3, "num_key_value_heads": 3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": (
        transformers.MistralConfig,
        {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": None},
    ),
    "qwen2": (
        transformers.Qwen2Config,
        {"vocab_size": 33, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
}
#: Those that every backend runs; the others are variants of the configuration.
EVERYWHERE = ["gpt2", "gpt2 untied", "llama", "llama3"]


def network(name):
    """Make the network of transformers, with weights that make a difference."""
    make, sizes = NETWORKS[name]
    torch.manual_seed(0)
    config = make(**sizes, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3) if parameter.ndim > 1 else parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def loaded(network, backend, **options):
    """Compile our model of the same configuration, with the same weights."""
    arguments = {name: options.pop(name) for name in ("cache", "last_only") if name in options}
    model = from_config(network.config.to_dict(), **arguments)
    options.setdefault("jit", backend.name in COMPILED)
    compiled = compile_decoder(model, backend, **options)
    state = dict(network.state_dict())
    if network.config.tie_word_embeddings:
        # The matrix of the output layer is the table of tokens a second time.
        del state["lm_head.weight"]
    ml.load_weights(compiled, state)
    return compiled


def logits(compiled, tokens, **data):
    outputs = compiled.evaluate(compiled.get_parameters(), {"input": tokens, **data})
    return compiled.backend.to_numpy(outputs["output"])


def relative(actual, expected):
    assert actual.shape == expected.shape
    return np.abs(actual - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize(
    ("backend", "name"), [(b, name) for name in NETWORKS for b in (BACKENDS if name in EVERYWHERE else ["numpy"])]
)
def test_logits_are_those_of_transformers(backend, name):
    reference = network(name)
    tokens = torch.randint(0, reference.config.vocab_size, (2, 40))
    compiled = loaded(reference, get_backend(backend))
    with torch.no_grad():
        expected = reference(tokens).logits.numpy()
    assert relative(logits(compiled, tokens.numpy()), expected) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_half_precision_is_as_near_as_that_of_transformers(name):
    reference = network(name)
    tokens = torch.randint(0, reference.config.vocab_size, (2, 40))
    with torch.no_grad():
        expected = reference(tokens).logits.numpy()
        theirs = relative(reference.bfloat16()(tokens).logits.float().numpy(), expected)
    ours = relative(logits(loaded(reference, get_backend("torch", dtype="bfloat16")), tokens.numpy()), expected)
    assert 1e-4 < ours < 2 * theirs


# --- the cache --------------------------------------------------------------------------------------------------

PROMPTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3, 5, 8, 9, 7, 9, 3]]


@pytest.fixture(scope="module")
def continued():
    """32 tokens behind each prompt by transformers, which pads on the left."""
    by_name = {}
    for name in ("gpt2", "llama3"):
        length = max(map(len, PROMPTS))
        tokens = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in PROMPTS])
        real = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
        options = {"max_new_tokens": 32, "do_sample": False, "pad_token_id": 0}
        by_name[name] = network(name).generate(tokens, attention_mask=real, **options)[:, length:].tolist()
    return by_name


@pytest.mark.parametrize("name", ["gpt2", "llama3"])
@pytest.mark.parametrize(
    ("backend", "cache"), [*((backend, True) for backend in BACKENDS), ("numpy", False), ("torch", False)]
)
def test_tokens_are_those_of_transformers(continued, backend, cache, name):
    compiled = loaded(network(name), get_backend(backend), cache=cache, last_only=cache)
    run = generate_tokens(compiled, PROMPTS, 32)
    for _ in run:
        pass
    assert run.tokens == continued[name]


def past(model, batch, capacity):
    """Caches that hold something else than zeros where nothing was written."""
    rng = np.random.default_rng(0)
    sizes = {n: model.shape_of(n) for n in model.input_keys if n.startswith("past_")}
    return {n: rng.normal(size=(batch, heads, capacity, each)) for n, (_, heads, _, each) in sizes.items()}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("capacity", [12, 31])
def test_cache_is_filled_in_pieces(name, capacity):
    reference, backend = network(name), get_backend("torch")
    tokens = np.random.default_rng(1).integers(0, reference.config.vocab_size, (2, 12))
    padding = np.array([2, 0])
    whole = loaded(reference, backend)
    expected = [logits(whole, tokens[row : row + 1, padding[row] :])[0] for row in range(2)]
    compiled = loaded(reference, backend, cache=True)
    data, position = past(from_config(reference.config.to_dict(), cache=True), 2, capacity), 0
    for length in (5, 1, 1, 3, 2):
        data |= {"input": tokens[:, position : position + length], "position": position, "padding": padding}
        outputs = compiled.evaluate(compiled.get_parameters(), data)
        for row in range(2):
            start = max(position, padding[row])
            actual = backend.to_numpy(outputs["output"])[row, start - position :]
            there = slice(start - padding[row], position + length - padding[row])
            assert relative(actual, expected[row][there]) < 1e-5
        for key in [key for key in outputs if key != "output"]:
            assert tuple(outputs[key].shape) == tuple(data[f"past_{key}"].shape)
            data[f"past_{key}"] = outputs[key]
        position += length


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_logits_of_the_last_token_alone(name):
    reference, backend = network(name), get_backend("numpy")
    tokens = np.array([[1, 2, 3, 4], [4, 5, 6, 7]])
    actual = logits(loaded(reference, backend, last_only=True), tokens)
    assert relative(actual, logits(loaded(reference, backend), tokens)[:, -1:]) < 1e-6


def test_mask_and_angles_are_computed_once():
    model = create_llama(vocab_size=10, dims=8, num_heads=2, num_kv_heads=1, num_layers=3, hidden=8, cache=True)
    source = compile_decoder(model, get_backend("torch")).source
    assert source.count("torch.cos(") == source.count("<=") == 1
    assert source.count("enable_gqa=True") == 3


# --- bad input --------------------------------------------------------------------------------------------------

LLAMA = {"vocab_size": 10, "dims": 12, "num_heads": 3, "num_layers": 1, "hidden": 8}


def test_llama_says_what_is_wrong():
    wrong = [("num_heads", 5), ("num_kv_heads", 2), ("head_dim", 3), ("biases", "some"), ("rope_base", -1.0)]
    wrong += [(name, 0) for name in LLAMA] + [("rope_factor", 0.0), ("num_layers", 10**6)]
    for name, value in wrong:
        with pytest.raises(ml.errors.InvalidValueError, match=name):
            create_llama(**{**LLAMA, name: value})
    with pytest.raises(ml.errors.InvalidValueError, match="rope_low_frequency"):
        create_llama(**LLAMA, rope_factor=8.0, rope_low_frequency=4.0)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("gpt2", {"activation_function": "relu"}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt2", {"n_inner": 7}),
        ("gpt2", {"layer_norm_epsilon": 1e-6}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"hidden_size": None}),
        ("mistral", {"sliding_window": 8}),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_configurations_of_other_models_are_refused(name, entry):
    make, sizes = NETWORKS[name]
    key = next(iter(entry))
    with pytest.raises(ml.errors.InvalidValueError, match="rope_type" if key == "rope_parameters" else key):
        from_config({**make(**sizes).to_dict(), **entry})


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("mistral", {"sliding_window": 64, "max_position_embeddings": 64}),
        ("mistral", {"sliding_window": 4096, "max_position_embeddings": 2048}),
        ("mistral", {"sliding_window": None}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64, "max_position_embeddings": 64}),
    ],
)
def test_a_window_that_masks_nothing_is_accepted(name, entry):
    make, sizes = NETWORKS[name]
    config = make(**{**sizes, **entry}, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    torch.manual_seed(0)
    reference = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(0, config.vocab_size, (1, 20))
    with torch.no_grad():
        expected = reference(tokens).logits.numpy()
    assert relative(logits(loaded(reference, get_backend("numpy")), tokens.numpy()), expected) < 1e-4


def test_a_window_that_a_file_leaves_out_is_the_one_of_transformers():
    sizes = {"model_type": "mistral", **NETWORKS["mistral"][1]}
    del sizes["sliding_window"]
    with pytest.raises(ml.errors.InvalidValueError, match="sliding_window"):
        from_config({**sizes, "max_position_embeddings": 8192})
    from_config({**sizes, "max_position_embeddings": 4096})


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
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", BACKENDS)
def test_gpt_is_gpt2(name, dtype, bias, tied):
    backend = get_backend(name, dtype=dtype)
    rng = np.random.default_rng(0)
    shapes = {"input": ["batch", "length"] if bias else [2, 10]}
    compiled = ml.compile(create_gpt(bias=bias, tied=tied, **SIZES), backend, shapes=shapes, jit=name in COMPILED)
    tokens = rng.integers(0, SIZES["vocab_size"], (2, 10))
    params = compiled.get_parameters()
    compiled.evaluate(params, {"input": tokens})
    for name, value in params.items():
        params[name] = backend.array(rng.normal(size=value.shape) * 0.3 + ("ln_" in name and "weight" in name))
    direction = rng.normal(size=(2, 10, SIZES["vocab_size"]))
    outputs, gradients = compiled.evaluate(params, {"input": tokens}, {"output": direction})

    weights = {n: torch.tensor(backend.to_numpy(v), dtype=torch.float64).requires_grad_() for n, v in params.items()}
    logits = gpt2(weights, torch.from_numpy(tokens), SIZES["num_heads"], SIZES["num_layers"], tied)
    logits.backward(torch.from_numpy(direction))
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
