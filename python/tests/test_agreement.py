"""The published pages about all ops: nothing is left out, and no figure is beyond the tolerances."""

import re
from fnmatch import fnmatch
from pathlib import Path

import mithril as ml
import pytest
from mithril import _core
from mithril.testing.backend_tests import UNITS

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {"numpy": "NumpyBackend", "torch": "TorchBackend", "jax": "JaxBackend", "mlx": "MlxBackend"}


@pytest.mark.parametrize("page", ["agreement.md", "support.md"])
def test_pages_of_all_ops_have_all_ops(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    assert set(rows) == {row["name"] for row in _core.op_definitions()}


def test_published_figures_are_within_the_tolerances():
    text = (ROOT / "docs" / "agreement.md").read_text(encoding="utf-8")
    names = re.search(r"^\| op \| (.*) \|$", text, re.MULTILINE).group(1).split(" | ")
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.MULTILINE))
    beyond = []
    for row in _core.op_definitions():
        allowed = UNITS[row["tolerance"]] + (0 if row["primitive"] else 4)
        for name, cell in zip(names, rows[row["name"]].split(" | "), strict=True):
            figures = cell.split(" · ")
            assert len(figures) == 4
            for dtype, figure in zip(("float64", "float32", "float16", "bfloat16"), figures, strict=True):
                if figure != "-" and (figure == "✗" or float(figure) > allowed):
                    beyond.append((name, row["name"], dtype, figure))
    assert [entry for entry in beyond if not is_known(*entry)] == []


def is_known(backend, op, dtype, _):
    """Whether a backend says itself that an op is wrong."""
    limitations = getattr(ml, CLASSES[backend]).limitations
    return any(fnmatch(op, ops) and fnmatch(dtype, dtypes) for ops, dtypes in limitations)
