"""What items of the checklist are proven by: pages, other tests, errors that say what is to come, and programs."""

import contextlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import mithril as ml
import pages
import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Page:
    """A page of the documentation holds this text (spaces do not count); its programs run in `test_docs`."""

    name: str
    text: str

    def __call__(self):
        page = (ROOT / "docs" / self.name).read_text()
        assert " ".join(self.text.split()) in " ".join(page.split()), f"docs/{self.name} does not say: {self.text}"


@dataclass(frozen=True)
class Proven:
    """A test of another file, whose name begins so, proves it."""

    file: str
    test: str

    def __call__(self):
        text = (ROOT / "python" / "tests" / self.file).read_text()
        assert re.search(rf"^def {self.test}", text, re.MULTILINE), f"{self.file} has no test {self.test}"


@dataclass(frozen=True)
class Later:
    """Not part of this version: the program raises the documented error."""

    reason: str
    program: object
    error: type = ml.errors.BackendUnavailableError

    def __call__(self):
        with pytest.raises(self.error) as caught:
            self.program()
        if self.error is not ImportError:
            assert "this version of Mithril" in str(caught.value)


def constructs(kind, *, needs="", **options):
    """Construct a backend; options that ask for a GPU raise where there is none, and are then replaced by the CPU.

    ``needs`` names the option of the device.
    """
    if not pages.is_installed(kind):
        pytest.skip(f"{kind} is not installed")
    cls = {"torch": ml.TorchBackend, "jax": ml.JaxBackend, "mlx": ml.MLXBackend, "numpy": ml.NumpyBackend}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ml.errors.IgnoredOptionWarning)
        if needs and not pages.has_gpu(kind):
            with pytest.raises(ml.errors.BackendUnavailableError) as caught:
                cls(**options)
            assert caught.value.hint
            options[needs] = "cpu"
        return cls(**options)


@contextlib.contextmanager
def unchanged_jax():
    """Bring the setting of JAX for 64-bit numbers back to what it was."""
    import jax

    before = jax.config.jax_enable_x64
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
