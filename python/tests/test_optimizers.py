"""Optimizers against torch.optim and optax, on every backend: values, groups, clipping, accumulation, state."""

import copy
import pickle

import mithril as ml
import numpy as np
import pytest
import torch

optax = pytest.importorskip("optax")
jax = pytest.importorskip("jax")

BACKENDS = ["numpy", "torch", "jax", "mlx"]
STEPS = 21
SHAPES = {"w": (4, 3), "b": (3,), "scale": (), "kernel": (2, 3, 3, 2)}
optim = ml.optim


@pytest.fixture(params=BACKENDS)
def backend(request):
    try:
        return ml.get_backend(request.param, device="cpu")
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))


def draw(seed=0, steps=STEPS):
    """Parameters, and gradients for each step."""
    rng = np.random.default_rng(seed)
    make = lambda: {name: rng.normal(size=shape) for name, shape in SHAPES.items()}  # noqa: E731
    return make(), [make() for _ in range(steps)]


def run(backend, optimizer, dtype="float64", seed=0, steps=STEPS):
    start, gradients = draw(seed, steps)
    params = {n: backend.tensor(v, dtype) for n, v in start.items()}
    for g in gradients:
        params = optimizer.update(params, {n: backend.tensor(v, dtype) for n, v in g.items()})
    for name, value in params.items():
        assert backend.dtype(value) == dtype
        assert tuple(value.shape) == SHAPES[name]
    return {n: backend.to_numpy(v) for n, v in params.items()}


def torch_run(make, seed=0, steps=STEPS, schedule=None, before_step=lambda leaves: None):
    start, gradients = draw(seed, steps)
    leaves = {n: torch.tensor(v).requires_grad_() for n, v in start.items()}
    optimizer = make(leaves)
    schedule = schedule and schedule(optimizer)
    for g in gradients:
        for n, leaf in leaves.items():
            leaf.grad = torch.tensor(g[n])
        before_step(list(leaves.values()))
        optimizer.step()
        if schedule:
            schedule.step()
    return {n: leaf.detach().numpy() for n, leaf in leaves.items()}


def agree(actual, expected, dtype="float64"):
    rtol, atol = {"float64": (1e-9, 1e-11), "float32": (2e-5, 2e-6)}[dtype]
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=atol, err_msg=name)


# --- rules against torch.optim ----------------------------------------------------------------------------------

