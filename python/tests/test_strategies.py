"""Strategies by name: the layouts that they stand for, alone and mixed by axis; none of them beats `"auto"`."""

import itertools

import mithril as ml
import numpy as np
import pytest
from mithril.parallel.strategies import AXES

RANDOM = np.random.default_rng(0)
HARDWARE = ml.Hardware(flops=1e13, memory=10**11, bandwidth=1e12, link_bandwidth=1e11, latency=1e-6)


def experts(tokens=16, dims=8, hidden=32, count=4):
    """A layer of experts: what each of them computes of a token, weighted by a gate."""
    model = ml.Model()
    model |= ml.Linear(count, use_bias=False, name="gate")(input="input", output="scores")
    model |= ml.Softmax()(input="scores", output="weights")
    model |= ml.Transpose((1, 0))(input="weights", output="turned")
    model |= ml.Reshape((count, tokens, 1))(input="turned", output="share")
    model |= ml.MatMul()(left="input", right="up", output="hidden")
    model |= ml.Gelu()(input="hidden", output="active")
    model |= ml.MatMul()(left="active", right="down", output="each")
    model |= ml.Multiply()(left="each", right="share", output="weighted")
    model |= ml.Sum(axis=0)(input="weighted", output="output")
    model.set_shapes({"up": [count, dims, hidden], "down": [count, hidden, dims]})
    options = {"shapes": {"input": [tokens, dims]}, "trainable_keys": {"up", "down"}}
    return model, options


def test_strategies_are_short_names_of_layouts():
    model = ml.Model()
    model |= ml.Linear(8, name="layer")(input="input", output="output")

    def layout(mesh, strategy):
        return repr(ml.compile(model, ml.InterpreterBackend(), layout=mesh, strategy=strategy, shapes=shapes).layout)

    shapes = {"input": [4, 4, 8]}
    written = {
        "data_parallel": "batch='a'",
        "fully_sharded": "batch='a', parameters='a'",
        "model_parallel": "parameters='a'",
        "sequence_parallel": "sequence='a'",
    }
    for name, text in written.items():
        plan = ml.plan(model, ml.Mesh(a=2), shapes=shapes, strategy=name)
        assert repr(plan.layout) == f"Layout(Mesh(a=2), {text})"
    mixed = {"a": "fully_sharded", "b": "sequence_parallel", "c": "fully_sharded"}
    plan = ml.plan(model, ml.Mesh(a=2, b=2, c=2), shapes=shapes, strategy=mixed)
    text = "Layout(Mesh(a=2, b=2, c=2), batch=('a', 'c'), sequence='b', parameters=('a', 'c'))"
    assert repr(plan.layout) == text
    assert plan.shapes["input"] == (1, 2, 8)


def test_each_strategy_and_mixtures_compute_what_one_device_computes():
    model = ml.models.create_gpt(vocab_size=32, num_layers=1, num_heads=4, dims=16, block_size=8)
    shapes = {"input": [4, 8]}
    single = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
    params, data = dict(single.randomize_params(seed=1)), {"input": RANDOM.integers(0, 32, (4, 8))}
    expected = single.evaluate(params, data, output_gradients=True)
    cases = [(ml.Mesh(a=2), {"a": name}) for name in AXES if name not in ("expert_parallel", "spatial_parallel")]
    cases += [
        (ml.Mesh(a=2, b=2), {"a": "fully_sharded", "b": "tensor_parallel"}),
        (ml.Mesh(a=2, b=2, c=2), {"a": "data_parallel", "b": "sequence_parallel", "c": "tensor_parallel"}),
    ]
    for mesh, strategy in cases:
        compiled = ml.compile(model, ml.InterpreterBackend(), layout=mesh, strategy=strategy, shapes=shapes)
        actual = compiled.evaluate(params, data, output_gradients=True)
        for own, values in zip(actual, expected, strict=True):
            for name, value in values.items():
                np.testing.assert_allclose(own[name], value, rtol=1e-3, atol=1e-4, err_msg=f"{strategy} {name}")


