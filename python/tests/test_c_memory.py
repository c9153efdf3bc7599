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
    wanted = compiled.evaluate(params, {"input": np.ones((4, DIMS), np.float32)})["output"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SHIPPED, str(tmp_path / "tower.safetensors")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    grown, packed, total = json.loads(done.stdout.splitlines()[-1])
    weights = LAYERS * DIMS * DIMS * 4
    assert weights <= packed <= weights * 1.05
    # One layer more while it is packed, and 8 MB for everything else.
    assert packed < grown < packed + DIMS * DIMS * 4 + (8 << 20)
    assert total == pytest.approx(float(wanted.sum()), rel=1e-4, abs=1e-2)


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
    wanted = source.evaluate(source.parameters, data)["output"]
    shipped = ml.compile(network(), ml.CBackend(num_threads=1), shapes=shapes, inference=True)
    packed = shipped.pack(tmp_path / "network.safetensors")
    np.testing.assert_array_equal(shipped.evaluate(packed, data)["output"], wanted)
    ml.save(params, tmp_path / "half.safetensors")
    with pytest.raises(ml.errors.ParameterError, match="missing"):
        shipped.pack(tmp_path / "half.safetensors")


def test_a_limit_of_memory_chooses_kernels_that_fit():
    shapes = {"input": [1, 64, 56, 56]}
    data = {"input": np.random.default_rng(0).standard_normal((1, 64, 56, 56)).astype(np.float32)}

    def bytes_and_output(**options):
        backend = ml.CBackend(num_threads=1, **options)
        compiled = ml.compile(network(), backend, shapes=shapes, inference=True)
        params = compiled.randomize_params(seed=0)
        packed = compiled.pack(params)
        return packed.bytes, compiled._known().module.source, compiled.evaluate(packed, data)["output"]

    fastest, source, wanted = bytes_and_output()
    weights = 2 * 64 * 64 * 9 * 4
    if fastest < 1.5 * weights:
        pytest.skip("no convolution goes Winograd's way on this processor")
    limit = source.packed_bytes + source.arena_bytes - 4
    small, _, found = bytes_and_output(memory_limit=limit)
    assert small < fastest
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    with pytest.raises(ml.errors.MithrilError, match="the limit is"):
        bytes_and_output(memory_limit=weights)
