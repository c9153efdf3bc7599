"""Run by `test_parallel.py` in the processes of a mesh: models divided by every layout against NumPy on one device.

``python mesh_program.py BACKEND DEVICES [FOLDER]``; prints ``agrees`` on the first process. With a folder, a training
is also broken off and resumed from its checkpoints there. With ``fault`` or ``silence`` in its place, the last process
raises, or no longer answers.
"""

import collections
import os
import sys
import time
import warnings

import image_models
import mithril as ml
import ml_dtypes
import numpy as np
import pipeline_models
from mithril.compiled import internals
from mithril.parallel.pipeline_devices import DevicePipelineEngine
from mithril.parallel.pipeline_engine import StagedProgram
from mithril.parallel.stage_array import StageArray

RANDOM = np.random.default_rng(0)


def perceptron():
    model = ml.Model()
    model |= ml.Linear(32, name="up")(input="input", output="hidden")
    model += ml.Gelu()
    model += ml.LayerNorm(name="norm")
    model += ml.Linear(8, name="down")(output="output")
    return model, {"input": RANDOM.standard_normal((8, 12)).astype(np.float32)}


def convolutional():
    model = ml.Model()
    model |= ml.Convolution2D(filters=8, kernel_size=3, padding=1, use_bias=False, name="conv")(input="input")
    model += ml.BatchNorm2d(name="norm")
    model += ml.Relu()
    model += ml.MaxPool2d(2)
    model += ml.Flatten()
    model += ml.Linear(4, name="head")(output="output")
    return model, {"input": RANDOM.standard_normal((8, 2, 8, 8)).astype(np.float32)}


def text():
    model = ml.models.create_gpt(vocab_size=64, num_layers=2, num_heads=4, dims=16, block_size=8)
    return model, {"input": RANDOM.integers(0, 64, (4, 8))}


