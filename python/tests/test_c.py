"""The C backend: programs in C against NumPy and the interpreter, what may go wrong with a C compiler, and export."""

import ctypes
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import tracemalloc

import mithril as ml
import numpy as np
import pytest
from mithril.__main__ import main
from mithril.compiled.stages import RENAMED
from mithril.errors import MithrilError
from networks import classifier

COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """An empty cache for this module: what other runs have compiled shall not hide anything."""
    patch = pytest.MonkeyPatch()
    patch.setenv("MITHRIL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


def test_what_c_can_do_is_told_by_its_own_rows():
    report = ml.check(classifier(), "c", shapes={"input": [2, 5]}, gradients=True)
    assert report.ok
    assert ml.CBackend().capabilities()["ops"]["matmul"] == "native"


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_a_trained_model_runs_in_c():
    model, data = classifier(), {"input": normal(6, 5)}
    trained = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", 5]})
    params = trained.randomize_params(seed=1)
    deployed = ml.compile(model, ml.CBackend(num_threads=2), shapes={"input": ["batch", 5]}, inference=True)
    for batch in (6, 1, 6, 0):
        part = {"input": data["input"][:batch]}
        expected, actual = trained.evaluate(params, part)["output"], deployed.evaluate(dict(params), part)["output"]
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    assert deployed._current.module.source.specializations == 3


def test_parameters_of_a_model_for_inference_cannot_change_unnoticed():
    compiled = ml.compile(classifier(), ml.CBackend(num_threads=1), shapes={"input": [2, 5]}, inference=True)
    reference = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [2, 5]})
    params, data = {k: np.array(v) for k, v in compiled.randomize_params(seed=0).items()}, {"input": normal(2, 5)}
    compiled.evaluate(params, data)
    if compiled._current.module.source.packed_bytes:
        with pytest.raises(ValueError, match="read-only"):
            next(iter(params.values()))[...] = 0
    changed = {name: -value for name, value in params.items()}
    for arrays in (changed, params, {k: np.asfortranarray(v) for k, v in changed.items()}):
        np.testing.assert_allclose(
            compiled.evaluate(arrays, data)["output"], reference.evaluate(arrays, data)["output"], rtol=1e-5, atol=1e-6
        )


def test_what_follows_from_parameters_and_states_is_computed_anew_when_they_are_others():
    model = ml.Model()
    model |= ml.Conv2d(24, 3, padding=1)(input="input", output="x")
    for layer in (ml.BatchNorm2D(), ml.Relu(), ml.Conv2d(24, 3, padding=1, groups=24)):
        model += layer
    model += ml.BatchNorm2D()(output="output")
    shapes, data = {"input": [2, 8, 12, 12]}, {"input": normal(2, 8, 12, 12)}
    backends = ml.NumpyBackend(), ml.CBackend(num_threads=1)
    reference, compiled = (ml.compile(model, b, shapes=shapes, inference=True) for b in backends)
    calls = compiled.stages["memory_planning"].split("at every call:")[1]
    assert "sqrt" not in calls
    assert calls.count("convolution of") == 2
    drawn = compiled.randomize_params(seed=0)
    # Without the statistics that were drawn with them, which would count rather than the state.
    params = {name: drawn[name] for name in compiled.parameter_keys}
    first = {name: np.abs(normal(24)) + number for number, name in enumerate(compiled.state, 1)}
    for state in (first, {name: 2 * value for name, value in first.items()}, first):
        compiled.state, reference.state = dict(state), dict(state)
        actual, expected = (c.evaluate(params, data)["output"] for c in (compiled, reference))
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="read-only"):
        next(iter(first.values()))[...] = 0


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_computed_when_parameters_are_packed_has_scratch_memory(threads):
    # The calls do not need any: only the order of the parameter does.
    model = ml.Model()
    weight = ml.IOKey("weight", shape=[300], differentiable=True)
    model |= ml.Sort()(input=weight, output="sorted")
    model |= ml.Add()(left="input", right="sorted", output="output")
    backend = ml.CBackend(num_threads=threads)
    compiled = ml.compile(model, backend, shapes={"input": [300]}, inference=True)
    weight, x = np.random.default_rng(0).standard_normal((2, 300), np.float32)
    packed = compiled.pack({"weight": weight})
    np.testing.assert_array_equal(compiled.evaluate(packed, {"input": x})["output"], x + np.sort(weight))