def test_experts_are_divided():
    model, options = experts()
    plan = ml.plan(model, ml.Mesh(expert=4), strategy="expert_parallel", gradients=True, **options)
    assert repr(plan.layout) == "Layout(Mesh(expert=4), experts='expert')"
    assert plan.shapes["up"] == (1, 8, 32)
    assert plan.shapes["down"] == (1, 32, 8)
    assert plan.shapes["gate.weight"] == (4, 8)
    # What the experts add up; the gate sends a number for each token, and gathers the gradient of its weights.
    assert [c.bytes for c in plan.communications if c.path == "sum"] == [2 * 16 * 8 * 4 * 3 // 4], plan
    assert sum(c.bytes for c in plan.communications if c.path != "sum") <= 2 * 16 * 4 * 3 // 4 + 4 * 8 * 4 * 3 // 4, (
        plan
    )
    single = ml.compile(model, ml.NumpyBackend(), **options)
    params = dict(single.randomize_params(seed=0))
    data = {"input": RANDOM.standard_normal((16, 8)).astype(np.float32)}
    expected = single.evaluate(params, data, output_gradients=True)
    mixed = {"data": "data_parallel", "expert": "expert_parallel"}
    for mesh, strategy in ((ml.Mesh(expert=4), "expert_parallel"), (ml.Mesh(data=2, expert=2), mixed)):
        compiled = ml.compile(model, ml.InterpreterBackend(), layout=mesh, strategy=strategy, **options)
        actual = compiled.evaluate(params, data, output_gradients=True)
        for own, values in zip(actual, expected, strict=True):
            for name, value in values.items():
                np.testing.assert_allclose(own[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_backends_take_a_strategy_for_each_axis():
    backend = ml.NumpyBackend(
        devices=["cpu"] * 8,
        device_mesh=(2, 2, 2),
        parallel_strategy=("data_parallel", "sequence_parallel", "model_parallel"),
    )
    text = "Layout(Mesh(data=2, sequence=2, model=2), batch='data', sequence='sequence', parameters='model')"
    assert repr(backend.layout) == text
    twice = ml.NumpyBackend(devices=["cpu"] * 4, device_mesh=(2, 2), parallel_strategy=("data_parallel",) * 2)
    assert repr(twice.layout) == "Layout(Mesh(data=2, data1=2), batch=('data', 'data1'))"
    own = ml.NumpyBackend(devices=["cpu"] * 2, parallel_strategy={"rows": "fully_sharded"})
    assert repr(own.layout) == "Layout(Mesh(rows=2), batch='rows', parameters='rows')"


def gpt():
    return ml.models.create_gpt(vocab_size=512, num_layers=2, num_heads=8, dims=256, block_size=64), [8, 64]


def llama():
    sizes = {"vocab_size": 512, "num_layers": 2, "num_heads": 8, "num_kv_heads": 4, "dims": 256, "hidden": 512}
    return ml.models.create_llama(**sizes), [8, 64]


def vit():
    sizes = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 128, "mlp_dim": 256}
    return ml.models.vit(num_classes=16, **sizes), [8, 3, 32, 32]


def resnet():
    return ml.models.resnet((1, 1), "basic", 16, num_classes=16), [8, 3, 32, 32]


@pytest.mark.parametrize("build", [gpt, llama, vit, resnet])
def test_no_mixture_of_strategies_beats_what_is_chosen(build):
    model, shape = build()
    options = {"shapes": {"input": shape}, "gradients": True, "hardware": HARDWARE, "optimizer": ml.optim.AdamW(0.1)}
    kinds = [name for name in AXES if name != "expert_parallel"]
    tried = 0
    for mesh in (ml.Mesh(a=2), ml.Mesh(a=4), ml.Mesh(a=2, b=2)):
        chosen = ml.plan(model, mesh, strategy="auto", **options)
        assert chosen.fits
        for names in itertools.product(kinds, repeat=len(mesh.axes)):
            strategy = dict(zip(mesh.axes, names, strict=True))
            if "model_parallel" in names and not {"tensor_parallel", "spatial_parallel"}.isdisjoint(names):
                continue
            try:
                plan = ml.plan(model, mesh, strategy=strategy, **options)
            except ml.errors.InvalidValueError as error:
                assert "does not divide" in str(error) or ("spatial_parallel" in names and len(shape) == 2)
                continue
            tried += 1
            # What is faster by less than half a percent is not worth dividing more.
            assert chosen.search.chosen.seconds <= plan.estimate.seconds * 1.005, (strategy, chosen.layout)
    assert tried > 10


def test_a_training_with_a_strategy_of_the_backend_is_that_of_one_device():
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="input", output="hidden")
    model += ml.Relu()
    model += ml.Linear(4, name="down")(output="output")
    data = {"input": RANDOM.standard_normal((8, 8)).astype(np.float32), "target": RANDOM.integers(0, 4, 8)}
    losses = []
    for options in ({}, {"devices": ["cpu"] * 2, "parallel_strategy": "tensor_parallel"}):
        backend = ml.NumpyBackend(seed=1, **options)
        compiled = ml.compile(model, backend, shapes={"input": [8, 8]})
        history = ml.train.fit(
            compiled,
            data,
            loss="cross_entropy",
            optimizer=ml.optim.AdamW(0.01),
            epochs=2,
            batch_size=8,
            progress=False,
        )
        losses.append(history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def dispatched():
    """Experts whose model sends them tokens by itself, up to a capacity: products with a one-hot dispatch tensor."""
    model = ml.Model()
    model |= ml.Einsum("gsd,gsec->egcd", 2)(operands1="x", operands2="dispatch", output="sent")
    model |= ml.Einsum("egcd,edh->egch", 2)(operands1="sent", operands2="up", output="hidden")
    model |= ml.Relu()(input="hidden", output="active")
    model |= ml.Einsum("egch,ehd->egcd", 2)(operands1="active", operands2="down", output="computed")
    model |= ml.Einsum("egcd,gsec->gsd", 2)(operands1="computed", operands2="dispatch", output="output")
    return model


@pytest.mark.parametrize("mesh", [ml.Mesh(expert=4), ml.Mesh(data=2, expert=2)])
def test_tokens_are_sent_to_the_devices_of_their_experts(mesh):
    groups, tokens, experts, capacity, width, hidden = 4, 6, 4, 3, 8, 16
    chosen = RANDOM.integers(0, experts, (groups, tokens))
    dispatch = np.zeros((groups, tokens, experts, capacity), np.float32)
    for g, s in np.ndindex(groups, tokens):
        place = int((chosen[g, :s] == chosen[g, s]).sum())
        if place < capacity:
            dispatch[g, s, chosen[g, s], place] = 1
    data = {"x": RANDOM.standard_normal((groups, tokens, width)).astype(np.float32), "dispatch": dispatch}
    sizes = {"up": [experts, width, hidden], "down": [experts, hidden, width]}
    options = {
        "shapes": {**{name: list(array.shape) for name, array in data.items()}, **sizes},
        "data_keys": set(data),
        "trainable_keys": set(sizes),
    }
    # Along each axis of the mesh the tokens, along that of the experts their parameters, too.
    layout = ml.Layout(mesh, {"up": "expert", "down": "expert"}, batch=tuple(mesh.axes))
    divided = ml.compile(dispatched(), ml.InterpreterBackend(), layout=layout, **options)
    sent = [c.op for c in divided.parallel_plan.communications if c.axis == "expert"]
    # To the experts and back, forward and backward; nothing is gathered.
    assert sent == ["all_to_all"] * 4
    single = ml.compile(dispatched(), ml.NumpyBackend(), **options)
    params = {name: RANDOM.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    actual = divided.evaluate(params, data, output_gradients=True)
    expected = single.evaluate(params, data, output_gradients=True)
    for own, theirs in zip(actual, expected, strict=True):
        for name, value in theirs.items():
            np.testing.assert_allclose(np.asarray(own[name]), value, rtol=1e-4, atol=1e-4, err_msg=name)
