"""Recurrent networks, whose steps are written out.

PyTorch's own decompositions of them take minutes for hundreds of steps, and leave out dropout between layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .elementwise import drop
from .registry import Use, apply, convert

#: What a step makes of the projected input, the states and the weights of the states: the new states.
_Step = Callable[[Any, list[Any], Sequence[Any]], list[Any]]


@convert("lstm.input")
def _lstm(use: Use, x: Any, states: Sequence[Any], *options: Any) -> Any:
    return _network(use, x, list(states), _lstm_step, *options)


@convert("gru.input")
def _gru(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network(use, x, [state], _gru_step, *options)


@convert("rnn_tanh.input")
def _rnn_tanh(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network(use, x, [state], _simple_step("tanh"), *options)


@convert("rnn_relu.input")
def _rnn_relu(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network(use, x, [state], _simple_step("relu"), *options)


def _network(
    use: Use,
    x: Any,
    states: list[Any],
    step: _Step,
    params: Sequence[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    time = 1 if batch_first else 0
    length = use.operand(0).shape[time]
    if not isinstance(length, int):
        raise use.refuse("the steps are written out, so the length must be a number: leave it out of dynamic_shapes")
    directions = 1 + int(bidirectional)
    count = len(params) // (layers * directions)
    # States of each layer and direction.
    initial = [[apply("squeeze", part, 0) for part in _split(state, layers * directions, 0)] for state in states]
    last: list[list[Any]] = []
    for layer in range(layers):
        if layer > 0 and train and dropout > 0:
            x = drop(x, dropout)
        sides = []
        for direction in range(directions):
            at = layer * directions + direction
            w_ih, w_hh, *others = params[at * count : (at + 1) * count]
            biases = others[:2] if has_biases else [None, None]
            # Of the states: weight, bias and, of LSTMs with projections, the weight of that.
            weights = [w_hh, biases[1], *(others[2:] if has_biases else others)]
            steps = _split(apply("linear", x, w_ih, biases[0]), length, time)
            own, outputs = [state[at] for state in initial], []
            for projected in reversed(steps) if direction else steps:
                own = step(apply("squeeze", projected, time), own, weights)
                outputs.append(own[0])
            sides.append(apply("stack", time, *(reversed(outputs) if direction else outputs)))
            last.append(own)
        x = sides[0] if directions == 1 else apply("concat", -1, *sides)
    return [x, *(apply("stack", 0, *parts) for parts in zip(*last, strict=True))]


def _split(x: Any, parts: int, axis: int) -> list[Any]:
    return [x] if parts == 1 else apply("split", x, parts, axis)


def _lstm_step(x: Any, states: list[Any], weights: Sequence[Any]) -> list[Any]:
    h, c = states
    i, f, g, o = _split(apply("add", x, apply("linear", h, *weights[:2])), 4, -1)
    kept = apply("multiply", apply("sigmoid", f), c)
    c = apply("add", kept, apply("multiply", apply("sigmoid", i), apply("tanh", g)))
    h = apply("multiply", apply("sigmoid", o), apply("tanh", c))
    return [apply("linear", h, weights[2]) if len(weights) > 2 else h, c]


def _gru_step(x: Any, states: list[Any], weights: Sequence[Any]) -> list[Any]:
    (h,) = states
    x_r, x_z, x_n = _split(x, 3, -1)
    h_r, h_z, h_n = _split(apply("linear", h, *weights), 3, -1)
    r, z = (apply("sigmoid", apply("add", *pair)) for pair in ((x_r, h_r), (x_z, h_z)))
    n = apply("tanh", apply("add", x_n, apply("multiply", r, h_n)))
    # n + z·(h - n) is (1 - z)·n + z·h.
    return [apply("add", n, apply("multiply", z, apply("subtract", h, n)))]


def _simple_step(activation: str) -> _Step:
    def step(x: Any, states: list[Any], weights: Sequence[Any]) -> list[Any]:
        return [apply(activation, apply("add", x, apply("linear", states[0], *weights)))]

    return step
