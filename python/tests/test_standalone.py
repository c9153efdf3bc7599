"""Generated Python stands alone: it runs in a process that has the framework and no Mithril."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from test_zoo_c import MODELS as ZOO

KINDS = {"numpy": "NumpyBackend", "torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend"}

#: Runs the modules that are listed in a file, with the arrays beside them, and saves what they return.
RUNNER = """
import importlib.util, json, sys
import numpy as np

class Absent:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "mithril":
            raise ImportError("there is no Mithril here")

sys.meta_path.insert(0, Absent())
kind, jobs = json.load(open(sys.argv[1]))
if kind == "torch":
    import torch
    take, give = lambda a: torch.from_numpy(np.array(a)), lambda t: t.detach().float().numpy()
elif kind == "jax":
    import jax.numpy as jnp
    take, give = jnp.asarray, np.asarray
elif kind == "mlx":
    import mlx.core as mx
    take, give = mx.array, np.array
else:
    take, give = np.asarray, np.asarray
for path in jobs:
    spec = importlib.util.spec_from_file_location("generated", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    groups = {"params": {}, "data": {}, "state": {}, "cotangents": {}}
    for key, array in np.load(path + ".inputs.npz").items():
        group, _, name = key.partition(":")
        groups[group][name] = take(array)
    names = ("params", "data", "state")
    if hasattr(module, "evaluate_gradients"):
        result = module.evaluate_gradients(*(groups[name] for name in (*names, "cotangents")))
    else:
        result = module.evaluate(*(groups[name] for name in names))
    dicts = result if isinstance(result, tuple) else (result,)
    np.savez(path + ".found.npz", **{f"{i}:{k}": give(v) for i, d in enumerate(dicts) for k, v in d.items()})
"""


def recurrent():
    model = ml.Model()
    model |= ml.LSTM(hidden_size=6, length=7)(input="input", output="hidden")
    model += ml.Linear(3)(output="output")
    return model


def convolutional():
    model = ml.Model()
    model |= ml.Conv2d(in_channels=2, out_channels=4, kernel_size=3, padding=1)(input="input", output="a")
    model += ml.BatchNorm2d()()
    model += ml.Relu()()
    model += ml.Dropout(0.5)()
    model += ml.Upsample(scale_factor=2, mode="bilinear")(output="output")
    return model


def with_table():
    """A table of numbers that follow from no formula."""
    table = np.random.default_rng(5).normal(size=(8, 8)).astype("f4")
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="a")
    model |= ml.MatrixMultiply()(left="a", right=table, output="output")
    return model


#: Known models that are always executed; all with MITHRIL_TEST_ALL, which takes minutes.
SOME = ("llama", "t5_decode", "vit")
SMALL = {"dims": 16, "num_heads": 2, "num_layers": 2, "vocab_size": 31, "block_size": 64}
MODELS = {
    "gpt": (lambda: ml.models.create_gpt(bias=True, **SMALL), {"input": ("ids", (2, 64))}),
    "gpt of more positions": (
        lambda: ml.models.create_gpt(bias=True, **{**SMALL, "block_size": 128}),
        {"input": ("ids", (1, 128))},
    ),
    "encoder": (lambda: ml.TransformerEncoder(2, 16, 2, 32), {"input": ("floats", (2, 9, 16))}),
    "recurrent": (recurrent, {"input": ("floats", (7, 2, 5))}),
    "convolutional": (convolutional, {"input": ("floats", (2, 2, 6, 6))}),
    "table": (with_table, {"input": ("floats", (3, 4))}),
    **{f"zoo {name}": model for name, model in ZOO.items() if name in SOME or "MITHRIL_TEST_ALL" in os.environ},
}
#: Of the zoo's models, those whose gradients are generated as well: one of images, one of text.
DIFFERENTIATED = ("zoo vit", "zoo t5_decode")
#: What is always executed with JAX, which compiles for seconds.
QUICK = ("inference", "quantized")
OPTIONS = {
    "training": {},
    "gradients": {"autodiff": "graph"},
    "inference": {"inference": True},
    "mixed precision": {"inference": True, "precision": "bfloat16"},
    "quantized": {"inference": True},
}


def arrays_of(kinds):
    random = np.random.default_rng(0)
    return {
        name: random.integers(0, 31, shape) if kind == "ids" else random.normal(size=shape).astype("f4")
        for name, (kind, shape) in kinds.items()
    }


def jobs_of(kind, folder):
    """Write all sources of a backend; path, and what the compiled model computes."""
    for name, (build, kinds) in MODELS.items():
        for option, setting in OPTIONS.items():
            if name.startswith("zoo") and option != ("gradients" if name in DIFFERENTIATED else "inference"):
                continue
            if kind == "jax" and name != "gpt" and option not in QUICK and "MITHRIL_TEST_ALL" not in os.environ:
                continue
            if option == "quantized" and kind == "mlx":
                continue
            if option == "mixed precision" and kind == "numpy":
                continue
            backend = getattr(ml, KINDS[kind])(**({"quantize": "int8"} if option == "quantized" else {}))
            data = kinds if name.startswith("zoo") else arrays_of(kinds)
            path = folder / f"{name} {option}.py".replace(" ", "_")
            shapes = {key: list(value.shape) for key, value in data.items()}
            compiled = ml.compile(build(), backend, shapes=shapes, file_path=str(path), **setting)
            params = compiled.randomize_params(seed=0)
            state = {key: backend.to_numpy(value) for key, value in compiled.state.items()}
            arrays = {key: backend.to_numpy(value) for key, value in params.items() if key not in state}
            if option == "quantized":
                arrays = {key: backend.to_numpy(value) for key, value in compiled.pack(params).items()}
            groups = {"params": arrays, "data": data, "state": state}
            if option == "gradients":
                outputs, gradients = compiled.evaluate(params, data, output_gradients=True)
                # The call has written the source of `evaluate` once more.
                compiled.save_source(path, gradients=True)
                groups["cotangents"] = {
                    key: np.ones(value.shape, "f4") for key, value in outputs.items() if "float" in str(value.dtype)
                }
                expected = {
                    **{f"0:{key}": value for key, value in outputs.items()},
                    **{f"1:{key}": gradients[key] for key in compiled.parameter_keys},
                }
            else:
                outputs = compiled.evaluate(params, data)
                expected = {f"0:{key}": value for key, value in outputs.items()}
            flat = {f"{group}:{key}": value for group, values in groups.items() for key, value in values.items()}
            np.savez(f"{path}.inputs.npz", **flat)
            yield str(path), {key: np.asarray(backend.to_numpy(value), "f8") for key, value in expected.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_generated_sources_run_without_mithril(kind, tmp_path):
    try:
        getattr(ml, KINDS[kind])()
    except ml.errors.BackendUnavailableError as error:
        pytest.skip(str(error))
    jobs = dict(jobs_of(kind, tmp_path))
    (tmp_path / "jobs.json").write_text(json.dumps([kind, list(jobs)]))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"JAX_ENABLE_X64": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(tmp_path / "jobs.json")],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for path, expected in jobs.items():
        actual = np.load(f"{path}.found.npz")
        for key, value in expected.items():
            np.testing.assert_allclose(
                actual[key].astype("f8"), value, atol=1e-5 * max(1, np.abs(value).max()), err_msg=f"{path} {key}"
            )
        # Nothing of the generated functions is too long; helpers are written by hand.
        lines = Path(path).read_text().partition("def evaluate")[2].split("\n")
        assert max(map(len, lines)) <= 100, path


def test_formulas_are_written_as_formulas():
    model, kinds = MODELS["gpt"]
    for kind in ("numpy", "jax"):
        try:
            backend = getattr(ml, KINDS[kind])()
        except ml.errors.BackendUnavailableError:
            continue
        compiled = ml.compile(model(), backend, shapes={"input": list(kinds["input"][1])})
        assert "_CONSTANTS" not in compiled.source
        assert "_CONSTANTS" not in compiled.gradient_source
        # Once, when the module is loaded.
        assert "arange(64)" in compiled.source.partition("def evaluate")[0]


def test_what_is_returned_is_part_of_no_formula():
    """Callers may write into it; what follows from it cannot be computed when the module is loaded either."""
    table = np.random.default_rng(3).normal(size=(8, 8)).astype("f4")
    model = ml.Model()
    model |= ml.CumSum(axis=0)(input=table, output="sums")
    model |= ml.Where()(condition=model.sums >= 0.5, input="x", other=0.0, output="output")
    model.set_outputs("sums", "output")
    for kind in KINDS:
        try:
            backend = getattr(ml, KINDS[kind])()
        except ml.errors.BackendUnavailableError:
            continue
        compiled = ml.compile(model, backend, shapes={"x": [8, 8]}, dtypes={"x": "float32"}, data_keys={"x"})
        for _ in range(2):
            outputs = {
                key: np.asarray(backend.to_numpy(value))
                for key, value in compiled.evaluate({}, {"x": backend.ones(8, 8)}).items()
            }
            np.testing.assert_allclose(outputs["sums"], table.cumsum(0), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(outputs["output"], outputs["sums"] >= 0.5)
            if kind == "numpy":
                outputs["sums"] += 1
