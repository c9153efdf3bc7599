"""Signatures say what is taken: in `help`, in editors, and the same as the documentation."""

import inspect
import re

import mithril as ml
import pytest
from mithril.backends.keywords import CompileOptions
from mithril.compiled.compile import ALIASES
from mithril.tools.export import export
from mithril.tools.nans import find_nans
from mithril.tools.packing import pack
from mithril.tools.profile import profile
from pages import is_installed

CLASSES = [ml.NumpyBackend, ml.TorchBackend, ml.JaxBackend, ml.MlxBackend, ml.CBackend, ml.GGMLBackend]


def parameters(function):
    """Names and defaults of the parameters of a function, without those that collect others."""
    collecting = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = list(inspect.signature(function).parameters.values())
    return {p.name: p.default for p in found if p.kind not in collecting}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_documented_options_are_in_the_signature_of_a_backend(kind):
    section = inspect.getdoc(kind).partition("Parameters\n")[2].partition("\nExamples")[0]
    documented = {name for names in re.findall(r"^([a-z_, ]+) : ", section, re.MULTILINE) for name in names.split(", ")}
    # Every backend inherits options whose documentation is that of `Backend`.
    assert documented - set(kind._ignored) <= parameters(kind).keys()
    assert parameters(kind).keys() - set(kind._ignored) == set(kind._options)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_none_is_the_default_of_every_option_of_a_backend(kind):
    if not is_installed(kind.name):
        pytest.skip(f"{kind.name} is not installed")
    plain, explicit = kind(), kind(**parameters(kind))
    for name in ("default_dtype", "device", "jit", "precision", "ignored_options"):
        assert getattr(explicit, name) == getattr(plain, name), name


def test_options_that_tools_pass_on_are_those_of_compile():
    assert CompileOptions.__annotations__.keys() == (parameters(ml.compile).keys() | ALIASES.keys()) - {
        *("model", "backend", "shapes")
    }


@pytest.mark.parametrize("function", [export, find_nans, pack, profile])
def test_tools_are_methods_of_compiled_models(function):
    # Their options are declared once: the methods are the functions.
    assert getattr(ml.PhysicalModel, function.__name__) is function
