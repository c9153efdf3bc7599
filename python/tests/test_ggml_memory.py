"""Peak memory of models on ggml: weights once, what is planned, and little more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mithril as ml
import numpy as np
import pytest

#: Loads the model of a folder in a process of its own, and prints by how many bytes its peak grew, and the plan.
RUN = """
import sys
from pathlib import Path
import numpy as np
import mithril as ml

def status(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

def peak(work):
    # The peak so far is forgotten.
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    compiled = work()
    print(status("VmHWM") - before, compiled.memory.total, compiled.memory.weights)

def load(name, size):
    x = np.ones((1, size, 6, 6), np.float32)
    model = ml.load(folder / f"{name}.json")
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=2), shapes={"input": x.shape}, inference=True)
    ml.load_weights(compiled, folder / f"{name}.gguf")
    for _ in range(2):
        compiled.evaluate({}, {"input": x})
    return compiled

def quantize():
    compiled.evaluate(params, {"input": np.ones((1, 2048), np.float32)})
    return compiled

folder = Path(sys.argv[1])
# The program code that any model needs, and what threads start with.
load("small", 4)
peak(lambda: load("large", 384))
model = ml.Model()
model |= ml.Linear(4096)(input="input", output="output")
backend = ml.GGMLBackend(num_threads=2, quantize="q8_0")
compiled = ml.compile(model, backend, shapes={"input": [1, 2048]}, inference=True)
params = compiled.randomize_params(seed=0)
peak(quantize)
"""

#: What compiling and reading the file take besides.
SLACK = 4e6


def norms(size: int, count: int) -> ml.Model:
    """Convolutions with batch norms, whose weights are folded when they are packed."""
    model = ml.Model()
    model |= ml.Conv2d(kernel_size=3, out_channels=size, padding=1, use_bias=False)(input="input")
    for i in range(count):
        model += ml.BatchNorm2d()
        model += ml.Relu()
        if i + 1 < count:
            model += ml.Conv2d(kernel_size=3, out_channels=size, padding=1, use_bias=False)
    return model


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell the peak of a process this way")
def test_weights_are_there_once(tmp_path: Path) -> None:
    for name, size, count in (("small", 4, 1), ("large", 384, 7)):
        model = norms(size, count)
        shapes = {"input": [1, size, 6, 6]}
        compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True)
        compiled.load_params(compiled.randomize_params(seed=0))
        ml.save(model, tmp_path / f"{name}.json")
        ml.save_gguf(compiled, tmp_path / f"{name}.gguf", layout=None)
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], check=True, capture_output=True, text=True)
    (folded, planned, from_file), (quantized, small, _) = (map(int, line.split()) for line in done.stdout.splitlines())
    weights = 384 * 384 * 9 * 4 * 7
    # Nothing but the folded weights is kept.
    assert weights < planned
    assert from_file < weights / 100
    assert folded <= 1.1 * planned + SLACK, done.stdout
    # Beside the array in memory its blocks.
    assert 4096 * 2048 < small < 1.2 * 4096 * 2048
    assert quantized <= 1.1 * small + SLACK, done.stdout


def test_the_plan_of_the_memory_adds_up() -> None:
    model = ml.Model()
    model |= ml.Linear(64, name="up")(input="input", output="output")
    backend = ml.GGMLBackend(num_threads=1, quantize={"up.weight": "q8_0"})
    compiled = ml.compile(model, backend, shapes={"input": ["batch", 256]}, inference=True)
    params = compiled.randomize_params(seed=0)
    sizes = {}
    for rows in (2, 50):
        compiled.evaluate(params, {"input": np.ones((rows, 256), np.float32)})
        sizes[rows] = compiled.memory
    first, last = sizes[2], sizes[50]
    assert first.weights == 64 * 4
    assert first.prepared == 64 * 256 // 32 * 34
    assert first.total == first.weights + first.prepared + first.graph + first.work
    assert last.graph + last.work > first.graph + first.work
    # Both read the same bias.
    assert last.all_sizes == first.total + last.total - first.weights
    assert "all sizes" in str(last)
    assert "all sizes" not in str(first)

    limited = ml.GGMLBackend(num_threads=1, quantize={"up.weight": "q8_0"}, memory_limit=last.all_sizes - 1)
    compiled = ml.compile(model, limited, shapes={"input": ["batch", 256]}, inference=True)
    compiled.evaluate(params, {"input": np.ones((2, 256), np.float32)})
    with pytest.raises(MemoryError, match=f"needs {last.all_sizes} bytes"):
        compiled.evaluate(params, {"input": np.ones((50, 256), np.float32)})


def test_plans_say_how_sizes_are_meant_and_what_calls_make() -> None:
    model = ml.Model()
    model |= ml.Linear(32, name="up")(input="input", output="hidden")
    model += ml.Gelu(name="bend")
    compiled = ml.compile(model, ml.GGMLBackend(num_threads=1), shapes={"input": [2, 64]}, inference=True)
    lines = compiled.source.splitlines()
    assert lines[0].startswith("#")
    assert "fastest" in lines[0]
    assert compiled.stages["plan"] == compiled.source
    calls = {line.split("# ")[1] for line in lines if "= ggml_" in line and "# " in line}
    assert {"hidden", "bend"} <= calls or {"up", "bend"} <= calls, compiled.source