RULES = {
    "sgd": (lambda: optim.SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "momentum": (lambda: optim.SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, 0.9)),
    "dampening": (
        lambda: optim.SGD(0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, dampening=0.3, weight_decay=0.1),
    ),
    "nesterov": (
        lambda: optim.SGD(0.1, momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, 0.1, 0.8, nesterov=True, weight_decay=0.1),
    ),
    "adam": (lambda: optim.Adam(0.1), lambda p: torch.optim.Adam(p, 0.1)),
    "adam-options": (
        lambda: optim.Adam(0.1, betas=(0.7, 0.9), eps=1e-3, weight_decay=0.1, amsgrad=True),
        lambda p: torch.optim.Adam(p, 0.1, (0.7, 0.9), 1e-3, 0.1, amsgrad=True),
    ),
    "adam-without-means": (
        lambda: optim.Adam(0.1, betas=(0.0, 0.0)),
        lambda p: torch.optim.Adam(p, 0.1, (0.0, 0.0)),
    ),
    "adamw": (lambda: optim.AdamW(0.1), lambda p: torch.optim.AdamW(p, 0.1)),
    "adamw-amsgrad": (
        lambda: optim.AdamW(0.1, weight_decay=0.3, amsgrad=True),
        lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.3, amsgrad=True),
    ),
    "rmsprop": (lambda: optim.RMSprop(0.1), lambda p: torch.optim.RMSprop(p, 0.1)),
    "rmsprop-options": (
        lambda: optim.RMSprop(0.1, alpha=0.9, eps=1e-3, weight_decay=0.1, momentum=0.8, centered=True),
        lambda p: torch.optim.RMSprop(p, 0.1, 0.9, 1e-3, 0.1, 0.8, centered=True),
    ),
    "adafactor": (
        lambda: optim.Adafactor(0.3, eps=(1e-6, 1e-3)),
        lambda p: torch.optim.Adafactor(p, 0.3, eps=(1e-6, 1e-3)),
    ),
    "adafactor-options": (
        lambda: optim.Adafactor(0.1, decay=-0.6, eps=(1e-4, 0.1), clip=1.2, weight_decay=0.1),
        lambda p: torch.optim.Adafactor(p, 0.1, -0.6, (1e-4, 0.1), 1.2, 0.1),
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", RULES)
def test_rules_step_as_those_of_torch(backend, name, dtype):
    ours, theirs = RULES[name]
    agree(run(backend, ours(), dtype), torch_run(lambda leaves: theirs(list(leaves.values()))), dtype)


def optax_run(transformation, seed=0, steps=STEPS):
    with jax.enable_x64(True):
        start, gradients = draw(seed, steps)
        params = {n: jax.numpy.asarray(v) for n, v in start.items()}
        state = transformation.init(params)
        for g in gradients:
            updates, state = transformation.update({n: jax.numpy.asarray(v) for n, v in g.items()}, state, params)
            params = optax.apply_updates(params, updates)
        return {n: np.asarray(v) for n, v in params.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("options", [{}, {"betas": (0.8, 0.95), "weight_decay": 0.2}])
def test_lion_steps_as_that_of_optax(backend, options, dtype):
    b1, b2 = options.get("betas", (0.9, 0.99))
    expected = optax_run(optax.lion(0.05, b1, b2, weight_decay=options.get("weight_decay", 0.0)))
    agree(run(backend, optim.Lion(0.05, **options), dtype), expected, dtype)


def test_adafactor_keeps_rows_and_columns_only():
    optimizer = optim.Adafactor()
    optimizer.init({"kernel": np.ones((2, 5, 3, 4)), "bias": np.ones(4)})
    shapes = {key: value.shape for key, value in optimizer.state_dict().items() if key.startswith("slot/")}
    assert shapes == {
        "slot/rows/kernel": (2, 5, 3, 1),
        "slot/columns/kernel": (2, 5, 1, 4),
        "slot/square/bias": (4,),
    }
    whole = optim.Adafactor(factored=False)
    whole.init({"kernel": np.ones((2, 3))})
    assert list(whole.state["kernel"]) == ["square"]


def test_defaults_are_those_of_the_rows():
    for row in ml._core.optimizer_definitions():
        optimizer = getattr(optim, row["name"], None)
        if optimizer is not None:
            assert optimizer().options == {arg["name"]: arg["default"] for arg in row["args"]}


# --- parameters that come and go, groups, precision ---------------------------------------------------------------


def test_parameters_without_gradient_stay_and_keep_their_own_steps(backend):
    optimizer = optim.Adam(0.1)
    params = {n: backend.tensor(np.ones(2), "float32") for n in "ab"}
    leaves = {n: torch.ones(2).requires_grad_() for n in "ab"}
    reference = torch.optim.Adam(leaves.values(), 0.1)
    for step in range(6):
        names = "a" if step in (1, 2) else "ab"
        gradients = {n: np.array([step - 2.5, 1.0 + step], np.float32) for n in names}
        for n, leaf in leaves.items():
            leaf.grad = torch.tensor(gradients[n]) if n in gradients else None
        reference.step()
        params = optimizer.update(params, {n: backend.tensor(g, "float32") for n, g in gradients.items()})
    for n, leaf in leaves.items():
        np.testing.assert_allclose(backend.to_numpy(params[n]), leaf.detach().numpy(), rtol=1e-5)


def test_groups_are_those_of_torch(backend):
    groups = {"b": {"weight_decay": 0.0, "learning_rate_factor": 10.0}, "*": {"beta1": 0.5}}

    def reference(leaves):
        others = [leaf for n, leaf in leaves.items() if n != "b"]
        return torch.optim.AdamW(
            [{"params": [leaves["b"]], "weight_decay": 0.0, "lr": 0.1}, {"params": others, "betas": (0.5, 0.999)}],
            0.01,
            weight_decay=0.2,
        )

    agree(run(backend, optim.AdamW(0.01, weight_decay=0.2, groups=groups)), torch_run(reference))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_is_updated_in_float32(backend, dtype):
    start = np.linspace(0.5, 2.0, 7)
    narrow = lambda x: torch.tensor(x).to(getattr(torch, dtype))  # noqa: E731
    params, exact = {"w": backend.tensor(start, dtype)}, narrow(start).float().requires_grad_()
    optimizer, reference = optim.Adam(1e-4, master_weights=True), torch.optim.Adam([exact], 1e-4)
    plain = optim.Adam(1e-4)
    lost = {"w": params["w"]}
    for step in range(20):
        gradient = np.cos(start * (step + 1))
        exact.grad = narrow(gradient).float()
        reference.step()
        params = optimizer.update(params, {"w": backend.tensor(gradient, dtype)})
        lost = plain.update(lost, {"w": backend.tensor(gradient, dtype)})
    assert backend.dtype(params["w"]) == backend.dtype(lost["w"]) == dtype
    assert {backend.dtype(v) for v in optimizer.state["w"].values()} == {"float32"}
    np.testing.assert_allclose(backend.to_numpy(optimizer.state["w"]["master"]), exact.detach().numpy(), rtol=2e-6)
    actual, expected = (
        backend.to_numpy(params["w"]).astype(np.float32),
        exact.detach().to(getattr(torch, dtype)).float(),
    )
    np.testing.assert_allclose(actual, expected.numpy(), rtol=float(torch.finfo(getattr(torch, dtype)).eps))
    if dtype == "bfloat16":
        # Without the copy in float32 every step is lost in rounding.
        np.testing.assert_array_equal(backend.to_numpy(lost["w"]).astype(np.float32), narrow(start).float().numpy())


# --- gradients: clipping, accumulation ----------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_clipping_by_norm_is_that_of_torch(backend, bound):
    expected = torch_run(
        lambda leaves: torch.optim.SGD(leaves.values(), 0.1, 0.9),
        before_step=lambda leaves: torch.nn.utils.clip_grad_norm_(leaves, bound),
    )
    agree(run(backend, optim.SGD(0.1, momentum=0.9, clip_norm=bound)), expected)


def test_clipping_by_value_comes_first(backend):
    def clip(leaves):
        torch.nn.utils.clip_grad_value_(leaves, 0.3)
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)

    expected = torch_run(lambda leaves: torch.optim.Adam(leaves.values(), 0.1), before_step=clip)
    agree(run(backend, optim.Adam(0.1, clip_norm=1.0, clip_value=0.3)), expected)
    expected = torch_run(
        lambda leaves: torch.optim.SGD(leaves.values(), 0.1),
        before_step=lambda leaves: torch.nn.utils.clip_grad_value_(leaves, 0.3),
    )
    agree(run(backend, optim.SGD(0.1, clip_value=0.3), "float32"), expected, "float32")


def test_norm_is_that_of_all_parameters_whatever_their_steps():
    optimizer = optim.SGD(1.0, momentum=0.5, clip_norm=1.0)
    params = {"a": np.zeros(1), "b": np.zeros(1)}
    params = optimizer.update(params, {"a": np.array([0.5])})
    params = optimizer.update(params, {"a": np.array([3.0]), "b": np.array([4.0])})
    np.testing.assert_allclose([params["a"][0], params["b"][0]], [-0.5 - 0.25 - 0.6, -0.8], rtol=1e-6)


def test_accumulation_equals_the_large_batch(backend):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    gradient = lambda w, rows: 2 * x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)  # noqa: E731
    small, large = optim.Adam(0.1, accumulate=3, clip_norm=1.0), optim.Adam(0.1, clip_norm=1.0)
    a = b = {"w": backend.tensor(np.ones(3), "float64")}
    for _ in range(4):
        for part in range(3):
            before = a
            g = gradient(backend.to_numpy(a["w"]), np.arange(12)[4 * part : 4 * part + 4])
            a = small.update(a, {"w": backend.tensor(g, "float64")})
            assert part == 2 or a["w"] is before["w"]
        b = large.update(b, {"w": backend.tensor(gradient(backend.to_numpy(b["w"]), np.arange(12)), "float64")})
    assert small.steps == large.steps == 4
    np.testing.assert_allclose(backend.to_numpy(a["w"]), backend.to_numpy(b["w"]), rtol=1e-10)


