"""Recurrent ops from torch: its own passes and cells, and its gradients of the linear recurrences that scans have."""

import torch


def _step(function):
    def step(x, *args):
        states, weights = args[:-4], args[-4:]
        return function(x, states[0] if len(states) == 1 else states, *weights)

    return step


lstm_step = _step(torch.lstm_cell)
gru_step = _step(torch.gru_cell)


def rnn_step(*args):
    return _step(torch.rnn_tanh_cell if args[-1] == "tanh" else torch.rnn_relu_cell)(*args[:-1])


def _pass(function, x, states, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, batch_first):
    time = 1 if batch_first else 0
    weights = [weight for weight in (w_ih, w_hh, b_ih, b_hh, w_hr) if weight is not None]
    states = [state[None] for state in states]
    states = states[0] if len(states) == 1 else tuple(states)
    x = x.flip(time) if reverse else x
    output, *last = function(x, states, weights, b_ih is not None, 1, 0.0, False, False, batch_first)
    return [output.flip(time) if reverse else output, *(state[0] for state in last)]


def rnn_sequence(x, hidden, w_ih, w_hh, b_ih, b_hh, nonlinearity, reverse, batch_first):
    function = torch.rnn_tanh if nonlinearity == "tanh" else torch.rnn_relu
    return _pass(function, x, [hidden], w_ih, w_hh, b_ih, b_hh, None, reverse, batch_first)


def lstm_sequence(x, hidden, cell, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, batch_first):
    if b_ih is not None and b_hh is None:
        b_hh = torch.zeros_like(b_ih)
    return _pass(torch.lstm, x, [hidden, cell], w_ih, w_hh, b_ih, b_hh, w_hr, reverse, batch_first)


def gru_sequence(x, hidden, w_ih, w_hh, b_ih, b_hh, reverse, batch_first):
    return _pass(torch.gru, x, [hidden], w_ih, w_hh, b_ih, b_hh, None, reverse, batch_first)


def _order(count, reverse):
    return reversed(range(count)) if reverse else range(count)


def _scan(cell, gates, states, reverse):
    """The states after each step of a cell; the gates come in by an identity."""
    identity = torch.eye(gates.shape[-1], dtype=gates.dtype)
    results = {}
    for t in _order(len(gates), reverse):
        states = results[t] = cell(gates[t], states, identity)
    return [results[t] for t in range(len(gates))]


def _before(states, first, reverse):
    """The state before each step."""
    return torch.stack([*states[1:], first] if reverse else [first, *states[:-1]])


def rnn_scan(gates, hidden, weight, nonlinearity, reverse):
    function = torch.rnn_tanh_cell if nonlinearity == "tanh" else torch.rnn_relu_cell
    return torch.stack(_scan(lambda x, h, one: function(x, h, one, weight), gates, hidden, reverse))


def gru_scan(gates, hidden, weight, bias, reverse):
    zeros = None if bias is None else torch.zeros_like(bias)
    states = _scan(lambda x, h, one: torch.gru_cell(x, h, one, weight, zeros, bias), gates, hidden, reverse)
    sums = _before(states, hidden, reverse) @ weight.T
    return [torch.stack(states), sums if bias is None else sums + bias]


def lstm_scan(gates, hidden, cell, weight, reverse):
    states = _scan(lambda x, states, one: torch.lstm_cell(x, states, one, weight), gates, (hidden, cell), reverse)
    sums = gates + _before([h for h, _ in states], hidden, reverse) @ weight.T
    return [*(torch.stack(parts) for parts in zip(*states, strict=True)), sums]


def _read(results, cotangents, inputs):
    """Results that something reads, and what is passed to them."""
    pairs = [pair for pair in zip(results, cotangents, strict=True) if pair[1] is not None]
    results, cotangents = zip(*pairs, strict=True)
    return results, inputs, cotangents


def _gradients(results, inputs, gradients):
    return list(torch.autograd.grad(results, inputs, gradients, create_graph=True, materialize_grads=True))


def hidden_scan_gradient(gradient, slopes, weight, kept, of_sums, reverse):
    """That of `h' = kept·h + Σ slopes·(weight·h) + u` by every `u` and by the first `h`."""
    with torch.enable_grad():
        pushes = torch.zeros_like(gradient, requires_grad=True)
        first = torch.zeros_like(gradient[0], requires_grad=True)
        state, states, results = first, {}, {}
        for t in _order(len(gradient), reverse):
            sums = results[t] = state @ weight.T
            moved = (slopes[t] * sums).unflatten(-1, (-1, gradient.shape[-1])).sum(-2)
            state = states[t] = pushes[t] + moved + (0 if kept is None else kept[t] * state)
        results = [torch.stack([by[t] for t in range(len(gradient))]) for by in (states, results)]
        return _gradients(*_read(results, [gradient, of_sums], (pushes, first)))


def lstm_scan_gradient(gradient, cell_gradient, slopes, shown, kept, weight, of_sums, reverse):
    """The same of cells and hidden states, by what is added to the gates and by the first states."""
    size = gradient.shape[-1]
    with torch.enable_grad():
        pushes = torch.zeros_like(slopes, requires_grad=True)
        first = [torch.zeros_like(gradient[0], requires_grad=True) for _ in range(2)]
        (hidden, cell), results = first, {}
        for t in _order(len(gradient), reverse):
            sums = pushes[t] + hidden @ weight.T
            i, f, g, o = (slopes[t] * sums).split(size, -1)
            cell = kept[t] * cell + i + f + g
            hidden = shown[t] * cell + o
            results[t] = hidden, cell, sums
        results = [torch.stack([results[t][i] for t in range(len(gradient))]) for i in range(3)]
        return _gradients(*_read(results, [gradient, cell_gradient, of_sums], (pushes, *first)))
