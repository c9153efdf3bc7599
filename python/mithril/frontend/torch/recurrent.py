"""Dropout between the layers of a recurrent network, which PyTorch's own decompositions of it leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["with_dropout"]

#: Ops of several layers, and how many states a layer has.
_STATES = {"lstm.input": 2, "gru.input": 1, "rnn_tanh.input": 1, "rnn_relu.input": 1}


def with_dropout(table: Mapping[Any, Callable[..., Any]], torch: Any) -> dict[Any, Callable[..., Any]]:
    """Add decompositions of recurrent networks in training mode to a table."""
    changed = dict(table)
    for name, states in _STATES.items():
        base, overload = name.split(".")
        op = getattr(getattr(torch.ops.aten, base), overload)
        changed[op] = _layer_by_layer(op, table.get(op, op.decompose), states, torch)
    return changed


def _layer_by_layer(op: Any, rule: Callable[..., Any], states: int, torch: Any) -> Callable[..., Any]:
    def decomposed(
        x: Any,
        hidden: Any,
        params: Sequence[Any],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if not train or dropout == 0 or num_layers == 1:
            return rule(x, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first)
        initial = hidden if states > 1 else [hidden]
        directions, count = 1 + int(bidirectional), len(params) // num_layers
        last: list[tuple[Any, ...]] = []
        for i in range(num_layers):
            if i > 0:
                x = torch.ops.aten.native_dropout(x, dropout, True)[0]
            own = [state[i * directions : (i + 1) * directions] for state in initial]
            x, *final = op(
                x,
                own if states > 1 else own[0],
                params[i * count : (i + 1) * count],
                *(has_biases, 1, 0.0, train, bidirectional, batch_first),
            )
            last.append(tuple(final))
        return (x, *(torch.cat(layers) for layers in zip(*last, strict=True)))

    return decomposed
