"""Every Python block of the documentation runs, every docstring example is true, generated files are current."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import mithril
import pages
import pytest
from mithril.backends import registry
from mithril.errors import BackendUnavailableError
from mithril.tools.web import compiler

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", GUIDE, *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", [p for p in PAGES if list(pages.blocks(p))], ids=lambda p: p.stem)
def test_page_runs(page, tmp_path, monkeypatch):
    absent = [name for name in pages.frameworks(page) if not pages.is_installed(name)]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)}")
    if page.stem == "web":
        try:
            compiler.find(None)
        except BackendUnavailableError as error:
            pytest.skip(error.message)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_FACTORIES", {})
    pages.run_page(page)


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```python\nprint(1)\n```\n```text\n2\n```\n", AssertionError),
        ("<!-- raises: ShapeError -->\n```python\nx = 1\n```\n", pytest.fail.Exception),
        ("<!-- each: numpy, interpreter -->\n```python\nassert backend.name == 'numpy'\n```\n", AssertionError),
        ("<!-- faster: 2 -> 1 -->\n```python\nx = 1\n```\n", AssertionError),
        ("<!-- rases: ShapeError -->\n```python\nx = 1\n```\n", AssertionError),
        ("<!-- later: soon -->\n<!-- raises: ValueError -->\n```python\nint('x')\n```\n", AssertionError),
    ],
)
def test_the_runner_finds_what_is_wrong(page, problem, tmp_path):
    path = tmp_path / "page.md"
    path.write_text(page)
    with pytest.raises(problem):
        pages.run_page(path)


def test_what_contributors_are_told_exists():
    """Files, targets of make and variables of the environment that CONTRIBUTING.md names."""
    text = GUIDE.read_text()
    built = (ROOT / ".gitignore").read_text().split()
    commands = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    for word in re.findall(r"`([\w.*/-]*/[\w.*/-]*)`", text) + re.findall(r"python/tests/\S+|crates/\S+", commands):
        assert list(ROOT.glob(word)) or f"/{word}" in built, word
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", commands) + re.findall(r"`make ([a-z-]+)`", text):
        assert f"\n{target}:" in makefile, target
    sources = [*ROOT.glob("crates/**/*.rs"), *ROOT.glob("python/**/*.py")]
    code = "".join(path.read_text() for path in sources)
    for variable in re.findall(r"\bMITHRIL_[A-Z_]+|\bUPDATE\b", text):
        assert f'"{variable}"' in code, variable
    for crate, program, modules in re.findall(r"-p ([\w-]+) --test (\w+) (?:-- )?([\w: ]*)", commands):
        tests = ROOT / "crates" / crate / "tests" / program
        for module in modules.replace("::", "").split():
            assert (tests / f"{module}.rs").exists(), (crate, program, module)


def links():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]*(?:#[^)\s]*)?)\)", page.read_text()):
            if not target.startswith("http"):
                yield pytest.param(page, target, id=f"{page.name}-{target}")


@pytest.mark.parametrize(("page", "target"), list(dict.fromkeys(links())))
def test_links_lead_somewhere(page, target):
    file, _, anchor = target.partition("#")
    path = (page.parent / file).resolve() if file else page
    assert path.exists()
    if anchor:
        assert anchor in anchors(path)


def anchors(path):
    """Anchors of the headings of a page, as they are made of their text."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


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


def test_wheel_holds_no_package_beside_mithril():
    tomllib = pytest.importorskip("tomllib", reason="Python reads TOML from 3.11 on")
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["include"]
    assert [entry for entry in entries if "wheel" in entry["format"]] == []
