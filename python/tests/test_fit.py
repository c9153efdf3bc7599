"""`ml.train.fit`: data, losses, metrics, histories, checkpoints; training that was interrupted goes on exactly."""

import inspect
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
import torch
from backends import BACKENDS, backend
from mithril.checkpoints import parts as writing
from mithril.train import checkpoints, progress
from mithril.train.metrics import accuracy, cross_entropy

pytest.importorskip("safetensors")


def network():
    """A classifier with everything that has a memory: running statistics and a counter of random numbers."""
    model = ml.Model()
    model |= ml.Linear(16, name="first")(input="input")
    model += ml.BatchNorm1d(name="norm")()
    model += ml.Relu()()
    model += ml.Dropout(0.3)()
    model += ml.Linear(3, name="second")(output="output")
    return model


def examples(n=61, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    return {"input": x, "target": (x[:, :3] + 0.3 * rng.normal(size=(n, 3))).argmax(1)}


def make(name="numpy", **options):
    return ml.compile(network(), backend(name, **options), shapes={"input": ["batch", 5]})


def fit(compiled, data=None, **options):
    options = {"optimizer": ml.optim.Adam(0.01), "batch_size": 8, "epochs": 3, "progress": False, **options}
    return ml.train.fit(compiled, examples() if data is None else data, **options)


class Killed(Exception):
    """What stands for the end of the process."""


def killed_after(batches):
    """A callback that ends the training when so many batches are done."""
    done = []

    def on_batch(row):
        done.append(row)
        if len(done) == batches:
            raise Killed

    return on_batch


def numbers(compiled):
    """Parameters and state as bytes."""
    arrays = {**compiled.get_parameters(), **compiled.state}
    return {name: np.array(compiled.backend.to_numpy(value)).tobytes() for name, value in arrays.items()}


# --- going on exactly -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKENDS)
def test_resumed_training_gives_the_same_numbers(name, tmp_path):
    """With dropout, running statistics, momenta and shuffling; killed in the middle of an epoch, and twice."""
    options = {"metrics": ["accuracy"], "validation": examples(20, seed=1)}

    def run(**further):
        compiled = make(name)
        optimizer = ml.optim.AdamW(lambda step: 0.1 / step) if name == "numpy" else ml.optim.SGD(0.05, momentum=0.9)
        return compiled, fit(compiled, optimizer=optimizer, **options, **further)

    whole, expected = run()
    for batches in (11, 8):
        with pytest.raises(Killed):
            run(checkpoint=tmp_path, checkpoint_every=3, on_batch=killed_after(batches))
    parts, history = run(checkpoint=tmp_path, checkpoint_every=3)
    assert history == expected
    assert len(history.batches["loss"]) == 3 * (61 // 8)
    assert numbers(parts) == numbers(whole)


@pytest.mark.parametrize("name", BACKENDS)
def test_resumed_training_of_a_convolutional_network(name, tmp_path):
    """The same where sums are long enough to notice an array that came back in another memory layout."""

    def convolutional():
        model = ml.Model()
        model |= ml.Conv2d(4, 3, padding="same", name="conv")(input="input")
        model += ml.BatchNorm2d(name="norm")()
        model += ml.Relu()()
        model += ml.Flatten()()
        model += ml.Linear(32, name="hidden")()
        model += ml.Relu()()
        model += ml.Linear(3, name="out")(output="output")
        return ml.compile(model, backend(name), shapes={"input": ["batch", 2, 6, 6]})

    rng = np.random.default_rng(0)
    data = (rng.normal(size=(40, 2, 6, 6)).astype(np.float32), rng.integers(0, 3, 40))
    whole, parts = convolutional(), convolutional()
    expected = fit(whole, data)
    with pytest.raises(Killed):
        fit(convolutional(), data, on_batch=killed_after(8), checkpoint=tmp_path, checkpoint_every=7)
    assert fit(parts, data, checkpoint=tmp_path, checkpoint_every=7) == expected
    assert numbers(parts) == numbers(whole)


@pytest.mark.parametrize("name", BACKENDS)
def test_averages_accumulated_gradients_and_schedules_go_on_exactly(name, tmp_path):
    def run(**options):
        schedule = ml.optim.schedules.Plateau(0.05, factor=0.5, patience=1, threshold=0.5)
        optimizer, average = ml.optim.SGD(schedule, momentum=0.9, accumulate=2), ml.optim.EMA(0.9)
        compiled = make(name)
        validation = examples(20, seed=1)
        history = fit(compiled, optimizer=optimizer, ema=average, validation=validation, epochs=4, **options)
        return compiled, history, average

    whole, expected, averages = run()
    with pytest.raises(Killed):
        run(checkpoint=tmp_path, checkpoint_every=1, on_batch=killed_after(17))
    parts, losses, again = run(checkpoint=tmp_path)
    assert losses == expected
    assert losses["learning_rate"][0] > losses["learning_rate"][-1]
    assert numbers(parts) == numbers(whole)
    for key, value in averages.params.items():
        np.testing.assert_array_equal(parts.backend.to_numpy(again.params[key]), whole.backend.to_numpy(value))


def test_the_validation_measures_the_averages():
    compiled, average, data = make(), ml.optim.EMA(0.9), examples(20, seed=1)
    history = fit(compiled, ema=average, validation=data)
    frozen = ml.compile(network(), ml.NumpyBackend(), inference=True)
    frozen.load_params({**average.params, **{n: v for n, v in compiled.state.items() if n != "key"}})
    expected = torch.nn.functional.cross_entropy(torch.tensor(frozen(data["input"])), torch.tensor(data["target"]))
    assert history["val_loss"][-1] == pytest.approx(expected.item(), rel=1e-6)
    plain = make()
    fit(plain)
    assert numbers(plain) == numbers(compiled)


def test_optimizers_of_pytorch_go_on_exactly(tmp_path):
    def run(**options):
        compiled = make("torch")
        adapted = ml.optim.from_torch(torch.optim.Adam, lr=0.01)
        return compiled, fit(compiled, optimizer=adapted, **options)

    whole, expected = run()
    with pytest.raises(Killed):
        run(checkpoint=tmp_path, checkpoint_every=2, on_batch=killed_after(9))
    parts, history = run(checkpoint=tmp_path)
    assert history == expected
    assert numbers(parts) == numbers(whole)


def test_a_killed_process_leaves_whole_checkpoints(tmp_path):
    """A process that writes a checkpoint after every batch is killed at any moment, again and again."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import mithril as ml, numpy as np\n"
        f"{inspect.getsource(network)}{inspect.getsource(examples)}"
        "compiled = ml.compile(network(), ml.NumpyBackend(), shapes={'input': ['batch', 5]})\n"
        "ml.train.fit(compiled, examples(), optimizer=ml.optim.Adam(0.01), batch_size=8, epochs=1000, progress=False,\n"
        "             checkpoint=sys.argv[2], checkpoint_every=1)\n"
    )
    place, store, reached = str(Path(ml.__file__).parents[1]), checkpoints.Store(tmp_path, 1), (0, 0)
    for pause in (0.02, 0.06, 0.1):
        process = subprocess.Popen([sys.executable, "-c", program, place, tmp_path])
        while next(reversed(store.positions()), (0, 0)) <= reached:
            assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(pause)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        for path in store.positions().values():
            checkpoints.read(path, None)
        reached = next(reversed(store.positions()))
    epochs = reached[0]
    compiled, whole = make(), make()
    assert fit(compiled, checkpoint=tmp_path, epochs=epochs) == fit(whole, epochs=epochs)
    assert numbers(compiled) == numbers(whole)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("place", ["write_part", "dump", "replace"])
def test_a_disk_that_is_full_spares_the_checkpoints_before(place, tmp_path, monkeypatch):
    fit(make(), checkpoint=tmp_path, epochs=1)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*args, **options):
        raise OSError(28, "No space left on device")

    owner = {"write_part": writing, "dump": json, "replace": os}[place]
    with monkeypatch.context() as patched:
        patched.setattr(owner, place, full)
        with pytest.raises(ml.errors.ModelFileError, match="cannot be written: No space left"):
            fit(make(), checkpoint=tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert fit(make(), checkpoint=tmp_path) == fit(make())


def test_ctrl_c_keeps_what_was_learned():
    def interrupt(row):
        if row["batch"] == 3:
            raise KeyboardInterrupt

    stopped, short = make(), make()
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, on_batch=interrupt)
    data = examples()
    order = np.random.default_rng([0, 1]).permutation(61)[:24]
    fit(short, {name: value[order] for name, value in data.items()}, shuffle=False, epochs=1)
    assert numbers(stopped) == numbers(short)


# --- checkpoints that do not fit --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with checkpoints after 1 epoch, and in the middle of the next."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with pytest.raises(Killed):
        fit(make(), checkpoint=folder, checkpoint_every=4, on_batch=killed_after(13))
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "checkpoints")


def test_folders_are_named_by_position(folder):
    # The last two, and the best: how good they are is known at the end of an epoch.
    assert sorted(path.name for path in folder.iterdir()) == [f"epoch-0002-batch-00000{n}" for n in (0, 1, 5)]
    assert sorted(path.name for path in (folder / "epoch-0002-batch-000005").iterdir()) == [
        "arrays.safetensors",
        "checkpoint.json",
    ]


def test_another_training_is_refused(folder):
    def refused(match, error=ml.errors.InvalidValueError, compiled=None, data=None, **options):
        with pytest.raises(error, match=match):
            fit(make() if compiled is None else compiled, data, checkpoint=folder, **options)

    refused("seed is 1, there 0", seed=1)
    refused("batch_size is 4, there 8", batch_size=4)
    refused("examples is 60, there 61", data=examples(60))
    refused("optimizer is 'SGD', there 'Adam'", optimizer=ml.optim.SGD(0.1))
    refused(r"metrics is \['accuracy'\]", metrics=["accuracy"])
    refused("the batch before batch 6 of epoch 2 differs", ml.errors.ParameterError, data=examples(seed=5))
    refused("holds the checkpoints of another training run", resume=False)
    refused("holds later ones", resume=folder / "epoch-0002-batch-000000")
    wide = ml.Model()
    wide |= ml.Linear(17, name="first")(input="input")
    wide += ml.BatchNorm1d(name="norm")()
    wide += ml.Linear(3, name="third")(output="output")
    wide = ml.compile(wide, ml.NumpyBackend(), shapes={"input": ["batch", 5]})
    match = r"lacks 'third\.bias'; .*holds 'second\.bias'.*'first\.\w+' is float32 \[16.*here float32 \[17"
    refused(match, ml.errors.ParameterError, compiled=wide)
    refused("float32 .*here float64", ml.errors.ParameterError, compiled=make(dtype="float64"))
    batches = [{name: value[:8] for name, value in examples().items()}] * 5
    shutil.rmtree(folder)
    with pytest.raises(Killed):
        fit(make(), batches, checkpoint=folder, checkpoint_every=1, on_batch=killed_after(3))
    refused("batch before batch 4 of epoch 1 differs", ml.errors.ParameterError, data=batches[:1])


@pytest.mark.parametrize("file", ["arrays.safetensors", "checkpoint.json"])
def test_damaged_checkpoints_are_refused(folder, file):
    path = folder / "epoch-0002-batch-000005" / file
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    broken = [b"", whole[:-1], whole[: len(whole) // 2], whole + b"\0", b"[]", b"{" * 100_000]
    for place in rng.integers(0, len(whole), 20):
        broken.append(whole[:place] + bytes([whole[place] ^ 1 << int(rng.integers(8))]) + whole[place + 1 :])
    for content in broken:
        path.write_bytes(content)
        for use in (lambda: fit(make(), checkpoint=folder), lambda: ml.train.load_checkpoint(make(), folder)):
            with pytest.raises(ml.errors.ModelFileError, match="is damaged"):
                use()
    path.unlink()
    with pytest.raises(ml.errors.ModelFileError, match="is damaged"):
        fit(make(), checkpoint=folder)
    shutil.rmtree(path.parent)
    assert fit(make(), checkpoint=folder) == fit(make())


def test_resume_from_a_path(folder, tmp_path):
    early = folder / "epoch-0002-batch-000000"
    whole = fit(make())
    assert fit(make(), resume=early) == whole
    assert fit(make(), resume=folder, checkpoint=tmp_path / "further") == whole
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(ml.errors.ModelFileError, match="no checkpoint"):
            fit(make(), resume=path)
    with pytest.raises(ml.errors.InvalidValueError, match="path is a int"):
        fit(make(), resume=3)


def test_load_checkpoint(tmp_path):
    trained = make("torch")
    history = fit(trained, checkpoint=tmp_path, validation=examples(30, seed=1), epochs=6, keep=1)
    frozen = ml.compile(network(), ml.NumpyBackend(), shapes={"input": ["batch", 5]}, inference=True)
    assert ml.train.load_checkpoint(frozen, tmp_path) is frozen.get_parameters()
    x = examples(30, seed=1)
    reference = ml.compile(network(), ml.get_backend("torch"), inference=True)
    reference.load_params({**trained.get_parameters(), **{n: v for n, v in trained.state.items() if n != "key"}})
    np.testing.assert_allclose(frozen(x["input"]), reference(x["input"]).numpy(), rtol=1e-5, atol=1e-5)
    best = int(np.argmin(history["val_loss"]))
    ml.train.load_checkpoint(frozen, tmp_path, best=True)
    loss = torch.nn.functional.cross_entropy(torch.tensor(frozen(x["input"])), torch.tensor(x["target"]))
    assert loss == pytest.approx(history["val_loss"][best], rel=1e-5)
    kept = {f"epoch-{epoch + 2:04d}-batch-000000" for epoch in (best, 5)}
    assert {path.name for path in tmp_path.iterdir()} == kept
    with pytest.raises(ml.errors.ParameterError, match="belongs to another model"):
        ml.train.load_checkpoint(ml.compile(ml.Linear(2), ml.NumpyBackend()), tmp_path)
    with pytest.raises(ml.errors.ModelFileError, match="no checkpoint"):
        ml.train.load_checkpoint(frozen, tmp_path / "absent")


# --- data -------------------------------------------------------------------------------------------------------


def forms():
    """The same batches in every form that data may have."""
    data = examples(32)
    x, y = data["input"], data["target"]
    pairs = [(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)]
    dataset = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
    return {
        "mapping": data,
        "pair": (x, y),
        "mapping and target": ({"input": x}, y),
        "tensors": (torch.tensor(x), torch.tensor(y)),
        "batches": [{"input": a, "target": b} for a, b in pairs],
        "pairs": pairs,
        "function": lambda epoch: iter(pairs),
        "loader": torch.utils.data.DataLoader(dataset, batch_size=8),
    }


@pytest.mark.parametrize("form", list(forms())[1:])
def test_data_in_all_forms(form):
    expected = fit(make(), forms()["mapping"], shuffle=False)
    assert fit(make(), forms()[form], shuffle=False) == expected


def test_a_function_gets_the_number_of_the_epoch():
    seen = []

    def batches(epoch):
        seen.append(epoch)
        data = examples(16, seed=epoch)
        yield data["input"], data["target"]

    fit(make(), batches)
    assert seen == [1, 2, 3]


def test_a_shuffling_loader_goes_on_exactly_with_a_generator(tmp_path):
    data = examples()
    dataset = torch.utils.data.TensorDataset(torch.tensor(data["input"]), torch.tensor(data["target"]))

    def loader(generator):
        return torch.utils.data.DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)

    whole = fit(make(), loader(torch.Generator()))
    assert whole.batches["loss"] != fit(make(), loader(torch.Generator()), seed=1).batches["loss"]
    with pytest.raises(Killed):
        fit(make(), loader(torch.Generator()), checkpoint=tmp_path, checkpoint_every=2, on_batch=killed_after(12))
    assert fit(make(), loader(torch.Generator()), checkpoint=tmp_path, checkpoint_every=2) == whole


@pytest.mark.parametrize("kind", ["shuffle", "sampler", "weighted", "batch sampler", "workers"])
def test_a_shuffling_loader_goes_on_exactly_without_a_generator(kind, tmp_path):
    data = examples()
    dataset = torch.utils.data.TensorDataset(torch.tensor(data["input"]), torch.tensor(data["target"]))
    utils, weights = torch.utils.data, torch.linspace(0.1, 1, len(dataset))

    def loader():
        torch.seed()
        if kind == "batch sampler":
            return utils.DataLoader(dataset, batch_sampler=utils.BatchSampler(utils.RandomSampler(dataset), 8, False))
        options = {
            "shuffle": {"shuffle": True},
            "sampler": {"sampler": utils.RandomSampler(dataset), "generator": torch.Generator()},
            "weighted": {"sampler": utils.WeightedRandomSampler(weights, len(dataset))},
            # Threads of other frameworks would not survive a fork of this process.
            "workers": {
                **{"shuffle": True, "num_workers": 1, "persistent_workers": True},
                "multiprocessing_context": "forkserver",
            },
        }[kind]
        return utils.DataLoader(dataset, batch_size=8, **options)

    whole = fit(make(), loader(), checkpoint=tmp_path / "whole")
    # At the end of an epoch, and within one.
    for name, every in (("epoch", None), ("batch", 2)):
        options = {"checkpoint": tmp_path / name, "checkpoint_every": every}
        with pytest.raises(Killed):
            fit(make(), loader(), on_batch=killed_after(12), **options)
        assert fit(make(), loader(), **options) == whole


def test_the_incomplete_batch():
    sizes = []

    def size(output, target):
        sizes.append(len(target))
        return len(target)

    history = fit(make(), examples(20), drop_last=False, metrics=[size], epochs=1)
    assert sizes == [8, 8, 4]
    losses = history.batches["loss"]
    assert history["loss"] == [pytest.approx((8 * losses[0] + 8 * losses[1] + 4 * losses[2]) / 20)]
    assert history["size"] == [pytest.approx((64 + 64 + 16) / 20)]
    fit(make(), examples(20), metrics=[size], epochs=1)
    assert sizes[3:] == [8, 8]


# --- losses and metrics -----------------------------------------------------------------------------------------


def test_token_cross_entropy_has_the_classes_last():
    """With as many tokens as classes, where a mistaken axis would not be noticed by the shapes."""
    model = ml.Model()
    model |= ml.Linear(4, name="fc")(input="input", output="output")
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4, 3)).astype(np.float32), rng.integers(0, 4, (8, 4))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", "length", 3]})
    start = {name: torch.tensor(value) for name, value in compiled.get_parameters().items()}
    history = ml.train.fit(
        compiled, (x, y), loss="token_cross_entropy", metrics=["accuracy", "perplexity"], batch_size=8, progress=False
    )
    logits = torch.tensor(x) @ start["fc.weight"].T + start["fc.bias"]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 4), torch.tensor(y).reshape(-1))
    assert history["loss"][0] == pytest.approx(loss.item(), rel=1e-6)
    assert history["perplexity"][0] == pytest.approx(loss.exp().item(), rel=1e-6)
    assert history["accuracy"][0] == pytest.approx((logits.argmax(-1).numpy() == y).mean())


def test_metrics_against_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    logits, target = rng.normal(size=(50, 7)), rng.integers(0, 7, 50)
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert accuracy(logits, target) == pytest.approx(metrics.accuracy_score(target, logits.argmax(1)))
    assert accuracy(logits, np.eye(7)[target]) == pytest.approx(metrics.accuracy_score(target, logits.argmax(1)))
    for top in (2, 5):
        expected = metrics.top_k_accuracy_score(target, logits, k=top)
        assert accuracy(logits, target, top=top) == pytest.approx(expected)
    assert cross_entropy(logits, target) == pytest.approx(metrics.log_loss(target, chances))
    assert cross_entropy(logits.T[None], target[None], axis=1) == pytest.approx(metrics.log_loss(target, chances))
    truth = rng.integers(0, 2, 50)
    assert accuracy(logits[:, 0], truth, axis=None) == pytest.approx(metrics.accuracy_score(truth, logits[:, 0] > 0))


def test_mean_errors_and_functions_as_metrics():
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3))
    model = ml.Model()
    model |= ml.Linear(3, name="fc")(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(dtype="float64"), shapes={"input": [40, 3]})
    start = dict(compiled.get_parameters())
    difference = x @ start["fc.weight"].T + start["fc.bias"] - y
    metrics = ["mse", "mae", ml.train.Metric("root", lambda o, t: ((o - t) ** 2).mean(), finish=np.sqrt)]
    history = ml.train.fit(compiled, (x, y), loss="l1", metrics=metrics, batch_size=40, progress=False, shuffle=False)
    assert history["mse"] == [pytest.approx((difference**2).mean(), rel=1e-12)]
    assert history["root"] == [pytest.approx(np.sqrt((difference**2).mean()), rel=1e-12)]
    assert history["mae"] == [pytest.approx(np.abs(difference).mean(), rel=1e-12)]
    assert history["loss"] == [pytest.approx(np.abs(difference).mean(), rel=1e-12)]
    worst = {"worst": lambda output, target: np.abs(output - target).max()}
    history = ml.train.fit(compiled, (x, y), loss="mse", metrics=worst, batch_size=40, progress=False)
    assert history["worst"][0] > history["loss"][0]


def test_models_with_several_outputs_give_metrics_dicts():
    model = ml.Model()
    model |= ml.Linear(2, name="fc")(input="input", output="output")
    model |= ml.Relu()(input=ml.IOKey("output", expose=True), output="positive")
    model |= ml.MSELoss()(input="output", target="expected", output="loss")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3], "expected": [4, 2]})
    seen = []

    def look(outputs, data):
        seen.append((sorted(outputs), sorted(data)))
        return 0

    data = {"input": np.ones((4, 3)), "expected": np.ones((4, 2))}
    ml.train.fit(compiled, data, batch_size=4, metrics=[look], progress=False)
    assert seen == [(["output", "positive"], ["expected", "input"])]


def test_validation_is_inference():
    compiled, data = make(), examples(20, seed=1)
    history = fit(compiled, validation=data, epochs=2, metrics=["accuracy"])
    frozen = ml.compile(network(), ml.NumpyBackend(), inference=True)
    frozen.load_params({**compiled.get_parameters(), **{n: v for n, v in compiled.state.items() if n != "key"}})
    logits = frozen(data["input"])
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(data["target"]))
    assert history["val_loss"][-1] == pytest.approx(expected.item(), rel=1e-6)
    assert history["val_accuracy"][-1] == pytest.approx((logits.argmax(1) == data["target"]).mean())
    plain = make()
    fit(plain, epochs=2)
    assert numbers(plain) == numbers(compiled)


# --- when to stop -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("better", "epochs"), [(False, 5), (True, 4)])
def test_patience(better, epochs, tmp_path):
    values = [3, 4, 2, 2, 2, 1, 0]
    count = iter(values)
    watched = ml.train.Metric("watched", lambda output, target: next(count), higher_is_better=better)
    options = {"metrics": [watched], "patience": 2, "epochs": 7, "monitor": "watched", "keep": 1}
    history = fit(make(), examples(8), checkpoint=tmp_path, **options)
    assert history["watched"] == values[:epochs]
    best = 2 if better else 3
    assert {path.name for path in tmp_path.iterdir()} == {f"epoch-{e + 1:04d}-batch-000000" for e in (best, epochs)}
    assert fit(make(), examples(8), checkpoint=tmp_path, **options) == history


def test_callbacks_and_learning_rates():
    rows = {"epoch": [], "batch": []}
    history = fit(
        make(),
        optimizer=ml.optim.SGD(lambda step: 0.1 / step),
        on_epoch=rows["epoch"].append,
        on_batch=rows["batch"].append,
        epochs=2,
    )
    assert rows["epoch"] == history.epochs
    columns = {name: [row[name] for row in rows["batch"]] for name in rows["batch"][0]}
    assert columns == history.batches
    assert columns["learning_rate"] == [0.1 / step for step in range(1, 15)]
    assert columns["epoch"] == [1] * 7 + [2] * 7
    assert columns["batch"] == [*range(1, 8)] * 2
    assert history["learning_rate"] == [0.1 / 7, 0.1 / 14]


# --- what is shown ----------------------------------------------------------------------------------------------


def test_history_prints_and_is_saved(tmp_path):
    history = ml.train.History([{"epoch": 1, "loss": 1 / 3, "seconds": 2.0}, {"epoch": 10, "loss": 0.25, "mine": None}])
    history.add_batch(1, 1, 1 / 3, None)
    assert str(history).splitlines() == [
        "epoch    loss  seconds  mine",
        "    1  0.3333        2      ",
        "   10    0.25               ",
    ]
    assert str(ml.train.History()) == "no epoch is complete"
    assert repr(history) == "History(2 epochs, 1 batches)"
    history.save(tmp_path / "history.json")
    again = ml.train.History.load(tmp_path / "history.json")
    assert again == history
    assert again["loss"] == [1 / 3, 0.25]
    history.save(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_text().splitlines() == [
        "epoch,loss,seconds,mine",
        f"1,{1 / 3},2.0,",
        "10,0.25,,",
    ]
    with pytest.raises(ml.errors.InvalidValueError, match="json or"):
        history.save(tmp_path / "history.txt")
    with pytest.raises(ml.errors.KeyNotFoundError, match="'accuracy'"):
        history["accuracy"]
    for text in ("", "[]", "{}", '{"epochs": 3, "batches": {}}'):
        (tmp_path / "history.json").write_text(text)
        with pytest.raises(ml.errors.ModelFileError, match="no history"):
            ml.train.History.load(tmp_path / "history.json")


@pytest.mark.parametrize("installed", [True, False])
def test_progress(installed, capsys, monkeypatch, tmp_path):
    if not installed:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    fit(make(), epochs=2, progress=True, metrics=["accuracy"], checkpoint=tmp_path)
    out, lines = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in lines.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert all(name in lines for name in ("loss", "accuracy", "learning_rate 0.01", "seconds"))
    fit(make(), epochs=3, progress=True, metrics=["accuracy"], checkpoint=tmp_path)
    assert capsys.readouterr()[1].splitlines()[0].startswith("going on from ")


def test_the_bar():
    tqdm = pytest.importorskip("tqdm")
    bar = progress._bar("epoch 1/2", 7, 3)
    assert isinstance(bar, tqdm.tqdm)
    assert bar.total == 7
    bar.close()


# --- bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"epochs": True}, "epochs is True"),
        ({"batch_size": 2.5}, r"batch_size is 2\.5"),
        ({"patience": -1}, "patience is -1"),
        ({"keep": 0}, "keep is 0"),
        ({"seed": "x"}, "seed is 'x'"),
        ({"shuffle": "yes"}, "shuffle is 'yes'"),
        ({"metrics": "accuracy"}, "metrics is 'accuracy'"),
        ({"metrics": ["acuracy"]}, "no metric 'acuracy'"),
        ({"metrics": ["top_0"]}, "no metric 'top_0'"),
        ({"metrics": ["mse", "mse"]}, "cannot be called 'mse'"),
        ({"metrics": {"loss": accuracy}}, "cannot be called 'loss'"),
        ({"metrics": ["mse"]}, r"output of shape \[8, 3\] does not fit a target of shape \[8\]"),
        ({"metrics": [lambda output, target: output]}, "metric <lambda> of a batch"),
        ({"monitor": "val_loss"}, "monitor is 'val_loss'"),
        ({"loss": "mean"}, "loss is 'mean'"),
        ({"optimizer": ml.optim.Adam}, "optimizer is"),
        ({"checkpoint_every": 5}, "checkpoint_every needs a folder"),
        ({"resume": True}, "resume needs a folder"),
        ({"validation": []}, "validation data of epoch 1 hold no batch"),
        ({"data": []}, "the data of epoch 1 hold no batch"),
        ({"data": lambda epoch: None}, "data of epoch 1 are a NoneType"),
        ({"data": np.ones((8, 5))}, "data is a ndarray"),
        ({"data": (np.ones((8, 5)), np.ones(7))}, "different numbers"),
        ({"data": {"input": np.full((8, 5), np.inf), "target": np.zeros(8, int)}}, "batch 1 of epoch 1 is nan"),
    ],
)
def test_fit_says_what_is_wrong(options, match):
    with np.errstate(all="ignore"), pytest.raises(ml.errors.MithrilError, match=match) as caught:
        fit(make(), **{"data": examples(16), **options})
    assert caught.value.hint or "different numbers" in match


def test_nothing_to_measure():
    model = ml.Model()
    model |= ml.Linear(2, name="fc")(input="input", output="hidden")
    model |= ml.MSELoss()(input="hidden", target=0.0, output="loss")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [8, 3]})
    with pytest.raises(ml.errors.InvalidValueError, match="nothing but its loss"):
        fit(compiled, {"input": np.ones((8, 3))}, metrics=["mse"])
    assert np.isfinite(fit(compiled, {"input": np.ones((8, 3))})["loss"]).all()


def test_checkpoints_need_an_optimizer_with_a_state(tmp_path):
    class Plain:
        def update(self, params, gradients):
            return {name: value - 0.1 * gradients[name] for name, value in params.items()}

    history = fit(make(), optimizer=Plain())
    assert history["learning_rate"] == [None] * 3
    with pytest.raises(ml.errors.InvalidValueError, match="Plain has no state_dict"):
        fit(make(), optimizer=Plain(), checkpoint=tmp_path)
