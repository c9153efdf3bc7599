"""Checkpoints in parts: what each process writes and reads, damage, kills, and trainings that go on on other meshes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import errors
from mithril.__main__ import main
from mithril.checkpoints import parts as writing
from mithril.parallel import pieces as geometry
from mithril.parallel import workers
from mithril.parallel.sections import Sections, arranged
from mithril.parallel.stored import PartFiles, StoredArray, StoredPiece
from mithril.train import checkpoints

MESH = ml.Mesh(a=2, b=3)
#: Divided along an axis, along several, by one axis of the mesh within another, and section by section.
SPECS = [
    (),
    (("a",),),
    ((), ("b",)),
    (("b",), ("a",)),
    (("a", "b"),),
    (("b", "a"), ()),
    ((Sections("a", (6, 6, 12)),),),
    ((Sections("a", (12, 12)), "b"), ()),
    (("b",), (Sections("a", (2, 4)),)),
]


@pytest.fixture(scope="module", autouse=True)
def no_workers_are_left():
    yield
    for pool in list(workers._all.values()):
        pool.close()


# --- pieces -----------------------------------------------------------------------------------------------------


def block(array, mesh, spec, rank):
    """The block of a device, as a program is given it."""
    array = arranged(array, spec, mesh, np.take)
    place = geometry.places(mesh, rank)
    for axis, names in enumerate(spec):
        for name in names:
            array = np.split(array, mesh.axes[name], axis)[place[name]]
    return array


@pytest.mark.parametrize("dtype", ["float32", "bool", "int64", "bfloat16"])
def test_blocks_of_every_layout_are_read_from_files_of_every_other(dtype, tmp_path):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    whole = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 100, (24, 6)).astype(dtype)
    name = whole.dtype.name
    for number, spec in enumerate(SPECS):
        pieces = geometry.pieces(whole.shape, MESH, spec)
        folder = tmp_path / str(number)
        folder.mkdir()
        stored = []
        for rank in range(MESH.devices):
            mine = [piece for piece in pieces if min(piece.holders) == rank]
            own = block(whole, MESH, spec, rank)
            boxes = [tuple(slice(o, o + n) for o, n in zip(p.offset, p.shape, strict=True)) for p in mine]
            file = f"arrays-{rank}.safetensors"
            tensors = [(f"x#{i}", name, piece.shape) for i, piece in enumerate(mine)]
            about = writing.write_part(folder / file, tensors, lambda i, own=own, boxes=boxes: own[boxes[i]])
            stored += [
                StoredPiece(file, f"x#{i}", piece.start, piece.shape, about["checksums"][i])
                for i, piece in enumerate(mine)
            ]
        array = StoredArray(PartFiles(folder, {}), name, whole.shape, stored)
        np.testing.assert_array_equal(array.read(), whole)
        np.testing.assert_array_equal(
            array.read([[(3, 7), (20, 24)], [(1, 6)]]), whole[[3, 4, 5, 6, 20, 21, 22, 23], 1:]
        )
        for other in SPECS:
            for rank in range(MESH.devices):
                np.testing.assert_array_equal(array.block(MESH, other, rank), block(whole, MESH, other, rank))


def test_only_pieces_that_are_needed_are_read(tmp_path):
    whole = np.arange(48.0).reshape(12, 4)
    stored = []
    for i in range(3):
        about = writing.write_part(tmp_path / f"{i}", [("x", "float64", (4, 4))], lambda _, i=i: whole[4 * i :][:4])
        stored.append(StoredPiece(f"{i}", "x", (4 * i, 0), (4, 4), about["checksums"][0]))
    (tmp_path / "2").unlink()
    array = StoredArray(PartFiles(tmp_path, {"2": "process 2"}), "float64", (12, 4), stored)
    np.testing.assert_array_equal(array.read([[(2, 8)], [(1, 3)]]), whole[2:8, 1:3])
    with pytest.raises(errors.ModelFileError, match="lacks '2', the part of process 2"):
        array.read()


# --- trainings --------------------------------------------------------------------------------------------------


def network():
    model = ml.Model()
    # A bias before the norm would have no gradient, of which Adam makes steps of rounding errors.
    model |= ml.Linear(16, use_bias=False, name="first")(input="input")
    model += ml.BatchNorm1d(name="norm")
    model += ml.Relu()
    model += ml.Dropout(0.2)
    model += ml.Linear(4, name="second")(output="output")
    return model


RANDOM = np.random.default_rng(0)
DATA = {"input": RANDOM.standard_normal((44, 8)).astype(np.float32), "target": RANDOM.integers(0, 4, 44)}
SHARDED = ml.Layout(ml.Mesh(data=2), batch="data", parameters="data")
DIVIDED = ml.Layout(ml.Mesh(model=2), parameters="model")
MIXED = ml.Layout(ml.Mesh(data=2, model=2), batch="data", parameters=("model", "data"))


class Killed(Exception):
    pass


def killed_after(batches):
    def kill(row):
        if row["batch"] == batches:
            raise Killed

    return kill


def fit(backend, layout, **options):
    compiled = ml.compile(network(), backend, layout=layout)
    options = {"epochs": 2, **options}
    history = ml.train.fit(
        compiled,
        DATA,
        loss="cross_entropy",
        batch_size=8,
        optimizer=ml.optim.AdamW(0.02, clip_norm=0.5),
        ema=ml.optim.EMA(0.9),
        progress=False,
        **options,
    )
    return history, {**compiled.get_parameters(), **compiled.state}


def on(devices):
    return ml.NumpyBackend(devices=["cpu"] * devices, seed=3)


@pytest.fixture(scope="module")
def alone():
    return fit(ml.NumpyBackend(seed=3), None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a training on two workers that ended in the middle of an epoch, and what it would have given."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with pytest.raises(Killed):
        fit(on(2), SHARDED, checkpoint=folder, checkpoint_every=3, on_batch=killed_after(4))
    return folder


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written, tmp_path / "checkpoints")


def test_each_worker_writes_and_reads_its_part(folder, monkeypatch):
    [path] = folder.iterdir()
    assert sorted(entry.name for entry in path.iterdir()) == [
        *(f"arrays-0000{n}-of-00003.safetensors" for n in (1, 2, 3)),
        "checkpoint.json",
    ]
    files = [ml.weights.open(path / f"arrays-0000{n}-of-00003.safetensors") for n in (1, 2, 3)]
    shapes = [{name: file.shape(name) for name in file} for file in files]
    assert shapes[0]["parameters/first.weight"] == shapes[1]["parameters/first.weight"] == (8, 8)
    assert shapes[0]["optimizer/slot/square/first.weight"] == (8, 8)
    # What all have is written once, half of it by each; the script writes what it has itself.
    both = [set(shapes[0]) & set(shapes[1]), set(shapes[0]) ^ set(shapes[1])]
    assert all("weight" in name and "norm" not in name for name in both[0]), both
    assert {name for name in both[1] if name.startswith("parameters/")} == {
        *(f"parameters/{name}" for name in ("norm.weight", "norm.bias", "second.bias"))
    }
    assert {name.partition("/")[0] for name in shapes[2] if "running" not in name} == {"state", "history", "meter"}

    # While the script goes on, it gathers nothing and reads nothing that workers hold.
    def whole(*_):
        raise AssertionError("the script gathers an array")

    def read(array, *_):
        if array.pieces[0].file != "arrays-00003-of-00003.safetensors":
            raise AssertionError("the script reads an array of workers")
        return original(array, *_)

    original = StoredArray.read
    with monkeypatch.context() as patched:
        patched.setattr(workers.Workers, "whole", whole)
        patched.setattr(StoredArray, "read", read)
        with pytest.raises(Killed):
            fit(on(2), SHARDED, checkpoint=folder, checkpoint_every=1, on_batch=killed_after(5))
    assert len(list(folder.iterdir())) == 2


def test_a_training_goes_on_bit_for_bit_on_the_same_mesh(folder):
    history, state = fit(on(2), SHARDED)
    resumed, after = fit(on(2), SHARDED, checkpoint=folder)
    assert resumed == history
    for name, value in state.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("backend", "layout"),
    [
        (lambda: ml.NumpyBackend(seed=3), None),
        (lambda: ml.InterpreterBackend(seed=3), MIXED),
        (lambda: on(2), DIVIDED),
        (lambda: on(4), MIXED),
    ],
    ids=["one device", "virtual mesh", "other layout", "four workers"],
)
def test_a_training_goes_on_on_another_mesh(backend, layout, folder, alone):
    history, state = fit(backend(), layout, checkpoint=folder)
    np.testing.assert_allclose(history.batches["loss"], alone[0].batches["loss"], rtol=1e-4)
    for name, value in alone[1].items():
        np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_checkpoint_of_one_device_is_read_by_a_mesh(name, tmp_path, alone):
    pytest.importorskip(name)
    with pytest.raises(Killed):
        fit(ml.NumpyBackend(seed=3), None, checkpoint=tmp_path, checkpoint_every=3, on_batch=killed_after(4))
    backend = ml.get_backend(name, devices=["cpu"] * 2, seed=3)
    history, state = fit(backend, SHARDED, checkpoint=tmp_path)
    np.testing.assert_allclose(history.batches["loss"], alone[0].batches["loss"], rtol=1e-4)
    for key, value in alone[1].items():
        np.testing.assert_allclose(np.asarray(state[key]), value, rtol=1e-3, atol=1e-5, err_msg=key)


def test_parameters_are_loaded_for_inference(folder):
    params = ml.train.load_checkpoint(ml.compile(network(), ml.NumpyBackend()), folder)
    [path] = folder.iterdir()
    files = [ml.weights.open(path / f"arrays-0000{n}-of-00003.safetensors") for n in (1, 2)]
    joined = np.concatenate([file["parameters/first.weight"] for file in files])
    np.testing.assert_array_equal(params["first.weight"], joined)


def test_checkpoints_of_trainings_are_read_as_other_weights_are(folder, tmp_path):
    loaded, [path] = ml.load(folder), folder.iterdir()
    params = ml.train.load_checkpoint(ml.compile(network(), ml.NumpyBackend()), folder)
    assert set(loaded) == {*params, "norm.running_mean", "norm.running_var"}
    shapes = {"input": [1, 8]}
    for backend, source in ((ml.NumpyBackend(), folder), (ml.InterpreterBackend(), path)):
        compiled = ml.compile(network(), backend, shapes=shapes, inference=True)
        assert ml.load_weights(compiled, source).is_complete
        for name, value in {**compiled.get_parameters(), **compiled.state}.items():
            if name != "key":
                np.testing.assert_array_equal(value, loaded[name], err_msg=name)
    ml.save(network(), tmp_path / "model.json")
    command = ["export", "--target", "onnx", "--shape", "input=1,8", "--weights", str(folder)]
    assert main([*command, str(tmp_path / "model.json"), str(tmp_path / "model.onnx")]) == 0
    _, exported = ml.load(tmp_path / "model.onnx")
    np.testing.assert_array_equal(exported["first.weight"], loaded["first.weight"])
    with pytest.raises(errors.ParameterError, match=r"first\.weight"):
        ml.load_weights(ml.compile(ml.Linear(3, name="other"), ml.NumpyBackend(), shapes=shapes), folder)


def test_a_training_that_is_over_gives_whole_arrays(folder):
    fit(on(2), SHARDED, checkpoint=folder)
    compiled = ml.compile(network(), on(2), layout=SHARDED)
    optimizer, averages = ml.optim.AdamW(0.02, clip_norm=0.5), ml.optim.EMA(0.9)
    options = {"loss": "cross_entropy", "batch_size": 8, "epochs": 2, "progress": False, "checkpoint": folder}
    ml.train.fit(compiled, DATA, optimizer=optimizer, ema=averages, **options)
    held = {**compiled.get_parameters(), **averages.params, **optimizer.state["first.weight"]}
    assert {type(value) for value in held.values()} == {np.ndarray}


# --- damage -----------------------------------------------------------------------------------------------------


def entry(content, name="first.weight", group="parameters"):
    return content["entries"][group][name]


def rename(content, old, new):
    for file in content["files"]:
        if file["name"] == old:
            file["name"] = new


FIRST = "arrays-00001-of-00003.safetensors"
HOSTILE = {
    "gap": lambda c: entry(c)["pieces"].pop(),
    "overlap": lambda c: entry(c)["pieces"][1].__setitem__(2, [4, 0]),
    "same twice": lambda c: entry(c)["pieces"].__setitem__(1, entry(c)["pieces"][0]),
    "outside": lambda c: entry(c)["pieces"][1].__setitem__(2, [9, 0]),
    "negative": lambda c: entry(c)["pieces"][1].__setitem__(2, [-8, 0]),
    "no integer": lambda c: entry(c)["pieces"][1].__setitem__(2, [8.0, 0]),
    "true": lambda c: entry(c)["pieces"][1].__setitem__(2, [8, False]),
    "infinite": lambda c: entry(c)["pieces"][1].__setitem__(2, [1e400, 0]),
    "axes": lambda c: entry(c)["pieces"][1].__setitem__(2, [8]),
    "no list": lambda c: entry(c)["pieces"][1].__setitem__(2, 8),
    "other shape": lambda c: entry(c)["pieces"].__setitem__(
        slice(None), [[*p[:2], [p[2][0] // 2, 4 * p[0]], [4, 4], p[4]] for p in entry(c)["pieces"]]
    ),
    "transposed": lambda c: entry(c).update(shape=[8, 16]),
    "larger": lambda c: entry(c).update(shape=[17, 8]),
    "huge": lambda c: (
        entry(c).update(shape=[1 << 60, 8]),
        entry(c)["pieces"][1].__setitem__(3, [(1 << 60) - 8, 8]),
    ),
    "other dtype": lambda c: entry(c).update(dtype="int32"),
    "no dtype": lambda c: entry(c).update(dtype="float13"),
    "other tensor": lambda c: entry(c)["pieces"][0].__setitem__(1, "optimizer/slot/square/first.weight"),
    "no tensor": lambda c: entry(c)["pieces"][0].__setitem__(1, "parameters/third.weight"),
    "exchanged": lambda c: (lambda p: (p[0].__setitem__(0, p[1][0]), p[1].__setitem__(0, 0)))(entry(c)["pieces"]),
    "no file": lambda c: entry(c)["pieces"][0].__setitem__(0, 7),
    "no pieces": lambda c: entry(c).pop("pieces"),
    "no files": lambda c: c.pop("files"),
    "above": lambda c: rename(c, FIRST, f"../{FIRST}"),
    "absolute": lambda c: rename(c, FIRST, "/etc/passwd"),
    "other name": lambda c: rename(c, FIRST, "checkpoint.json"),
    "same file": lambda c: rename(c, FIRST, FIRST.replace("00001", "00002", 1)),
    "size": lambda c: c["files"][0].update(bytes=12),
    "size of text": lambda c: c["files"][0].update(bytes="12"),
    "same array": lambda c: entry(c, "second.bias").update(array="parameters/first.weight"),
}


@pytest.mark.parametrize("change", HOSTILE)
def test_an_index_that_is_wrong_is_an_error(change, folder):
    [path] = folder.iterdir()
    index = path / "checkpoint.json"
    content = json.loads(index.read_text())["content"]
    HOSTILE[change](content)
    text = json.dumps(content)
    index.write_text(f'{{"checksum": {zlib.crc32(text.encode())}, "content": {text}}}')
    with pytest.raises(errors.ModelFileError, match="is damaged") as caught:
        ml.train.load_checkpoint(ml.compile(network(), ml.NumpyBackend()), folder)
    assert caught.value.hint


def test_damaged_parts_are_errors(folder):
    [path] = folder.iterdir()
    part = path / FIRST
    content = part.read_bytes()

    def refused(match):
        for use in (
            lambda: ml.train.load_checkpoint(ml.compile(network(), ml.NumpyBackend()), folder),
            lambda: fit(on(2), SHARDED, checkpoint=folder),
        ):
            with pytest.raises(errors.ModelFileError, match=match) as caught:
                use()
            assert str(path) in str(caught.value)

    part.write_bytes(content[:-1])
    refused("is damaged: 'arrays-00001-of-00003.safetensors' has .* bytes, and was written with")
    changed = content[:-1] + bytes([content[-1] ^ 1])
    part.write_bytes(changed)
    refused("is damaged: '.*' of 'arrays-00001-of-00003.safetensors' has been changed")
    part.unlink()
    refused("it lacks 'arrays-00001-of-00003.safetensors', the part of device 0")
    elsewhere = folder.parent / "elsewhere"
    elsewhere.write_bytes(content)
    part.symlink_to(elsewhere)
    refused("not a file of its folder")


# --- several processes ------------------------------------------------------------------------------------------


class Together:
    """Processes as threads: what `gathered` of each thread returns."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count)
        self.numbers = [0] * count

    def process(self, rank):
        return Process(self, rank)


