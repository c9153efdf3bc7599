"""Weights whose rows are interleaved for products on ggml: the same results, whoever reads them."""

import mithril as ml
import numpy as np
import pytest

#: Of these, rows are interleaved on processors with AVX2 or more.
TYPES = ("q4_0", "q4_k", "q2_k", "iq4_nl", "q8_0", "q6_k")


def layered():
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="hidden")
    model += ml.Gelu()()
    # 20 rows are no multiple of those that are interleaved.
    model += ml.Linear(20)(output="output")
    return model


def results(model, shape, params, **options):
    backend = ml.GGMLBackend(num_threads=2, **options)
    compiled = ml.compile(model, backend, shapes={"input": list(shape)}, inference=True)
    data = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    outputs = compiled.evaluate(params, {"input": data})
    return outputs["output"], compiled


@pytest.mark.parametrize("scheme", TYPES)
@pytest.mark.parametrize("shape", [(1, 256), (9, 256), (2, 3, 256), (2, 3, 2, 256)], ids=str)
def test_products_are_the_same_in_either_order(scheme, shape):
    model = layered()
    params = ml.compile(model, ml.NumpyBackend(), shapes={"input": list(shape)}).randomize_params(seed=0)
    plain, _ = results(model, shape, params, quantize=scheme, repack=False)
    repacked, _ = results(model, shape, params, quantize=scheme)
    # Sums of the same products in another order.
    np.testing.assert_allclose(repacked, plain, atol=2e-5 * np.abs(plain).max() + 1e-6)


def test_networks_are_the_same_in_either_order():
    # Embeddings that are the last product too, attention, and products that are normalized.
    gpt = ml.models.create_gpt(vocab_size=64, num_layers=2, num_heads=2, dims=64, block_size=16)
    data = {"input": np.arange(12).reshape(2, 6) % 64}
    params = ml.compile(gpt, ml.NumpyBackend(), shapes={"input": [2, 6]}).randomize_params(seed=0)
    outputs = []
    for repack in (None, False):
        backend = ml.GGMLBackend(num_threads=1, quantize="q4_0", repack=repack)
        compiled = ml.compile(gpt, backend, shapes={"input": [2, 6]}, inference=True)
        outputs.append(compiled.evaluate(params, data)["output"])
    # Sums in another order round activations to another of their 8 bits here and there.
    np.testing.assert_allclose(outputs[0], outputs[1], atol=0.02 * np.abs(outputs[1]).max())


@pytest.mark.parametrize("form", ["q4_0", "q4_k"])
def test_blocks_are_interleaved_on_request(form):
    rows = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32) / 16
    params = ml.quantize({"weight": rows}, form)
    data = {"input": np.random.default_rng(1).normal(size=(4, 256)).astype(np.float32)}
    model = ml.Linear(64, use_bias=False)
    outputs, memory = [], []
    for repack in (None, True, False):
        backend = ml.GGMLBackend(num_threads=1, repack=repack)
        compiled = ml.compile(model, backend, shapes={"input": [4, 256]}, inference=True)
        outputs.append(compiled.evaluate(params, data)["output"])
        memory.append(compiled.memory)
    np.testing.assert_array_equal(outputs[0], outputs[2])
    np.testing.assert_allclose(outputs[1], outputs[0], atol=2e-5 * np.abs(outputs[0]).max())
    if ml.GGMLBackend().ggml_instructions in ("avx2", "avx512"):
        assert memory[1].prepared > memory[0].prepared == memory[2].prepared == 0


def test_repack_is_a_switch():
    with pytest.raises(ml.errors.InvalidValueError, match="repack is 'yes'"):
        ml.GGMLBackend(repack="yes")
