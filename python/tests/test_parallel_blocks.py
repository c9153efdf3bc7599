"""Blocks of transformers divided over a mesh send no more than the known optimum, and compute what one device does."""

from collections import Counter

import mithril as ml
import numpy as np
import pytest

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(0, 64, (2, 16))
#: Bytes of the features of all tokens, 32 of each.
FEATURES = TOKENS.size * 32 * 4


def gpt():
    """Queries, keys and values come out of one weight."""
    model = ml.models.create_gpt(vocab_size=64, num_layers=2, num_heads=4, dims=32, block_size=16, bias=True)
    divided = {"*.c_attn.*": "model", "*.attn.c_proj.weight": (None, "model")}
    return model, divided | {"*.c_fc.*": "model", "*.mlp.c_proj.weight": (None, "model")}


def llama():
    """Two heads of queries share one of keys and values."""
    model = ml.models.create_llama(
        vocab_size=64, dims=32, num_heads=8, num_kv_heads=4, num_layers=2, hidden=64, biases="qkv"
    )
    divided = {f"*.{name}_proj.*": "model" for name in ("q", "k", "v", "gate", "up")}
    return model, divided | {"*.o_proj.weight": (None, "model"), "*.down_proj.weight": (None, "model")}


def bert():
    model = ml.models.create_bert(vocab_size=64, num_layers=2, num_heads=4, dims=32, hidden=64, max_length=16)
    divided = {"*.self.*": "model", "*.attention.output.dense.weight": (None, "model")}
    return model, divided | {"*.intermediate.*": "model", "*.*.*.output.dense.weight": (None, "model")}


def t5():
    model = ml.models.t5_encode(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"
    )
    divided = {f"*.{name}.weight": "model" for name in ("q", "k", "v", "wi_0", "wi_1")}
    return model, divided | {"*.o.weight": (None, "model"), "*.wo.weight": (None, "model")}


def fused(layers=2):
    """Four heads of queries share two of keys and values, all of one weight; so do the gate and what it multiplies."""
    model = ml.Model()
    model |= ml.Embedding(64, 32, name="table")(input="input", output="h0")
    for i in range(layers):
        block = ml.Model()
        block |= ml.RMSNorm(32, name="norm")(input="input", output="n")
        block |= ml.Linear(64, use_bias=False, name="qkv")(input="n", output="qkv")
        parts = {"q": (0, 32, 4), "k": (32, 48, 2), "v": (48, 64, 2)}
        for name, (start, stop, heads) in parts.items():
            part = ml.Slice(starts=(None, None, start), stops=(None, None, stop))
            block |= part(input="qkv", output=f"{name}s")
            block |= ml.Reshape((2, 16, heads, 8))(input=f"{name}s", output=f"{name}h")
            block |= ml.Transpose((0, 2, 1, 3))(input=f"{name}h", output=name)
        attention = ml.ScaledDotProductAttention(is_causal=True, enable_gqa=True)
        block |= attention(query="q", key="k", value="v", output="a")
        block |= ml.Transpose((0, 2, 1, 3))(input="a", output="at")
        block |= ml.Reshape((2, 16, 32))(input="at", output="al")
        block |= ml.Linear(32, use_bias=False, name="out")(input="al", output="o")
        block |= ml.Add()(left="input", right="o", output="r")
        block |= ml.RMSNorm(32, name="norm_2")(input="r", output="n2")
        block |= ml.Linear(128, use_bias=False, name="gate_up")(input="n2", output="gu")
        block |= _halves()(input="gu", output="m")
        block |= ml.Linear(32, use_bias=False, name="down")(input="m", output="d")
        block |= ml.Add()(left="r", right="d", output="output")
        model |= block(input=f"h{i}", output=f"h{i + 1}" if i + 1 < layers else "output")
    divided = {"*qkv.weight": "model", "*out.weight": (None, "model")}
    return model, divided | {"*gate_up.weight": "model", "*down.weight": (None, "model")}


def _halves():
    model = ml.Model()
    model |= ml.Slice(starts=(None, None, 0), stops=(None, None, 64))(input="input", output="gate")
    model |= ml.Slice(starts=(None, None, 64), stops=(None, None, 128))(input="input", output="up")
    model |= ml.Silu()(input="gate", output="open")
    model |= ml.Multiply()(left="open", right="up", output="output")
    return model


