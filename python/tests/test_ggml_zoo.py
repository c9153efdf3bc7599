"""The known models on GGML against torch, torchvision and transformers, in float32.

Differences are relative to the largest number of each output, and to the originals in float64.
"""

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.models import clip, from_config, vit
from test_zoo_encoders import bert, bert_outputs, t5, texts
from test_zoo_text import NETWORKS, loaded, network
from test_zoo_vision import (
    SIZES,
    TEXTS,
    TOWERS,
    exact,
    expected_of_clip,
    images_and_texts,
    network_of_clip,
    network_of_patches,
    pixels,
)
from transformers import BertModel

#: Largest difference. (It is 2.4e-6, of Llama 3.)
WITHIN = 1e-5


def compiled(model, weights, data):
    shapes = {name: list(value.shape) for name, value in data.items()}
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=2), shapes=shapes, inference=True)
    ml.load_weights(compiled, weights)
    return compiled


def relative(actual, expected):
    expected = expected.detach().double().numpy()
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("name", NETWORKS)
def test_decoders(name):
    reference = network(name)
    tokens = torch.randint(0, reference.config.vocab_size, (2, 40))
    program = loaded(reference, ml.GGMLBackend(num_threads=2))
    with torch.no_grad():
        expected = reference.double()(tokens).logits
    actual = program.evaluate({}, {"input": tokens.numpy()})["output"]
    assert relative(actual, expected) < WITHIN


@pytest.mark.parametrize("version", ["first", "1.1"])
def test_t5(version):
    reference, config = t5(version)
    tokens, mask = texts(41)
    answer, _ = texts(41, length=9)
    config = {"model_type": "t5", **config}
    with torch.no_grad():
        expected = reference.double()(tokens, attention_mask=mask, decoder_input_ids=answer)
    reference.float()
    weights = reference.state_dict()
    data = {"input": tokens.numpy(), "mask": mask.numpy()}
    encoder = compiled(from_config(config, part="encoder", mask=True), weights, data)
    memory = encoder.evaluate({}, data)["output"]
    assert relative(memory[mask.numpy() == 1], expected.encoder_last_hidden_state[mask == 1]) < WITHIN
    data = {"input": answer.numpy(), "memory": memory, "memory_mask": mask.numpy()}
    decoder = compiled(from_config(config, part="decoder", memory_mask=True), weights, data)
    assert relative(decoder.evaluate({}, data)["output"], expected.logits) < WITHIN


def test_bert():
    reference, config = bert(BertModel)
    tokens, _ = texts(50)
    data = {"input": tokens.numpy()}
    compiled_bert = compiled(from_config(config), reference.state_dict(), data)
    expected = bert_outputs(reference, tokens)
    for name, array in compiled_bert.evaluate({}, data).items():
        assert relative(array, expected[name]) < WITHIN, name


def test_vit():
    data, reference = {"input": pixels(3, 3, 35, 35)}, network_of_patches()
    program = compiled(vit(**SIZES), reference.state_dict(), data)
    expected = exact(reference)(torch.from_numpy(data["input"]).double())
    assert relative(program.evaluate({}, data)["output"], expected) < WITHIN


@pytest.mark.parametrize("tower", TOWERS)
def test_clip(tower):
    config, reference = {**TOWERS[tower], **TEXTS}, network_of_clip(tower)
    data = images_and_texts(config["image_resolution"], TEXTS["context_length"])
    program = compiled(clip(**config), reference.state_dict(), data)
    actual, expected = program.evaluate({}, data), expected_of_clip(reference, data)
    assert set(actual) == set(expected)
    for name, array in actual.items():
        assert relative(array, expected[name]) < WITHIN, name
    # Also the search for the end of each text, in integers, is part of ggml's graph.
    assert not program._known().module.source.hosted
