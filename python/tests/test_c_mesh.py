"""Models in C that several processes compute: each export runs its check on all ranks of a mesh, by MPI."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import mithril as ml
import pytest
from mithril import errors

MPI = Path(sys.executable).parent
NO_MPI = not (MPI / "mpicc").is_file() and shutil.which("mpicc") is None
needs_mpi = pytest.mark.skipif(NO_MPI, reason="mpicc is not installed")


def perceptron(width=32):
    model = ml.Model()
    model |= ml.Linear(width, name="up")(input="input", output="hidden")
    model += ml.Gelu()
    model += ml.LayerNorm(name="norm")
    model += ml.Linear(8, name="down")(output="output")
    return model, {"input": [8, 12]}


def residual():
    model = ml.Model()
    model |= ml.Convolution2D(8, 3, padding=1, name="stem")(input="input", output="stem")
    model |= ml.BatchNorm2d(name="norm")(input="stem", output="normal")
    model |= ml.Relu()(input="normal", output="left")
    model |= ml.Convolution2D(8, 3, padding=1, name="conv")(input="left", output="right")
    model |= ml.Add()(left="left", right="right", output="sum")
    model |= ml.MaxPool2d(2)(input="sum", output="pooled")
    model |= ml.Flatten()(input="pooled", output="flat")
    model |= ml.Linear(4, name="head")(input="flat", output="output")
    return model, {"input": [4, 3, 8, 8]}


def gpt():
    model = ml.models.create_gpt(vocab_size=64, num_layers=1, num_heads=4, dims=16, block_size=8)
    return model, {"input": [4, 8]}


def classifier():
    model = ml.Model()
    model |= ml.Embedding(12, 8, name="table")(input="input", output="rows")
    model |= ml.Mean(axis=1)(input="rows", output="mean")
    model |= ml.Linear(4, name="head")(input="mean", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model, {"input": [8, 4], "target": [8]}


DTYPES = {"target": "int64"}
SQUARE = ml.Mesh(data=2, model=2)
MEGATRON = {"up.*": "model", "down.weight": (None, "model")}
CASES = {
    "products divided over a square": (perceptron, ml.Layout(SQUARE, MEGATRON, batch="data"), {}),
    "products in float64": (perceptron, ml.Layout(SQUARE, MEGATRON, batch="data"), {"dtype": "float64"}),
    "products in bfloat16": (perceptron, ml.Layout(SQUARE, MEGATRON, batch="data"), {"dtype": "bfloat16"}),
    "products in float16": (perceptron, ml.Layout(ml.Mesh(model=4), parameters="model"), {"dtype": "float16"}),
    "gradients of batches": (perceptron, ml.Mesh(data=4), {"gradients": True}),
    "gradients of products in float64": (
        perceptron,
        ml.Layout(SQUARE, MEGATRON, batch="data"),
        {"gradients": True, "dtype": "float64"},
    ),
    "in pieces": (
        perceptron,
        ml.Layout(SQUARE, batch="data", parameters="model"),
        {"gradients": True, "flags": ["-DMITHRIL_MPI_COUNT=5"]},
    ),
    "images": (residual, ml.Mesh(data=4), {}),
    "images and filters": (residual, ml.Layout(SQUARE, batch="data", parameters="model"), {}),
    "gradients of images": (residual, ml.Mesh(data=2), {"gradients": True}),
    "a transformer as Megatron divides it": (gpt, ml.Mesh(model=2), {"strategy": "tensor_parallel"}),
    "a transformer over a square": (
        gpt,
        SQUARE,
        {"strategy": {"data": "data_parallel", "model": "tensor_parallel"}, "gradients": True},
    ),
    "a divided vocabulary": (classifier, ml.Layout(ml.Mesh(model=4), {"table.weight": "model"}), {"gradients": True}),
    "training on batches": (classifier, ml.Mesh(data=4), {"optimizer": ml.optim.Adam(0.01), "loss": "loss"}),
    "training fully sharded": (
        classifier,
        ml.Layout(ml.Mesh(data=4), batch="data", parameters="data"),
        {"optimizer": ml.optim.Adam(0.01), "loss": "loss"},
    ),
    "threads": (lambda: (perceptron(4096)[0], {"input": [64, 128]}), ml.Mesh(data=2), {"threads": 2}),
}


def exported(build, folder, layout, dtype="float32", **options):
    model, shapes = build()
    trains = bool(options.get("gradients") or options.get("optimizer"))
    dtypes = {name: DTYPES[name] for name in shapes if name in DTYPES}
    compiled = ml.compile(model, ml.NumpyBackend(dtype=dtype), shapes=shapes, dtypes=dtypes, inference=not trains)
    return compiled.export(folder, layout=layout, **options)


@needs_mpi
@pytest.mark.parametrize("name", CASES)
def test_ranks_compute_what_one_process_does(name, tmp_path):
    build, layout, options = CASES[name]
    if options.get("dtype") == "bfloat16":
        pytest.importorskip("ml_dtypes")
    check = exported(build, tmp_path, layout, **options).check
    assert check.splitlines()[-1] == "ok"
    if options.get("dtype") == "float64":
        assert max(map(float, re.findall(r"largest distance (\S+)", check))) < 1e-12


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The classifier on two ranks."""
    place = tmp_path_factory.mktemp("classifier")
    exported(classifier, place, ml.Mesh(data=2), prefix="words")
    return place


