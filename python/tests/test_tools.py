"""The tools: check, compare, benchmark, find_nans, overview, command line."""

import subprocess
import sys
import time
import types

import mithril as ml
import numpy as np
import pytest
from mithril.backends.registry import BUILT_IN


def mlp():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Gelu()
    model += ml.LayerNorm()
    model += ml.Linear(3)(output="output")
    return model


SHAPES = {"input": [4, 5]}

# --- check -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx", "interpreter"])
def test_check_counts_every_use(name):
    result = ml.check(mlp(), name, SHAPES)
    assert result.ok
    assert {row.op: row.count for row in result} == {"linear": 2, "gelu": 1, "layer_norm": 1}
    assert len(result.native) + len(result.expanded) == len(result) == 3


def test_check_says_where_and_into_what():
    model = ml.Model()
    model |= ml.Dropout(0.5, name="noise")(input="input", output="output")
    result = ml.check(model, "numpy", {"input": [4]})
    [row] = result.expanded
    assert (row.op, row.path) == ("dropout", "noise")
    assert "random_bits" in row.into
    assert "test_tools.py" in row.where
    assert "| dropout | float32 | expanded into random_bits" in result.to_markdown()
    assert "dropout" in str(result)


def test_check_looks_at_gradients():
    plain, full = ml.check(mlp(), "numpy", SHAPES), ml.check(mlp(), "numpy", SHAPES, gradients=True)
    assert "matmul" not in {row.op for row in plain}
    assert "matmul" in {row.op for row in full}
    assert full.ok


def test_check_needs_shapes():
    with pytest.raises(ml.errors.UnresolvedShapeError, match="shapes"):
        ml.check(mlp(), "numpy")


# --- compare ---------------------------------------------------------------------------------------------------


