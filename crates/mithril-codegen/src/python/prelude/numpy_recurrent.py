"""Scans of recurrent networks for NumPy."""


def _logistic(x):
    return _sigmoid(x)
