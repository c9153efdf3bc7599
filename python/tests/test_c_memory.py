"""How much memory models in C take: while weights are packed, and with a limit."""

import json
import os
import subprocess
import sys

import mithril as ml
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the memory of a process in /proc")

#: Layers of 4 MB, and norms: small arrays that calls read as they are.
LAYERS, DIMS = 8, 1024

SHIPPED = """
import json, sys
import numpy as np
import mithril as ml
from test_c_memory import DIMS, status, tower

backend = ml.CBackend(num_threads=1)
compiled = ml.compile(tower(), backend, shapes={"input": [4, DIMS]}, inference=True)
before = status("VmRSS")
packed = compiled.pack(sys.argv[1])
output = compiled.evaluate(packed, {"input": np.ones((4, DIMS), np.float32)})["output"]
print(json.dumps([status("VmHWM") - before, packed.bytes, float(output.sum())]))
"""


def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def tower():
    model = ml.Model()
    for i in range(LAYERS):
        names = {"input": "input"} if i == 0 else {}
        model += ml.Linear(DIMS)(**names)
        model += ml.LayerNorm()(**({"output": "output"} if i == LAYERS - 1 else {}))
    return model


def test_weights_of_a_file_are_in_memory_once(tmp_path):
    compiled = ml.compile(tower(), ml.CBackend(num_threads=1), shapes={"input": [4, DIMS]}, inference=True)
    params = compiled.randomize_params(seed=0)
    ml.save(params, tmp_path / "tower.safetensors")
    expected = compiled.evaluate(params, {"input": np.ones((4, DIMS), np.float32)})["output"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SHIPPED, str(tmp_path / "tower.safetensors")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    grown, packed, total = json.loads(done.stdout.splitlines()[-1])
    weights = LAYERS * DIMS * DIMS * 4
    assert weights <= packed <= weights * 1.05
    # One layer more while it is packed, and 8 MB for everything else.
    assert packed < grown < packed + DIMS * DIMS * 4 + (8 << 20)
    assert total == pytest.approx(float(expected.sum()), rel=1e-4, abs=1e-2)


def network():
    model = ml.Model()
    model |= ml.Convolution2D(64, 3, padding=1)(input="input")
    model += ml.BatchNorm2D()
    model += ml.Relu()
    model += ml.Convolution2D(64, 3, padding=1)(output="output")
    return model


def test_statistics_come_from_the_file_as_well(tmp_path):
    shapes = {"input": [1, 64, 8, 8]}
    data = {"input": np.random.default_rng(0).standard_normal((1, 64, 8, 8)).astype(np.float32)}
    source = ml.compile(network(), ml.CBackend(num_threads=1), shapes=shapes, inference=True)
    params = source.randomize_params(seed=0)
    state = {name: np.full_like(value, 2.0) for name, value in source.state.items()}
    ml.save({**params, **state}, tmp_path / "network.safetensors")
    source.load_params({**params, **state})
    expected = source.evaluate(source.parameters, data)["output"]
    shipped = ml.compile(network(), ml.CBackend(num_threads=1), shapes=shapes, inference=True)
    packed = shipped.pack(tmp_path / "network.safetensors")
    np.testing.assert_array_equal(shipped.evaluate(packed, data)["output"], expected)
    # A state that is given counts, whatever statistics come with the parameters.
    packed = shipped.pack(params, state=state)
    np.testing.assert_array_equal(shipped.evaluate(packed, data)["output"], expected)
    ml.save({name: params[name] for name in source.parameter_keys}, tmp_path / "half.safetensors")
    with pytest.raises(ml.errors.ParameterError, match="missing"):
        shipped.pack(tmp_path / "half.safetensors")


def test_packed_weights_take_the_bytes_of_weights_in_every_way_of_convolving():
    shapes = {"input": [1, 64, 56, 56]}
    backend = ml.CBackend(num_threads=1)
    compiled = ml.compile(network(), backend, shapes=shapes, inference=True)
    packed = compiled.pack(compiled.randomize_params(seed=0))
    weights, numbers = 2 * 64 * 64 * 9 * 4, 64 * 16
    assert weights <= packed.bytes <= weights + numbers
    with pytest.raises(ml.errors.MithrilError, match="the limit is"):
        ml.compile(network(), ml.CBackend(memory_limit=weights), shapes=shapes, inference=True)