def test_packed_parameters_stand_for_their_arrays():
    sizes = {"input": ["batch", 5]}
    compiled, other, plain = (
        ml.compile(classifier(), b, shapes=sizes, inference=True)
        for b in (ml.CBackend(num_threads=1), ml.CBackend(num_threads=1), ml.NumpyBackend())
    )
    params, data = {k: np.array(v) for k, v in compiled.randomize_params(seed=0).items()}, {"input": normal(6, 5)}
    expected = plain.evaluate(params, data)["output"]
    with pytest.raises(ml.errors.InvalidValueError, match="shape of input is not known"):
        compiled.pack(params)
    packed = compiled.pack(params, shapes={"input": (6, 5)})
    names = list(params)
    params.clear()
    np.testing.assert_allclose(compiled.evaluate(packed, data)["output"], expected, rtol=1e-5, atol=1e-6)
    assert list(packed) == names
    assert 0 < packed.bytes < 1 << 20
    for model, array, message in (
        (compiled, normal(7, 5), "another size of `input`"),
        (other, normal(6, 5), "packed for another model"),
        (plain, normal(6, 5), "packed for a model in C"),
    ):
        with pytest.raises(ml.errors.ParameterError, match=message):
            model.evaluate(packed, {"input": array})
    with pytest.raises(ml.errors.UnsupportedOpError, match="only models for inference in C"):
        plain.pack()
    # Packed parameters, and none: those that belong to the model.
    compiled.load_params(plain.randomize_params(seed=1))
    for array in (packed, {}, None):
        profile = compiled.profile(array, data, runs=1)
        assert sum(row.operations or 0 for row in profile) > 0
    with pytest.raises(ml.errors.ParameterError, match="packed for another model"):
        other.profile(packed, data, runs=1)


def test_gradients_and_changes_in_place():
    c, numpy = (ml.compile(classifier(), b, shapes={"input": [4, 5]}) for b in (ml.CBackend(), ml.NumpyBackend()))
    params, data = {k: np.array(v) for k, v in numpy.randomize_params(seed=0).items()}, {"input": normal(4, 5)}
    # Those of ones would vanish: the outputs of the classifier sum to one.
    above = {"output": normal(4, 10)}
    for _ in range(2):
        (outputs, gradients), (_, expected) = c.evaluate(params, data, above), numpy.evaluate(params, data, above)
        assert all(np.abs(gradient).max() > 1e-3 for gradient in expected.values())
        np.testing.assert_allclose(outputs["output"], c.evaluate(params, data)["output"], rtol=1e-5, atol=1e-6)
        for name, gradient in expected.items():
            np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-5)
            params[name] -= 0.1 * gradient


def test_states_and_random_numbers_are_kept_from_call_to_call():
    model = ml.Model()
    model |= ml.BatchNorm1d(3)(input="input", output="normal")
    model += ml.Dropout(0.5)(output="output")
    data = {"input": normal(8, 3)}
    c, numpy = (ml.compile(model, b, shapes={"input": [8, 3]}) for b in (ml.CBackend(), ml.NumpyBackend()))
    for _ in range(3):
        actual, expected = c.evaluate({}, data)["output"], numpy.evaluate({}, data)["output"]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    for name, value in numpy.state.items():
        np.testing.assert_allclose(c.state[name], value, rtol=1e-5, atol=1e-6)