# --- state --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: optim.Adam(0.1),
        lambda: optim.Adafactor(0.1),
        lambda: optim.SGD(0.1, momentum=0.9, accumulate=2),
        lambda: optim.RMSprop(lambda step: 0.1 / step, centered=True),
    ],
)
def test_resuming_is_exact(backend, make, tmp_path):
    start, gradients = draw(steps=8)
    params = {n: backend.tensor(v, "float32") for n, v in start.items()}
    gradients = [{n: backend.tensor(v, "float32") for n, v in g.items()} for g in gradients]
    whole, first, second = make(), make(), make()
    expected = params
    for g in gradients:
        expected = whole.update(expected, g)
    for g in gradients[:5]:
        params = first.update(params, g)
    state = first.state_dict()
    assert all(isinstance(v, int) or hasattr(v, "shape") for v in state.values())
    path = tmp_path / "state.safetensors"
    ml.save({n: np.asarray(v) if isinstance(v, int) else v for n, v in state.items()}, path)
    second.load_state_dict(ml.load(path))
    for g in gradients[5:]:
        params = second.update(params, g)
    assert second.steps == whole.steps
    for n in expected:
        np.testing.assert_array_equal(backend.to_numpy(params[n]), backend.to_numpy(expected[n]))


def test_init_starts_anew_and_makes_the_state_complete(backend):
    optimizer = optim.Adam(0.1)
    params = {"w": backend.tensor(np.ones(2), "float32")}
    once = optimizer.update(params, params)
    optimizer.init(params)
    assert optimizer.steps == 0
    state = optimizer.state_dict()
    assert list(state) == ["steps", "step/w", "slot/mean/w", "slot/square/w"]
    assert not backend.to_numpy(state["slot/mean/w"]).any()
    again = optimizer.update(params, params)
    np.testing.assert_array_equal(backend.to_numpy(again["w"]), backend.to_numpy(once["w"]))


