"""Every Python block of the documentation runs, every docstring example is true, generated files are current."""

import contextlib
import doctest
import importlib
import io
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import mithril
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks():
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)):
            if "import mithril" in block:
                yield pytest.param(block, id=f"{page.name}-{number}")


@pytest.mark.parametrize("block", list(blocks()))
def test_block_runs(block):
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(block, "<documentation>", "exec"), {"__name__": "documentation"})


def test_readme_shows_what_is_generated():
    text = (ROOT / "README.md").read_text()
    program, shown = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {})
    assert shown.strip() in printed.getvalue()


def modules():
    for module in pkgutil.walk_packages(mithril.__path__, "mithril."):
        if not module.name.endswith("_core"):
            yield module.name


@pytest.mark.parametrize("name", ["mithril", *modules()])
def test_docstrings(name):
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert failures == 0


def test_generated_files_are_current():
    done = subprocess.run([sys.executable, ROOT / "tools" / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_error_codes_are_documented():
    page = (ROOT / "docs" / "errors.md").read_text()
    for code, _, _ in mithril._core.error_codes():
        assert code in page