class Process:
    def __init__(self, together, rank):
        self.together, self.rank = together, rank

    def gathered(self, number):
        assert 0 <= number < 1 << 53
        self.together.numbers[self.rank] = number
        self.together.barrier.wait(20)
        numbers = list(self.together.numbers)
        self.together.barrier.wait(20)
        return numbers


def write_together(folders, groups, batch=1):
    """Write a checkpoint in as many processes as there are folders; the error of each."""
    together, caught = Together(len(folders)), [None] * len(folders)

    def write(rank):
        try:
            checkpoint = checkpoints.Checkpoint(1, batch, groups)
            checkpoints.Store(folders[rank], 2).write(checkpoint, ml.NumpyBackend(), together.process(rank))
        except Exception as error:
            caught[rank] = error

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(len(folders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return caught


GROUPS = {"parameters": {f"p{i}": np.full((i + 1, 3), i, np.float32) for i in range(6)}, "state": {"n": 3}}


def test_what_all_processes_have_is_written_once(tmp_path):
    assert write_together([tmp_path] * 3, GROUPS) == [None] * 3
    [path] = tmp_path.iterdir()
    files = [ml.weights.open(file) for file in sorted(path.glob("*.safetensors"))]
    assert sorted(name for file in files for name in file) == [f"parameters/p{i}" for i in range(6)]
    # The largest ones are spread, and no process writes much more than another.
    sizes = [sum(file[name].nbytes for name in file) for file in files]
    assert sum(sizes) == 4 * 3 * 21
    assert max(sizes) <= sum(sizes) / 2
    for name, value in checkpoints.read(path, None).groups["parameters"].items():
        np.testing.assert_array_equal(value, GROUPS["parameters"][name])


def test_a_process_that_cannot_write_is_an_error_for_all(tmp_path, monkeypatch):
    assert write_together([tmp_path] * 3, GROUPS) == [None] * 3
    original = writing.write_part

    def full(path, *rest):
        if "00002-of" in path.name:
            raise OSError(28, "No space left on device")
        return original(path, *rest)

    monkeypatch.setattr(writing, "write_part", full)
    first, second, third = write_together([tmp_path] * 3, GROUPS, batch=2)
    assert "No space left" in str(second)
    assert "process 1 could not do its part" in str(first)
    assert "process 1 could not do its part" in str(third)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-0001-batch-000001"]


def test_a_folder_that_is_not_shared_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "_SEEN", 0.2)
    (tmp_path / "a").mkdir()
    first, second = write_together([tmp_path / "a", tmp_path / "b"], GROUPS)
    assert "process 1 does not see what process 0 wrote" in str(second)
    assert "one that all of them share" in second.hint
    assert isinstance(first, errors.ModelFileError)
    assert not list(tmp_path.rglob("*.json"))


# --- kills ------------------------------------------------------------------------------------------------------

SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import mithril as ml
from mithril.checkpoints import parts
from mithril.parallel import workers
from mithril.train import checkpoints
from test_checkpoint_parts import SHARDED, fit, on

mode, folder = sys.argv[1:]
count = 0

def killing(original):
    def call(*arguments):
        global count
        count += 1
        if mode == "worker" and count == 2:
            pool = workers.workers_on("numpy", ["cpu"] * 2)
            os.kill(pool._processes[1].pid, 9)
        elif count == 2:
            os.kill(os.getpid(), 9)
        return original(*arguments)
    return call

if mode == "worker":
    checkpoints.write_remote = killing(checkpoints.write_remote)
elif mode == "own part":
    checkpoints.write_own = killing(checkpoints.write_own)
elif mode == "index":
    checkpoints._write_index = killing(checkpoints._write_index)
elif mode == "name":
    os.replace = killing(os.replace)
fit(on(2), SHARDED, checkpoint=folder, checkpoint_every=3)
"""


@pytest.mark.parametrize("mode", ["worker", "own part", "index", "name"])
def test_a_kill_while_a_checkpoint_is_written_spares_the_one_before(mode, tmp_path, folder):
    script, target = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MITHRIL_MESH_TIMEOUT": "5"}
    command = [sys.executable, str(script), mode, str(target)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    if mode == "worker":
        assert "the worker of device 1 (cpu) was ended by SIGKILL" in done.stderr
    else:
        assert done.returncode == -signal.SIGKILL
        # What was under way is not a checkpoint.
        assert [entry.name.startswith(".mithril-") for entry in sorted(target.iterdir())] == [True, False]
    [path] = checkpoints.Store(target, 1).positions().values()
    [reference] = folder.iterdir()
    for group, values in checkpoints.read(reference, None).groups.items():
        arrays = checkpoints.read(path, None).groups[group]
        for name, value in values.items():
            np.testing.assert_array_equal(arrays[name], value, err_msg=name)


PROCESS = """
import os, sys
sys.path[:0] = [{tests!r}]
import mithril as ml
from mithril.checkpoints import parts
from test_checkpoint_parts import SHARDED, fit

name, mode, folder = sys.argv[1:]
count, original = 0, parts.write_part

def write_part(path, tensors, content):
    def killing(place):
        global count
        count += "00002-of" in path.name and place == 1
        if count == 2:
            os.kill(os.getpid(), 9)
        return content(place)
    return original(path, tensors, killing)

if mode == "kill":
    parts.write_part = write_part
history, _ = fit(ml.get_backend(name, seed=3), SHARDED, checkpoint=folder, checkpoint_every=3)
print("losses", *history.batches["loss"], flush=True)
"""


@pytest.mark.parametrize(
    ("name", "module", "engine"),
    [("numpy", "mpi4py", "mpi"), ("torch", "torch", "torch")][: 2 if "MITHRIL_TEST_ALL" in os.environ else 1],
)
def test_a_process_that_is_killed_while_it_writes_spares_the_checkpoint_before(name, module, engine, tmp_path, alone):
    pytest.importorskip(module)
    script, target = tmp_path / "script.py", tmp_path / "run"
    script.write_text(PROCESS.format(tests=str(Path(__file__).parent)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "MITHRIL_MESH_TIMEOUT": "10"}
    environment |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mithril", "launch", "-n", "2", "--engine", engine, str(script), name]
    done = subprocess.run([*command, "kill", target], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    assert "losses" not in done.stdout
    [path] = checkpoints.Store(target, 1).positions().values()
    assert path.name == "epoch-0001-batch-000003"
    done = subprocess.run([*command, "go on", target], env=environment, capture_output=True, text=True, timeout=100)
    lines = [line.partition("losses ")[2] for line in done.stdout.splitlines() if "losses" in line]
    assert len(lines) == 2, done.stdout + done.stderr
    for line in lines:
        losses = [float(loss) for loss in line.split()]
        np.testing.assert_allclose(losses, alone[0].batches["loss"], rtol=1e-4)
    assert not list(target.glob(".mithril-*"))
