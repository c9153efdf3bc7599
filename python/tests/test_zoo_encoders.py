"""BERT and T5 against transformers: outputs, gradients and greedy tokens, on every backend.

Weights are random and large, so that nothing hides behind the shortcuts. Differences are measured against the
reference in float64, relative to the largest number of each array.
"""

import types

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.generation import compile_decoder, generate_tokens
from mithril.models import create_bert, from_config, t5_decode, t5_encode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)
from transformers.models.t5 import modeling_t5

#: Largest difference in float32. (PyTorch itself differs by 9e-7 from what it computes in float64.)
WITHIN = 1e-5


@pytest.fixture(params=["numpy", "torch", "jax", "mlx"])
def backend(request):
    try:
        return ml.get_backend(request.param)
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def compiled(model, backend, network, **shapes):
    """Compile for inference with the weights of a network. JAX would compile each op alone, which takes longer."""
    compiled = ml.compile(model, backend, shapes=shapes or None, inference=True, jit=backend.name == "jax")
    ml.load_weights(compiled, network.state_dict())
    return compiled


def difference(actual, expected, where=None):
    """Largest difference of two arrays relative to the largest number, where there is no padding."""
    actual, expected = np.asarray(actual, np.float64), expected.detach().double().numpy()
    assert actual.shape == expected.shape
    gap = np.abs(actual - expected)
    if where is not None:
        gap = gap[where.numpy() == 1]
    return float(gap.max() / np.abs(expected).max())


def randomized(network, seed=0):
    torch.manual_seed(seed)
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.4)
    return network.eval()


def texts(vocabulary, batch=3, length=11):
    """Tokens, and which of them are not padding: some of it at the right, some at the left."""
    tokens = torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[:1, length - 4 :] = 0
    mask[1:2, :3] = 0
    return tokens, mask


def numpy(**tensors):
    return {name: tensor.numpy() for name, tensor in tensors.items()}


# --- BERT -------------------------------------------------------------------------------------------------------

BERT = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
    "type_vocab_size": 3,
    "num_labels": 5,
}


def bert(kind, **options):
    network = randomized(kind(BertConfig(**BERT, **options)))
    return network, {**network.config.to_dict(), "architectures": [kind.__name__]}


def bert_outputs(network, tokens, **options):
    with torch.no_grad():
        outputs = network.double()(tokens, **options)
    network.float()
    if isinstance(network, BertModel):
        return {"output": outputs.last_hidden_state, "pooled": outputs.pooler_output}
    return {"output": outputs.logits}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BertModel, {}),
        (BertForMaskedLM, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}),
        (BertForSequenceClassification, {"hidden_act": "relu"}),
    ],
)
def test_bert_is_that_of_transformers(backend, kind, options):
    network, config = bert(kind, **options)
    tokens, mask = texts(50)
    plain = compiled(from_config(config), backend, network, input=["batch", "length"])
    actual, expected = plain.evaluate({}, numpy(input=tokens)), bert_outputs(network, tokens)
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert difference(backend.to_numpy(array), expected[name]) < WITHIN

    kinds = torch.randint(0, 3, tokens.shape, generator=torch.Generator().manual_seed(2))
    masked = compiled(from_config(config, mask=True, types=True), backend, network)
    actual = masked.evaluate({}, numpy(input=tokens, mask=mask, types=kinds))
    expected = bert_outputs(network, tokens, attention_mask=mask, token_type_ids=kinds)
    for name, array in actual.items():
        array, at = backend.to_numpy(array), mask
        if array.shape[:2] != mask.shape:
            # The pooled token of a text with padding at the left is padding itself.
            array, expected[name], at = array[[0, 2]], expected[name][[0, 2]], None
        assert difference(array, expected[name], at) < WITHIN


