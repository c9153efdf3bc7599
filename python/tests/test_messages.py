"""Messages name what the user wrote, the reason, and what to do instead."""

import io
import os
import resource
import subprocess
import sys
import threading
import zipfile

import mithril as ml
import numpy as np
import pytest
from mithril.errors import BackendWarning, MithrilError
from networks import classifier


def message(function):
    with pytest.raises(MithrilError) as raised:
        function()
    return str(raised.value)


def test_an_output_is_no_argument_of_a_call():
    for layer, name in ((ml.Linear(4), "output"), (ml.Relu(), "output")):
        text = message(lambda layer=layer, name=name: layer(ml.IOKey("x"), **{name: "y"}))
        assert f"`{name}` is an output of" in text
        assert "take what the call returns" in text
        assert "did you mean" not in text
    assert 'did you mean "input"?' in message(lambda: ml.Linear(4)(ml.IOKey("x"), inptu="y"))


def test_too_large_is_not_called_negative():
    for make in (
        lambda: ml.Linear(10**18),
        lambda: ml.Conv2d(4, 10**18),
        lambda: ml.Embedding(10**18, 4),
        lambda: ml.Conv2d(4, (3, 10**18)),
    ):
        text = message(make)
        assert "too large" in text
        assert "10000000" in text
        assert "positive" not in text
    assert "it must be a positive number" in message(lambda: ml.Linear(-3))


def test_sizes_that_differ_say_what_to_change_where():
    def add():
        model = ml.Model()
        model |= ml.Add()(left=ml.IOKey("a", shape=[2, 3]), right=ml.IOKey("b", shape=[2, 4]))

    text = message(add)
    here = f"{os.path.basename(__file__)}:{add.__code__.co_firstlineno + 2}"
    assert "change 3 to 4 where `a` was declared [2, 3]" in text
    assert "or 4 to 3 where `b` was declared [2, 4]" in text
    assert text.count(here) >= 4

    def multiply():
        model = ml.Model()
        model |= ml.Linear(4)(input="input", output="h")
        model |= ml.MatrixMultiply()(left="h", right="w", output="o")
        ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 3], "w": [5, 6]})

    text = message(multiply)
    assert "change 4 to 5 in `left`, or 5 to 4 in `right`" in text


