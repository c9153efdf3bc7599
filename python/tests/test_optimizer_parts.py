"""Schedules against torch.optim.lr_scheduler and optax, EMA against torch, adapters against what they adapt."""

import copy

import mithril as ml
import numpy as np
import pytest
import torch

optax = pytest.importorskip("optax")

optim, schedules = ml.optim, ml.optim.schedules
lr_scheduler = torch.optim.lr_scheduler


# --- schedules ----------------------------------------------------------------------------------------------------


def rates_of_torch(make, steps, rate=0.5):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], rate)
    schedule, rates = make(optimizer), []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (schedules.Constant(0.5), lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        (schedules.Linear(0.05, 0.5, 7), lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 7)),
        (schedules.Cosine(0.5, 20, end=0.1), lambda o: lr_scheduler.CosineAnnealingLR(o, 20, 0.1)),
        (schedules.Polynomial(0.5, 15, power=2.5), lambda o: lr_scheduler.PolynomialLR(o, 15, 2.5)),
        (schedules.Exponential(0.5, 0.9), lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        (schedules.Step(0.5, 4, 0.3), lambda o: lr_scheduler.StepLR(o, 4, 0.3)),
        (schedules.Step(0.5, [3, 5, 11], 0.3), lambda o: lr_scheduler.MultiStepLR(o, [3, 5, 11], 0.3)),
        (schedules.OneCycle(0.5, 20), lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20)),
        (
            schedules.OneCycle(0.5, 23, rising=0.45, start_factor=10.0, end_factor=100.0),
            lambda o: lr_scheduler.OneCycleLR(
                o, 0.5, total_steps=23, pct_start=0.45, div_factor=10.0, final_div_factor=100.0
            ),
        ),
    ],
    ids=lambda value: type(value).__name__ if not callable(value) or hasattr(value, "rate") else "",
)
def test_schedules_are_those_of_torch(ours, theirs):
    steps = min(20, getattr(ours, "steps", 20))
    np.testing.assert_allclose([ours(t) for t in range(1, steps + 1)], rates_of_torch(theirs, steps), rtol=1e-9)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            schedules.WarmUp(schedules.Cosine(0.5, 15, end=0.1), 5),
            optax.warmup_cosine_decay_schedule(0.0, 0.5, 5, 20, 0.1),
        ),
        (
            schedules.WarmUp(schedules.Linear(0.5, 0.0, 10), 4, start=0.1),
            optax.join_schedules([optax.linear_schedule(0.1, 0.5, 4), optax.linear_schedule(0.5, 0.0, 10)], [4]),
        ),
        (schedules.Polynomial(0.5, 12, 3.0, end=0.2), optax.polynomial_schedule(0.5, 0.2, 3.0, 12)),
    ],
)
def test_schedules_are_those_of_optax(ours, theirs):
    expected = [float(theirs(t)) for t in range(25)]
    np.testing.assert_allclose([ours(t + 1) for t in range(25)], expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        ({}, {}),
        ({"factor": 0.5, "patience": 1, "threshold": 0.1, "cooldown": 2, "least": 0.05}, {"min_lr": 0.05}),
        ({"factor": 0.9, "patience": 0, "largest": True}, {"mode": "max"}),
    ],
)
def test_plateau_is_that_of_torch(options, theirs):
    measures = np.random.default_rng(0).uniform(0.5, 1.0, size=40).tolist()
    measures[7] = float("nan")
    same = {name: value for name, value in options.items() if name not in ("least", "largest")}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.5)
    reference = lr_scheduler.ReduceLROnPlateau(optimizer, **same, **theirs)
    ours = schedules.Plateau(0.5, **options)
    trained = optim.SGD(ours)
    for i, measure in enumerate(measures):
        reference.step(measure)
        ours.observe(measure)
        assert ours(i + 1) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        if i == 20:
            # A copy made of the state goes on alike.
            ours = schedules.Plateau(0.5, **options)
            state = trained.state_dict()
            trained = optim.SGD(ours)
            trained.load_state_dict(state)
    assert ours(1) < 0.5


def test_plateau_starts_anew_with_a_fresh_state():
    schedule = schedules.Plateau(1.0, patience=0)
    for loss in (1.0, 1.0):
        schedule.observe(loss)
    assert schedule(1) == pytest.approx(0.1)
    optim.SGD(schedule).load_state_dict({"steps": 0})
    assert schedule == schedules.Plateau(1.0, patience=0)
    with pytest.raises(ml.errors.ParameterError, match="holds best"):
        schedule.load_state_dict({"best": 1.0})