def test_bert_reads_older_names_and_files_with_more():
    network, config = bert(BertForMaskedLM)
    tokens, _ = texts(50)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in network.state_dict().items()
    }
    compiled_model = ml.compile(
        from_config(config), ml.NumpyBackend(), inference=True, shapes={"input": ["batch", "length"]}
    )
    report = ml.load_weights(compiled_model, old)
    assert set(report.loaded) == set(compiled_model.parameter_keys)
    actual = compiled_model.evaluate({}, numpy(input=tokens))["output"]
    assert difference(actual, bert_outputs(network, tokens)["output"]) < WITHIN
    # The stack alone, of the same file: the head of the language model is not looked at.
    stack = compiled(from_config(config, head="none"), ml.NumpyBackend(), network, input=["batch", "length"])
    with torch.no_grad():
        expected = network.double().bert(tokens).last_hidden_state
    assert difference(stack.evaluate({}, numpy(input=tokens))["output"], expected) < WITHIN


def test_bert_says_what_is_wrong():
    small = {"vocab_size": 20, "dims": 8, "num_heads": 2, "num_layers": 1, "hidden": 8, "max_length": 6}
    with pytest.raises(ml.errors.InvalidValueError, match="divisor"):
        create_bert(**{**small, "num_heads": 3})
    for config, reason in [
        ({"architectures": ["BertForNextSentencePrediction"]}, "architectures"),
        ({"is_decoder": True}, "is_decoder"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"hidden_act": "sine"}, "hidden_act"),
    ]:
        with pytest.raises(ml.errors.InvalidValueError, match=reason):
            from_config({"model_type": "bert", **config})
    with pytest.raises(ml.errors.ShapeError, match="7"):
        ml.compile(create_bert(**small), ml.NumpyBackend(), shapes={"input": [1, 7]})


# --- T5 ---------------------------------------------------------------------------------------------------------

#: Sizes that are not multiples of each other; both versions; few buckets and many.
T5 = {
    "first": {"vocab_size": 50, "d_model": 20, "d_kv": 7, "d_ff": 33, "num_layers": 2, "num_heads": 3},
    "1.1": {
        "vocab_size": 41,
        "d_model": 16,
        "d_kv": 5,
        "d_ff": 24,
        "num_layers": 1,
        "num_decoder_layers": 3,
        "num_heads": 2,
        "relative_attention_num_buckets": 12,
        "relative_attention_max_distance": 9,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "layer_norm_epsilon": 1e-4,
    },
}


def t5(version):
    config = T5Config(**T5[version])
    network = T5ForConditionalGeneration(config)
    if version == "1.1":
        # The class itself ties the two matrices, which the published files of this version do not.
        network.lm_head.weight = torch.nn.Parameter(torch.zeros_like(network.lm_head.weight))
    return randomized(network), T5[version] if version == "1.1" else config.to_dict()


@pytest.fixture
def exact(monkeypatch):
    """Let the normalization of the reference, which rounds to float32, compute in float64."""

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(modeling_t5.T5LayerNorm, "forward", forward)


@pytest.mark.parametrize("version", T5)
@pytest.mark.parametrize("masked", [False, True])
def test_t5_is_that_of_transformers(backend, version, masked):
    network, config = t5(version)
    tokens, mask = texts(41)
    answer, _ = texts(41, length=9)
    config = {"model_type": "t5", **config}
    sizes = ["batch", "source"]
    masks = {"mask": mask} if masked else {}
    encoder = compiled(
        from_config(config, part="encoder", mask=masked), backend, network, input=sizes, **dict.fromkeys(masks, sizes)
    )
    memory = encoder.evaluate({}, numpy(input=tokens, **masks))["output"]
    shapes = {"input": ["batch", "length"], "memory": [*sizes, config["d_model"]]}
    shapes |= {"memory_mask": sizes} if masked else {}
    decoder = compiled(from_config(config, part="decoder", memory_mask=masked), backend, network, **shapes)
    data = {"input": answer.numpy(), "memory": memory, **({"memory_mask": mask.numpy()} if masked else {})}
    assert decoder.output_keys == ("output",)
    actual = decoder.evaluate({}, data)["output"]
    with torch.no_grad():
        expected = network.double()(tokens, attention_mask=mask if masked else None, decoder_input_ids=answer)
    at = mask if masked else None
    assert difference(backend.to_numpy(memory), expected.encoder_last_hidden_state, at) < WITHIN
    assert difference(backend.to_numpy(actual), expected.logits) < WITHIN