def test_copies_go_on_alone():
    optimizer = optim.Adam(0.1, groups={"w": {"eps": 1e-3}})
    params = optimizer.update({"w": np.ones(2)}, {"w": np.ones(2)})
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        np.testing.assert_array_equal(
            other.update(params, {"w": np.ones(2)})["w"],
            copy.deepcopy(optimizer).update(params, {"w": np.ones(2)})["w"],
        )
    assert optimizer.steps == 1


# --- lists of PyTorch -------------------------------------------------------------------------------------------


def sizes(rng):
    """Shapes of parameters: of every rank, empty, alike, and some that fill a piece of a list by themselves."""
    shapes = [(), (1,), (0, 3), (300, 400), (128, 1025)]
    shapes += [tuple(rng.integers(1, 9, size=rng.integers(0, 4))) for _ in range(int(rng.integers(3, 12)))]
    shapes += shapes[: int(rng.integers(0, 6))]
    return {f"p{i}": tuple(map(int, shapes[k])) for i, k in enumerate(rng.permutation(len(shapes)))}


LISTS = {
    "sgd": lambda **options: optim.SGD(0.1, **options),
    "nesterov": lambda **options: optim.SGD(0.1, momentum=0.8, dampening=0.0, nesterov=True, **options),
    "adam": lambda **options: optim.Adam(0.1, amsgrad=True, weight_decay=0.1, **options),
    "adamw": lambda **options: optim.AdamW(0.1, **options),
    "rmsprop": lambda **options: optim.RMSprop(0.1, momentum=0.8, centered=True, **options),
    "lion": lambda **options: optim.Lion(0.1, weight_decay=0.1, **options),
    "adafactor": lambda **options: optim.Adafactor(0.1, weight_decay=0.1, **options),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "device"), [(n, d) for n in LISTS for d in ("cpu", "cuda") if (n, d) != ("adafactor", "cuda")]
)
def test_lists_of_torch_compute_what_numpy_does_one_by_one(name, device, seed, monkeypatch):
    # What is written for a GPU runs on a CPU too if it makes no constants, as clipping by norm and Adafactor do.
    engine = type(ml.TorchBackend().engine)
    monkeypatch.setattr(engine, "load", lambda self, core: self.load_source(core.source("torch", device), "model"))
    rng = np.random.default_rng([seed, *name.encode()])
    # NumPy warns of the mean of nothing.
    shapes = {n: shape for n, shape in sizes(rng).items() if 0 not in shape or name != "adafactor"}
    common = {
        "clip_norm": [None, 0.5][int(rng.integers(2))] if device == "cpu" else None,
        "clip_value": [None, 0.7][int(rng.integers(2))],
        "groups": [None, {"p[125]": {"weight_decay": 0.02}}][int(rng.integers(2))],
    }
    common = {option: value for option, value in common.items() if value is not None}
    start = {n: rng.normal(size=shape) for n, shape in shapes.items()}
    dtypes = {n: ["float64", "float64", "float32"][int(rng.integers(3))] for n in shapes}
    drawn = [{n: rng.normal(size=shape) for n, shape in shapes.items()} for _ in range(3)]
    results = {}
    for backend in (ml.NumpyBackend(), ml.TorchBackend()):
        optimizer = LISTS[name](**common)
        params = {n: backend.tensor(v, dtypes[n]) for n, v in start.items()}
        for k, step in enumerate(drawn):
            gradients = {n: backend.tensor(v, dtypes[n]) for n, v in step.items()}
            # What was handed out is not written into, but for parameters that are given away.
            kept = {n: v for n, v in optimizer.state_dict().items() if hasattr(v, "dtype")} if k != 1 else {}
            given = [gradients, kept, *([params] if k < 2 else [])]
            before = [{n: np.array(backend.to_numpy(a)) for n, a in arrays.items()} for arrays in given]
            params = optimizer.update(params, gradients, donate=k == 2)
            for arrays, copies in zip(given, before, strict=True):
                for n, array in arrays.items():
                    np.testing.assert_array_equal(backend.to_numpy(array), copies[n], err_msg=n)
        results[backend.name] = {n: backend.to_numpy(v) for n, v in params.items()}
    for n in shapes:
        agree({n: results["torch"][n]}, {n: results["numpy"][n]}, dtypes[n])


