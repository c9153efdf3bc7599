"""What only the PyTorch backend has: devices of what is created, one graph for `torch.compile`, calls of PyTorch."""

import mithril as ml
import numpy as np
import pytest
from mithril import _core
from mithril.testing import cases
from networks import image_block, text_block

torch = pytest.importorskip("torch")

ROWS = _core.op_definitions()
META = ml.TorchBackend(device="meta")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_everything_is_created_on_the_device(row):
    """On the device "meta" nothing is computed, and tensors of any other device are refused."""
    for case in cases(row):
        args = [META.tensor(a) if isinstance(a, np.ndarray) else a for a in case.args]
        outputs = META._op(case.op, args)
        for tensor in outputs if isinstance(outputs, tuple) else (outputs,):
            assert tensor.device.type == "meta", str(case)


def noise():
    model = ml.Model()
    model |= ml.Dropout(0.3)(input="input", output="dropped")
    model |= ml.RandomNormal((4, 3))(output="noise")
    model |= ml.Add()(left="dropped", right="noise", output="output")
    return model


RANDOM = np.random.default_rng(0)
#: Model, shapes, dtype, and the data of two calls.
COMPILED = {
    "image": (
        lambda: image_block(ml.AvgPool2d),
        {"input": [2, 3, 6, 6]},
        "float32",
        [{"input": RANDOM.normal(size=(2, 3, 6, 6))} for _ in range(2)],
    ),
    "random": (noise, {"input": [4, 3]}, "float64", [{"input": RANDOM.normal(size=(4, 3))} for _ in range(2)]),
    "text": (
        text_block,
        {"input": ["batch", 5], "target": ["batch", 5]},
        "bfloat16",
        [{name: RANDOM.integers(0, 50, (n, 5)) for name in ("input", "target")} for n in (2, 3)],
    ),
}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_models_are_one_graph(name):
    """`torch.compile` with `fullgraph=True` refuses graph breaks; the numbers are those of eager execution."""
    make, shapes, dtype, calls = COMPILED[name]
    backend = ml.TorchBackend(dtype=dtype)
    results = []
    for jit in (False, True):
        options = {"jit_options": {"backend": "aot_eager"}} if jit else {}
        model = ml.compile(make(), backend, shapes=shapes, jit=jit, **options)
        params = model.randomize_params(seed=0)
        runs = []
        for data in calls:
            arrays = {key: backend.array(value) for key, value in data.items()}
            outputs, gradients = model.evaluate(params, arrays, True) if params else (model.evaluate({}, arrays), {})
            runs.append({**outputs, **gradients, **model.state})
        results.append(runs)
    for eager, compiled in zip(*results, strict=True):
        assert list(eager) == list(compiled)
        for key, value in eager.items():
            assert compiled[key].dtype == value.dtype
            torch.testing.assert_close(compiled[key], value)


def test_generated_code_is_what_one_writes_by_hand():
    backend = ml.TorchBackend()
    lines = ml.compile(
        image_block(ml.AvgPool2d), backend, shapes={"input": [2, 3, 6, 6]}, inference=True
    ).source.splitlines()
    calls = [line.split(" = ")[1].split("(")[0] for line in lines if "(" in line and " = " in line]
    assert calls == ["F.conv2d", "F.batch_norm", "torch.relu", "F.avg_pool2d"]