def test_optimizers_follow_schedules():
    schedule = schedules.Step(1.0, every=2, factor=0.5)
    optimizer, params = optim.SGD(schedule), {"w": np.zeros(1)}
    steps = []
    for _ in range(5):
        new = optimizer.update(params, {"w": np.ones(1)})
        steps.append(params["w"][0] - new["w"][0])
        params = new
    assert steps == [1.0, 1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: schedules.Constant(-1.0), "rate is -1.0"),
        (lambda: schedules.Linear(1.0, 0.0, 0), "steps is 0"),
        (lambda: schedules.Cosine(1.0, 2.5), "steps is 2.5"),
        (lambda: schedules.Polynomial(1.0, 5, power=0.0), "power is 0.0"),
        (lambda: schedules.Exponential(1.0, float("inf")), "factor is inf"),
        (lambda: schedules.Step(1.0, [5, 3]), r"every is \[5, 3\]"),
        (lambda: schedules.Step(1.0, "5"), "every is '5'"),
        (lambda: schedules.OneCycle(1.0, 10, rising=1.0), "rising is 1.0"),
        (lambda: schedules.WarmUp(0.1, 5), "the schedule is 0.1"),
        (lambda: schedules.Plateau(1.0, factor=1.0), "factor is 1.0"),
    ],
)
def test_schedules_say_what_is_wrong(make, words):
    with pytest.raises(ml.errors.InvalidValueError, match=words):
        make()


# --- moving average -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx"])
def test_ema_is_that_of_torch(name):
    backend = ml.get_backend(name, device="cpu")
    module = torch.nn.Linear(3, 2)
    reference = torch.optim.swa_utils.AveragedModel(
        module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.8)
    )
    average, rng = optim.EMA(0.8), np.random.default_rng(0)
    for step in range(6):
        drawn = {n: rng.normal(size=tuple(p.shape)).astype(np.float32) for n, p in module.named_parameters()}
        with torch.no_grad():
            for n, p in module.named_parameters():
                p.copy_(torch.tensor(drawn[n]))
        reference.update_parameters(module)
        params = {n: backend.tensor(v, "float32") for n, v in drawn.items()}
        actual = average.update(params)
        if step == 3:
            state = {n: v if isinstance(v, int) else backend.to_numpy(v) for n, v in average.state_dict().items()}
            average = optim.EMA(0.8)
            average.load_state_dict(state)
    for n, p in reference.module.named_parameters():
        np.testing.assert_allclose(backend.to_numpy(actual[n]), p.detach().numpy(), rtol=1e-6, atol=1e-7)


def test_ema_of_bfloat16_adds_up():
    backend = ml.TorchBackend(dtype="bfloat16")
    average = optim.EMA(0.999)
    average.update({"w": backend.zeros(1)})
    for _ in range(200):
        actual = average.update({"w": backend.ones(1)})["w"]
    assert actual.dtype == torch.bfloat16
    # In bfloat16 itself, steps stop to count at 0.125 or so.
    np.testing.assert_allclose(actual.float().numpy(), [1 - 0.999**200], rtol=2**-8)


def test_ema_warms_up():
    average = optim.EMA(0.9, warm_up=True)
    actual = [average.update({"w": np.array([float(v)])})["w"][0] for v in (1, 2, 3)]
    second = 2 + (1 - 2) * 2 / 11
    np.testing.assert_allclose(actual, [1.0, second, 3 + (second - 3) * 3 / 12])


def test_ema_says_what_is_wrong():
    average = optim.EMA()
    average.update({"w": np.ones(2)})
    with pytest.raises(ml.errors.ParameterError, match="differ in v"):
        average.update({"w": np.ones(2), "v": np.ones(2)})
    with pytest.raises(ml.errors.ParameterError, match="shape"):
        average.update({"w": np.ones(3)})
    with pytest.raises(ml.errors.InvalidValueError, match=r"decay is 1\.0"):
        optim.EMA(1.0)
    with pytest.raises(ml.errors.ParameterError, match="not that of an EMA"):
        optim.EMA().load_state_dict({"steps": 1, "slot/mean/w": np.ones(2)})
    assert average.steps == 1


# --- adapters -----------------------------------------------------------------------------------------------------