def test_a_step_of_torch_has_as_many_calls_for_many_parameters_as_for_two():
    def calls(count):
        optimizer = optim.AdamW(0.1)
        params = {str(i): torch.ones(3, 2) for i in range(count)}
        optimizer.update(params, params)
        (program,) = optimizer._rule._programs.values()
        text = program._program.module.source.text
        assert max(map(len, text.splitlines())) <= 100
        return text.count("torch.") - text.count("import torch")

    assert calls(2) == calls(40) < 30


def memory_of(arrays):
    return {n: array.data_ptr() for n, array in arrays.items()}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_torch_writes_into_what_it_owns_or_is_given(name):
    optimizer = {"sgd": lambda: optim.SGD(0.1, momentum=0.9), "adamw": lambda: optim.AdamW(0.1)}[name]()
    params = {n: torch.ones(4, 3) for n in "ab"}
    gradients = {n: torch.full((4, 3), 0.5) for n in "ab"}

    def slots():
        return [memory_of(kept) for kept in optimizer.state.values()]

    params = optimizer.update(params, gradients)
    places, own = memory_of(params), slots()
    params = optimizer.update(params, gradients, donate=True)
    assert memory_of(params) == places
    assert slots() == own
    held = copy.copy(optimizer)
    expected = {n: array.clone() for n, array in held.state["a"].items()}
    new = optimizer.update(params, gradients)
    assert memory_of(new) != places
    for n, array in expected.items():
        torch.testing.assert_close(held.state["a"][n], array, rtol=0, atol=0)
    # Both go on from the same state, apart from each other.
    torch.testing.assert_close(held.update(params, gradients), new, rtol=0, atol=0)


def test_a_gradient_on_another_device_changes_nothing():
    optimizer = optim.SGD(0.1, momentum=0.9)
    params = {n: torch.ones(2) for n in "ab"}
    params = optimizer.update(params, params)
    before = {n: kept["momentum"].clone() for n, kept in optimizer.state.items()}
    gradients = {"a": torch.ones(2), "b": torch.ones(2, device="meta")}
    with pytest.raises(ml.errors.ParameterError, match="'b' is on cpu, its gradient on meta"):
        optimizer.update(params, gradients)
    assert all(torch.equal(optimizer.state[n]["momentum"], value) for n, value in before.items())


def test_parameters_that_share_memory_are_not_donated():
    shared = torch.ones(3)
    params, gradients = {"a": shared, "b": shared}, {"a": torch.ones(3), "b": torch.ones(3)}
    with pytest.raises(ml.errors.ParameterError, match="'a' and 'b' are donated, but share their memory"):
        optim.SGD(0.1).update(params, gradients, donate=True)
    assert torch.equal(shared, torch.ones(3))
    optim.SGD(0.1).update(params, gradients)


