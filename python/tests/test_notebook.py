"""What objects show in a notebook: well-formed HTML that says what they print, in which no name becomes a tag."""

from html.parser import HTMLParser
from itertools import pairwise

import mithril as ml
import numpy as np
import pytest
from mithril.models import clip
from mithril.tools.plan import Plan
from mithril.tools.profile import Profile

HOSTILE = '"><img src=x onerror=alert(1)><script>alert("2")</script>\'&amp;'
VOID = {"br", "img", "hr", "meta", "input", "link"}


class Page(HTMLParser):
    """Reads HTML as a browser does, and asserts that what is opened is closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data):
        self.text += data

    def is_harmless(self):
        return not {"script", "img", "iframe"} & set(self.tags) and not any(a.startswith("on") for a in self.attributes)


def hostile_model():
    inner = ml.Model()
    inner |= ml.Linear(4, name="first")(input="input", output="hidden")
    inner |= ml.Relu(name=HOSTILE)(input="hidden", output="output")
    model = ml.Model()
    model |= inner(input="input", output="middle")
    model |= ml.Linear(2, name=HOSTILE)(input="middle", output="output")
    return model


@pytest.fixture(scope="module")
def model():
    return hostile_model()


def compiled(model, backend=None):
    return ml.compile(model, backend or ml.NumpyBackend(), shapes={"input": [2, 3]}, inference=True)


def test_a_model_is_a_tree_with_shapes(model):
    page = Page(compiled(model)._repr_html_())
    assert page.tags.count("details") == page.tags.count("summary") == 1
    for part in ("Linear", "[2, 4]", "[2, 2]", "16 parameters", "10 parameters", "26 parameters", HOSTILE):
        assert part in page.text
    assert page.is_harmless()
    # Before the shapes are known, too.
    page = Page(model._repr_html_())
    assert HOSTILE in page.text
    assert page.is_harmless()
    assert "?" in page.text
    unknown = Page(ml.compile(model, ml.NumpyBackend())._repr_html_())
    assert unknown.text.startswith("Model(2 layers")
    assert Page(ml.Model()._repr_html_()).is_harmless()


def test_a_tree_has_the_parts_of_the_summary():
    sizes = {"embed_dim": 16, "image_resolution": 32, "vision_layers": 2, "vision_width": 64, "vision_patch_size": 8}
    sizes |= {"context_length": 8, "vocab_size": 100, "transformer_width": 32, "transformer_heads": 4}
    model = clip(**sizes, transformer_layers=2)
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"image": [1, 3, 32, 32], "text": [1, 8]}, inference=True)
    rows = compiled.summary_rows()
    page = Page(compiled._repr_html_())
    assert max(depth for _, depth, *_ in rows) > 3
    # A part with parts opens: the next row is deeper.
    opens = sum(later[1] > row[1] for row, later in pairwise(rows))
    assert page.tags.count("details") == opens > 10
    for path, _, layer, _, _ in rows:
        assert path.rpartition(".")[2] in page.text
        assert layer in page.text


def reports(model):
    shapes = {"input": [2, 3]}
    yield ml.check(model, "numpy", shapes), "native"
    yield ml.compare(model, ["numpy", "interpreter"], shapes, inference=True), "rounding-level"
    yield ml.benchmark(model, shapes, {HOSTILE: "numpy"}, 2), HOSTILE
    yield ml.plan(model, ml.Mesh(data=2), shapes=shapes), "devices"
    yield compiled(model, ml.CBackend(num_threads=1)).profile(runs=1), "GFLOP/s"
    values = {HOSTILE: np.ones((32, 32), np.float32), "b": np.ones(3, np.float32)}
    yield ml.quantize(values, "q8_0").report, HOSTILE
    yield ml.backends.table(), "gradients"
    nan = ml.Model()
    nan |= ml.Log(name=HOSTILE)(input="input", output="output")
    result = ml.compile(nan, ml.NumpyBackend(), shapes={"input": [2]}, inference=True)
    yield result.find_nans({}, {"input": -np.ones(2, np.float32)}), HOSTILE


def test_reports_are_tables(model):
    for report, part in reports(model):
        page = Page(report._repr_html_())
        assert page.tags.count("table") == 1, type(report)
        assert part in page.text, type(report)
        assert page.is_harmless(), type(report)
        assert page.tags.count("svg") == isinstance(report, Profile | Plan), type(report)
        # Markdown may hold HTML, and notebooks show it.
        assert "<img" not in report._repr_markdown_()
        assert "<script" not in report._repr_markdown_()
        assert report.to_dict()["schema"].startswith("mithril."), type(report)


def test_a_view_is_closed_in_a_frame(model):
    page = Page(ml.view(compiled(model))._repr_html_())
    assert page.tags == ["iframe"]
