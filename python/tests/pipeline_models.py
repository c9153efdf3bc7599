"""Models of the tests of pipelines, and what they give on one device; also run by `mesh_program.py`."""

import mithril as ml
import numpy as np
from mithril.parallel.strategies import strategy_layout

X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
TARGET = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)


def layers():
    """Statistics of the whole batch, random numbers and states, on both sides of a cut."""
    model = ml.Model()
    model |= ml.Linear(8, name="layer1")(input="input")
    model += ml.BatchNorm1d(name="norm")
    model += ml.Relu()
    model += ml.Dropout(0.5)
    model += ml.Linear(4, name="layer2")(output="output")
    return model


def text():
    return ml.models.create_gpt(vocab_size=64, num_layers=4, num_heads=4, dims=16, block_size=8)


def results(backend, layout=None, placement=None):
    """Outputs, gradients and statistics; losses of three steps, and the parameters behind them."""
    model = layers()
    if placement is not None:
        assert backend.place_model(model, placement) is model
    compiled = ml.compile(model, backend, shapes={"input": [8, 6]}, layout=layout)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, {"input": X}, output_gradients=True)
    computed = {**outputs, **gradients, "mean": compiled.state["norm.running_mean"]}
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.01, clip_norm=0.5), loss="mse")
    losses = [step({"input": X, "target": TARGET})[step.loss] for _ in range(3)]
    # The gradient of a bias in front of a batch norm is 0: Adam takes steps along what rounding leaves of it, which the
    # mean of the batch follows.
    noise = ("layer1.bias", "norm.running_mean")
    computed |= {f"trained {name}": value for name, value in step.params.items() if name not in noise}
    return {name: backend.to_numpy(value) for name, value in {**computed, "losses": backend.stack(losses)}.items()}


STAGES = {"layer1": 0, "layer2": 1}
LAYOUTS = (
    {"placement": STAGES},
    {"placement": {"layer1": 1, "layer2": 1}},
    {"layout": ml.Pipeline(STAGES, micro_batches=4)},
    {"layout": ml.Pipeline(STAGES, micro_batches=8, schedule="gpipe")},
    # There and back, and a device that gets its inputs from the one behind it.
    {"layout": ml.Pipeline({"layer1": 0, "norm": 1, "layer2": 0}, micro_batches=2, schedule="interleaved")},
    {"layout": ml.Pipeline({"layer1": 1, "layer2": 0}, micro_batches=1)},
)
#: Two stages on two devices each.
MIXED = (
    {"layout": ml.Pipeline(STAGES, micro_batches=2, layout=ml.Mesh(data=2))},
    {"layout": ml.Pipeline(STAGES, layout=ml.Layout(ml.Mesh(data=2), batch="data", parameters="data"))},
    # The devices of a stage are not beside each other.
    {"layout": strategy_layout({"model": "model_parallel", "pipe": "pipeline_parallel"}, ml.Mesh(model=2, pipe=2))},
)


def compare(name, devices, layouts, dtype="float32", tolerance=1e-4):
    """Compare pipelines on devices of a backend with NumPy on one device."""
    expected = results(ml.NumpyBackend(dtype=dtype))
    for options in layouts:
        actual = results(ml.get_backend(name, devices=devices, dtype=dtype), **options)
        for key, value in expected.items():
            where = f"{key}, {options}"
            assert actual[key].dtype == value.dtype, where
            np.testing.assert_allclose(actual[key], value, rtol=tolerance, atol=tolerance / 10, err_msg=where)