def test_arrays_of_all_kinds_are_taken():
    model = ml.Model()
    model |= ml.Relu()(input="input", output="output")
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": ["n", 3]})
    whole = normal(8, 6)
    misaligned = np.frombuffer(b"\0" + whole.tobytes(), np.uint8)[1:].view(np.float32).reshape(8, 6)
    special = np.array([[np.nan, np.inf, -np.inf], [-0.0, 1e-42, -1e-42]], np.float32)
    for x in (whole[::2, ::2], whole.T[:3].T, misaligned[:, :3], whole[:0, :3], whole[:, :3].astype(">f4"), special):
        output = compiled.evaluate({}, {"input": x})["output"]
        np.testing.assert_array_equal(output, np.where(np.isnan(x), x, np.maximum(x, 0)))


def test_parameters_that_were_copied_are_read_again_when_others_are_replaced():
    model = ml.Model()
    model |= ml.Linear(512)(input="input", output="output")
    options = {"shapes": {"input": [2, 512]}, "inference": True}
    c, numpy = (ml.compile(model, b, **options) for b in (ml.CBackend(num_threads=1), ml.NumpyBackend()))
    names = sorted(c.get_parameters(), key=lambda name: c.get_parameters()[name].ndim)
    weight, data = normal(512, 512).T, {"input": normal(2, 512)}
    for bias in (normal(512), normal(512)):
        params = dict(zip(names, (bias, weight), strict=True))
        actual, expected = c.evaluate(params, data)["output"], numpy.evaluate(params, data)["output"]
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_many_threads_call_one_model():
    compiled = ml.compile(classifier(), ml.CBackend(num_threads=2), shapes={"input": [3, 5]}, inference=True)
    params, data = compiled.get_parameters(), {"input": normal(3, 5)}
    expected = compiled.evaluate(params, data)["output"]
    wrong = []

    def work():
        for _ in range(300):
            if not np.array_equal(compiled.evaluate(params, data)["output"], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_memory_of_large_outputs_is_used_again_when_no_array_has_it():
    model = ml.Model()
    model |= ml.Linear(1024)(input="input", output="output")
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [512, 3]}, inference=True)
    params, data = compiled.get_parameters(), normal(512, 3)
    weight, bias = (params[name] for name in ("linear.weight", "linear.bias"))

    def call(factor):
        output = compiled.evaluate(params, {"input": factor * data})["output"]
        assert (output.shape, output.dtype, output.flags.writeable) == ((512, 1024), np.float32, True)
        return output

    def is_right(output, factor, rows=slice(None)):
        return np.allclose(output, (factor * data @ weight.T + bias)[rows], atol=1e-4)

    def start(array):
        return array.__array_interface__["data"][0]

    first, second = call(1), call(2)
    assert not np.shares_memory(first, second)
    view, places = first[3:5].T, (start(first), start(second))
    del first
    third = call(3)
    assert start(third) not in places
    assert all([is_right(view.T, 1, slice(3, 5)), is_right(second, 2), is_right(third, 3)])
    # What nobody has any more is the place of the next call.
    del second
    fourth = call(4)
    assert start(fourth) == places[1]
    assert all([is_right(view.T, 1, slice(3, 5)), is_right(third, 3), is_right(fourth, 4)])
    del view, third, fourth
    tracemalloc.start()
    try:
        several = [call(factor) for factor in range(6)]
        assert all(is_right(output, factor) for factor, output in enumerate(several))
        assert not any(np.shares_memory(a, b) for a, b in itertools.combinations(several, 2))
        del several
        # What is kept is at most what one call needs.
        assert tracemalloc.get_traced_memory()[0] < 1.5 * 512 * 1024 * 4
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_goes_on_without_the_threads_of_its_parent():
    # In a process of its own: JAX, where a test has imported it, warns at every fork.
    program = """
import ctypes
import hashlib
import importlib.util
import itertools
import os
import mithril as ml, numpy as np
from networks import classifier
compiled = ml.compile(classifier(), ml.CBackend(num_threads=2), shapes={"input": [3, 5]}, inference=True)
params, data = compiled.get_parameters(), {"input": np.ones((3, 5), np.float32)}
expected = compiled.evaluate(params, data)["output"]
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(compiled.evaluate(params, data)["output"], expected) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_arrays_and_ops_at_once_are_those_of_numpy():
    backend = ml.CBackend(seed=3)
    x = backend.array([1.0, 4.0])
    assert type(backend.sqrt(x)) is np.ndarray
    assert ml.get_backend("c", cc=COMPILERS[0]).cc == COMPILERS[0]
    np.testing.assert_array_equal(backend.randn(3), ml.NumpyBackend(seed=3).randn(3))


def test_options_and_compilers_that_do_not_work():
    for options in ({"num_threads": 0}, {"cc": ""}, {"flags": [1]}):
        with pytest.raises(ml.errors.InvalidValueError, match=next(iter(options))):
            ml.CBackend(**options)
    with pytest.raises(ml.errors.OutOfMemoryError, match="limit is 10"):
        ml.compile(classifier(), ml.CBackend(mem_size=10), shapes={"input": [1000, 5]})
    with pytest.raises(ml.errors.BackendUnavailableError, match="no-such-cc"):
        ml.compile(classifier(), ml.CBackend(cc="no-such-cc"), shapes={"input": [1, 5]})
    with pytest.raises(ml.errors.CompilerError, match="help: try without the flags that were given: --no-such-flag"):
        ml.compile(classifier(), ml.CBackend(flags="--no-such-flag"), shapes={"input": [1, 5]})


def test_the_first_comment_names_what_the_file_has():
    def explained(model, shape):
        compiled = ml.compile(model, ml.CBackend(num_threads=2), shapes={"input": shape}, inference=True)
        guide, code = str(compiled.source).split("/* The parts of this file", 1)[1].split(" */", 1)
        columns = re.findall(r"^ {5}(\S.{17}) ", guide, re.MULTILINE)
        names = [name.rstrip(".") for column in columns for name in column.strip().split(", ")]
        assert [name for name in names if name not in code] == []
        return names

    convolutions = ml.Model()
    convolutions |= ml.Conv2d(16, 3)(input="input", output="x")
    for layer in (ml.Relu(), ml.Conv2d(16, 3), ml.Relu()):
        convolutions += layer
    convolutions += ml.Conv2d(16, 3)(output="output")
    actual = set(explained(convolutions, [1, 16, 60, 60]))
    assert actual == {"model_run", "model_run_thread", "model_pack", "model_", "mithril_"}
    element = ml.Model()
    element |= ml.Relu()(input="input", output="output")
    assert explained(element, [2, 3]) == ["model_run", "model_", "mithril_"]


def test_source_stages_and_file(tmp_path):
    path = tmp_path / "model.c"
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": ["n", 5]}, file_path=str(path), inference=True)
    compiled.evaluate(compiled.get_parameters(), {"input": normal(2, 5)})
    assert "int model_run(" in path.read_text() == compiled.source
    assert {"infer", "legalize", "cleanup", "emit"} <= set(compiled.stages)


def test_former_names_of_stages_are_aliases():
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    compiled.evaluate(compiled.randomize_params(), {"input": normal(2, 5)})
    stages = compiled.stages
    assert {"fusion", "in_place", "attention_fusion", "kernel_selection", "memory_planning"} <= set(stages)
    for former, name in RENAMED.items():
        assert name in stages, former
        assert stages[former] == stages[name], former
        assert former not in set(stages)
    with pytest.raises(KeyError, match="there is no stage 'fusing'"):
        stages["fusing"]


@pytest.mark.parametrize("inside", [True, False])
def test_what_is_exported_is_portable_c(tmp_path, inside):
    model = ml.Model()
    model |= ml.BatchNorm1d(5)(input="input", output="normal")
    model += ml.Linear(3)(output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 5]}, inference=True)
    exported = compiled.export(tmp_path, prefix="tiny", weights_inside=inside)
    assert exported.check.splitlines()[-1] == "ok"
    assert (tmp_path / "tiny.weights").exists() is not inside
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-g"]
    build = [*strict, "main.c", "tiny.c", "-o", "check", "-lm", "-lpthread"]
    for flags in (["gcc", "-fsanitize=address,undefined"], ["clang", "-DMITHRIL_SINGLE_THREAD"]):
        if flags[0] in COMPILERS:
            subprocess.run([*flags, *build], cwd=tmp_path, check=True)
            subprocess.run(["./check", "2"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([COMPILERS[0], *strict, "-DMITHRIL_NO_MALLOC", "-c", "tiny.c"], cwd=tmp_path, check=True)
    header = subprocess.run(
        [COMPILERS[0], "-x", "c++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-"],
        cwd=tmp_path,
        input=b'#include "tiny.h"\n#include "tiny.h"\nint main() { return tiny_arena_bytes(1) == 0; }\n',
        capture_output=True,
    )
    assert header.returncode == 0, header.stderr.decode()
    # Outputs that are not those of the model are found.
    recorded = bytearray((tmp_path / "tiny.check").read_bytes())
    recorded[-4:] = np.float32(1000).tobytes()
    (tmp_path / "tiny.check").write_bytes(recorded)
    assert subprocess.run(["./check"], cwd=tmp_path, stdout=subprocess.DEVNULL).returncode == 1


def test_values_may_be_called_anything(tmp_path):
    """Keywords, functions of libc, and what the generated file and an export call their own."""
    words = "int main memcpy NULL inputs packed thread error own call fits model open prepare worker place weights"
    words += " INFINITY NAN I errno EOF M_PI complex _Bool linux __LINE__ defined double_t size_t float32 a_b é è 名"
    # Names that are alike when only letters, digits and underscores are left.
    names = [
        *words.split(),
        "a b",
        "a-b",
        "y" * 900,
        "y" * 900 + "z",
        "weight_table",
        "weight_1",
        "arena_bytes",
        "DATA",
        "STANDALONE",
        "M_run",
        "mithril_wait",
    ]
    model = ml.Model()
    model |= ml.Linear(4, name="exp")(input="input", output="x")
    for i, (before, after) in enumerate(zip(["x", *names], names, strict=False)):
        # Different functions, and none is fused away: each fills an output.
        model |= ml.Add()(left=before, right=i + 0.5, output=after)
    model.set_outputs(*names)
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [2, 5]}, inference=True)
    compiled.export(tmp_path, prefix="M")


def test_c_callers_that_pass_wrong_pointers_are_refused(tmp_path):
    model = ml.Model()
    model |= ml.Exp()(input="input", output="output")
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [4]}, inference=True)
    compiled.export(tmp_path, prefix="net")
    build = [COMPILERS[0], "-shared", "-fPIC", "net.c", "-o", "net.so", "-lm", "-lpthread"]
    subprocess.run(build, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "net.so"))
    library.net_error.restype = ctypes.c_char_p
    memory, pointer = np.zeros(64, np.float32), ctypes.c_void_p * 1
    start = memory.ctypes.data

    def run(source, taken):
        return library.net_run(pointer(source), pointer(taken), None, None, None)

    assert run(start, start + 64) == 0
    # Missing, misaligned, partly the same memory.
    for inputs_pointer, taken in (
        (None, start),
        (start, None),
        (start + 1, start + 64),
        (start, start + 66),
        (start, start + 12),
    ):
        assert b"not aligned, or overlaps" in library.net_error(run(inputs_pointer, taken))


@pytest.mark.skipif(not importlib.util.find_spec("ziglang"), reason="the package ziglang is not installed")
def test_ziglang_compiles(tmp_path, monkeypatch):
    """The compiler that comes as a Python package, for machines that have none."""
    monkeypatch.setenv("ZIG_GLOBAL_CACHE_DIR", str(tmp_path / "zig"))
    backend = ml.CBackend(num_threads=1, cc=f"{sys.executable} -m ziglang cc")
    c, numpy = (ml.compile(classifier(), b, shapes={"input": [2, 5]}) for b in (backend, ml.NumpyBackend()))
    params, data = numpy.randomize_params(seed=0), {"input": normal(2, 5)}
    actual, expected = c.evaluate(params, data)["output"], numpy.evaluate(params, data)["output"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
@pytest.mark.parametrize("inside", [True, False])
def test_an_export_is_built_by_cmake(tmp_path, inside):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    # Also what cmake calls a target of its own.
    compiled.export(tmp_path, prefix="check", weights_inside=inside)
    build = str(tmp_path / "build")
    for words in (["-S", str(tmp_path), "-B", build, "-DCMAKE_BUILD_TYPE=Release"], ["--build", build]):
        completed = subprocess.run(["cmake", *words], capture_output=True, text=True)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        assert "warning" not in completed.stderr, completed.stderr
    subprocess.run([f"{build}/check", "2"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)


def test_names_that_the_generated_code_needs_are_refused(tmp_path):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    for prefix in ("main", "mithril", "_Bool", "9", "x*/", "", "é", "x" * 65, "../x", "math", "STDIO"):
        with pytest.raises(MithrilError, match="M0101"):
            compiled.export(tmp_path, prefix=prefix)


def test_what_does_not_fit_is_not_exported(tmp_path):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    compiled.load_params(compiled.randomize_params(seed=0))
    name = compiled.parameter_keys[0]
    (tmp_path / "file").touch()
    for folder, options, message in (
        ("file", {}, "name a folder"),
        ("out", {"data": {"input": normal(3, 3)}}, r"data 'input' has shape \[3, 3\], but must be \[2, 5\]"),
        ("out", {"params": {**compiled.parameters, name: normal(1, 1)}}, rf"parameter {name!r} has shape \[1, 1\]"),
        ("out", {"params": {name: normal(1, 1)}}, "params lacks"),
        ("out", {"optimizer": "adam"}, "optimizer is 'adam'"),
    ):
        with pytest.raises(MithrilError, match=message):
            compiled.export(tmp_path / folder, **options)
    with pytest.raises(ml.errors.ParameterError, match=r"params lacks .*\n  help: add it to params"):
        compiled.evaluate(
            {other: value for other, value in compiled.get_parameters().items() if other != name},
            {"input": normal(2, 5)},
        )


def test_an_inference_model_is_exported_where_training_is_an_error(tmp_path):
    model = ml.Model()
    model |= ml.Convolution2D(4, 3)(input="input", output="hidden")
    model += ml.BatchNorm2D()(output="output")
    # One value per channel has no variance.
    compiled = ml.compile(model, ml.CBackend(num_threads=1), shapes={"input": [1, 2, 3, 3]}, inference=True)
    assert compiled.export(tmp_path).check.splitlines()[-1] == "ok"


def test_weights_are_exported_as_they_are_read(tmp_path):
    model = ml.Model()
    model |= ml.Linear(256)(input="input", output="output")
    # Enough work for threads.
    compiled = ml.compile(model, ml.CBackend(num_threads=2), shapes={"input": [128, 256]}, inference=True)
    exported = compiled.export(tmp_path, prefix="wide")
    assert exported.packed_bytes == 4 * 256 * 256
    # A mark, the packed weights, the bias.
    assert (tmp_path / "wide.weights").stat().st_size == 64 + exported.packed_bytes + 4 * 256


def test_gradients_are_exported(tmp_path):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [4, 5]})
    exported = compiled.export(tmp_path, prefix="training", gradients=True)
    assert exported.packed_bytes == 0
    assert exported.check.count("gradient_") == len(compiled.parameter_keys)


def test_export_on_the_command_line(tmp_path, capsys):
    ml.save(classifier(), str(tmp_path / "model.json"))
    out = tmp_path / "out"
    assert (
        main(
            [
                "export",
                str(tmp_path / "model.json"),
                str(out),
                "--shape",
                "input=1,5",
                "--prefix",
                "net",
                "--random-weights",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == "ok"
    assert (out / "net.c").exists()
    assert (
        main(
            [
                "export",
                str(tmp_path / "model.json"),
                str(out),
                "--shape",
                "input=1,5",
                "--prefix",
                "a b",
                "--random-weights",
            ]
        )
        == 1
    )
    assert "a b" in capsys.readouterr().err


def test_the_cache_serves_other_processes(tmp_path):
    program = (
        "import mithril as ml, sys; sys.path.insert(0, sys.argv[1]); from networks import classifier;"
        "ml.compile(classifier(), ml.CBackend(cc=sys.argv[2]), shapes={'input': [7, 5]})"
    )
    folder = os.path.dirname(__file__)
    environment = {**os.environ, "MITHRIL_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program, folder, COMPILERS[0]], env=environment, check=True)
    objects = [path for path in tmp_path.rglob("*.so")]
    assert len(objects) == 1


def test_the_width_of_vectors_is_chosen(tmp_path):
    compiled = ml.compile(classifier(), ml.NumpyBackend(), shapes={"input": [9, 5]}, inference=True)
    for lanes in (16, 1):
        compiled.export(tmp_path, lanes=lanes)
        assert f"#define MITHRIL_VECTOR {lanes} " in (tmp_path / "model.c").read_text()
    with pytest.raises(MithrilError, match="vectors of 3 floats"):
        compiled.export(tmp_path, lanes=3)


def test_the_steps_of_a_model_are_measured(tmp_path, capsys):
    model = classifier()
    compiled = ml.compile(model, ml.CBackend(num_threads=2), shapes={"input": ["n", 5]})
    params, data = compiled.randomize_params(seed=0), {"input": normal(64, 5)}
    text = compiled.source
    profile = compiled.profile(params, data, runs=5)
    # Measuring changes nothing of the program that runs otherwise.
    assert compiled.source == text
    assert "mithril_clock" not in text
    assert sum(profile.share(row) for row in profile) == pytest.approx(1)
    assert all(row.seconds > 0 and row.bytes > 0 for row in profile)
    assert profile.sorted()[0].seconds == max(row.seconds for row in profile)
    # The products are known from the model: at least two operations for each weight and row of the batch.
    products = 2 * 64 * sum(value.size for value in params.values() if value.ndim == 2)
    assert products <= sum(row.operations or 0 for row in profile) < 2 * products
    assert 1e9 < profile.peak_operations < 1e13
    assert 1e8 < profile.peak_bandwidth < 1e12
    assert {row.path for row in profile} & set(str(profile).split())
    assert len(compiled.profile(params, data, {"output": normal(64, 10)}, runs=1)) > len(profile)
    with pytest.raises(MithrilError, match="steps are measured in C only"):
        ml.compile(model, ml.NumpyBackend(), shapes={"input": [2, 5]}).profile()
    ml.save(model, tmp_path / "model.json")
    assert (
        main(["profile", str(tmp_path / "model.json"), "--shape", "input=2,5", "--num-runs", "1", "--random-weights"])
        == 0
    )
    assert "of peak" in capsys.readouterr().out


def test_the_fastest_candidates_are_measured_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MITHRIL_CACHE_DIR", str(tmp_path))
    model = ml.Model()
    for _ in range(3):
        model += ml.Conv2d(16, 3, padding=1)
        model += ml.Relu()
    data = {"input": normal(1, 16, 20, 20)}

    def compile(backend, **options):
        return ml.compile(model, backend, shapes={"input": [1, 16, 20, 20]}, **options)

    compiled = compile(ml.CBackend(num_threads=1, autotune=True), inference=True)
    names = ("direct", "winograd 2", "winograd 4x2", "winograd 4")
    kept = [file for file in (tmp_path / "texts").iterdir() if file.read_text().endswith(names)]
    assert kept
    params = compiled.randomize_params(seed=0)
    expected = compile(ml.NumpyBackend()).evaluate(params, data)["output"]
    np.testing.assert_allclose(compiled.evaluate(params, data)["output"], expected, rtol=1e-4, atol=1e-5)
    # What was kept is taken, whatever it is; what was damaged is measured again.
    sources = set()
    for name in names:
        for file in kept:
            file.write_text(hashlib.sha256(name.encode()).hexdigest()[:32] + "\n" + name)
        changed = compile(ml.CBackend(num_threads=1, autotune=True), inference=True)
        sources.add(changed.source)
        np.testing.assert_allclose(changed.evaluate(params, data)["output"], expected, rtol=1e-4, atol=1e-5)
    assert len(sources) == 4
    kept[0].write_text("damaged")
    assert compile(ml.CBackend(num_threads=1, autotune=True), inference=True).source
    assert kept[0].read_text() != "damaged"


def test_an_exported_file_includes_its_header_and_has_a_prototype_of_all(tmp_path):
    model = classifier()
    fixed = ml.compile(model, ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    rows = ml.compile(model, ml.CBackend(), shapes={"input": ["batch", 5]}, inference=True)
    step = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]})
    # For threads, but without scratch memory of theirs.
    large = ml.Model()
    large |= ml.Tanh()(input="input", output="output")
    large = ml.compile(large, ml.CBackend(num_threads=2), shapes={"input": [200, 1000]}, inference=True)
    large.export(tmp_path / "large")
    fixed.export(tmp_path / "fixed", weights_inside=False)
    rows.export(tmp_path / "rows", batch="batch")
    step.export(tmp_path / "step", gradients=True)
    strict = ["-std=c11", "-Wall", "-Wextra", "-Wmissing-prototypes", "-Wstrict-prototypes", "-Wshadow", "-Werror"]
    for folder in ("fixed", "rows", "step", "large"):
        assert '#include "model.h"' in (tmp_path / folder / "model.c").read_text()
        for compiler in COMPILERS:
            for flags in ([], ["-DMITHRIL_NO_MALLOC"], ["-DMITHRIL_SINGLE_THREAD"]):
                subprocess.run([compiler, *strict, *flags, "-c", "model.c"], cwd=tmp_path / folder, check=True)


def test_an_exported_model_is_told_what_is_missing(tmp_path):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": ["n", 5]}, inference=True)
    params = compiled.randomize_params(seed=0)
    first, *rest = params
    with pytest.raises(ml.errors.UnresolvedShapeError, match=r"compile it with numbers, give data=.* batch='batch'"):
        compiled.export(tmp_path, params=params)
    data = {"input": normal(2, 5)}
    with pytest.raises(ml.errors.ParameterError, match=rf"params lacks '{re.escape(first)}'"):
        compiled.export(tmp_path, data=data, params={name: params[name] for name in rest})
    with pytest.raises(MithrilError, match="params names 'nobody', which is not there"):
        compiled.export(tmp_path, data=data, params={**params, "nobody": normal(1)})
    with pytest.raises(ml.errors.InvalidValueError, match="prefix is 3"):
        compiled.export(tmp_path, data=data, params=params, prefix=3)
    assert list(tmp_path.iterdir()) == []


def test_an_old_weights_file_stays_as_it_is_for_those_who_have_it_open(tmp_path):
    compiled = ml.compile(classifier(), ml.CBackend(), shapes={"input": [2, 5]}, inference=True)
    compiled.export(tmp_path, params=compiled.randomize_params(seed=0), weights_inside=False)
    with open(tmp_path / "model.weights", "rb") as file:
        before = file.read()
        compiled.export(tmp_path, params=compiled.randomize_params(seed=1), weights_inside=False)
        file.seek(0)
        assert file.read() == before != (tmp_path / "model.weights").read_bytes()
