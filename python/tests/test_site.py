"""The site of the documentation: every page is in a menu and in llms.txt, and pages load nothing from the network.

`make site`, which `make lint` runs too, builds it and looks at all links.
"""

import importlib.util
import re
from pathlib import Path

import mithril as ml
import pytest

yaml = pytest.importorskip("yaml", reason="PyYAML comes with the extra docs")
ROOT = Path(__file__).resolve().parents[2]


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)


@pytest.fixture(scope="module")
def config():
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


@pytest.fixture(scope="module")
def site():
    pytest.importorskip("tomllib", reason="Python reads TOML from 3.11 on")
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_one_menu_and_in_llms(config, site):
    names = [name for _, rows in site.entries(config["nav"]) for _, name in rows]
    assert sorted(names) == sorted([*(path.name for path in (ROOT / "docs").glob("*.md")), *site.PAGES.values()])
    text = site.llms(config["nav"], config["site_description"])
    for name in names:
        (about,) = re.findall(rf"^- \[[^\]]+\]\({re.escape(name)}\): (.*)$", text, re.MULTILINE)
        assert len(about) > 20, name
        assert "](" not in about, name


def test_links_out_of_docs_lead_to_pages_or_are_words(site):
    text = (
        "[a](docs/c.md#export) [b](ARCHITECTURE.md) [c](tools/site.py) [d](https://x.org/y.md) [e](#here) ![f](g.svg)"
    )
    expected = "[a](c.md#export) [b](architecture.md) c [d](https://x.org/y.md) [e](#here) ![f](g.svg)"
    assert site.adapted(text, ROOT) == expected


def test_the_version_is_that_of_the_package(site):
    assert site.version() == ml.__version__


def test_the_reference_has_what_is_public():
    """Functions and classes of the package that are no layer, dtype or second name."""
    named = set(re.findall(r"^::: mithril\.(\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    for name in named:
        obj = ml
        for part in name.split("."):
            obj = getattr(obj, part)
    from mithril._generated import layers

    aliases = {"LogicalModel", "MLXBackend", "GGMLBackend", "RawCBackend"}
    public = {name for name in ml.__all__ if callable(getattr(ml, name))} - set(layers.__all__) - aliases
    dtypes = {name for name in public if isinstance(getattr(ml, name), ml.DType)}
    assert public - dtypes - named <= {"Backend", "DType", "MithrilError", "Plan"}


def test_pictures_are_small_and_nothing_comes_from_the_network(config):
    assert sum(path.stat().st_size for path in (ROOT / "docs" / "pictures").iterdir()) < 1_000_000
    assert config["theme"]["font"] is False
    for path in (ROOT / "docs").glob("*.md"):
        assert not re.search(
            r"!\[[^\]]*\]\(https?:|<script|<img", re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        ), path