#: optax and MLX compute 1 - beta**step in float32, where four digits of 1 - 0.999 are left; of 1 - 0.9 nearly all.
BETAS = (0.8, 0.9)


def ours():
    return optim.AdamW(0.1, betas=BETAS, weight_decay=0.2)


def torch_pair():
    return optim.from_torch(torch.optim.AdamW, lr=0.1, betas=BETAS, weight_decay=0.2), ours()


def optax_pair():
    return optim.from_optax(optax.adamw(0.1, *BETAS, weight_decay=0.2)), ours()


def mlx_pair():
    optimizers = pytest.importorskip("mlx.optimizers")
    adapted = optimizers.AdamW(0.1, betas=list(BETAS), weight_decay=0.2, bias_correction=True)
    return optim.from_mlx(adapted), ours()


@pytest.mark.parametrize(("name", "pair"), [("torch", torch_pair), ("jax", optax_pair), ("mlx", mlx_pair)])
def test_adapters_have_the_interface_of_ours(name, pair):
    backend = ml.get_backend(name, device="cpu")
    rng = np.random.default_rng(0)
    start = {n: backend.tensor(rng.normal(size=3), "float32") for n in ("w", "a.b")}
    gradients = [{n: backend.tensor(rng.normal(size=3), "float32") for n in start} for _ in range(8)]
    adapted, reference = pair()
    actual = expected = start
    kept = []
    for step, g in enumerate(gradients):
        if step == 4:
            state = {n: v if isinstance(v, int) else backend.to_numpy(v) for n, v in adapted.state_dict().items()}
            adapted = pair()[0]
            adapted.load_state_dict(state)
            assert adapted.state_dict().keys() == state.keys()
        kept.append((actual, {n: backend.to_numpy(v).copy() for n, v in actual.items()}))
        actual, expected = adapted.update(actual, g), reference.apply_gradients(g, expected)
    assert adapted.steps == 8
    for n in expected:
        np.testing.assert_allclose(backend.to_numpy(actual[n]), backend.to_numpy(expected[n]), rtol=2e-5, atol=1e-6)
    for arrays, copies in kept:
        for n, value in arrays.items():
            np.testing.assert_array_equal(backend.to_numpy(value), copies[n])
    adapted.init(start)
    fresh = pair()[0].update(start, gradients[0])
    for n, value in adapted.update(start, gradients[0]).items():
        np.testing.assert_array_equal(backend.to_numpy(value), backend.to_numpy(fresh[n]))


def test_learning_rates_of_adapters():
    adapted = torch_pair()[0]
    assert adapted.learning_rate == 0.1
    adapted.update({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    adapted.learning_rate = 0.0
    frozen = {"w": torch.full((1,), 3.0)}
    assert adapted.update(frozen, {"w": torch.ones(1)})["w"].item() == 3.0
    adapted = mlx_pair()[0]
    assert adapted.learning_rate == pytest.approx(0.1)


def test_adapters_say_what_is_wrong():
    with pytest.raises(ml.errors.InvalidValueError, match="not a class of optimizers"):
        optim.from_torch(torch.optim.SGD([torch.zeros(1)], 0.1))
    with pytest.raises(ml.errors.ParameterError, match="no tensor of PyTorch"):
        torch_pair()[0].update({"w": np.ones(2)}, {"w": np.ones(2)})
    with pytest.raises(ml.errors.InvalidValueError, match="not a gradient transformation"):
        optim.from_optax(optax.adam)
    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(ml.errors.ParameterError, match="no gradient of 'v'"):
        optax_pair()[0].update({"w": jnp.ones(1), "v": jnp.ones(1)}, {"w": jnp.ones(1)})
    for pair, params in ((torch_pair, {"w": torch.zeros(1)}), (optax_pair, {"w": jnp.ones(1)})):
        adapted = pair()[0]
        with pytest.raises(ml.errors.ParameterError, match="lacks 'steps'"):
            adapted.load_state_dict({})
        adapted.load_state_dict({"steps": 1, "slot/mean/x": np.ones(1)})
        with pytest.raises(ml.errors.ParameterError, match="the state"):
            adapted.update(params, params)


def test_adapted_optimizers_are_copied():
    adapted = torch_pair()[0]
    params = adapted.update({"w": torch.zeros(1)}, {"w": torch.ones(1)})
    other = copy.deepcopy(adapted)
    assert torch.equal(other.update(params, params)["w"], adapted.update(params, params)["w"])
