"""The packages of `mithril`: what is imported from where, and what one of them may read of another."""

import pickle

import mithril as ml
import numpy as np


def test_pickles_of_the_former_modules_load():
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]})
    params = compiled.get_parameters()
    x = np.ones((1, 3), np.float32)
    for what, old in ((params, b"mithril.parameters"), (compiled, b"mithril.physical")):
        content = pickle.dumps(what, protocol=0)
        new = type(what).__module__.encode()
        assert new in content
        # Protocol 0 writes module names as lines of text.
        loaded = pickle.loads(content.replace(new, old))
        assert type(loaded) is type(what)
        found = loaded if old.endswith(b"parameters") else loaded.get_parameters()
        np.testing.assert_array_equal(
            compiled.evaluate(found, {"input": x})["output"], compiled.evaluate(params, {"input": x})["output"]
        )
