"""Statements that repeat are written as loops, and compute what they did one by one."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
import torch
from backends import BACKENDS, NATIVE, backend


class Recurrence(torch.nn.Module):
    """A random recurrence: what a step computes, in which order it goes through the input, and what is kept."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.steps = int(rng.integers(16, 22))
        self.size = int(rng.integers(2, 5))
        self.states = int(rng.integers(1, 4))
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.from_numpy(rng.normal(size=(self.size, self.size)).astype(np.float32) / 2))
            for _ in range(2)
        )

    def _step(
        self,
        choices: np.random.Generator,
        item: torch.Tensor,
        states: list[torch.Tensor],
        others: list[torch.Tensor],
    ) -> list[torch.Tensor]:
        values = [item, *states, *others]
        for _ in range(choices.integers(2, 6)):
            a, b = (values[choices.integers(len(values))] for _ in range(2))
            match choices.integers(6):
                case 0:
                    values.append(torch.tanh(a @ self.weights[choices.integers(2)] + b))
                case 1:
                    values.append(torch.sigmoid(a) * b)
                case 2:
                    values.append((a - b) / 2)
                case 3:
                    front, back = torch.split(torch.cat([a, b], 1), [1, 2 * self.size - 1], 1)
                    values.append(torch.tanh(back[:, : self.size] + front))
                case 4:
                    values.append(torch.softmax(a, 1) - b)
                case _:
                    values.append(torch.sin(a).flip(1))
        # States may change places, and one may stay what it is.
        picked = [values[int(i)] for i in choices.integers(1, len(values), len(states))]
        picked[0] = values[-1]
        return picked

    def _through(
        self, rng: np.random.Generator, items: list[torch.Tensor], others: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        states = [torch.full_like(items[0], 0.1 * i) if rng.random() < 0.5 else items[0] for i in range(self.states)]
        seed = int(rng.integers(1 << 30))
        kept = [states[0]] if rng.random() < 0.3 else []
        for item in items:
            states = self._step(np.random.default_rng(seed), item, states, others)
            kept.append(states[0])
        return kept

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the steps left, of an input (batch, steps, size)."""
        rng = np.random.default_rng(self.seed)
        x = torch.tanh(x @ self.weights[0])
        items = [x[:, t] for t in range(self.steps)]
        if rng.random() < 0.5:
            items = items[:: int(rng.choice([-1, 2, -2]))] if rng.random() < 0.5 else items[::-1]
        first = self._through(rng, items, [])
        others = [first[rng.integers(len(first))]] if rng.random() < 0.5 else []
        second = self._through(rng, first[::-1] if rng.random() < 0.5 else first, others)
        match rng.integers(4):
            case 0:
                whole = torch.stack(second, int(rng.integers(3)))
            case 1:
                whole = torch.cat(second[::-1], int(rng.integers(2)))
            case 2:
                whole = torch.cat([second[3], *second[2:-1]], int(rng.integers(2)))
            case _:
                whole = sum(second[1:], second[0])
        return whole, first[rng.integers(len(first))], second[-1]


#: Backends, those that differentiate by themselves also with our gradients.
VARIANTS = [(name, {}) for name in (*BACKENDS, "c")] + [(name, {"autodiff": "graph"}) for name in NATIVE]


@pytest.mark.parametrize("seed", range(24))
def test_random_recurrences(seed: int) -> None:
    module = Recurrence(seed).eval()
    x = np.random.default_rng(seed).normal(size=(3, module.steps, module.size)).astype(np.float32)
    wanted = module(torch.from_numpy(x))
    cotangents = [np.random.default_rng(i).normal(size=out.shape).astype(np.float32) for i, out in enumerate(wanted)]
    pairs = [(out, torch.from_numpy(c)) for out, c in zip(wanted, cotangents, strict=True) if out.requires_grad]
    if pairs:
        torch.autograd.backward(*zip(*pairs, strict=True))
    gradients = {name: p.grad.numpy() for name, p in module.named_parameters() if p.grad is not None}
    model, params = ml.from_torch(module, torch.from_numpy(x))
    for name, options in VARIANTS:
        device = ml.CBackend(num_threads=1) if name == "c" else backend(name)
        compiled = ml.compile(model, device, **options)
        arrays = {name: device.array(np.asarray(p)) for name, p in params.items()}
        data = {key: device.array(x) for key in compiled.input_keys}
        outputs = compiled.evaluate(arrays, data)
        scale = max(float(out.detach().abs().max()) for out in wanted)
        for out, got in zip(wanted, outputs.values(), strict=True):
            np.testing.assert_allclose(np.asarray(got), out.detach().numpy(), rtol=1e-4, atol=1e-5 * scale)
        given = {name: device.array(c) for name, c in zip(outputs, cotangents, strict=True)}
        found = compiled.evaluate_gradients(arrays, data, output_gradients=given)
        for name, gradient in gradients.items():
            got = next(np.asarray(g) for key, g in found.items() if key.replace(".", "_") == name.replace(".", "_"))
            np.testing.assert_allclose(got, gradient, rtol=1e-3, atol=1e-4 * float(np.abs(gradient).max()))


def _lines(name: str, layer: str, steps: int, **options: object) -> list[str]:
    model = getattr(ml, layer)(8, length=steps)
    compiled = ml.compile(model, backend(name), shapes={"input": (steps, 2, 4)}, **options)
    source = compiled.gradient_source if options else compiled.source
    return str(source).splitlines()


@pytest.mark.parametrize("layer", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("name", BACKENDS)
def test_the_source_of_a_recurrent_layer_is_as_long_for_any_number_of_steps(name: str, layer: str) -> None:
    lines = _lines(name, layer, 24)
    # A number with one more digit may break a line.
    assert len(_lines(name, layer, 48)) <= len(lines) + 4
    # PyTorch has functions for a whole pass.
    word = f"torch.{layer.lower()}" if name == "torch" else f"_{layer.lower()}_scan("
    assert any(word in line for line in lines)
    gradients = _lines(name, layer, 24, autodiff="graph")
    assert len(_lines(name, layer, 48, autodiff="graph")) <= len(gradients) + 8


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("layer", ["RNN", "GRU", "LSTM"])
def test_c_has_loops_for_calls_that_repeat(layer: str, threads: int) -> None:
    sizes, rng = {"input": (40, 4, 16)}, np.random.default_rng(0)
    x = rng.normal(size=sizes["input"]).astype(np.float32)
    cotangent = {"output": rng.normal(size=(40, 4, 48)).astype(np.float32)}
    results = []
    for target in (ml.CBackend(num_threads=threads), ml.NumpyBackend()):
        compiled = ml.compile(getattr(ml, layer)(48, length=40), target, shapes=sizes)
        params = compiled.randomize_params(seed=0)
        results.append(compiled.evaluate_gradients(params, {"input": x}, cotangent, include_output=True))
        if target.name == "c":
            for source in (compiled.source, compiled.gradient_source):
                several = "_run_thread(void *context"
                start = source.index(several) if several in source else source.rindex("_run(const void")
                calls = source[start:].partition("\n}\n")[0]
                assert calls.count("for (ptrdiff_t iteration = 0;") >= 1
                # 40 steps, of which each has some calls, waits, and comments.
                assert len(calls.splitlines()) < 40 * 12
    (outputs, gradients), (expected, expected_gradients) = results
    np.testing.assert_allclose(outputs["output"], expected["output"], rtol=1e-5, atol=1e-6)
    for name, gradient in expected_gradients.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_loops_are_compiled_by_the_framework(name: str) -> None:
    device = backend(name)
    model = ml.LSTM(8, length=20)
    x = np.random.default_rng(0).normal(size=(20, 2, 4)).astype(np.float32)
    compiled = [
        ml.compile(model, to, shapes={"input": (20, 2, 4)}, **options)
        for to, options in ((backend("numpy"), {}), (device, {"jit": True}))
    ]
    params = compiled[0].randomize_params(seed=0)
    wanted = compiled[0].evaluate(params, {"input": x})
    found = compiled[1].evaluate({k: device.array(p) for k, p in params.items()}, {"input": device.array(x)})
    for key, value in wanted.items():
        np.testing.assert_allclose(np.asarray(found[key]), value, rtol=1e-4, atol=1e-5)


class Sized(torch.nn.Module):
    """A recurrence that speaks of the size of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all states, of an input (batch, 20, 4)."""
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(20):
            state = torch.tanh(state + x[:, t]).reshape(x.shape[0], 2, 2).transpose(1, 2).reshape(x.shape[0], 4)
            states.append(state)
        return torch.stack(states, 1)


@pytest.mark.parametrize("name", BACKENDS)
def test_sizes_of_a_call_are_known_in_loops(name: str) -> None:
    device = backend(name)
    module, x = Sized(), torch.randn(3, 20, 4)
    model, params = ml.from_torch(module, x, dynamic_shapes={"x": {0: torch.export.Dim("batch", min=2)}})
    compiled = ml.compile(model, device)
    for batch in (3, 5):
        x = torch.randn(batch, 20, 4)
        (found,) = compiled.evaluate(params, {"x": device.array(x.numpy())}).values()
        np.testing.assert_allclose(np.asarray(found), module(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["numpy", "torch", "mlx"])
def test_large_results_are_released_in_each_iteration(name: str) -> None:
    steps, size = 16, 512
    x = np.random.default_rng(0).normal(size=(steps, size, size)).astype(np.float32)

    class Large(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = x[0]
            for t in range(steps):
                for _ in range(3):
                    state = torch.sin(torch.exp(-state * state) + x[t] * x[t])
            return state

    device = backend(name)
    model, params = ml.from_torch(Large(), torch.from_numpy(x))
    compiled = ml.compile(model, device)
    body = [line for line in str(compiled.source).splitlines() if line.startswith("        ")]
    assert any(line.strip().startswith("del ") for line in body)
    (found,) = compiled.evaluate(params, {"x": device.array(x)}).values()
    np.testing.assert_allclose(np.asarray(found), Large()(torch.from_numpy(x)).numpy(), rtol=1e-3, atol=1e-4)


class Attending(torch.nn.Module):
    """A second recurrence, backwards, each step of which reads one state of the first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return all states of the second, of an input (batch, 40, 4)."""
        state, states = torch.zeros_like(x[:, 0]), []
        for t in range(40):
            state = torch.tanh(state + x[:, t])
            states.append(state)
        back, all_back = torch.ones_like(state), []
        for t in reversed(range(40)):
            back = torch.sin(back * states[18] + states[t])
            all_back.append(back)
        return torch.stack(all_back)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_loop_reads_one_result_of_an_earlier_one(name: str) -> None:
    device, x = backend(name), torch.randn(2, 40, 4)
    model, params = ml.from_torch(Attending(), x)
    (found,) = ml.compile(model, device).evaluate(params, {"x": device.array(x.numpy())}).values()
    np.testing.assert_allclose(np.asarray(found), Attending()(x).numpy(), rtol=1e-5, atol=1e-6)
