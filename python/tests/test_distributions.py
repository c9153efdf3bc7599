"""What is released holds what it needs: wheel, source distribution and crates, by their lists of files.

`make check-wheel` builds the wheel and uses it in empty environments.
"""

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.check_wheel import example, expected_files, problems, programs

REPOSITORY = Path(__file__).resolve().parents[2]
#: What the list of a wheel holds besides the files of the package.
METADATA = [f"mithril_compiler-0.1.0.dist-info/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")]
LICENSES = [
    "mithril_compiler-0.1.0.dist-info/licenses/LICENSE",
    "mithril_compiler-0.1.0.dist-info/licenses/LICENSE-ggml",
]


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory):
    maturin = Path(sys.executable).with_name("maturin")
    if not maturin.exists() or shutil.which("cargo") is None:
        pytest.skip("a source distribution is made by the package maturin and by cargo")
    folder = tmp_path_factory.mktemp("sdist")
    subprocess.run([maturin, "sdist", "--out", folder], cwd=REPOSITORY, check=True, capture_output=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        texts = {"PKG-INFO": ""}
        names = {name.partition("/")[2] for name in archive.getnames()}
        for member in archive.getmembers():
            if member.name.count("/") == 1 and member.name.endswith("PKG-INFO"):
                texts["PKG-INFO"] = archive.extractfile(member).read().decode()
    return names, texts["PKG-INFO"]


def test_a_complete_wheel_is_accepted_and_what_is_missing_is_named():
    complete = [*expected_files(), "mithril/_core.abi3.so", *METADATA, *LICENSES]
    assert problems(complete) == []
    for name in (
        "mithril/tools/web/model.mjs",
        "mithril/viewer/page.html",
        "mithril/examples/train_digits.c",
        "mithril/py.typed",
        "mithril/_core.abi3.so",
        METADATA[-1],
    ):
        missing = problems([other for other in complete if other != name])
        assert len(missing) == 1, missing
        assert Path(name).name in missing[0]
    for other in ("tests/test_x.py", "examples/__init__.py"):
        assert problems([*complete, other]) == [f"{other} does not belong into a wheel"]
    # A module for one version of Python is not the one that is released.
    assert problems([name.replace("abi3", "cpython-311-x86_64-linux-gnu") for name in complete])


def test_the_programs_that_are_tried_are_those_of_the_documentation():
    texts = [
        path.read_text(encoding="utf-8") for path in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")]
    ]
    named = {name for text in texts for name in re.findall(r"python -m mithril\.(examples\.[\w.]*\w)", text)}
    assert "examples.digits_in_c" in named
    # The page names a package, whose `__main__` is the program.
    assert {name.replace("examples.web", "examples.web.__main__") for name in named} <= set(programs())
    assert not any("python -m examples." in text for text in texts)
    assert "ml.compile" in example()[0]


def test_a_source_distribution_holds_the_package_and_every_crate_that_it_is_built_from(source_distribution):
    names, metadata = source_distribution
    assert [name for name in expected_files() if f"python/{name}" not in names] == []
    for crate in ("ir", "solve", "model", "onnx", "codegen", "compile", "ggml", "runtime", "py"):
        folder = REPOSITORY / f"crates/mithril-{crate}"
        files = [path.relative_to(REPOSITORY).as_posix() for path in folder.rglob("src/**/*") if path.is_file()]
        missing = [name for name in files if name not in names and "__pycache__" not in name]
        assert files, crate
        assert missing == []
    expected = {
        "crates/mithril-ggml/build.rs",
        "crates/mithril-ggml/LICENSE-ggml",
        "LICENSE",
        "README.md",
        "Cargo.lock",
    }
    assert expected <= names
    for line in (
        "Requires-Python: >=3.10",
        "Description-Content-Type: text/markdown",
        "Keywords: ",
        "License-File: LICENSE",
    ):
        assert line in metadata


def test_crates_include_nothing_from_outside_of_themselves():
    outside = []
    for path in (REPOSITORY / "crates").glob("*/**/*.rs"):
        crate = REPOSITORY / "crates" / path.relative_to(REPOSITORY / "crates").parts[0]
        text = path.read_text(encoding="utf-8")
        # What only tests of documentation read is not part of a build.
        text = re.sub(r"#\[cfg\(doctest\)\]\n.*\n", "", text)
        for name in re.findall(r'include_(?:str|bytes)!\("([^"]+)"\)', text):
            target = (path.parent / name).resolve()
            if crate not in target.parents:
                outside.append(f"{path.relative_to(REPOSITORY)}: {name}")
    assert outside == []


def test_crates_that_are_published_say_what_the_index_asks_for():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    workspace = tomllib.loads((REPOSITORY / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]
    crates = {}
    for path in (REPOSITORY / "crates").glob("*/Cargo.toml"):
        manifest = tomllib.loads(path.read_text(encoding="utf-8"))
        if manifest["package"].get("publish", True):
            crates[manifest["package"]["name"]] = manifest
    assert "mithril" in crates
    for name, manifest in crates.items():
        package = manifest["package"]
        for key in ("description", "license", "repository", "keywords", "categories", "version", "rust-version"):
            assert package.get(key), (name, key)
        own = {dependency for dependency in manifest.get("dependencies", {}) if dependency.startswith("mithril")}
        # What is not published cannot be depended on; a path alone is refused.
        assert own <= set(crates), name
        for dependency in own:
            assert workspace["dependencies"][dependency]["version"] == workspace["package"]["version"]
    assert len(workspace["package"]["keywords"]) <= 5
    assert all(len(word) <= 20 for word in workspace["package"]["keywords"])
