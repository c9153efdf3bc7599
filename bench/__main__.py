"""Speed of building and compiling, and of generated calls against the same lines written by hand."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np

from . import models
from .networks import classifier
from .timing import timed, turns


def chain(layers: int) -> None:
    """Build and compile a chain of Linear and Relu."""
    model = ml.Model()
    model |= ml.Linear(64)(input="input", output="h0")
    for _ in range(layers - 1):
        model += ml.Relu()()
        model += ml.Linear(64)()
    model += ml.Relu()(output="output")
    ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 64]})


def call_overhead() -> tuple[float, float]:
    """Return microseconds of a generated call, and of the same lines written by hand."""
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": ["batch", 784]})
    params = compiled.randomize_params(seed=0)
    data = {"input": np.ones((1, 784), np.float32)}
    w1, b1, w2, b2, w3, b3 = (params[name] for name in compiled.parameter_keys)

    def by_hand(x: Any) -> Any:
        h = np.maximum(x @ w1.T + b1, 0)
        h = np.maximum(h @ w2.T + b2, 0)
        return {"output": h @ w3.T + b3}

    def generated(x: Any) -> Any:
        return compiled.evaluate(params, x)

    ours, hand = turns(lambda: generated(data), lambda: by_hand(data["input"]))
    return ours * 1e6, hand * 1e6


def main() -> None:
    """Print the table."""
    chain(10)
    print(f"{'what':<58}{'measured':>12}{'aim':>12}")
    small, large = timed(lambda: chain(500), 5), timed(lambda: chain(1000), 5)
    print(f"{'build and compile 1,000 Linear+Relu':<58}{large:>9.1f} ms{150:>9} ms")
    print(f"{'  growth from 500 to 1,000 (2 is linear)':<58}{large / small:>12.2f}{'':>12}")
    models.main()
    ours, hand = call_overhead()
    print(f"{'MLP 784-128-64-10, batch 1: generated call':<58}{ours:>9.1f} µs{'':>12}")
    print(f"{'  the same lines by hand':<58}{hand:>9.1f} µs{'':>12}")
    print(f"{'  difference':<58}{ours - hand:>9.1f} µs{3:>9} µs")


if __name__ == "__main__":
    main()