def mpi(name):
    path = MPI / name
    return str(path) if path.is_file() else name


def built(folder, program, *sources):
    (folder / "program.c").write_text(program)
    files = [str(folder / name) for name in ("program.c", *sources)]
    out = str(folder / "program")
    subprocess.run([mpi("mpicc"), "-std=c11", *files, "-o", out, "-lm", "-lpthread"], check=True, timeout=300)
    return out


@needs_mpi
def test_make_builds_and_runs_the_check(folder):
    variables = [f"MPICC={mpi('mpicc')}", f"MPIRUN={mpi('mpirun')}"]
    done = subprocess.run(
        ["make", "-s", "--no-print-directory", "test", *variables],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines()[-1] == "ok", done.stdout + done.stderr
    wrong = subprocess.run(
        [mpi("mpirun"), "-n", "3", "./check"], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert wrong.returncode != 0
    assert "the mesh has 2 ranks, and there are 3 processes: start it by mpirun -n 2" in wrong.stderr


MISTAKE = r"""
#include "words_mpi.h"
#include <stdint.h>
#include <stdio.h>

int main(int argc, char **argv) {
    int rank, code;
    int64_t words[16] = {0}, target[4] = {0};
    float logits[16], loss[1];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mithril_mesh *mesh = words_mpi_open(MPI_COMM_WORLD);
    words_model *model = words_open(words_weights_file(mesh), 1, mesh);
    const void *data[] = {words, target};
    void *outputs[] = {@outputs@};
    words[3] = rank == 1 ? 99 : 0;
    code = words_call(model, data, outputs);
    printf("%d: %s\n", rank, words_error(code));
    words[3] = 0;
    code = words_call(model, data, outputs);
    printf("%d: %s\n", rank, words_error(code));
    words_close(model);
    words_mpi_close(mesh);
    MPI_Finalize();
}
"""


@needs_mpi
def test_a_rank_that_fails_ends_the_call_on_all(folder):
    header = (folder / "words.h").read_text()
    names = [re.search(rf"outputs\[{i}\]: float\S* (\w+)", header) for i in range(2)]
    program = MISTAKE.replace("@outputs@", ", ".join(name[1] for name in names if name))
    program = built(folder, program, "words.c", "words_mpi.c")
    done = subprocess.run([mpi("mpirun"), "-n", "2", program], cwd=folder, capture_output=True, text=True, timeout=60)
    lines = done.stdout.splitlines()
    assert sum("an index is out of range" in line for line in lines) == 2, done.stdout + done.stderr
    assert sum("no error" in line for line in lines) == 2


ALONE = r"""
#include "words.h"
#include <stdio.h>

int main(void) {
    const int sizes[] = {3};
    const mithril_mesh other = {.axes = 1, .sizes = sizes, .places = sizes};
    puts(words_error(words_run(NULL, NULL, NULL, NULL, NULL, NULL)));
    puts(words_error(words_run(NULL, NULL, NULL, NULL, NULL, &other)));
}
"""


@needs_mpi
def test_a_missing_mesh_and_one_of_other_sizes_are_errors(folder):
    done = subprocess.run([built(folder, ALONE, "words.c")], capture_output=True, text=True, timeout=60)
    assert done.stdout.count("the mesh is missing or has other sizes") == 2


@needs_mpi
def test_a_model_that_was_compiled_with_a_layout_is_exported_with_it(tmp_path):
    model, shapes = perceptron()
    layout = ml.Layout(ml.Mesh(model=2), MEGATRON)
    compiled = ml.compile(model, ml.InterpreterBackend(), shapes=shapes, layout=layout, inference=True)
    files = {file.name for file in compiled.export(tmp_path).files}
    assert {"model_mpi.c", "model_mpi.h", "model.0.weights", "model.1.weights", "model.1.check"} <= files
    header = (tmp_path / "model.h").read_text()
    assert "float[16][12] up.weight, axis 0 divided along model" in header


@needs_mpi
def test_ranks_with_the_same_weights_share_a_file(folder):
    assert [path.name for path in folder.glob("*.weights")] == ["words.weights"]


@needs_mpi
def test_the_command_exports_programs_of_several_ranks(tmp_path):
    model, _ = perceptron()
    ml.save(model, tmp_path / "model.json")
    command = [sys.executable, "-m", "mithril", "export", str(tmp_path / "model.json"), str(tmp_path / "out")]
    rest = ["--shape", "input=8,12", "--random-weights", "--mesh", "model=2", "--strategy", "model_parallel"]
    done = subprocess.run([*command, *rest], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "model_mpi.c" in done.stdout


MISTAKES = [
    ({"layout": ml.Mesh(data=2), "target": "web"}, errors.ConflictingOptionError, "program of one process"),
    ({"layout": ml.Mesh(data=2), "target": "rust"}, errors.ConflictingOptionError, "leave out the layout"),
    ({"layout": ml.Mesh(data=2), "batch": "batch"}, errors.ConflictingOptionError, "batch does not go with a layout"),
    ({"layout": ml.Mesh(data=2), "autotune": True}, errors.ConflictingOptionError, "measured in one process"),
    ({"layout": ml.Mesh(data=2), "quantize": "int8"}, errors.ConflictingOptionError, "not divided"),
    ({"layout": ml.Mesh(data=2), "weights_inside": True}, errors.ConflictingOptionError, "different weights"),
    ({"layout": ml.Pipeline(2)}, errors.BackendUnavailableError, "runs no pipelines"),
    ({"layout": 4}, errors.InvalidValueError, "4 is not a layout"),
    ({"strategy": "data_parallel"}, errors.InvalidValueError, "layout=ml.Mesh"),
    ({"layout": ml.Mesh(data=3)}, errors.MithrilError, "does not divide into 3 parts"),
]


@pytest.mark.parametrize(("options", "kind", "text"), MISTAKES)
def test_mistakes_say_what_to_do(options, kind, text, tmp_path):
    model, shapes = perceptron()
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True)
    with pytest.raises(kind) as caught:
        compiled.export(tmp_path / "out", **options)
    assert text in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_machine_without_mpi_is_told_what_to_install(tmp_path, monkeypatch):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "cc").symlink_to(shutil.which("cc") or shutil.which("gcc"))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    model, shapes = perceptron()
    compiled = ml.compile(model, ml.NumpyBackend(), shapes=shapes, inference=True)
    with pytest.raises(errors.BackendUnavailableError, match="mpicc") as caught:
        compiled.export(tmp_path / "out", layout=ml.Mesh(data=2))
    assert "pip install mpich" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["CBackend", "GGMLBackend"])
def test_backends_of_one_process_say_how_a_layout_runs(name):
    model, shapes = perceptron()
    with pytest.raises(errors.BackendUnavailableError) as caught:
        ml.compile(model, getattr(ml, name)(), shapes=shapes, layout=ml.Mesh(data=2))
    assert ("export" if name == "CBackend" else "leave out the layout") in str(caught.value)