def layouts(devices, groups):
    yield ml.Mesh(data=devices)
    yield ml.Layout(ml.Mesh(data=devices), batch="data", parameters="data")
    yield ml.Layout(ml.Mesh(model=devices), parameters="model")
    if groups and devices % 2 == 0:
        yield ml.Layout(ml.Mesh(data=2, model=devices // 2), batch="data", parameters="model")


def worst(actual, expected):
    """Largest distance in parts of the largest element, which is taken as 1e-3 at least."""
    actual = {name: np.asarray(actual[name]) for name in expected}
    return max(np.abs(actual[k] - expected[k]).max() / max(np.abs(expected[k]).max(), 1e-3) for k in expected)


def trained(model, data, backend, params, layout):
    """Losses of three steps."""
    target = np.arange(len(data["input"])) % 4
    shapes = {name: list(array.shape) for name, array in data.items()}
    compiled = ml.compile(model, backend, shapes=shapes, layout=layout)
    compiled.load_params(params)
    step = ml.train.TrainingStep(compiled, ml.optim.AdamW(0.01, clip_norm=0.1), loss="cross_entropy")
    losses = [float(backend.to_numpy(step({**data, "target": target})[step.loss])) for _ in range(3)]
    return losses, {name: backend.to_numpy(array) for name, array in step.params.items()}


def backend_of(name, devices, **options):
    """The backend; one with workers of this process is called ``"torch workers"``."""
    name, _, workers = name.partition(" ")
    return ml.get_backend(name, **({"devices": ["cpu"] * devices} if workers else {}), **options)


def check(name, devices, every=True):
    """Compare with NumPy: every layout of every model, or one of each."""
    for number, build in enumerate((perceptron, convolutional, text)):
        model, data = build()
        shapes = {key: list(value.shape) for key, value in data.items()}
        reference = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
        params = dict(reference.randomize_params(seed=1).items())
        state = dict(reference.state)
        seeds = {
            k: RANDOM.standard_normal(v.shape).astype(np.float32) for k, v in reference.evaluate(params, data).items()
        }
        outputs, gradients = reference.evaluate(params, data, seeds)
        after = None if build is text else trained(model, data, ml.NumpyBackend(), {**params, **state}, None)
        chosen = list(layouts(devices, name != "mlx"))
        for layout in chosen if every else [chosen[-1 - number % len(chosen)]]:
            backend = backend_of(name, devices)
            # Sizes that are left open become known at the first call.
            compiled = ml.compile(model, backend, layout=layout, shapes={} if build is perceptron else shapes)
            arrays = {key: backend.array(value) for key, value in params.items()}
            cotangents = {key: backend.array(value) for key, value in seeds.items()}
            results = compiled.evaluate(arrays, data, cotangents)
            where = f"{build.__name__} on {name}, {layout}"
            assert worst(compiled.evaluate(arrays, data), outputs) < 1e-5, where
            assert worst(results[0], outputs) < 1e-5, where
            assert worst(results[1], gradients) < 1e-4, where
            if after is not None:
                losses, new = trained(model, data, backend_of(name, devices), {**params, **state}, layout)
                np.testing.assert_allclose(losses, after[0], rtol=1e-4, err_msg=where)
                assert worst(new, after[1]) < 1e-3, where


def check_space(name, devices):
    """A ResNet and a U-Net whose images are divided in space."""
    meshes = [(ml.Mesh(rows=devices), (None, None, "rows"))]
    if name != "mlx" and devices % 2 == 0 and devices > 2:
        meshes = [(ml.Mesh(rows=2, columns=devices // 2), (None, None, "rows", "columns"))]
    for build in (image_models.resnet, image_models.unet):
        model, data = build()
        data = {key: value.astype(np.float32) for key, value in data.items()}
        shapes = {key: list(value.shape) for key, value in data.items()}
        reference = ml.compile(model, ml.NumpyBackend(), shapes=shapes)
        params = reference.randomize_params(seed=1)
        outputs, gradients = reference.evaluate(params, data, output_gradients=True)
        for mesh, spec in meshes:
            backend = backend_of(name, devices)
            compiled = ml.compile(model, backend, layout=ml.Layout(mesh, {"input": spec}), shapes=shapes)
            arrays = {key: backend.array(value) for key, value in params.items()}
            results = compiled.evaluate(arrays, data, output_gradients=True)
            where = f"{build.__name__} on {name}, {mesh}"
            assert worst({key: backend.to_numpy(value) for key, value in results[0].items()}, outputs) < 1e-4, where
            assert worst({key: backend.to_numpy(value) for key, value in results[1].items()}, gradients) < 1e-3, where


def check_local_statistics(name, devices):
    """Batch norm with the statistics of each device's part: as the parts by themselves on one device."""
    model, data = convolutional()
    x = data["input"]
    parts, own = devices, []
    cotangent = RANDOM.standard_normal((len(x), 4)).astype(np.float32)
    single = ml.compile(model, ml.NumpyBackend(), shapes={"input": [len(x) // parts, *x.shape[1:]]})
    params = {key: value for key, value in single.randomize_params(seed=1).items() if "running" not in key}
    start = {key: value for key, value in single.state.items() if key != "key"}
    for part, seed in zip(np.split(x, parts), np.split(cotangent, parts), strict=True):
        single.load_params({**params, **start})
        own.append((*single.evaluate(params, {"input": part}, {"output": seed}), dict(single.state)))
    layout = ml.Layout(ml.Mesh(data=devices), batch="data", batch_statistics="local")
    backend = backend_of(name, devices)
    compiled = ml.compile(model, backend, layout=layout, shapes={"input": list(x.shape)})
    compiled.load_params({**params, **start})
    arrays = {key: backend.array(value) for key, value in params.items()}
    outputs, gradients = compiled.evaluate(arrays, data, {"output": backend.array(cotangent)})
    where = f"local statistics on {name}"
    whole = {"output": np.concatenate([part[0]["output"] for part in own])}
    assert worst({"output": backend.to_numpy(outputs["output"])}, whole) < 1e-5, where
    sums = {key: sum(part[1][key] for part in own) for key in params}
    assert worst({key: backend.to_numpy(value) for key, value in gradients.items()}, sums) < 1e-4, where
    means = {key: np.mean([part[2][key] for part in own], axis=0) for key in start}
    assert worst({key: backend.to_numpy(compiled.state[key]) for key in start}, means) < 1e-5, where
    return compiled


#: Dtypes in which collectives are tried: those that MLX and gloo have, too.
DTYPES = ("float32", "float16", "int32", "int64", "bool")


def check_collectives(mesh, communicator, own, array, host):
    """Compare the collectives of one process with NumPy; all processes of the mesh have to call this.

    `array` makes an array of the process of one of NumPy and `host` the other way round; `own` is the rank.
    """
    grid = np.arange(mesh.devices).reshape(tuple(mesh.axes.values()))
    place = dict(zip(mesh.axes, (int(i[0]) for i in np.nonzero(grid == own)), strict=True))
    assert communicator.rank == own
    assert communicator.gathered(own * 10**12) == [rank * 10**12 for rank in range(mesh.devices)]
    for number, (name, size) in enumerate(mesh.axes.items()):
        index = tuple(slice(None) if i == number else k for i, k in enumerate(place.values()))
        group = [int(rank) for rank in grid[index]]
        mine = place[name]
        assert int(host(communicator.index(name))) == mine
        for dtype in DTYPES:
            # Small integers: their sums are exact in all dtypes.
            random = np.random.default_rng(5)
            everyone = random.integers(0, 2 if dtype == "bool" else 50, (mesh.devices, 2 * size, 4 * size)).astype(
                dtype
            )
            xs, x = everyone[group], array(everyone[own])
            where = f"{name} of {mesh}, {dtype}"

            def same(actual, expected, op, where=where, dtype=dtype):
                actual = host(actual)
                assert actual.dtype == dtype, f"{op} along {where}: {actual.dtype}"
                np.testing.assert_array_equal(actual, expected, err_msg=f"{op} along {where}")

            for reduction in ("max", "min") if dtype == "bool" else ("sum", "max", "min"):
                same(communicator.all_reduce(x, name, reduction), getattr(xs, reduction)(0).astype(dtype), reduction)
            for axis in (0, 1):
                same(communicator.all_gather(x, name, axis), np.concatenate(xs, axis), f"all_gather {axis}")
                same(communicator.shard(x, name, axis), np.split(everyone[own], size, axis)[mine], f"shard {axis}")
                blocks = [np.split(other, size, axis)[mine] for other in xs]
                if dtype != "bool":
                    reduced = np.sum(blocks, axis=0).astype(dtype)
                    same(communicator.reduce_scatter(x, name, axis), reduced, f"reduce_scatter {axis}")
                    exchanged = np.concatenate(blocks, 1 - axis)
                    same(communicator.all_to_all(x, name, axis, 1 - axis), exchanged, f"all_to_all {axis}")
            if dtype == "bool":
                continue
            # In a circle, and to one neighbor alone, where the first one receives nothing.
            circle = [(n, (n + 1) % size) for n in range(size)]
            same(communicator.permute(x, name, circle), xs[mine - 1], "permute")
            line = xs[mine - 1] if mine else np.zeros_like(xs[0])
            same(communicator.permute(x, name, circle[:-1]), line, "permute in a line")
            started = [communicator.start_all_reduce(array(everyone[own] + k), name) for k in (0, 1)]
            communicator.wait()
            for k, sums in enumerate(started):
                same(sums, (xs + k).sum(0).astype(dtype), "start_all_reduce")


#: Dtypes whose largest and smallest numbers are tried.
SPECIAL = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
SPECIAL += ("float16", "bfloat16", "float32", "float64")


def special_numbers(dtype, size):
    """A row for each of ``size`` devices: NaN, infinities and the ends of integers, in columns on each of them."""
    if dtype == "bool":
        return np.array([[k < n for n in range(size + 1)] for k in range(size)])
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        own, rest = (np.nan, np.inf, -np.inf, np.inf, -np.inf, -0.0), (1.0, 1.0, 1.0, -np.inf, -np.inf, 0.0)
    else:
        ends = np.iinfo(dtype)
        own, rest = (ends.max, ends.min, ends.max, 0, 1), (0, 1, ends.min, ends.max, ends.min)
    dtype = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    columns = [[a if k == n else b for k in range(size)] for n in range(size) for a, b in zip(own, rest, strict=True)]
    if dtype.kind not in "iu":
        # Of several numbers, the one with NaN is the first or the last.
        columns += [[float(k) for k in range(size)], [-float(k) for k in range(size)]]
    return np.array(columns, dtype).T.copy()


def comparable(array):
    """An array whose NaN NumPy recognizes."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def check_special_numbers(mesh, communicator, own, array, host):
    """Maxima and minima of one process are NaN where one number is, and exact at the ends of integers."""
    grid = np.arange(mesh.devices).reshape(tuple(mesh.axes.values()))
    place = dict(zip(mesh.axes, (int(i[0]) for i in np.nonzero(grid == own)), strict=True))
    for name, size in mesh.axes.items():
        for dtype in SPECIAL:
            xs = special_numbers(dtype, size)
            x = array(xs[place[name]])
            for reduction in ("sum", "max", "min"):
                with np.errstate(all="ignore"):
                    expected = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduction].reduce(
                        xs, dtype=xs.dtype
                    )
                actual = host(communicator.all_reduce(x, name, reduction))
                where = f"{reduction} along {name} of {mesh}, {dtype}"
                assert actual.dtype == xs.dtype, f"{where}: {actual.dtype}"
                np.testing.assert_array_equal(*map(comparable, (actual, expected)), err_msg=where)
            everyone = comparable(host(communicator.all_gather(x, name, 0)))
            np.testing.assert_array_equal(everyone, comparable(xs.reshape(-1)), err_msg=f"all_gather, {dtype}")


def collectives(name, devices):
    """The collectives of the processes of a backend."""
    backend = ml.get_backend(name)
    meshes = [ml.Mesh(data=devices)]
    if name != "mlx" and devices % 2 == 0:
        meshes.append(ml.Mesh(data=2, model=devices // 2))
    for mesh in meshes:
        engine = backend.engine.on_mesh(ml.Layout(mesh, batch="data"))
        for check_one in (check_collectives, check_special_numbers):
            check_one(
                mesh,
                engine.mesh,
                rank(name),
                lambda array: backend.tensor(array, array.dtype.name),
                lambda array: np.asarray(backend.to_numpy(array)),
            )


def check_reductions(name, devices):
    """Reductions over the devices in programs: NaN, infinities and the ends of integers, as NumPy has them."""
    backend = backend_of(name, devices)
    for dtype in ("bool", "int32", "int64", "float16", "float32"):
        x = special_numbers(dtype, 2 * devices)
        model, data = ml.Model(), {"input": ml.IOKey("input", dtype=dtype)}
        expected = {"any": x.any(0), "all": x.all(0)}
        model |= ml.Any(axis=0)(input=data["input"], output="any")
        model |= ml.All(axis=0)(input="input", output="all")
        if dtype != "bool":
            for key, layer in (("max", ml.Max), ("min", ml.Min), ("argmax", ml.ArgMax), ("argmin", ml.ArgMin)):
                model |= layer(axis=0)(input="input", output=key)
                expected[key] = getattr(x, key)(0)
        if dtype == "float32":
            model |= ml.Softmax(axis=0)(input="input", output="softmax")
            with np.errstate(all="ignore"):
                shares = np.exp(x - x.max(0))
                expected["softmax"] = shares / shares.sum(0)
        compiled = ml.compile(model, backend, layout=ml.Mesh(data=devices), shapes={"input": x.shape})
        actual = compiled.evaluate({}, {"input": backend.tensor(x, dtype)})
        for key, value in expected.items():
            own = np.asarray(backend.to_numpy(actual[key]))
            np.testing.assert_allclose(own, value, rtol=1e-6, err_msg=f"{key} of {dtype} on {name}")


def check_bytes(name, pipeline, params):
    """The bytes of a plan are those that devices send in a training, and that the script hands over and gets back."""
    compiled = ml.compile(pipeline_models.text(), ml.get_backend(name), shapes={"input": [6, 8]}, layout=pipeline)
    data = {"input": RANDOM.integers(0, 64, (6, 8))}
    counted, call = collections.Counter(), DevicePipelineEngine.call
    moved, arguments = DevicePipelineEngine.moved, StagedProgram.arguments
    programs = []

    def counting_moved(self, array, device):
        counted["between", device] += array.nbytes
        return moved(self, array, device)

    def counting_arguments(self, device, groups):
        for entry in arguments(self, device, groups):
            if not isinstance(entry[2], StageArray):
                counted["handed over", device] += entry[2].nbytes
            yield entry

    def counting_call(self, program, groups):
        programs.append(program)
        return call(self, program, groups)

    DevicePipelineEngine.moved, StagedProgram.arguments = counting_moved, counting_arguments
    DevicePipelineEngine.call = counting_call
    arrays = {key: compiled.backend.array(value) for key, value in params.items()}
    [loss] = compiled.output_keys
    arrays = internals.distributed(compiled, arrays, data, loss)
    counted.clear()
    try:
        outputs, gradients = compiled.evaluate(arrays, data, output_gradients=True)
    finally:
        DevicePipelineEngine.moved, StagedProgram.arguments, DevicePipelineEngine.call = moved, arguments, call
    plan = compiled.parallel_plan
    for device, stage in enumerate(plan.stages):
        assert stage.received == counted["between", device], (pipeline, device, stage, counted)
        assert stage.loaded == counted["handed over", device], (pipeline, device, stage, counted)
    assert plan.bytes_sent == sum(stage.received for stage in plan.stages) > 0
    # Gradients stay.
    assert all(isinstance(array, StageArray) for array in gradients.values())
    assert sum(stage.returned for stage in plan.stages) == sum(array.nbytes for array in outputs.values())
    tasks = [(span.step, span.micro_batch) for span in plan.spans]
    assert sorted(tasks) == sorted(task for order in programs[0].orders for task in order)


def check_pipelines(name, devices):
    """Pipelines on devices of this process: layers, a GPT in as many stages, and a training."""
    pipeline_models.compare(name, [f"cpu:{i}" for i in range(devices)], pipeline_models.LAYOUTS[2:4], "float64", 1e-10)
    if devices >= 4:
        pipeline_models.compare(name, [f"cpu:{i}" for i in range(4)], pipeline_models.MIXED[1:2], "float64", 1e-10)
    data = {"input": RANDOM.integers(0, 64, (6, 8))}
    single = ml.compile(pipeline_models.text(), ml.NumpyBackend(), shapes={"input": [6, 8]})
    params = dict(single.randomize_params(seed=0).items())
    backend = ml.get_backend(name, parallel_strategy="pipeline_parallel")
    # Sizes that are left open become known at a call.
    compiled = ml.compile(pipeline_models.text(), backend)
    arrays = {key: backend.array(value) for key, value in params.items()}
    actual = compiled.evaluate(arrays, data, output_gradients=True)
    for ours, theirs in zip(actual, single.evaluate(params, data, output_gradients=True), strict=True):
        assert worst(ours, theirs) < 1e-4
    for options in ({"micro_batches": 3}, {"schedule": "interleaved", "micro_batches": 2}, {"schedule": "gpipe"}):
        check_bytes(name, ml.Pipeline(2, **options), params)
    losses = []
    for own, layout in ((ml.NumpyBackend(seed=1), None), (ml.get_backend(name, seed=1), ml.Pipeline(2))):
        trained = ml.compile(pipeline_models.layers(), own, layout=layout)
        data = {"input": pipeline_models.X, "target": pipeline_models.TARGET}
        options = {"loss": "mse", "epochs": 3, "batch_size": 4, "progress": False}
        losses.append(ml.train.fit(trained, data, optimizer=ml.optim.AdamW(0.01), **options)["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


def resume(name, devices, folder):
    """A training that is resumed gives what it gives in one go; its checkpoints are those of one device."""
    random = np.random.default_rng(0)
    data = {"input": random.standard_normal((45, 8)).astype(np.float32), "target": random.integers(0, 4, 45)}
    model = ml.Model()
    model |= ml.Linear(16, name="first")(input="input")
    model += ml.Relu()
    model += ml.Dropout(0.2)
    model += ml.Linear(4)(output="output")

    def fit(backend, layout, epochs, **options):
        compiled = ml.compile(model, backend, layout=layout)
        options |= {
            "loss": "cross_entropy",
            "batch_size": 16,
            "drop_last": False,
            "optimizer": ml.optim.AdamW(0.01, clip_norm=0.5),
        }
        # The last batches do not divide, of the validation too.
        options |= {"ema": ml.optim.EMA(0.9), "validation": {key: value[:21] for key, value in data.items()}}
        history = ml.train.fit(compiled, data, epochs=epochs, progress=False, **options)
        # Each process has the whole of it.
        weight = compiled.parameters["first.weight"]
        assert type(weight) is backend.engine.array_type
        return history["loss"], history["val_loss"], backend.to_numpy(weight)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ml.errors.PartitionWarning)
        layout = ml.Layout(ml.Mesh(data=devices), batch="data", parameters="data")
        whole = fit(backend_of(name, devices, seed=3), layout, 3)
        fit(backend_of(name, devices, seed=3), layout, 1, checkpoint=folder)
        resumed = fit(backend_of(name, devices, seed=3), layout, 3, checkpoint=folder, resume=True)
    assert whole[:2] == resumed[:2], (whole[:2], resumed[:2])
    np.testing.assert_array_equal(whole[2], resumed[2])
    alone = fit(ml.NumpyBackend(seed=3), None, 3)
    for actual, expected in zip(whole, alone, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
    if rank(name) == 0:
        np.testing.assert_allclose(fit(ml.NumpyBackend(seed=3), None, 4, resume=folder)[0][:3], alone[0], rtol=1e-4)


def fail(name, devices, silent):
    """Let the last process raise or fall silent while the others compute."""
    model, data = perceptron()
    compiled = ml.compile(model, backend_of(name, devices), layout=ml.Mesh(data=devices), shapes={"input": [8, 12]})
    params = compiled.randomize_params(seed=0)
    for number in range(4):
        if number == 2 and rank(name) == devices - 1:
            if silent:
                time.sleep(300)
            raise RuntimeError("a mistake of the user")
        compiled.evaluate(params, data)


def rank(name):
    """Number of this process."""
    if name == "torch":
        import torch.distributed

        return torch.distributed.get_rank()
    if name == "numpy":
        from mpi4py import MPI

        return MPI.COMM_WORLD.Get_rank()
    if name == "mlx":
        import mlx.core

        return mlx.core.distributed.init().rank()
    if name == "jax":
        import jax

        return jax.process_index()
    return 0


if __name__ == "__main__":
    name, devices, *rest = sys.argv[1:]
    if rest and rest[0] in ("fault", "silence"):
        fail(name, int(devices), rest[0] == "silence")
    check(name, int(devices), "MITHRIL_TEST_ALL" in os.environ)
    check_space(name, int(devices))
    check_local_statistics(name, int(devices))
    if name != "jax":
        collectives(name, int(devices))
    check_reductions(name, int(devices))
    if name == "jax" and rank(name) == 0 and "JAX_NUM_PROCESSES" not in os.environ:
        check_pipelines(name, int(devices))
    if rest:
        resume(name, int(devices), rest[0])
    if rank(name) == 0:
        print("agrees")
