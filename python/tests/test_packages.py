"""The packages of `mithril`: what is imported from where, and what one of them may read of another."""

import ast
import pickle
import re
import sys
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import optional_packages
from mithril.tools.scaffold import new_backend


def test_pickles_of_the_former_modules_load():
    model = ml.Model()
    model |= ml.Linear(2)(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": [1, 3]})
    params = compiled.get_parameters()
    x = np.ones((1, 3), np.float32)
    for what, old in ((params, b"mithril.parameters"), (compiled, b"mithril.physical")):
        content = pickle.dumps(what, protocol=0)
        new = type(what).__module__.encode()
        assert new in content
        # Protocol 0 writes module names as lines of text.
        loaded = pickle.loads(content.replace(new, old))
        assert type(loaded) is type(what)
        actual = loaded if old.endswith(b"parameters") else loaded.get_parameters()
        np.testing.assert_array_equal(
            compiled.evaluate(actual, {"input": x})["output"], compiled.evaluate(params, {"input": x})["output"]
        )


ROOT = Path(ml.__file__).parent
#: Packages whose classes share underscore attributes across their files: a backend and its engine, a compiled model and
#: its parts, an optimizer and its rule.
SHARED = {"backends", "compiled", "optim"}
#: Underscore attributes of Python and PyTorch, and marks that a backend leaves on functions of users.
FOREIGN = {"_exit", "_getframe", "_is_zerotensor", "_mithril_name", "_mithril_raw"}


def package(path):
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in ("_core", "_generated")


def is_self(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def defined(tree):
    """Names of attributes that a file defines: methods, and what it stores in `self` or in a class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def read(tree):
    """Underscore names of others that a file reads, with their lines, and whether it imports them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = node.value
            is_parent = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name) and owner.func.id == "super"
            if not is_self(owner) and not is_parent:
                yield node.attr, node.lineno, False
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield from ((name.name, node.lineno, True) for name in node.names if is_private(name.name))


def trespasses(root):
    trees = {path: ast.parse(path.read_text()) for path in root.rglob("*.py") if "_generated" not in path.parts}
    own = {path: set(defined(tree)) for path, tree in trees.items()}
    inside = {}
    for path, names in own.items():
        inside.setdefault(package(path), set()).update(names)
    for path, tree in trees.items():
        siblings = inside[package(path)]
        known = own[path] | FOREIGN | (siblings if package(path) in SHARED else set())
        for name, line, is_import in read(tree):
            if name not in (known | siblings if is_import else known):
                yield f"{path.relative_to(root)}:{line}: {name}"


def test_no_package_reads_what_is_private_to_another():
    assert list(trespasses(ROOT)) == []


def test_what_is_read_privately_is_found():
    tree = ast.parse("from .x import _helper\n\nmodel._names\nself._own\nsuper()._own()\n")
    assert list(read(tree)) == [("_helper", 1, True), ("_names", 3, False)]


def test_one_module_guesses_names():
    guessing = [path for path in ROOT.rglob("*.py") if "get_close_matches" in path.read_text()]
    assert [path.name for path in guessing] == ["suggestions.py"]


def test_hints_install_what_the_extras_hold():
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra, packages in optional_packages.EXTRAS.items():
        listed = [entry.partition(";") for entry in project["optional-dependencies"][extra]]
        here = [name for name, _, condition in listed if not condition or f"'{sys.platform}'" in condition]
        expected = {re.split(r"[>=<]", name)[0] for name in here if not name.startswith(project["name"])}
        assert set(packages) == expected, extra


def test_projects_that_are_written_depend_on_this_distribution(tmp_path):
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 reads TOML")
    ours = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    assert ours == optional_packages.DISTRIBUTION
    for name, autograd in (("one_backend", False), ("other_backend", True)):
        path = new_backend(name, tmp_path, autograd)[0]
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        assert project["dependencies"][0] == ours