class Replaced(types.ModuleType):
    """A framework with some functions replaced."""

    def __init__(self, module, **functions):
        super().__init__(module.__name__)
        self.__dict__.update(functions, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


class WrongForward(ml.NumpyBackend):
    """NumPy with a hyperbolic tangent that is off in the sixth digit."""

    class _engine_type(ml.NumpyBackend._engine_type):
        def load(self, core):
            module = super().load(core)
            module.namespace["np"] = Replaced(np, tanh=lambda x: np.tanh(x) * x.dtype.type(1 + 2e-6))
            return module


def squashed():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model += ml.Tanh(name="squash")
    model += ml.Linear(3)(output="output")
    return model


def test_compare_agrees_with_itself_and_the_interpreter():
    result = ml.compare(mlp(), ["interpreter", "numpy"], SHAPES)
    assert result.agree
    assert result.first_difference is None
    assert list(result.reports) == ["numpy", "interpreter"]
    assert result.reports["numpy"].outputs["output"].shape == (4, 3)
    assert len(result.reports["numpy"].of("parameter gradient")) == 6
    assert "rounding-level" in str(result)


def test_compare_finds_an_op_that_is_off_in_the_sixth_digit():
    result = ml.compare(squashed(), {"numpy": "numpy", "mine": WrongForward()}, SHAPES)
    assert not result.agree
    difference = result.first_difference
    assert (difference.backend, difference.op, difference.path) == ("mine", "tanh", "squash")
    assert "test_tools.py" in difference.where
    # 2e-6 is 16.8 units; the layers after it are right, and are not blamed.
    assert 15 < difference.local < 20
    assert {d.op for d in result.reports["mine"].defects} == {"tanh"}
    assert "defect in op `tanh` in `squash`" in str(result)
    assert "defect" in result.to_markdown(values=True)


def test_compare_finds_a_program_that_differs_from_its_ops():
    class WrongWhole(ml.NumpyBackend):
        """Right in every op, wrong in the program that users run."""

        class _engine_type(ml.NumpyBackend._engine_type):
            def evaluator(self, program):
                inner = super().evaluator(program)
                if program.core.output_names != ["output"]:
                    return inner
                return lambda *args: {name: value * value.dtype.type(1.01) for name, value in inner(*args).items()}

    result = ml.compare(squashed(), ["numpy", WrongWhole()], SHAPES, gradients=False)
    assert result.first_difference.kind == "output"
    assert not result.agree


def test_compare_finds_a_wrong_gradient_of_a_framework():
    torch = pytest.importorskip("torch")

    class Tanh(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = torch.tanh(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * (1 - ctx.saved_tensors[0])  # the square is forgotten

    class WrongBackward(ml.TorchBackend):
        class _engine_type(ml.TorchBackend._engine_type):
            def load(self, core):
                module = super().load(core)
                module.namespace["torch"] = Replaced(torch, tanh=Tanh.apply)
                return module

    result = ml.compare(squashed(), WrongBackward(), SHAPES)
    difference = result.first_difference
    assert (difference.kind, difference.op, difference.path) == ("gradient", "tanh", "squash")
    kinds = {d.kind for d in result.reports["torch"].defects}
    assert kinds == {"gradient", "parameter gradient"}
    assert not result.reports["numpy (reference)"].defects


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_compare_does_not_cry_wolf(dtype):
    model = ml.Model()
    model |= ml.Linear(16)(input="input", output="hidden")
    for _ in range(12):
        model += ml.LayerNorm()
        model += ml.Gelu()
        model += ml.Linear(16)
    model += ml.Softmax()(output="output")
    result = ml.compare(model, ["numpy", "interpreter"], {"input": [8, 16]}, dtype=dtype)
    assert result.agree, str(result)


def test_compare_of_a_convolutional_network_in_training():
    model = ml.Model()
    model |= ml.Conv2d(filters=4, kernel_size=3, padding="same")(input="input")
    for _ in range(3):
        model += ml.BatchNorm2d()
        model += ml.Relu()
        model += ml.Conv2d(filters=4, kernel_size=3, padding="same")
    model += ml.MaxPool2d(kernel_size=2)
    model += ml.Dropout(0.2)
    model += ml.Flatten()
    model += ml.Linear(5)(output="output")
    result = ml.compare(model, ["numpy", "interpreter"], {"input": [2, 3, 8, 8]})
    assert result.agree, str(result)


def test_compare_of_integers_and_nan():
    model = ml.Model()
    model |= ml.Log()(input="input", output=ml.IOKey("logarithm", expose=True))
    model += ml.ArgMax()(input="logarithm", output="largest")
    data = {"input": np.array([[1.0, -1.0, 3.0], [0.0, 2.0, np.inf]])}
    result = ml.compare(model, ["numpy", "interpreter"], data=data)
    assert result.agree, str(result)
    assert np.isnan(result.reports["numpy"].outputs["logarithm"]).any()

    class Shifted(ml.NumpyBackend):
        class _engine_type(ml.NumpyBackend._engine_type):
            def load(self, core):
                module = super().load(core)
                module.namespace["np"] = Replaced(np, argmax=lambda *a, **k: np.argmax(*a, **k) * 0)
                return module

    result = ml.compare(model, ["numpy", Shifted()], data={"input": np.array([[1.0, 2.0], [2.0, 1.0]])})
    assert result.first_difference.op == "argmax"


def test_compare_takes_data_and_parameters_and_refuses_others():
    params = {"linear.weight": np.ones((8, 5)), "linear.bias": np.zeros(8)}
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="output")
    result = ml.compare(model, "numpy", data={"input": np.ones((2, 5))}, params=params)
    np.testing.assert_array_equal(result.reports["numpy"].outputs["output"], np.full((2, 8), 5.0))
    with pytest.raises(ml.errors.KeyNotFoundError, match="inptu"):
        ml.compare(model, "numpy", SHAPES, data={"inptu": np.ones((2, 5))})
    with pytest.raises(ml.errors.KeyNotFoundError, match="wieght"):
        ml.compare(model, "numpy", SHAPES, params={"wieght": np.ones((8, 5))})
    with pytest.raises(ml.errors.KeyNotFoundError, match="outptu"):
        ml.compare(model, "numpy", SHAPES, output_gradients={"outptu": np.ones((4, 8))})
    with pytest.raises(ml.errors.InvalidValueError, match="dtype"):
        ml.compare(model, ml.NumpyBackend(), SHAPES, dtype="float64")
    with pytest.raises(ml.errors.UnresolvedShapeError, match="numbers"):
        ml.compare(model, "numpy", {"input": ["batch", 5]})


# --- benchmark -------------------------------------------------------------------------------------------------


def test_benchmark_waits_for_asynchronous_work():
    class Lazy(ml.NumpyBackend):
        """Computes when it is waited for, as MLX does."""

        waited = 0

        def _wait(self, arrays):
            type(self).waited += len(arrays)
            time.sleep(0.01)

    result = ml.benchmark(squashed(), [4, 5], {"lazy": Lazy, "plain": "numpy"}, num_runs=4)
    assert result["lazy"] > 0.01 > result["plain"] > 0
    assert Lazy.waited > 4
    assert len(result.timings["lazy"].times) == 4
    assert set(result) == {"lazy", "plain"}


def test_benchmark_says_what_is_not_measured_and_why():
    class Absent(ml.NumpyBackend):
        def __init__(self, **options):
            raise ml.errors.BackendUnavailableError("there is no such chip", hint="buy one")

    class Small(ml.NumpyBackend):
        class _engine_type(ml.NumpyBackend._engine_type):
            def load(self, core):
                raise ml.errors.UnsupportedOpError("no tanh here")

    result = ml.benchmark(squashed(), [4, 5], {"absent": Absent, "small": Small, "numpy": "numpy"}, num_runs=2)
    assert list(result) == ["numpy"]
    assert result.not_measured == {"absent": "there is no such chip (buy one)", "small": "no tanh here"}
    assert "not measured" in str(result)
    assert "buy one" in result.to_markdown()
    with pytest.raises(KeyError, match="no such chip"):
        result["absent"]


def test_benchmark_takes_what_the_documentation_shows():
    result = ml.benchmark("resnet18", [1, 3, 32, 32], {"numpy": ml.NumpyBackend()}, num_runs=1)
    assert result["numpy"] > 0
    with pytest.raises(ml.errors.KeyNotFoundError, match="resnet"):
        ml.benchmark("resnet17", [1, 3, 32, 32], "numpy")
    with pytest.raises(ml.errors.InvalidValueError, match="num_runs"):
        ml.benchmark(squashed(), [4, 5], "numpy", num_runs=0)
    # An error of the user's is not a property of a backend.
    with pytest.raises(ml.errors.MithrilError):
        ml.benchmark(squashed(), [4, 5], "numpy", data={"input": np.ones((4, 5, 6, 7)), "other": 1})


@pytest.mark.parametrize("name", ["torch", "jax", "mlx"])
def test_benchmark_of_training(name):
    pytest.importorskip("mlx.core" if name == "mlx" else name)
    result = ml.benchmark(squashed(), [4, 5], name, num_runs=2, training=True)
    assert result.timings[name].first > 0


# --- find_nans -------------------------------------------------------------------------------------------------


def compiled(model, shapes, backend=None, **options):
    return ml.compile(model, backend or ml.NumpyBackend(), shapes=shapes, **options)


def test_find_nans_names_the_first_op_its_inputs_and_what_helps():
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="hidden")
    model += ml.Log(name="logarithm")
    model += ml.Linear(2)(output="output")
    pm = compiled(model, {"input": [3, 5]})
    params = pm.randomize_params(seed=0)
    report = pm.find_nans(params, {"input": np.ones((3, 5))})
    assert report
    first = report.first
    assert (first.kind, first.op, first.path) == ("value", "log", "logarithm")
    assert "test_tools.py" in first.where
    assert first.inputs[0].low < 0
    assert "above zero" in first.hint
    # What follows from it is not an origin.
    assert [origin.op for origin in report] == ["log"]
    assert "log" in str(report)
    assert "| value | log | logarithm" in report.to_markdown()


def test_find_nans_is_silent_where_all_is_finite_and_about_masks():
    pm = compiled(mlp(), SHAPES)
    report = pm.find_nans(pm.randomize_params(), {"input": np.ones((4, 5))}, True)
    assert not report
    assert str(report) == "all values are finite"
    backend = ml.NumpyBackend()
    model = ml.Model()
    model |= ml.Lambda(lambda x: backend.softmax(backend.where(x > 0, x, -np.inf)))(input="input", output="output")
    pm = compiled(model, {"input": [1, 3]})
    assert not pm.find_nans({}, {"input": [[1.0, -1.0, 2.0]]})
    report = pm.find_nans({}, {"input": [[-1.0, -1.0, -2.0]]})
    assert report.first.op == "softmax"
    assert "masked" in report.first.hint


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "mlx"])
def test_find_nans_in_gradients(name):
    if name != "numpy":
        pytest.importorskip("mlx.core" if name == "mlx" else name)
    model = ml.Model()
    model |= ml.Sqrt(name="root")(input="input", output="output")
    pm = compiled(model, {"input": [3]}, ml.get_backend(name), trainable_keys=["input"])
    params, state = {"input": pm.backend.tensor([0.0, 1.0, 4.0])}, dict(pm.state)
    assert not pm.find_nans(params, {})
    report = pm.find_nans(params, {}, True)
    assert report.first.kind == "gradient"
    assert report.first.path == "root"
    assert pm.state == state


