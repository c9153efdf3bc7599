"""Scans of recurrent networks, which go through the first axis; `xp` stands for the array module of the target."""


def _through_steps(step, states, inputs, reverse):
    """The last states and the stacked results, for `step(states, elements)`, which gives states and results."""
    order = range(len(inputs[0]))
    results = []
    for t in reversed(order) if reverse else order:
        states, result = step(states, [x[t] for x in inputs])
        results.append(result)
    if reverse:
        results.reverse()
    return states, [xp.stack(parts) for parts in zip(*results)]


def _rnn_scan(gates, hidden, weight, nonlinearity, reverse):
    """The states of a simple recurrent network."""

    def step(states, elements):
        total = elements[0] + states[0] @ weight.T
        hidden = xp.tanh(total) if nonlinearity == "tanh" else xp.where(total <= 0, 0, total)
        return [hidden], [hidden]

    return _through_steps(step, [hidden], [gates], reverse)[1][0]


def _lstm_scan(gates, hidden, cell, weight, reverse, with_sums):
    """The hidden states and the cells of a long short-term memory; with the sums of the gates, or None."""
    size = cell.shape[-1]

    def step(states, elements):
        sums = elements[0] + states[0] @ weight.T
        i, f, g, o = _gates(sums, size)
        cell = _logistic(f) * states[1] + _logistic(i) * xp.tanh(g)
        hidden = _logistic(o) * xp.tanh(cell)
        return [hidden, cell], [hidden, cell, sums] if with_sums else [hidden, cell]

    results = _through_steps(step, [hidden, cell], [gates], reverse)[1]
    return tuple(results) if with_sums else (*results, None)


def _gru_scan(gates, hidden, weight, bias, reverse, with_sums):
    """The states of a gated recurrent unit; with what they add to the gates, or None."""
    size = hidden.shape[-1]

    def step(states, elements):
        sums = states[0] @ weight.T
        sums = sums if bias is None else sums + bias
        s_r, s_z, s_n = _gates(sums, size)
        x_r, x_z, x_n = _gates(elements[0], size)
        z = _logistic(x_z + s_z)
        n = xp.tanh(x_n + _logistic(x_r + s_r) * s_n)
        hidden = n + z * (states[0] - n)
        return [hidden], [hidden, sums] if with_sums else [hidden]

    results = _through_steps(step, [hidden], [gates], reverse)[1]
    return tuple(results) if with_sums else (*results, None)


def _gates(x, size):
    """The parts of the last axis, of a size each."""
    return [x[..., i : i + size] for i in range(0, x.shape[-1], size)]


def _hidden_scan_gradient(gradient, slopes, weight, kept, of_sums, reverse):
    """Gradients of the states of a scan and of the state before, by backpropagation through time."""
    inputs = [x for x in (gradient, slopes, kept, of_sums) if x is not None]
    count = weight.shape[0] // weight.shape[1]

    def step(states, elements):
        total = elements[0] + states[0]
        sums = elements[1] * xp.concatenate([total] * count, -1)
        passed = (sums if of_sums is None else sums + elements[-1]) @ weight
        return [passed if kept is None else passed + elements[2] * total], [total]

    first, (gradients,) = _through_steps(step, [xp.zeros_like(gradient[0])], inputs, not reverse)
    return gradients, first[0]


def _lstm_scan_gradient(gradient, cell_gradient, slopes, shown, kept, weight, of_sums, reverse):
    """Gradients of the gates and of the states before, by backpropagation through time."""
    zeros = xp.zeros_like(gradient[0])

    def step(states, elements):
        hidden = elements[0] + states[0]
        cell = elements[1] + states[1] + hidden * elements[3]
        gates = elements[2] * xp.concatenate([cell, cell, cell, hidden], -1)
        gates = gates if of_sums is None else gates + elements[5]
        return [gates @ weight, cell * elements[4]], [gates]

    inputs = [gradient, cell_gradient, slopes, shown, kept] + ([] if of_sums is None else [of_sums])
    (hidden, cell), (gates,) = _through_steps(step, [zeros, zeros], inputs, not reverse)
    return gates, hidden, cell
