"""Run by `test_pipeline_training.py` in processes that torch.distributed connects: pipelines against one device.

``python pipeline_training.py FOLDER FAULT``; prints ``agrees`` on each process. After that the second one does what the
fault says, ``raise`` or ``kill``, between two steps of the others.
"""

import collections
import functools
import os
import signal
import sys

import mithril as ml
import numpy as np
import pipeline_models
from mithril.backends.with_autograd.torch_backend.mesh import TorchMesh
from mithril.parallel.stage_array import StageArray

IDS = np.random.default_rng(0).integers(0, 64, (3, 6, 8))
TARGETS = np.random.default_rng(1).integers(0, 64, (3, 6, 8))
BATCH = {"input": IDS[0], "target": TARGETS[0]}
#: The embedding is read by the first stage and by the last one.
OPTIMIZERS = {
    "clipped": lambda: ml.optim.AdamW(0.01, clip_norm=0.2),
    "accumulated": lambda: ml.optim.SGD(0.1, momentum=0.9, clip_norm=0.2, accumulate=2),
    "factored": lambda: ml.optim.Adafactor(0.01, groups={"*.bias": {"learning_rate_factor": 0.5}}),
}


def gpt():
    model = ml.Model()
    model |= ml.models.create_gpt(vocab_size=64, num_layers=2, num_heads=2, dims=8, block_size=8)(input="input")
    # The loss takes the classes behind the batch.
    model += ml.Transpose((0, 2, 1))(output="logits")
    return model


def trained(backend, layout, optimizer, watch=lambda: None):
    """Losses of some batches, and parameters behind them."""
    compiled = ml.compile(gpt(), backend, shapes={"input": [6, 8]}, layout=layout)
    compiled.randomize_params(seed=0)
    step = ml.train.TrainingStep(compiled, OPTIMIZERS[optimizer](), loss="cross_entropy")
    losses = []
    for ids, target in zip(IDS, TARGETS, strict=True):
        losses.append(float(backend.to_numpy(step({"input": ids, "target": target})[step.loss])))
        watch()
    params = {name: np.asarray(backend.to_numpy(value)) for name, value in step.params.items()}
    return {"losses": np.array(losses), **params}, step


@functools.cache
def on_one_device(optimizer):
    return trained(ml.NumpyBackend(dtype="float64"), None, optimizer)[0]


def check(backend, layout, optimizer, watch=lambda: None):
    """Compare a training with the same on one device."""
    expected = on_one_device(optimizer)
    actual, step = trained(backend, layout, optimizer, watch)
    for name, value in expected.items():
        where = f"{name}, {optimizer} on {layout}"
        np.testing.assert_allclose(actual[name], value, rtol=1e-10, atol=1e-11, err_msg=where)
    return step


def check_bytes(layout, optimizer):
    """What a process sends in a step is what the plan says of its stage, and numbers of the optimizer."""
    counted = collections.Counter()
    sent, told = TorchMesh.send, TorchMesh.broadcast

    def counting_send(self, peer, array):
        counted["sent"] += array.nbytes
        return sent(self, peer, array)

    def counting_broadcast(self, array, source, shape, dtype):
        counted["told"] += array.nbytes if source == self.rank else 0
        return told(self, array, source, shape, dtype)

    rows = []

    def watch():
        rows.append(dict(counted))
        counted.clear()

    TorchMesh.send, TorchMesh.broadcast = counting_send, counting_broadcast
    try:
        step = check(torch(), layout, optimizer, watch)
    finally:
        TorchMesh.send, TorchMesh.broadcast = sent, told
    plan = step.model.parallel_plan
    own = next(n for n in range(layout.stage_count) if rank() in layout.ranks(n))
    arrays = [array for array in step.params.values() if isinstance(array, StageArray)]
    assert len(arrays) == len(step.params)
    assert {array.value is None for array in arrays} == {True, False}
    # The first step also sends dtypes and shapes.
    for row in rows[1:]:
        numbers = row.get("sent", 0) - plan.stages[own].sent
        assert 0 <= numbers <= 64, (row, plan.stages[own])
        # Of the loss each device has all.
        assert row.get("told", 0) <= plan.stages[own].returned // len(layout.ranks(own)) + 8, (row, plan.stages[own])
    return step


def check_fit(layout, folder):
    """A training that goes on from its checkpoint gives what it gives in one go, and what one device gives."""
    data = {"input": IDS.reshape(-1, 8), "target": TARGETS.reshape(-1, 8)}

    def fit(backend, layout, epochs, **options):
        compiled = ml.compile(gpt(), backend, layout=layout)
        options |= {"loss": "cross_entropy", "batch_size": 6, "optimizer": ml.optim.AdamW(0.01, clip_norm=0.5)}
        options |= {"ema": ml.optim.EMA(0.9)}
        history = ml.train.fit(compiled, data, epochs=epochs, progress=False, **options)
        weight = next(iter(compiled.parameters.values()))
        # Each process has the whole of it.
        assert type(weight) is backend.engine.array_type
        return history["loss"], backend.to_numpy(weight)

    whole = fit(torch(seed=3), layout, 2)
    fit(torch(seed=3), layout, 1, checkpoint=folder)
    resumed = fit(torch(seed=3), layout, 2, checkpoint=folder, resume=True)
    assert whole[0] == resumed[0], (whole[0], resumed[0])
    np.testing.assert_array_equal(whole[1], resumed[1])
    alone = fit(ml.NumpyBackend(seed=3, dtype="float64"), None, 2)
    for actual, expected in zip(whole, alone, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-11)


def torch(**options):
    return ml.TorchBackend(device="cpu", dtype="float64", **options)


def rank():
    return int(os.environ["RANK"])


def check_checkpoint(step, folder):
    """A step that goes on from a checkpoint gives bit for bit what it gives without one."""
    path = step.save(folder)
    expected = float(step(BATCH)[step.loss])
    other = ml.train.TrainingStep(step.model, OPTIMIZERS["clipped"](), loss=step.loss)
    other.load(path)
    assert float(other(BATCH)[other.loss]) == expected
    assert all(isinstance(array, StageArray) for array in other.params.values())


def main(folder, fault):
    if os.environ["WORLD_SIZE"] == "2":
        # Statistics of the whole batch and random numbers; there and back.
        expected, options = pipeline_models.results(ml.NumpyBackend(dtype="float64")), pipeline_models.LAYOUTS[4]
        actual = pipeline_models.results(torch(), **options)
        for name, value in expected.items():
            np.testing.assert_allclose(actual[name], value, rtol=1e-10, atol=1e-11, err_msg=f"{name}, {options}")
        check_fit(ml.Pipeline(2, micro_batches=3), f"{folder}/fit")
        check(torch(), ml.Pipeline(2, micro_batches=2, schedule="interleaved"), "accumulated")
        layout = ml.Pipeline(2, micro_batches=3)
    else:
        sharded = ml.Layout(ml.Mesh(data=2), batch="data", parameters="data")
        layout = ml.Pipeline(2, micro_batches=3, layout=sharded)
    step = check_bytes(layout, "clipped")
    check_checkpoint(step, f"{folder}/steps")
    print("agrees", flush=True)
    if rank() == 1:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise RuntimeError("a mistake of the user")
    step(BATCH)


if __name__ == "__main__":
    main(*sys.argv[1:])