def test_find_nans_in_half_precision_and_in_what_is_given():
    model = ml.Model()
    model |= ml.Square(name="large")(input="input", output="output")
    pm = compiled(model, {"input": [2]}, ml.NumpyBackend(dtype="float16"))
    report = pm.find_nans({}, {"input": [300.0, 1.0]})
    assert report.first.path == "large"
    assert "bfloat16" in report.first.hint
    report = pm.find_nans({}, {"input": [np.nan, 1.0]})
    assert [origin.kind for origin in report] == ["input"]


# --- overview, suggestions, doctor, command line ---------------------------------------------------------------


def test_the_overview_names_every_backend_and_imports_none():
    program = "import sys, mithril as ml; print(ml.backends.table()); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for name in BUILT_IN:
        assert any(line.split()[0] == name for line in done.stdout.splitlines()), name
    assert not {"torch", "jax", "mlx.core"} & set(done.stderr.split())
    table = ml.backends.table()
    assert table["ggml"]["gradients"] == "gradient graph"
    assert table["numpy"]["jit"] == "no"
    assert "| torch |" in table.to_markdown()


def test_dtypes_and_gradients_of_the_overview_are_true():
    for name, short in (("numpy", "f64"), ("interpreter", "f16"), ("torch", "bf16"), ("mlx", "f16"), ("jax", "f64")):
        if name not in ("numpy", "interpreter"):
            pytest.importorskip("mlx.core" if name == "mlx" else name)
        assert short in ml.backends.table()[name]["dtypes"]
        dtype = {"f64": "float64", "f16": "float16", "bf16": "bfloat16"}[short]
        backend = ml.get_backend(name, dtype=dtype, device="cpu")
        assert backend.dtype(backend.ones(2)) == dtype
        native = "graph" not in ml.backends.table()[name]["gradients"].split(",")[0]
        assert (backend.engine.autodiff[0] == "native") == native