@pytest.mark.parametrize(
    ("shape", "shown"),
    [
        ([5, float("nan")], "nan (a float)"),
        ([2.5, 3], "2.5 (a float)"),
        ([-5, 3], "a size is -5"),
        ("abc", "'abc' (a str)"),
        ([["a"], 3], "['a'] (a list)"),
    ],
)
def test_a_shape_is_shown_as_it_was_written(shape, shown):
    text = message(lambda: ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": shape}))
    assert 'the shape of "input" is' in text
    assert repr(shape) in text
    assert shown in text


def test_options_are_named_as_they_were_written():
    assert "mem_size is -1" in message(lambda: ml.CBackend(mem_size=-1))
    assert "memory_limit is 'much'" in message(lambda: ml.CBackend(memory_limit="much"))
    text = message(lambda: ml.TorchBackend(parallel_strategy="dta_parallel"))
    assert "parallel_strategy is 'dta_parallel'" in text
    assert "did you mean 'data_parallel'?" in text
    assert "parallel_strategy='data_parallel'" in message(lambda: ml.TorchBackend(parallel_strategy="data_parallel"))
    for backend in (ml.CBackend, ml.GGMLBackend):
        with pytest.raises(TypeError, match=r"it runs on one device; `num_threads` .* NumpyBackend, TorchBackend"):
            backend(devices=["cpu"] * 2)


@pytest.fixture
def compiled():
    model = ml.Model()
    model |= ml.Linear(1)(input="input", output="output")
    model |= ml.MSELoss()(input="output", target="target", output=ml.IOKey("loss", expose=True))
    return ml.compile(model, ml.NumpyBackend(), shapes={"input": ["n", 2], "target": ["n", 1]}, data_keys={"target"})


def test_a_key_for_another_is_taken_for_a_mistake(compiled):
    params = compiled.randomize_params(seed=0)
    data = {"input": np.ones((4, 2), np.float32), "label": np.ones((4, 1), np.float32)}
    text = message(lambda: compiled.evaluate(params, data))
    assert "label" in text
    assert "target" in text
    assert "leave it out" not in text
    # Nothing is missing: the name is one too many.
    text = message(lambda: compiled.evaluate(params, {**data, "target": data["label"]}))
    assert "leave it out" in text


def test_too_few_examples_say_both_numbers(compiled):
    data = {"input": np.ones((8, 2), np.float32), "target": np.ones((8, 1), np.float32)}
    text = message(lambda: ml.train.fit(compiled, data, loss="loss", batch_size=32))
    assert "8 examples" in text
    assert "a batch has 32" in text
    assert "batch_size=8" in text
    assert "drop_last=False" in text
    assert ml.train.fit(compiled, data, loss="loss", batch_size=32, drop_last=False)


def test_lists_of_numbers_are_data(compiled):
    x, y = np.random.default_rng(0).normal(size=(8, 2)), np.ones((8, 1))
    of_lists = ml.train.fit(compiled, (x.tolist(), y.tolist()), loss="loss", batch_size=4)
    assert of_lists.epochs
    assert "not arrays" in message(lambda: ml.train.fit(compiled, ([[1.0], [1.0, 2.0]], [[1.0], [1.0]]), loss="loss"))
    text = message(lambda: ml.train.fit(compiled, [[1.0, 2.0, 3.0]], loss="loss"))
    assert "[1.0, 2.0, 3.0]" in text
    assert "'input': array" in text


def npz():
    file = io.BytesIO()
    np.savez(file, weight=np.ones(3))
    return file.getvalue()


def npy():
    file = io.BytesIO()
    np.save(file, np.ones(3))
    return file.getvalue()


def keras():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n")
    return file.getvalue()


#: A message of protobuf: the version of the format, and the name of its producer.
ONNX = b"\x08\x08\x12\x07pytorch" + b"\x3a\x00" + bytes(40)


@pytest.mark.parametrize(
    ("name", "content", "form", "way"),
    [
        ("w.npz", npz(), ".npz", "dict(numpy.load(path))"),
        ("w.npy", npy(), "array of NumPy", "numpy.load(path)"),
        ("w.h5", b"\x89HDF\r\n\x1a\n" + bytes(64), "HDF5", "h5py"),
        ("w.keras", keras(), "model of Keras", "read it with Keras"),
        ("w.onnx", ONNX, "model of ONNX", "model, params = ml.from_onnx(path)"),
        ("w.gz", b"\x1f\x8b" + bytes(40), "gzip", "gunzip"),
    ],
    ids=["npz", "npy", "h5", "keras", "onnx", "gz"],
)
def test_files_of_other_programs_are_recognized(tmp_path, compiled, name, content, form, way):
    (tmp_path / name).write_bytes(content)
    text = message(lambda: ml.load_weights(compiled, tmp_path / name))
    assert name in text
    assert form in text
    assert way in text
    assert "incomplete" not in text
    # What it is, its content says.
    (tmp_path / "model.safetensors").write_bytes(content)
    assert form in message(lambda: ml.weights.open(tmp_path / "model.safetensors"))
    (tmp_path / "cut.safetensors").write_bytes(b"\x00" * 4)
    assert "incomplete" in message(lambda: ml.weights.open(tmp_path / "cut.safetensors"))


FULL = """
import os, resource, signal, sys
import mithril as ml, numpy as np
os.chdir(sys.argv[1])
small, large = {"a": np.ones(10)}, {"a": np.ones(100_000)}
blocks = {"a": np.ones((1000, 64), np.float32)}
model = ml.Model()
for i in range(900):
    model += ml.Linear(4, name=f"a{i}")
ml.save(small, "p.safetensors")
ml.save(ml.Linear(4), "m.json")
ml.save_gguf({"a": np.ones((4, 32), np.float32)}, "g.gguf")
open("s.py", "w").write("old")
before = {name: open(name, "rb").read() for name in os.listdir(".")}
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
writes = {
    "p.safetensors": lambda: ml.save(large, "p.safetensors"),
    "m.json": lambda: ml.save(model, "m.json"),
    "g.gguf": lambda: ml.save_gguf(blocks, "g.gguf"),
    "s.py": lambda: ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]}, file_path="s.py"),
}
for name, write in writes.items():
    try:
        write()
        print(name, "was written")
    except ml.errors.ModelFileError as error:
        print(name, error.code, str(error).replace("\\n", " "))
assert {name: open(name, "rb").read() for name in os.listdir(".")} == before, os.listdir(".")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sizes of files have no bound there")
def test_a_full_disk_is_our_error_and_loses_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["p.safetensors", "m.json", "g.gguf", "s.py"]
    for line in lines:
        assert "M0802" in line, line
        assert "free some space" in line, line
        assert " bytes" in line, line
    assert "800" in lines[0]


def test_a_misspelled_method_of_a_backend_is_guessed():
    with pytest.warns(BackendWarning, match=r"Mine.subtrakt is not an op, .* did you mean `subtract`\?"):

        class Mine(ml.NumpyBackend):
            def subtrakt(self, left, right):
                return left - right

    with pytest.warns(BackendWarning, match=r"did you mean `backward_sigmoid`\?"):

        class Gradient(ml.NumpyBackend):
            def backward_simgoid(self, output, inputs, gradient, attrs):
                return [gradient]


def test_other_methods_of_a_backend_are_the_users_own(recwarn):
    class Mine(ml.NumpyBackend):
        def statistics(self):
            return {}

        def upload(self, array):
            return array

        def _subtrakt(self):
            return None

        def get_memory_info(self):
            return {}

    assert not [warning for warning in recwarn if issubclass(warning.category, BackendWarning)]


def test_the_peak_of_memory_is_never_less_than_what_is_used():
    backend, seen = ml.NumpyBackend(), 0
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            np.ones(2_000_000)

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(500):
            info = backend.get_memory_info()
            assert info["used_bytes"] <= info["peak_bytes"]
            assert info["used"] <= info["peak"]
            assert seen <= info["peak_bytes"]
            seen = info["peak_bytes"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_kernel_that_adds_up_later(monkeypatch):
    from mithril.backends import memory

    monkeypatch.setattr(memory, "_resident", lambda: 10**15)
    assert ml.NumpyBackend().get_memory_info()["peak_bytes"] >= 10**15
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 10**12
    monkeypatch.setattr(memory, "_seen", 0)


def _sizes():
    def ones(*shape):
        return np.ones(shape, np.float32)

    return [
        (lambda b: b.mse_loss(ones(2, 3), ones(2, 4)), "change 3 to 4 in `input`, or 4 to 3 in `target`"),
        (lambda b: b.matmul(ones(3, 4), ones(3, 4)), "change 4 to 3 in `left`, or 3 to 4 in `right`"),
        (lambda b: b.solve(ones(3, 3), ones(4, 2)), "change 3 to 4 in `left`, or 4 to 3 in `right`"),
        (lambda b: b.concat(ones(2, 3), ones(2, 4)), "change 3 to 4 in `inputs[0]`, or 4 to 3 in `inputs[1]`"),
        (lambda b: b.stack(ones(2, 3), ones(2, 4)), "change 3 to 4 in `inputs[0]`, or 4 to 3 in `inputs[1]`"),
        (
            lambda b: b.einsum("ij,jk->ik", ones(2, 3), ones(4, 5)),
            "change 3 to 4 in `operands[0]`, or 4 to 3 in `operands[1]`",
        ),
        (lambda b: b.einsum("ii->i", ones(2, 3)), "change 2 to 3, or 3 to 2, in `operands[0]`"),
    ]


@pytest.mark.parametrize(("call", "hint"), _sizes())
def test_sizes_that_differ_are_said_of_the_tensors_that_have_them(call, hint):
    assert hint in message(lambda: call(ml.NumpyBackend()))


def test_calls_as_in_other_libraries_say_what_to_write():
    backend, x = ml.NumpyBackend(), np.ones((1, 3, 8, 8), np.float32)
    for call, words in (
        (lambda: backend.conv2d(x, filters=4, kernel_size=3), "ml.Conv2d(4, kernel_size=3)"),
        (lambda: backend.divide(x, x, rounding_mode="floor"), "floor_divide(a, b)"),
        (lambda: backend.round(x, decimals=2), "round(x * 10**n) / 10**n"),
        (lambda: backend.round(x, 2), "round(x * 10**n) / 10**n"),
        (lambda: ml.LeakyReLU(0.2, 3), "LeakyRelu(slope)"),
        (lambda: ml.view("resnet19", "unused.svg"), "resnet18"),
        (lambda: ml.benchmark("resnet81"), "resnet18"),
    ):
        assert words in message(call)
    with pytest.raises(TypeError, match="one of the backend: NumpyBackend"):
        ml.compile(ml.Linear(2), backend, quantize="int8")
    leaky = ml.compile(ml.LeakyReLU(0.2), backend, shapes={"input": [2]}, inference=True)
    np.testing.assert_allclose(leaky.evaluate({}, {"input": np.float32([-1, 2])})["output"], [-0.2, 2.0])


def test_a_loss_that_can_be_meant_for_several_outputs_says_how_to_choose():
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="a")
    model |= ml.Linear(2)(input="input", output="b")
    model.set_outputs("a", "b")
    two = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 3]})
    data = np.ones((4, 3)), np.ones((4, 2))
    assert "loss=lambda b, target:" in message(lambda: ml.train.fit(two, data, epochs=1, batch_size=4))
    identity = message(lambda: ml.train.fit(two, data, epochs=1, batch_size=4, loss=lambda a: a))
    assert 'by its name, loss="output"' in identity


def test_initializers_are_patterns():
    for initializers, words in (({ml.Linear: "zeros"}, '{"encoder.*": "zeros"}'), ("zeros", '{"*.bias": "zeros"}')):
        assert words in message(
            lambda initializers=initializers: ml.compile(ml.Linear(2), ml.NumpyBackend(), initializers=initializers)
        )


def test_an_export_says_that_nothing_is_quantized(tmp_path):
    model = ml.compile(ml.Relu(), ml.NumpyBackend(), shapes={"input": [4, 3]}, inference=True)
    with pytest.warns(ml.errors.BackendWarning, match="no product or convolution has a weight"):
        model.export(tmp_path / "c", quantize="int8")