BLOCKS = [gpt, llama, bert, t5, fused]


@pytest.mark.parametrize("build", BLOCKS)
@pytest.mark.parametrize("devices", [2, 4])
def test_a_block_sums_twice_forward_and_twice_backward(build, devices):
    model, divided = build()
    if build is fused and devices == 4:
        pytest.skip("two heads of keys and values do not divide among 4 devices")
    layout = ml.Layout(ml.Mesh(model=devices), divided)
    for gradients, sums in ((False, 2), (True, 4)):
        plan = ml.plan(model, layout, shapes={"input": list(TOKENS.shape)}, gradients=gradients)
        large = [c for c in plan.communications if c.bytes > FEATURES // 8]
        assert {c.op for c in large} == {"all_reduce"}, plan
        assert len(large) == 2 * sums, plan
        assert sum(c.bytes for c in large) == 2 * sums * 2 * FEATURES * (devices - 1) // devices, plan
        # What T5 adds to the scores has parameters that are whole: the gradient of each is one small sum.
        assert len(plan.communications) - len(large) <= (build is t5), plan


@pytest.mark.parametrize("build", BLOCKS)
def test_tensor_parallelism_sends_what_the_layout_by_hand_sends(build):
    model, divided = build()
    mesh, options = ml.Mesh(model=2), {"shapes": {"input": list(TOKENS.shape)}, "gradients": True}
    by_hand = ml.plan(model, ml.Layout(mesh, divided), **options)
    plan = ml.plan(model, mesh, strategy="tensor_parallel", **options)
    # And the table or the head, which the layout by hand leaves whole.
    further = [c for c in plan.communications if "wte" in c.path or "lm_head" in c.path]
    assert len(plan.communications) - len(further) <= len(by_hand.communications), plan
    bytes_sent = sum(c.bytes for c in plan.communications) - sum(c.bytes for c in further)
    assert bytes_sent <= sum(c.bytes for c in by_hand.communications), plan


@pytest.mark.parametrize("build", BLOCKS)
@pytest.mark.parametrize("backend", ["interpreter", "numpy"])
def test_divided_blocks_compute_what_one_device_computes(build, backend):
    if backend == "numpy" and build not in (gpt, fused):
        pytest.skip("those with fused weights are run on workers")
    model, divided = build()
    shapes = {"input": list(TOKENS.shape)}
    single = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
    params = dict(single.randomize_params(seed=1))
    data = {"input": TOKENS}
    seeds = {k: RANDOM.standard_normal(v.shape).astype(np.float32) for k, v in single.evaluate(params, data).items()}
    expected, gradients = single.evaluate(params, data, seeds)
    own = ml.InterpreterBackend() if backend == "interpreter" else ml.NumpyBackend(devices=["cpu"] * 2)
    compiled = ml.compile(model, own, layout=ml.Layout(ml.Mesh(model=2), divided), shapes=shapes)
    actual, parts = compiled.evaluate(params, data, seeds)
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-4)
    for name, value in gradients.items():
        np.testing.assert_allclose(
            parts[name], value, rtol=1e-3, atol=2e-4 * max(1.0, np.abs(value).max()), err_msg=name
        )


def with_loss(model, tokens, classes):
    whole = ml.Model()
    whole |= model(input="input", output="logits")
    whole |= ml.Reshape((tokens, classes))(input="logits", output="flat")
    whole |= ml.CrossEntropy()(input="flat", target="target", output="loss")
    return whole


