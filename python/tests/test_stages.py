"""Names of the stages of compiling, and the former names that remain valid."""

import mithril as ml
import numpy as np
import pytest
from mithril.compiled.stages import RENAMED


def compiled(backend=None):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="hidden")
    model += ml.Relu()(output="output")
    return ml.compile(model, backend or ml.NumpyBackend(), shapes={"input": [3, 4]}, inference=True)


def test_stages_are_listed_in_order_under_their_current_names():
    common = ["infer", "fold_constants", "simplify", "cse", "dce", "raise"]
    assert list(compiled().stages) == [*common, "join_products", "legalize", "cleanup", "emit"]
    of_c = list(compiled(ml.CBackend()).stages)
    assert of_c[: len(common)] == common
    assert of_c[-1] == "emit"
    assert not set(RENAMED) & set(compiled().stages)


@pytest.mark.parametrize(
    "backend", [ml.NumpyBackend, ml.InterpreterBackend, ml.CBackend, ml.GGMLBackend, ml.TorchBackend]
)
def test_stages_of_gradients(backend):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    native = {"autodiff": "graph"} if backend is ml.TorchBackend else {}
    compiled = ml.compile(model, backend(), shapes={"input": [3, 4]}, **native)
    stages = compiled.gradient_stages
    forward = list(compiled.stages)
    at = forward.index("raise") + 1
    assert list(stages) == [*forward[:at], "differentiate", *forward[at:]]
    assert stages["raise"] == compiled.stages["raise"]
    assert "gradient:linear.weight" in stages["differentiate"]
    assert stages["emit"] == compiled.gradient_source


@pytest.mark.parametrize("backend", [ml.TorchBackend, ml.JaxBackend, ml.MlxBackend])
def test_frameworks_that_differentiate_have_the_stages_of_what_they_are_given(backend):
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, backend(), shapes={"input": [3, 4]}, autodiff="native")
    assert list(compiled.gradient_stages) == list(compiled.stages)
    assert compiled.gradient_stages["emit"] == compiled.gradient_source


@pytest.mark.parametrize("former", ["fold", "merge", "prune", "finish"])
def test_former_names_are_aliases(former):
    stages = compiled().stages
    assert former in stages
    assert stages[former] == stages[RENAMED[former]]
    assert former not in list(stages)


def test_an_unknown_stage_is_reported_with_the_names_that_exist():
    with pytest.raises(KeyError, match=r"there is no stage 'folding'(.|\n)*infer, fold_constants"):
        compiled().stages["folding"]


def test_dump_takes_current_and_former_names(monkeypatch, capsys):
    monkeypatch.setenv("MITHRIL_DUMP", "cse,prune,nonsense")
    stages = compiled().stages
    printed = capsys.readouterr().err
    assert f"--- cse\n{stages['cse']}" in printed
    assert f"--- prune\n{stages['dce']}" in printed
    assert "--- nonsense\nthere is no such stage; stages: infer, fold_constants" in printed


def test_dump_shows_the_stages_of_gradients_when_they_are_made(monkeypatch, capsys):
    monkeypatch.setenv("MITHRIL_DUMP", "differentiate, cse")
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [3, 4]})
    forward = capsys.readouterr().err
    assert forward.startswith(f"--- cse\n{compiled.stages['cse']}")
    assert "differentiate" not in forward
    params = compiled.randomize_params()
    compiled.evaluate_gradients(params, {"input": np.ones((3, 4), np.float32)}, {"output": np.ones((3, 2), np.float32)})
    printed = capsys.readouterr().err
    for stage in ("differentiate", "cse"):
        assert f"--- gradients: {stage}\n{compiled.gradient_stages[stage]}" in printed