@pytest.mark.parametrize("backend", [ml.CBackend(), ml.TorchBackend(), ml.NumpyBackend()], ids=lambda b: b.name)
def test_a_state_that_was_read_stays_what_it_was(backend):
    model = ml.Model()
    model |= ml.Linear(3)(input="input", output="output")
    compiled = ml.compile(model, backend, shapes={"input": [4, 5]})
    optimizer = optim.SGD(0.1, momentum=0.9)
    step = ml.train.TrainingStep(compiled, optimizer, loss="mse")
    rng = np.random.default_rng(0)
    data = {
        "input": backend.array(rng.normal(size=(4, 5)).astype("float32")),
        "target": backend.array(rng.normal(size=(4, 3)).astype("float32")),
    }
    step(data)
    state = optimizer.state_dict()
    expected = {n: np.array(backend.to_numpy(v)) for n, v in state.items() if hasattr(v, "dtype")}
    assert expected
    first = float(step(data)[step.loss])
    for n, value in expected.items():
        np.testing.assert_array_equal(backend.to_numpy(state[n]), value)
    assert float(step(data)[step.loss]) < first


def test_steps_in_place_change_nobody_elses_arrays():
    # The tensors that a user gave, and an output that is a view of a parameter.
    backend = ml.TorchBackend()
    model = ml.Model()
    model |= ml.Linear(3)(input="input", weight="w", output="output")
    model |= ml.Reshape((-1,))(input="w", output="flat")
    model |= ml.SquaredError()(input="output", target="target", output="errors")
    model |= ml.Mean()(input="errors", output="loss")
    model.set_outputs("loss", "flat")
    compiled = ml.compile(model, backend, shapes={"input": [4, 5], "target": [4, 3]})
    mine = {n: torch.randn(array.shape) for n, array in compiled.get_parameters().items()}
    copies = {n: array.clone() for n, array in mine.items()}
    compiled.load_params(mine)
    step = ml.train.TrainingStep(compiled, optim.SGD(0.1), loss="loss")
    data = {"input": torch.randn(4, 5), "target": torch.randn(4, 3)}
    seen = []
    for _ in range(3):
        before = {n: array.clone() for n, array in step.params.items()}
        outputs = step(data)
        seen.append((outputs["flat"], before["w"].reshape(-1)))
    for flat, expected in seen:
        torch.testing.assert_close(flat, expected, rtol=0, atol=0)
    for n, array in copies.items():
        torch.testing.assert_close(mine[n], array, rtol=0, atol=0)


def test_a_program_is_compiled_once():
    optimizer = optim.AdamW(lambda step: 0.1 / step)
    params = {"w": np.ones(2)}
    for _ in range(4):
        params = optimizer.update(params, {"w": np.ones(2)})
    assert len(optimizer._rule._programs) == 1


def test_parameters_of_a_model_that_require_gradients():
    leaf = torch.ones(2, requires_grad=True)
    new = optim.Adam(0.1).update({"w": leaf}, {"w": torch.ones(2)})
    assert not new["w"].requires_grad


# --- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: optim.Adam(-1.0), "learning_rate is -1.0"),
        (lambda: optim.Adam(betas=0.9), "betas is 0.9"),
        (lambda: optim.Adam("fast"), "learning_rate is 'fast'"),
        (lambda: optim.Adam(betas=(0.9, 1.0)), "betas is 1.0"),
        (lambda: optim.Adam(betas=(0.9,)), "betas is"),
        (lambda: optim.Adam(eps=float("nan")), "`eps` of Adam"),
        (lambda: optim.SGD(momentum=1.5), "`momentum` of SGD is 1.5"),
        (lambda: optim.SGD(nesterov=True), "momentum"),
        (lambda: optim.SGD(momentum=0.9, dampening=0.1, nesterov=True), "no dampening"),
        (lambda: optim.RMSprop(alpha="x"), "`alpha` of RMSprop"),
        (lambda: optim.Adafactor(clip=0.0), "`clip` of Adafactor is 0"),
        (lambda: optim.Adafactor(decay=0.5), "`decay` of Adafactor is 0.5"),
        (lambda: optim.Adam(clip_norm=0.0), "clip_norm is 0.0"),
        (lambda: optim.Adam(clip_value=-1), "clip_value is -1"),
        (lambda: optim.Adam(accumulate=0), "accumulate is 0"),
        (lambda: optim.Adam(accumulate=True), "accumulate is True"),
        (lambda: optim.Adam(backend="numpy"), "the backend is a str"),
        (lambda: optim.Adam(jit="yes"), "jit is 'yes'"),
        (lambda: optim.Adam(groups=["*.bias"]), "groups is a list"),
        (lambda: optim.Adam(groups={"*.bias": 0.0}), r"the group '\*.bias' is a float"),
        (lambda: optim.Adam(groups={"*": {"weight_decy": 0.0}}), "weight_decay"),
        (lambda: optim.Adam(groups={"*": {"learning_rate_factor": -1.0}}), "learning_rate_factor is -1.0"),
    ],
)
def test_options_are_checked_at_once(make, words):
    with pytest.raises((ml.errors.InvalidValueError, ml.errors.KeyNotFoundError), match=words):
        make()


