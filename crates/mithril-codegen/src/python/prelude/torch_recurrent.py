"""Recurrent networks for PyTorch, whose functions run a pass as a whole."""

import torch


def _logistic(x):
    return torch.sigmoid(x)


def _rnn_sequence(x, hidden, w_ih, w_hh, b_ih, b_hh, nonlinearity, reverse, batch_first):
    """A pass of a simple recurrent network."""
    function = torch.rnn_tanh if nonlinearity == "tanh" else torch.rnn_relu
    return _pass(function, x, hidden[None], [w_ih, w_hh], [b_ih, b_hh], reverse, batch_first)


def _lstm_sequence(x, hidden, cell, w_ih, w_hh, b_ih, b_hh, _, reverse, batch_first):
    """A pass of a long short-term memory."""
    return _pass(torch.lstm, x, (hidden[None], cell[None]), [w_ih, w_hh], [b_ih, b_hh], reverse, batch_first)


def _gru_sequence(x, hidden, w_ih, w_hh, b_ih, b_hh, reverse, batch_first):
    """A pass of a gated recurrent unit."""
    return _pass(torch.gru, x, hidden[None], [w_ih, w_hh], [b_ih, b_hh], reverse, batch_first)


def _pass(function, x, states, weights, biases, reverse, batch_first):
    """The outputs and the last states of one of PyTorch's functions."""
    time = 1 if batch_first else 0
    has_biases = biases != [None, None]
    if has_biases:
        zeros = torch.zeros_like(weights[0][:, 0])
        weights += [zeros if bias is None else bias for bias in biases]
    x = x.flip(time) if reverse else x
    output, *last = function(x, states, weights, has_biases, 1, 0.0, False, False, batch_first)
    return (output.flip(time) if reverse else output, *(state[0] for state in last))
