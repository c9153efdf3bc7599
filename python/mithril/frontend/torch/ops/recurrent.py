"""Recurrent networks: a pass for each layer and direction; single steps.

PyTorch's own decompositions of them take minutes for hundreds of steps, and leave out dropout between layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .elementwise import drop
from .registry import Use, apply, convert

#: The op for a pass of each kind of network, and its options.
_PASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "lstm": ("lstm_sequence", {}),
    "gru": ("gru_sequence", {}),
    "rnn_tanh": ("rnn_sequence", {"nonlinearity": "tanh"}),
    "rnn_relu": ("rnn_sequence", {"nonlinearity": "relu"}),
}


@convert("lstm.input")
def _lstm(use: Use, x: Any, states: Sequence[Any], *options: Any) -> Any:
    return _network("lstm", x, states, *options)


@convert("gru.input")
def _gru(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network("gru", x, [state], *options)


@convert("rnn_tanh.input")
def _rnn_tanh(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network("rnn_tanh", x, [state], *options)


@convert("rnn_relu.input")
def _rnn_relu(use: Use, x: Any, state: Any, *options: Any) -> Any:
    return _network("rnn_relu", x, [state], *options)


@convert("lstm_cell.default")
def _lstm_cell(use: Use, x: Any, states: Sequence[Any], *weights: Any) -> Any:
    return apply("lstm_step", x, *states, *weights)


@convert("gru_cell.default")
def _gru_cell(use: Use, *args: Any) -> Any:
    return apply("gru_step", *args)


@convert("rnn_tanh_cell.default")
def _rnn_tanh_cell(use: Use, *args: Any) -> Any:
    return apply("rnn_step", *args)


@convert("rnn_relu_cell.default")
def _rnn_relu_cell(use: Use, *args: Any) -> Any:
    return apply("rnn_step", *args, nonlinearity="relu")


@convert("recurrent.default", prefix="mithril")
def _of_open_sizes(use: Use, kind: str, *args: Any) -> Any:
    return _network(kind, *args)


def _network(
    kind: str,
    x: Any,
    states: Sequence[Any],
    params: Sequence[Any],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    sequence, named = _PASSES[kind]
    directions = 1 + int(bidirectional)
    count = len(params) // (layers * directions)
    # States of each layer and direction.
    initial = [[apply("squeeze", part, 0) for part in _split(state, layers * directions)] for state in states]
    last: list[list[Any]] = []
    for layer in range(layers):
        if layer > 0 and train and dropout > 0:
            x = drop(x, dropout)
        sides = []
        for direction in range(directions):
            at = layer * directions + direction
            w_ih, w_hh, *others = params[at * count : (at + 1) * count]
            biases = others[:2] if has_biases else [None, None]
            # LSTMs may have the weight of a projection.
            projection = dict(zip(["weight_hr"], others[2:] if has_biases else others, strict=False))
            output, *own = apply(
                sequence,
                x,
                *(state[at] for state in initial),
                w_ih,
                w_hh,
                *biases,
                **projection,
                **named,
                reverse=bool(direction),
                batch_first=batch_first,
            )
            sides.append(output)
            last.append(own)
        x = sides[0] if directions == 1 else apply("concat", -1, *sides)
    return [x, *(apply("stack", 0, *parts) for parts in zip(*last, strict=True))]


def _split(x: Any, parts: int) -> list[Any]:
    return [x] if parts == 1 else apply("split", x, parts, 0)