def test_suggestions():
    assert ml.suggest_backend("training", "nvidia").name == "torch"
    assert ml.suggest_backend("training", "tpu").name == "jax"
    assert ml.suggest_backend("training", "apple").name == "mlx"
    assert ml.suggest_backend("large models", "nvidia").name == "jax"
    assert ml.suggest_backend("verification", "nvidia").name == "numpy"
    assert ml.suggest_backend("deployment", "cpu").name == "c"
    # What is suggested exists.
    for task in ("training", "inference", "dynamic_shapes", "static graphs"):
        suggestion = ml.suggest_backend(task)
        assert {suggestion.name, *suggestion.alternatives} <= set(ml.list_backends())
    with pytest.raises(ml.errors.InvalidValueError, match="hardware"):
        ml.suggest_backend("training", "abacus")
    with pytest.raises(ml.errors.InvalidValueError, match="task"):
        ml.suggest_backend("juggling")


def test_doctor_names_what_is_missing(monkeypatch):
    from mithril.tools import overview

    def unavailable(name, **options):
        return "torch is not installed (pip install ...)" if name == "torch" else ml.NumpyBackend()

    monkeypatch.setattr(overview, "available", unavailable)
    monkeypatch.setattr(overview, "detect_hardware", lambda: "nvidia")
    report = overview.doctor()
    assert ("torch", "torch is not installed (pip install ...)") in report.facts
    assert any(line.startswith("jax does not see the nvidia accelerator") for line in report.advice)
    assert "Python" in str(report)
    assert "| Python |" in report.to_markdown()


