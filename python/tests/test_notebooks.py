"""The notebooks of examples/notebooks run from beginning to end, and are kept without outputs.

Their cells run in this process, one after the other, as a kernel runs them; what a cell ends with is shown.
"""

import ast
import json
import os
from pathlib import Path

import pages
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
#: Those that run in every run of the tests; `MITHRIL_TEST_ALL` runs all.
QUICK = {"1_first_steps", "4_quantize", "5_export_c", "6_several_devices"}


def show(value):
    """Draw a value as a notebook does: in the first form that gives something."""
    forms = ("_repr_html_", "_repr_svg_", "_repr_markdown_", "__repr__")
    assert any(getattr(value, form)() for form in forms if hasattr(value, form))


def run_cell(code, place, scope):
    tree = ast.parse(code, place)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), scope)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), place, "eval"), scope)
        if value is not None:
            show(value)


def cells(path):
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        yield number, cell, "".join(cell["source"])


def test_there_are_six():
    assert len(NOTEBOOKS) == 6


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_kept_without_outputs(path):
    assert next(text for _, _, text in cells(path)).startswith("# ")
    for _, cell, _ in cells(path):
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    if path.stem not in QUICK and not os.environ.get("MITHRIL_TEST_ALL"):
        pytest.skip("takes long: MITHRIL_TEST_ALL=1 runs it")
    if "torch" in path.read_text() and not pages.is_installed("torch"):
        pytest.skip("torch is not installed")
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "notebook"}
    for number, cell, text in cells(path):
        if cell["cell_type"] == "code":
            run_cell(text, f"{path.name}, cell {number}", scope)


def test_the_runner_finds_what_is_wrong():
    with pytest.raises(AssertionError):
        run_cell("x = 1\nassert x == 2", "cell", {})
    with pytest.raises(ZeroDivisionError):
        run_cell("x = 1\nx / 0", "cell", {})
