"""Plans: memory, arithmetic and times against formulas, and the layouts that `strategy="auto"` finds."""

import dataclasses
import importlib.util
import inspect
import itertools
from xml.etree import ElementTree

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.compiled import internals
from mithril.parallel.auto import Search
from mithril.tools.plan_picture import blocks

SVG = "{http://www.w3.org/2000/svg}"
#: Round numbers, and links so fast that communication is cheap.
FAST = ml.Hardware(flops=1e12, memory=10**10, bandwidth=1e12, link_bandwidth=1e11, latency=1e-6)


def block(width=1024, hidden=4096):
    model = ml.Model()
    model |= ml.Linear(hidden, use_bias=False, name="up")(input="input")
    model += ml.Gelu()
    model += ml.Linear(width, use_bias=False, name="down")(output="output")
    return model


def linear():
    model = ml.Model()
    model |= ml.Linear(32, use_bias=False, name="layer")(input="input", output="output")
    return model


def test_a_linear_layer_costs_what_the_formulas_say():
    layout = ml.Layout(ml.Mesh(model=4), {"input": (None, "model"), "layer.weight": (None, "model")})
    plan = ml.plan(linear(), layout, shapes={"input": [64, 16]}, hardware=FAST)
    assert plan.estimate.flops == 2 * 64 * 32 * 16 // 4
    assert plan.estimate.moved == 4 * (64 * 16 // 4 + 32 * 16 // 4 + 64 * 32)
    sent = 2 * 64 * 32 * 4 * 3 // 4
    assert [c.bytes for c in plan.communications] == [sent]
    # Two rounds of a ring of four, and the bytes at the speed of the link.
    assert plan.communications[0].seconds == pytest.approx(2 * 3 * 1e-6 + sent / 1e11, rel=1e-12)
    work = max(plan.estimate.flops / 1e12, plan.estimate.moved / 1e12)
    assert plan.estimate.seconds == pytest.approx(work + plan.communications[0].seconds, rel=1e-12)
    assert plan.estimate.limit == "communication"
    assert sum(plan.estimate.computation) == pytest.approx(work, rel=1e-12)


def test_convolutions_and_16_bits():
    model = ml.Model()
    model |= ml.Convolution2D(filters=8, kernel_size=3, padding=1, use_bias=False)(input="input", output="output")
    hardware = dataclasses.replace(FAST, half_flops=1e13)
    plan = ml.plan(model, ml.Mesh(data=2), shapes={"input": [4, 2, 6, 6]}, hardware=hardware)
    assert plan.estimate.flops == 2 * (4 * 8 * 6 * 6) * (2 * 9) // 2


def test_what_an_optimizer_keeps_is_counted():
    shapes = {"input": [64, 16]}
    for optimizer, slots in ((None, 0), (ml.optim.SGD(0.1), 0), (ml.optim.AdamW(0.1), 2)):
        plan = ml.plan(linear(), ml.Mesh(data=4), shapes=shapes, gradients=True, hardware=FAST, optimizer=optimizer)
        assert plan.memory.get("optimizer", 0) == slots * 4 * 32 * 16
        assert plan.estimate.update == pytest.approx((2 + 1 + 2 * slots) * 4 * 32 * 16 / 1e12)
        assert plan.bytes_held == sum(plan.memory.values())


def test_memory_that_is_too_small_is_said():
    small = dataclasses.replace(FAST, memory=1000)
    plan = ml.plan(linear(), ml.Mesh(data=4), shapes={"input": [64, 16]}, hardware=small)
    assert plan.fits is False
    assert "it does not fit" in str(plan)
    assert ml.plan(linear(), ml.Mesh(data=4), shapes={"input": [64, 16]}, hardware=FAST).fits is True


def test_links_of_their_own_for_each_axis():
    mesh = ml.Mesh(data=2, model=2)
    layout = ml.Layout(mesh, {"input": ("data", "model"), "layer.weight": (None, "model")})
    times = {}
    for links in ({"data": 1e9, "model": 1e10}, {"data": 1e9, "model": 1e11}):
        hardware = dataclasses.replace(FAST, link_bandwidth=links, latency=0.0)
        times[links["model"]] = ml.plan(linear(), layout, shapes={"input": [64, 16]}, hardware=hardware)
    assert times[1e10].estimate.communication == pytest.approx(10 * times[1e11].estimate.communication)


def test_compiled_models_have_the_plan_of_their_layout():
    layout = ml.Layout(ml.Mesh(data=2, model=2), {"up.*": "model", "down.weight": (None, "model")}, batch="data")
    compiled = ml.compile(block(16, 32), ml.InterpreterBackend(), layout=layout, shapes={"input": [8, 16]})
    plan = ml.plan(block(16, 32), layout, shapes={"input": [8, 16]}, gradients=True)
    assert compiled.parallel_plan.communications == plan.communications
    with pytest.raises(errors.InvalidValueError, match="no layout"):
        _ = ml.compile(block(16, 32), ml.NumpyBackend(), shapes={"input": [8, 16]}).parallel_plan


def auto(model, mesh, shapes, hardware=FAST, **options):
    return ml.plan(model, mesh, shapes=shapes, gradients=True, hardware=hardware, strategy="auto", **options)


def test_two_linear_layers_are_divided_as_in_megatron():
    # A batch that does not divide.
    plan = auto(block(), ml.Mesh(model=4), {"input": [1023, 1024]})
    # Each along its longest axis: `up` by its outputs, `down` by its inputs.
    assert repr(plan.layout) == "Layout(Mesh(model=4), parameters='model')"
    assert [c.op for c in plan.communications] == ["all_reduce"]
    assert plan.bytes_sent == 2 * 1023 * 1024 * 4 * 3 // 4


def transformer(layers=2):
    return ml.models.create_gpt(vocab_size=512, num_layers=layers, num_heads=8, dims=512, block_size=64)


def test_a_small_convnet_is_data_parallel():
    model = ml.Model()
    model |= ml.Convolution2D(filters=8, kernel_size=3, padding=1, name="conv")(input="input")
    model += ml.Relu()
    model += ml.Convolution2D(filters=16, kernel_size=3, padding=1, name="more")
    model += ml.Relu()
    model += ml.MaxPool2d(4)
    model += ml.Flatten()
    model += ml.Linear(4, name="head")(output="output")
    plan = auto(model, ml.Mesh(data=4), {"input": [1024, 3, 16, 16]})
    assert plan.layout.batch == "data"
    assert plan.layout.tensors == {}
    assert plan.layout.parameters is None
    assert {c.op for c in plan.communications} == {"all_reduce"}


def test_memory_decides_between_whole_and_divided_parameters():
    shapes, mesh = {"input": [1 << 15, 1024]}, ml.Mesh(data=4)
    slow = dataclasses.replace(FAST, link_bandwidth=1e9, flops=1e11)
    whole = auto(block(), mesh, shapes, slow, optimizer=ml.optim.AdamW(0.1))
    assert whole.layout.parameters is None
    small = dataclasses.replace(slow, memory=whole.bytes_held * 9 // 10)
    divided = auto(block(), mesh, shapes, small, optimizer=ml.optim.AdamW(0.1))
    assert divided.fits
    assert divided.memory["parameters"] < whole.memory["parameters"]


def test_the_search_is_deterministic_and_looks_at_equal_layers_once():
    plans = [auto(transformer(2), ml.Mesh(data=2, model=4), {"input": [16, 64]}) for _ in range(2)]
    assert repr(plans[0].layout) == repr(plans[1].layout)
    assert plans[0].search.candidates == plans[1].search.candidates
    deep = auto(transformer(4), ml.Mesh(data=2, model=4), {"input": [16, 64]})
    assert isinstance(deep.search, Search)
    assert deep.search.evaluated < 2 * plans[0].search.evaluated
    assert "chosen" in str(deep)
    # What is printed can be pasted.
    pasted = eval(repr(deep.layout), {"Layout": ml.Layout, "Mesh": ml.Mesh})
    plan = ml.plan(transformer(4), pasted, shapes={"input": [16, 64]}, gradients=True, hardware=FAST)
    assert plan.communications == deep.communications


STRATEGIES = {
    "data: replicated, model: replicated": {},
    "data: fully_sharded, model: replicated": {"batch": "data", "parameters": "data"},
}


@pytest.mark.parametrize("options", [{}, {"gradients": True}, {"gradients": True, "gradient_checkpointing": True}])
def test_what_the_search_costs_of_equal_layers_is_what_the_whole_program_costs(options):
    mesh, shapes = ml.Mesh(data=2, model=4), {"input": [16, 64]}
    arguments = {"shapes": shapes, "hardware": FAST, "optimizer": ml.optim.AdamW(0.1), **options}
    plan = ml.plan(transformer(7), mesh, strategy="auto", **arguments)
    costs = {c.name: c for c in plan.search.candidates}
    # The plan of the layout is that of the program with all its layers.
    plans = {
        name: ml.plan(transformer(7), ml.Layout(mesh, **layout), **arguments) for name, layout in STRATEGIES.items()
    }
    for name, whole in {**plans, "chosen": plan}.items():
        assert costs[name].seconds == pytest.approx(whole.estimate.seconds, rel=1e-9), name
        assert costs[name].memory == whole.bytes_held, name


BACKENDS = [("interpreter", None), ("torch", ["cpu"] * 2), ("jax", None)]


@pytest.mark.parametrize(("name", "devices"), BACKENDS)
def test_models_with_the_layout_found_give_what_one_device_gives(name, devices):
    if name != "interpreter" and importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    model, shapes = block(16, 32), {"input": [8, 16]}
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    single = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
    params = dict(single.randomize_params(seed=0))
    expected, gradients = single.evaluate(params, {"input": x}, output_gradients=True)
    if name == "jax":
        import jax

        if len(jax.devices()) < 2:
            pytest.skip("JAX has one device here")
    backend = ml.get_backend(name, **({} if devices is None else {"devices": devices}))
    options = {"layout": ml.Mesh(data=2), "strategy": "auto", "shapes": shapes, "hardware": FAST}
    compiled = ml.compile(model, backend, **options)
    arrays = {key: backend.array(value) for key, value in params.items()}
    actual, own = compiled.evaluate(arrays, {"input": x}, output_gradients=True)
    np.testing.assert_allclose(backend.to_numpy(actual["output"]), expected["output"], rtol=1e-4, atol=1e-5)
    for key, value in gradients.items():
        np.testing.assert_allclose(backend.to_numpy(own[key]), value, rtol=1e-4, atol=1e-4)


def test_the_option_of_backends():
    backend = ml.NumpyBackend(devices=["cpu"] * 2, parallel_strategy="auto")
    compiled = ml.compile(block(16, 32), backend, shapes={"input": [8, 16]})
    assert compiled.parallel_plan.layout.mesh == ml.Mesh(data=2)
    x = np.ones((8, 16), np.float32)
    params = compiled.randomize_params(seed=0)
    expected = ml.compile(block(16, 32), ml.NumpyBackend(), shapes={"input": [8, 16]}).evaluate(params, {"input": x})
    np.testing.assert_allclose(compiled.evaluate(params, {"input": x})["output"], expected["output"], rtol=1e-4)


SHAPES = {"input": [64, 16]}


def sharded():
    return ml.NumpyBackend(devices=["cpu"] * 2, parallel_strategy="fully_sharded")


def named(mesh, strategy):
    return ml.plan(linear(), mesh, shapes=SHAPES, strategy=strategy)


MISTAKES = [
    (lambda: ml.plan(linear(), ml.Mesh(data=2), shapes=SHAPES, hardware="a101"), "did you mean 'a100'"),
    (lambda: ml.plan(linear(), ml.Mesh(data=2), shapes=SHAPES, hardware=3), "the hardware 3 is not known"),
    (lambda: ml.Hardware(flops=-1, memory=1, bandwidth=1, link_bandwidth=1), "flops of the hardware is -1"),
    (
        lambda: ml.plan(
            linear(),
            ml.Mesh(data=2),
            shapes=SHAPES,
            hardware=dataclasses.replace(FAST, link_bandwidth={"model": 1e9}),
        ),
        "does not name the axis 'data'",
    ),
    (lambda: ml.plan(linear(), ml.Mesh(data=2), shapes=SHAPES, strategy="auto"), "needs to know the devices"),
    (
        lambda: ml.plan(linear(), ml.Mesh(data=2), shapes=SHAPES, strategy="best", hardware=FAST),
        "the strategy is 'best'",
    ),
    (
        lambda: auto(linear(), ml.Layout(ml.Mesh(data=2), batch="data"), SHAPES),
        "strategy='auto' is a layout, and Layout(Mesh(data=2), batch='data') is another one",
    ),
    (
        lambda: ml.compile(linear(), sharded(), layout=ml.Mesh(data=2), shapes=SHAPES),
        "the backend has parallel_strategy='fully_sharded', and layout is Mesh(data=2)",
    ),
    (
        lambda: ml.compile(linear(), sharded(), strategy="data_parallel", shapes=SHAPES),
        "and strategy is 'data_parallel'",
    ),
    (lambda: named(ml.Mesh(data=2), "data_paralel"), "did you mean 'data_parallel'? there are 'data_parallel', 'fully"),
    (lambda: named(ml.Mesh(data=2), {"dta": "data_parallel"}), "did you mean 'data'"),
    (lambda: named(ml.Mesh(data=2, model=2), "data_parallel"), "has 2 axes, and strategy='data_parallel' is for one"),
    (lambda: named(ml.Mesh(a=2, b=2), {"a": "auto", "b": "data_parallel"}), 'pass strategy="auto" for all axes'),
    (lambda: named(ml.Mesh(a=2), "expert_parallel"), "the model has none"),
    (lambda: named(ml.Mesh(a=3), "sequence_parallel"), "does not divide into 3 parts"),
    (lambda: named(ml.Mesh(a=3, b=2), {"a": "data_parallel", "b": "tensor_parallel"}), "does not divide among 3"),
    (lambda: ml.Layout(ml.Mesh(a=2), batch="a", sequence="a"), "batch and sequence are both divided along 'a'"),
    (
        lambda: ml.NumpyBackend(devices=["cpu"] * 8, device_mesh=(2, 2, 2)),
        "has 3 axes, and no strategy says what they divide",
    ),
    (
        lambda: ml.NumpyBackend(devices=["cpu"] * 4, device_mesh=(2, 2), parallel_strategy="data_parallel"),
        "parallel_strategy=('data_parallel', 'tensor_parallel')",
    ),
    (
        lambda: auto(linear(), ml.Mesh(data=2), SHAPES, dataclasses.replace(FAST, memory=10)),
        "no layout over the mesh (data=2) fits in 10 bytes",
    ),
    (
        lambda: ml.compile(linear(), ml.InterpreterBackend(), layout=ml.Mesh(data=2), shapes=SHAPES, hardware="a100"),
        'hardware is for strategy="auto"',
    ),
    (lambda: ml.compile(linear(), ml.InterpreterBackend(), strategy="auto", shapes=SHAPES), "needs a mesh"),
]


@pytest.mark.parametrize(("call", "text"), MISTAKES)
def test_mistakes(call, text):
    with pytest.raises(errors.InvalidValueError) as caught:
        call()
    assert text in f"{caught.value} {caught.value.hint}"
    assert caught.value.hint


def test_the_exchanges_that_run_are_those_of_the_plan():
    """A device that counts what it is asked to exchange, by the ring algorithm."""
    sizes = {"data": 2, "model": 2}

    class Counting:
        sent = 0

        def all_reduce(self, x, axis, kind="sum"):
            self.sent += 2 * x.nbytes * (sizes[axis] - 1) // sizes[axis]
            return x

        start_all_reduce = all_reduce

        def all_gather(self, x, axis, along):
            whole = np.concatenate([x] * sizes[axis], along)
            self.sent += whole.nbytes * (sizes[axis] - 1) // sizes[axis]
            return whole

        def reduce_scatter(self, x, axis, along):
            self.sent += x.nbytes * (sizes[axis] - 1) // sizes[axis]
            return np.split(x, sizes[axis], along)[0]

        def shard(self, x, axis, along):
            return np.split(x, sizes[axis], along)[0]

    plan = auto(block(64, 256), ml.Mesh(**sizes), {"input": [64, 64]})
    backend = ml.NumpyBackend()
    core = internals.known_program(ml.compile(block(64, 256), backend, shapes={"input": [64, 64]})).core
    core = core.with_layout(plan.layout.argument())
    source = core.gradient_source(backend.target, ["output"], list(core.trained), "cpu")
    arguments = {"param": {}, "data": {}, "state": {}, "cotangent": {}}
    for name, role, dtype, shape, _ in source.partition.inputs():
        arguments[role][name] = np.ones(shape, dtype)
    counting = Counting()
    namespace = {"mesh": counting}
    exec(source.text, namespace)
    roles = {"params": "param", "data": "data", "state": "state", "cotangents": "cotangent"}
    function = namespace["evaluate_gradients"]
    function(*(arguments[roles[name]] for name in inspect.signature(function).parameters))
    assert counting.sent == plan.bytes_sent > 0


def widths(picture):
    """Width of the bars by what they say."""
    root = ElementTree.fromstring(picture)
    return {rect[0].text: float(rect.get("width")) for rect in root.iter(f"{SVG}rect") if len(rect)}


def test_a_picture_shows_memory_and_time_to_scale():
    options = {
        "gradients": True,
        "hardware": dataclasses.replace(FAST, memory=10_000),
        "optimizer": ml.optim.AdamW(0.1),
    }
    layout = ml.Layout(ml.Mesh(data=2, model=2), {"layer.weight": ("model", None)}, batch="data")
    plan = ml.plan(linear(), layout, shapes={"input": [64, 16]}, **options)
    bars = widths(plan.picture())
    memory = {name: width for name, width in bars.items() if name.split()[0] in plan.memory}
    assert sum(memory.values()) == pytest.approx(900 - 132 - 24, rel=1e-3)
    assert memory["parameters 1.02 kB"] / sum(memory.values()) == pytest.approx(1024 / plan.bytes_held, rel=1e-3)
    times = sum(width for name, width in bars.items() if name not in memory)
    assert times == pytest.approx(900 - 132 - 24, rel=0.02)
    update = next(width for name, width in bars.items() if name.startswith("update"))
    assert update / times == pytest.approx(plan.estimate.update / plan.estimate.seconds, rel=0.03)
    # One after another: each begins where the one before ends.
    sequence = blocks(plan)
    for block, following in itertools.pairwise(sequence):
        assert following.start == pytest.approx(block.start + block.length)
    assert sequence[-1].start + sequence[-1].length == pytest.approx(plan.estimate.seconds)
    assert [b.lane for b in sequence if b.lane in ("data", "model")] == [c.axis for c in plan.communications]


def test_many_collectives_are_drawn_together():
    model = ml.Model()
    model |= ml.Linear(8, use_bias=False, name="l0")(input="input")
    for i in range(1, 800):
        model += ml.Linear(8, use_bias=False, name=f"l{i}")
    plan = ml.plan(model, ml.Mesh(data=2), shapes={"input": [4, 8]}, gradients=True)
    bars = widths(plan.picture())
    assert len(plan.communications) == 800
    assert len(bars) < 500
    counted = [int(name.split()[0]) if name[0].isdigit() else 1 for name in bars if "all_reduce" in name]
    assert sum(counted) == 800


def test_pictures_hold_names_as_text_and_are_written_as_svg(tmp_path):
    model = ml.Model()
    model |= ml.Linear(8, name="<script>")(input="input", output="output")
    plan = ml.plan(model, ml.Mesh(data=2), shapes={"input": [4, 8]}, gradients=True)
    assert "<script>" not in plan.picture()
    plan.save(tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text(encoding="utf-8") == plan.picture()
    for path in (tmp_path / "plan.png", tmp_path / "missing" / "plan.svg"):
        with pytest.raises(errors.InvalidValueError):
            plan.save(path)
    # Nothing is sent, and nothing takes time.
    ElementTree.fromstring(ml.plan(model, ml.Mesh(data=1), shapes={"input": [4, 8]}).picture())


def deep(layers=8):
    """Layers of the same size; what goes backward needs the outputs."""
    model = ml.Model()
    model |= ml.Linear(64, name="l0")(input="input")
    for i in range(1, layers):
        model += ml.Relu()
        model += ml.Linear(64, name=f"l{i}")
    model += ml.Tanh()(output="output")
    return model


def test_the_bubble_of_a_pipeline():
    """Equal layers wait for as long as is known of each schedule; bytes are those of what goes from layer to layer."""
    options = {"shapes": {"input": [64, 64]}, "gradients": True}
    plans = {
        schedule: ml.plan(deep(), ml.Pipeline(4, micro_batches=8, schedule=schedule), **options)
        for schedule in ("gpipe", "1f1b", "interleaved")
    }
    for schedule, plan in plans.items():
        chunks = 2 if schedule == "interleaved" else 1
        # (p - 1) / (v m + p - 1); the first layer has no gradient of its input, so its device has less to do.
        assert plan.bubble == pytest.approx(3 / (8 * chunks + 3), abs=0.06), schedule
        assert plan.bubbles == pytest.approx(plans["gpipe"].bubbles)
        assert plan.bytes_sent == 2 * (4 * chunks - 1) * 64 * 64 * 4
        assert sum(stage.flops for stage in plan.stages) == sum(stage.flops for stage in plans["gpipe"].stages)
        assert sum(stage.memory["parameters"] for stage in plan.stages) == 8 * (64 * 64 + 64) * 4
    kept = {name: [stage.memory["activations"] for stage in plan.stages] for name, plan in plans.items()}
    assert all(a > b for a, b in zip(kept["gpipe"][:2], kept["1f1b"], strict=False))
    assert kept["gpipe"][3] == kept["1f1b"][3]


def test_times_of_a_pipeline():
    hardware = ml.Hardware(flops=1e9, memory=10**6, bandwidth=1e12, link_bandwidth={"stage": 1e6}, latency=0.001)
    options = {"shapes": {"input": [64, 64]}, "gradients": True, "strategy": "pipeline_parallel"}
    plan = ml.plan(deep(2), ml.Mesh(stage=2), hardware=hardware, optimizer=ml.optim.AdamW(0.1), **options)
    assert plan.fits
    assert plan.micro_batches == 4
    # The first micro-batch arrives when it has been computed and sent: 16 rows, two operations for each weight.
    first = min(span.start for span in plan.spans if span.device == 1 and span.start > 0.004)
    assert first == pytest.approx(16 * 64 * 4 / 1e6 + 0.001 + 16 * 64 * 64 * 2 / 1e9, rel=0.05)
    assert plan.seconds > max(span.end for span in plan.spans)
    text = str(plan)
    assert "Pipeline(2): 4 micro-batches, 32,768 bytes between devices" in text
    assert "it fits" in text
    facts = plan.to_dict()
    assert facts["schema"] == "mithril.pipeline_plan/1"
    assert len(facts["stages"]) == 2
    with pytest.raises(errors.InvalidValueError, match="does not name the axis 'stage'"):
        ml.plan(
            deep(2), ml.Pipeline(2), hardware=ml.Hardware(1e9, 10**6, 1e9, {"data": 1e6}), shapes={"input": [8, 64]}
        )


def test_a_pipeline_is_drawn(tmp_path):
    plan = ml.plan(deep(4), ml.Pipeline(2, micro_batches=4), shapes={"input": [8, 64]}, gradients=True, hardware="cpu")
    plan.save(tmp_path / "plan.svg")
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    bars = [element.text for element in root.iter() if element.tag.endswith("title")]
    assert texts.count("device 0") == 2
    assert {"1", "2", "3", "4", "forward", "backward"} <= set(texts)
    assert any(text.startswith("backward, micro-batch 3: ") for text in bars)