def test_unknown_options_are_guessed():
    with pytest.raises(TypeError, match="has no option `lr`; did you mean `learning_rate`"):
        optim.Adam(lr=0.1)
    with pytest.raises(TypeError, match="did you mean `clip_norm`"):
        optim.SGD(0.1, clipnorm=1.0)


def test_bad_gradients_leave_the_optimizer_as_it_was():
    w = np.ones(2)
    for optimizer in (optim.Adam(), optim.Adam(accumulate=2)):
        for params, gradients, words in (
            ({"weight": w}, {"weigth": w}, "did you mean 'weight'"),
            ({"w": w}, {"w": np.ones((3, 2))}, r"shape \[2\], its gradient \[3, 2\]"),
            ({"w": w}, {"w": torch.ones(2)}, "torch Tensor"),
            ([w], {"w": w}, "params is a list"),
            ({"w": w}, None, "gradients is a NoneType"),
            ({"w": 1.0}, {"w": 1.0}, "parameter 'w' is a float"),
            ({"w": np.ones(2, int)}, {"w": np.ones(2, int)}, "only floats are trained"),
        ):
            with pytest.raises(ml.errors.ParameterError, match=words):
                optimizer.update(params, gradients)
        assert optimizer.steps == 0
        assert optimizer.state == {}
    with pytest.raises(ml.errors.ParameterError, match="fits no parameter"):
        optim.Adam(groups={"*.bais": {"weight_decay": 0.0}}).update({"a.bias": w}, {"a.bias": w})
    optimizer = optim.SGD(lambda step: float("nan"))
    with pytest.raises(ml.errors.InvalidValueError, match="the learning rate of step 1 is nan"):
        optimizer.update({"w": w}, {"w": w})


def test_states_of_other_optimizers_are_refused():
    params = {"w": np.ones(2)}
    adam = optim.Adam()
    adam.update(params, params)
    state = adam.state_dict()
    for wrong, words in (
        ({}, "lacks 'steps'"),
        ({"steps": -1}, "-1 as 'steps'"),
        ({"steps": 1.5}, "1.5 as 'steps'"),
        ({"steps": 1, "momentum": 2}, "holds 'momentum'"),
        ({"steps": 1, "accumulated_calls": 1, "accumulated/w": np.ones(2)}, "a step of this optimizer has 1 calls"),
        ({"steps": 1, "schedule/best": 1.0}, "remembers nothing"),
        (7, "state is a int"),
    ):
        with pytest.raises(ml.errors.ParameterError, match=words):
            adam.load_state_dict(wrong)
    assert adam.steps == 1
    momentum = optim.SGD(momentum=0.9)
    momentum.load_state_dict(state)
    with pytest.raises(ml.errors.ParameterError, match="holds mean, square, but the optimizer keeps momentum"):
        momentum.update(params, params)
    other = optim.Adam()
    other.load_state_dict(state)
    with pytest.raises(ml.errors.ParameterError, match=r"shape \[2\], but must be \[3\]"):
        other.update({"w": np.ones(3)}, {"w": np.ones(3)})


def test_empty_updates():
    optimizer = optim.Adam()
    assert optimizer.update({}, {}) == {}
    params = {"w": np.ones(2), "none": np.ones((0, 3))}
    new = optimizer.update(params, {"none": np.ones((0, 3))})
    assert new["w"] is params["w"]
    assert new["none"].shape == (0, 3)
    optimizer.init({})