def test_tables_and_classes_are_divided_without_gathering_them():
    model, divided = llama()
    whole = with_loss(model, TOKENS.size, 64)
    divided |= {"*embed_tokens.weight": "model", "*lm_head.weight": "model"}
    shapes = {"input": list(TOKENS.shape), "target": [TOKENS.size]}
    plan = ml.plan(whole, ml.Layout(ml.Mesh(model=4), divided), shapes=shapes, gradients=True)
    assert {c.op for c in plan.communications} == {"all_reduce"}, plan
    sizes = Counter(c.bytes for c in plan.communications)
    # Two layers, the table, and what the head sends back; the largest logit of each token, the sum of the exponentials,
    # and the logit of the class.
    assert sizes == {2 * FEATURES * 3 // 4: 10, 2 * TOKENS.size * 4 * 3 // 4: 3}, plan

    single = ml.compile(whole, ml.NumpyBackend(), shapes=shapes, dtypes={"target": "int64"})
    params = dict(single.randomize_params(seed=2))
    data = {"input": TOKENS, "target": RANDOM.integers(0, 64, TOKENS.size)}
    expected, gradients = single.evaluate(params, data, output_gradients=True)
    compiled = ml.compile(whole, ml.InterpreterBackend(), layout=ml.Layout(ml.Mesh(model=4), divided), shapes=shapes)
    actual, parts = compiled.evaluate(params, data, output_gradients=True)
    np.testing.assert_allclose(actual["loss"], expected["loss"], rtol=1e-5)
    for name, value in gradients.items():
        np.testing.assert_allclose(parts[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_position_that_no_device_holds_is_an_error():
    model = ml.Model()
    model |= ml.Embedding(64, 8, name="table")(input="input", output="output")
    layout = ml.Layout(ml.Mesh(model=2), {"table.weight": "model"})
    compiled = ml.compile(model, ml.InterpreterBackend(), layout=layout, shapes={"input": [4]})
    params = compiled.randomize_params(seed=0)
    expected = np.asarray(params["table.weight"])[[1, -1, 63, -64]]
    np.testing.assert_array_equal(compiled.evaluate(params, {"input": np.array([1, -1, 63, -64])})["output"], expected)
    with pytest.raises(ml.errors.MithrilError, match="64"):
        compiled.evaluate(params, {"input": np.array([1, 2, 64, 3])})


def test_data_parallelism_sums_each_gradient_once():
    model, _ = gpt()
    whole = with_loss(model, TOKENS.size, 64)
    shapes = {"input": list(TOKENS.shape), "target": [TOKENS.size]}
    plan = ml.plan(whole, ml.Mesh(data=2), shapes=shapes, gradients=True)
    assert {c.op for c in plan.communications} == {"all_reduce"}
    core = ml.compile(whole, ml.NumpyBackend(), shapes=shapes)
    sizes = sorted(2 * 4 * int(np.prod(array.shape)) // 2 for array in core.randomize_params(seed=0).values())
    # And the loss: the sum of the losses, and that of the weights.
    assert sorted(c.bytes for c in plan.communications) == sorted([*sizes, 4, 4]), plan


@pytest.mark.parametrize("kind", ["gpt", "gpt with biases", "llama"])
@pytest.mark.parametrize("devices", [2, 4])
def test_tensor_parallelism_finds_the_layout_of_megatron(kind, devices):
    sizes = {"vocab_size": 8192, "num_layers": 2, "dims": 1024}
    if kind == "llama":
        model = ml.models.create_llama(num_heads=16, num_kv_heads=8, hidden=2816, **sizes)
        products = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    else:
        model = ml.models.create_gpt(num_heads=16, block_size=256, bias=kind == "gpt with biases", **sizes)
        products = ["c_attn", "c_fc", "wte"]
    shapes = {"input": [8, 256]}
    features = 8 * 256 * 1024 * 4
    # Two sums for each of two layers; what the head sends back, and the lookup, where the table is that of the head.
    for gradients, sums in ((False, 4 + (kind != "llama")), (True, 8 + 1 + (kind != "llama"))):
        plan = ml.plan(model, ml.Mesh(model=devices), shapes=shapes, gradients=gradients, strategy="tensor_parallel")
        assert {c.op for c in plan.communications} == {"all_reduce"}, plan
        sizes_sent = [c.bytes for c in plan.communications]
        assert sizes_sent == [2 * features * (devices - 1) // devices] * sums, plan
        divided = plan.layout.tensors
        rows = [spec for pattern, spec in divided.items() if any(name in pattern for name in products)]
        assert len(rows) >= len(products)
        assert all(spec[0] == "model" for spec in rows), divided
        down = [spec for pattern, spec in divided.items() if pattern.endswith(("down_proj.weight", "c_proj.weight"))]
        assert down
        assert all(spec == (None, "model") for spec in down), divided