def run_command(capsys, *arguments):
    from mithril.__main__ import main

    code = main(arguments)
    return code, capsys.readouterr()


def test_command_line(tmp_path, capsys):
    path = str(tmp_path / "model.json")
    ml.save(squashed(), path)
    code, said = run_command(capsys, "check", path, "--shape", "input=4,5", "--backend", "numpy", "--backend", "mlx")
    assert code == 0
    assert said.out.count("tanh") == 2
    arguments = (path, "--shape", "input=4,5", "--random-weights")
    code, said = run_command(capsys, "compare", *arguments, "--backend", "interpreter", "--markdown")
    assert code == 0
    assert "rounding-level" in said.out
    code, said = run_command(capsys, "bench", *arguments, "--backend", "numpy", "--num-runs", "2")
    assert code == 0
    assert "median" in said.out
    code, said = run_command(capsys, "summary", path)
    assert "squash" in said.out
    code, said = run_command(capsys, "backends")
    assert "torch.compile" in said.out


def test_command_line_errors(tmp_path, capsys):
    path = str(tmp_path / "model.json")
    ml.save(squashed(), path)
    code, said = run_command(capsys, "check", "no_such_model", "--backend", "numpy")
    assert code == 1
    assert "no_such_model" in said.err
    code, said = run_command(capsys, "check", path, "--shape", "input", "--backend", "numpy")
    assert code == 1
    assert "input=1,3,224,224" in said.err
    code, said = run_command(capsys, "check", path, "--backend", "numpy")
    assert code == 1
    assert "shapes" in said.err
    code, said = run_command(capsys, "check", str(tmp_path / "absent.json"), "--backend", "numpy")
    assert code == 1
    with pytest.raises(SystemExit, match="2"):
        run_command(capsys, "juggle")


# --- what check says of backends of users' own ---------------------------------------------------------------------


class Plain(ml.Backend):
    """Creates arrays and multiplies matrices; all else is left to Mithril."""

    def tensor(self, data, dtype=None):
        return np.array(data, dtype=dtype or "float32")

    def zeros(self, shape, dtype=None):
        return np.zeros(shape, dtype=dtype or "float32")

    def ones(self, shape, dtype=None):
        return np.ones(shape, dtype=dtype or "float32")

    def matmul(self, a, b):
        return a @ b


def test_check_and_compare_with_a_backend_of_a_users_own():
    result = ml.check(squashed(), Plain(), SHAPES)
    assert result.ok
    rows = {row.op: row for row in result}
    assert rows["tanh"].support == "reference"
    assert rows["linear"].support == "reference"
    assert any("host" in warning for warning in result.warnings)
    with pytest.warns(ml.errors.MithrilWarning, match="host"):
        result = ml.compare(squashed(), ["numpy", Plain()], SHAPES)
    assert result.agree, str(result)


def test_check_and_compare_with_a_function_that_cannot_be_traced():
    model = ml.Model()
    model |= ml.Lambda(np.sinc, name="black_box", opaque=True)(input="input", output="hidden")
    model += ml.Linear(2)(output="output")
    result = ml.check(model, "numpy", SHAPES)
    assert result.ok
    [warning] = result.warnings
    assert "cannot trace" in warning
    assert "black_box" in warning
    assert "warning: " in str(result)
    result = ml.compare(model, ["numpy", WrongForward()], SHAPES)
    assert result.agree, str(result)
    assert any("black_box" in note for note in result.reports["numpy"].notes)