@pytest.mark.parametrize(
    ("buckets", "farthest"), [(32, 128), (8, 20), (12, 9), (31, 100), (64, 300), (4, 2), (20, 77), (128, 512), (32, 64)]
)
@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_t5_puts_distances_into_the_buckets_of_transformers(exact, buckets, farthest, part):
    """A distance in a wrong bucket changes the weights of a row by far more than float64 rounds."""
    sizes = {"vocab_size": 5, "d_model": 4, "d_kv": 2, "d_ff": 3, "num_layers": 1, "num_heads": 2}
    sizes |= {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": farthest}
    network = randomized(T5ForConditionalGeneration(T5Config(**sizes))).double()
    tokens = texts(5, batch=1, length=301)[0]
    backend = ml.NumpyBackend(dtype="float64")
    if part == "encoder":
        model, data = t5_encode(**sizes), numpy(input=tokens)
    else:
        if farthest <= buckets // 2:
            with pytest.raises(ml.errors.InvalidValueError, match="max_distance"):
                t5_decode(**sizes)
            return
        model, data = t5_decode(**sizes), numpy(input=tokens, memory=torch.ones(1, 1, 4, dtype=torch.float64))
    compiled = ml.compile(model, backend, shapes={name: value.shape for name, value in data.items()}, inference=True)
    ml.load_weights(compiled, network.state_dict())
    actual = compiled.evaluate({}, data)["output"]
    with torch.no_grad():
        if part == "encoder":
            expected = network.encoder(tokens).last_hidden_state
        else:
            expected = network(encoder_outputs=(torch.ones(1, 1, 4).double(),), decoder_input_ids=tokens).logits
    assert difference(actual, expected) < 1e-12


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("version", T5)
def test_t5_writes_what_transformers_writes(backend, version, cache):
    network, config = t5(version)
    tokens, mask = texts(41, length=8)
    with torch.no_grad():
        expected = network.generate(
            tokens,
            attention_mask=mask,
            do_sample=False,
            num_beams=1,
            min_new_tokens=32,
            max_new_tokens=32,
            decoder_start_token_id=0,
            eos_token_id=None,
            use_cache=False,  # theirs has as many layers as the encoder
        )
    config = {"model_type": "t5", **config}
    sizes = ["batch", "source"]
    encoder = compiled(from_config(config, part="encoder", mask=True), backend, network, input=sizes, mask=sizes)
    further = {"cache": True, "last_only": True} if cache else {}
    decoder = compile_decoder(
        from_config(config, part="decoder", memory_mask=True, **further), backend, jit=backend.name == "jax"
    )
    ml.load_weights(decoder, network.state_dict())
    caches = {f"{kind}_{i}" for kind in ("key", "value") for i in range(network.config.num_decoder_layers)}
    assert set(decoder.output_keys) == {"output"} | (caches if cache else set())
    memory = encoder.evaluate({}, numpy(input=tokens, mask=mask))["output"]
    written = generate_tokens(decoder, [[0]] * 3, 32, further={"memory": memory, "memory_mask": mask.numpy()})
    for _ in written:
        pass
    assert np.array_equal(np.array(written.tokens), expected[:, 1:].numpy())


def test_t5_learns_as_that_of_transformers(exact):
    network, config = t5("1.1")
    network.double()
    answer, _ = texts(41, length=9)
    memory = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    direction = torch.randn(3, 9, 41, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    program = ml.compile(
        from_config({"model_type": "t5", **config}, part="decoder"),
        ml.NumpyBackend(dtype="float64"),
        shapes={"input": [3, 9], "memory": [3, 6, 16]},
    )
    ml.load_weights(program, network.state_dict())
    _, gradients = program.evaluate({}, numpy(input=answer, memory=memory), {"output": direction.numpy()})
    network(encoder_outputs=(memory,), decoder_input_ids=answer).logits.backward(direction)
    expected = dict(network.named_parameters())
    assert "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight" in gradients
    for name, gradient in gradients.items():
        assert difference(gradient, expected[name].grad) < 1e-10, name


def test_t5_in_bfloat16_rounds_no_more_than_transformers():
    network, config = t5("first")
    network.bfloat16()
    tokens, mask = texts(41)
    backend = ml.TorchBackend(dtype="bfloat16")
    program = compiled(from_config(config, part="encoder", mask=True), backend, network)
    actual = program.evaluate({}, numpy(input=tokens, mask=mask))["output"]
    assert actual.dtype == torch.bfloat16
    with torch.no_grad():
        theirs = network.encoder(tokens, attention_mask=mask).last_hidden_state
        expected = network.double().encoder(tokens, attention_mask=mask).last_hidden_state
    ours = difference(actual.float().numpy(), expected, mask)
    assert ours < 2 * difference(theirs.float().numpy(), expected, mask)


def test_t5_reads_files_of_the_encoder_alone():
    network = randomized(T5EncoderModel(T5Config(**T5["first"])))
    tokens, _ = texts(41)
    for names in ({}, {"shared.weight": "encoder.embed_tokens.weight"}):
        state = {n: v for n, v in network.state_dict().items() if n != "encoder.embed_tokens.weight"}
        state = {names.get(name, name): value for name, value in state.items()}
        compiled = ml.compile(
            t5_encode(**T5["first"]), ml.NumpyBackend(), shapes={"input": ["batch", "length"]}, inference=True
        )
        ml.load_weights(compiled, state)
        with torch.no_grad():
            expected = network.double()(tokens).last_hidden_state
        network.float()
        assert difference(compiled.evaluate({}, numpy(input=tokens))["output"], expected) < WITHIN


@pytest.mark.parametrize("where", ["dict", "folder", "object", "transformers"])
def test_t5_of_the_documentation(where, tmp_path):
    from examples.t5 import t5_decode as decode
    from examples.t5 import t5_encode as encode

    sizes = {**T5["first"], "num_decoder_layers": 1}
    if where == "folder":
        T5Config(**sizes).save_pretrained(tmp_path)
    config = {
        "dict": sizes,
        "folder": tmp_path,
        "object": types.SimpleNamespace(**sizes),
        "transformers": T5Config(**sizes),
    }[where]
    encoder = ml.compile(encode(config), ml.NumpyBackend(), data_keys={"input"}, shapes={"input": [2, 4]})
    decoder = ml.compile(
        decode(config), ml.NumpyBackend(), data_keys={"input", "memory"}, shapes={"input": [2, 3], "memory": [2, 4, 20]}
    )
    assert sum(".SelfAttention.q." in name for name in encoder.parameter_keys) == 2
    assert sum(".SelfAttention.q." in name for name in decoder.parameter_keys) == 1


def test_t5_says_what_is_wrong():
    config = {"model_type": "t5", **T5["first"]}
    with pytest.raises(ml.errors.InvalidValueError, match="encoder or decoder"):
        from_config(config)
    for part, wrong, reason in [
        ("middle", {}, "encoder or decoder"),
        ("decoder", {"feed_forward_proj": "gated-sine"}, "feed_forward_proj"),
        ("decoder", {"relative_attention_num_buckets": 1}, "num_buckets"),
        ("encoder", {"relative_attention_num_buckets": 3}, "num_buckets"),
        ("encoder", {"relative_attention_max_distance": 8}, "max_distance"),
        ("encoder", {"relative_attention_max_distance": 1 << 40}, "max_distance"),
        ("encoder", {"d_kv": 0}, "d_kv"),
        ("decoder", {"num_layers": 100_000}, "num_layers"),
    ]:
        with pytest.raises(ml.errors.InvalidValueError, match=reason):
            from_config({**config, **wrong}, part=part)
    with pytest.raises(ml.errors.InvalidValueError, match="part"):
        from_config({"model_type": "bert"}, part="encoder")
    from examples.t5 import t5_encode

    with pytest.raises(ml.errors.InvalidValueError, match="int"):
        t5_encode(3)
