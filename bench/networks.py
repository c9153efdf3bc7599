"""Networks of the benchmark that are small enough to show what a call costs."""

from __future__ import annotations

import mithril as ml


def classifier() -> ml.Model:
    """Build three linear layers, 784-128-64-10."""
    model = ml.Model()
    model |= ml.Linear(128)(input="input", output="h1")
    model += ml.Relu()()
    model += ml.Linear(64)()
    model += ml.Relu()()
    model += ml.Linear(10)(output="output")
    return model
