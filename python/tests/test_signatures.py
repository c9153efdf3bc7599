"""Signatures say what is taken: in `help`, in editors, and the same as the documentation."""

import inspect
import re

import mithril as ml
import pytest
from mithril.backends.keywords import CompileOptions
from mithril.compiled.compile import ALIASES
from mithril.generation import EncoderDecoder, TextGenerator, compile_decoder, compile_encoder
from mithril.tools.export import export
from mithril.tools.nans import find_nans
from mithril.tools.packing import pack
from mithril.tools.profile import profile
from mithril.tools.web.decoder import export_decoder
from mithril.vision import Classifier, Similarity
from pages import is_installed

CLASSES = [ml.NumpyBackend, ml.TorchBackend, ml.JaxBackend, ml.MlxBackend, ml.CBackend, ml.GGMLBackend]


def parameters(function):
    """Names and defaults of the parameters of a function, without those that collect others."""
    collecting = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    signature_parameters = list(inspect.signature(function).parameters.values())
    return {p.name: p.default for p in signature_parameters if p.kind not in collecting}


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


@pytest.mark.parametrize(
    ("function", "source", "own"),
    [
        (ml.Model.compile, ml.compile, {"model"}),
        (ml.plan, ml.compile, {"backend"}),
        (ml.check, ml.compile, set()),
        (ml.compare, ml.compile, {"backend"}),
        (ml.benchmark, ml.compile, {"backend"}),
        (compile_decoder, ml.compile, {"shapes", "inference"}),
        (compile_encoder, ml.compile, {"shapes", "inference"}),
        (TextGenerator.from_folder, compile_decoder, {"model"}),
        (EncoderDecoder.from_folder, compile_decoder, {"model"}),
        (Classifier.from_folder, compile_decoder, set()),
        (Similarity.from_folder, compile_decoder, {"model"}),
        (TextGenerator.export, export_decoder, {"model"}),
    ],
)
def test_what_is_passed_on_is_in_the_signature(function, source, own):
    options, shown = parameters(source), parameters(function)
    assert options.keys() - own <= shown.keys()
    if source is ml.compile:
        inference = {"inference"}  # Some tools have a default of their own.
        assert all(shown[name] == options[name] for name in options.keys() - own - inference)


def test_options_of_all_backends_are_in_the_signature_of_get_backend():
    assert parameters(ml.get_backend).keys() == {"name"}.union(*(parameters(kind) for kind in CLASSES))


#: Functions whose further arguments are those of something that a user brings, or of any model of the zoo.
OPEN = {"get_backend", "from_torch", "from_config"}


def test_public_functions_do_not_hide_their_options():
    hiding = []
    for module in (ml, ml.optim, ml.models, ml.generation, ml.vision, ml.train):
        for name in module.__all__:
            function = getattr(module, name)
            if not inspect.isfunction(function) or name in OPEN:
                continue
            listed = inspect.signature(function).parameters.values()
            if any(p.kind is p.VAR_KEYWORD for p in listed) and not any(p.kind is p.KEYWORD_ONLY for p in listed):
                hiding.append(f"{module.__name__}.{name}")
    assert hiding == []
    assert {"lr", "weight_decay"} <= parameters(ml.optim.from_torch).keys()
    assert {"cache", "last_only", "mask", "head"} <= parameters(ml.models.from_config).keys()
