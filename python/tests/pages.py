"""Runs the Python blocks of a page of the documentation, in the order of the page, in one namespace.

What a block needs stands in HTML comments right above it:

=============================== ====================================================================================
``<!-- each: numpy, torch -->`` run once on each of these backends, which the block knows as ``backend``; what it
                                defines is there for later blocks with the same marker
``<!-- without GPU: a -> b -->`` where there is no GPU, the block as it stands has to raise `BackendUnavailableError`;
                                then it runs with the text ``a`` replaced by ``b`` (several pairs: ``a -> b; c -> d``)
``<!-- faster: a -> b -->``     run with ``a`` replaced by ``b``, to save time
``<!-- raises: Error -->``      the block ends with this error
``<!-- warns: Warning -->``     the block gives this warning
``<!-- later: reason -->``      not part of this version, which the error of ``raises`` has to say
``<!-- not run: reason -->``    the block is only compiled
=============================== ====================================================================================

A block of ``text`` right below a Python block is what that prints.
"""

import ast
import builtins
import contextlib
import importlib.util
import io
import re
import warnings
from dataclasses import dataclass, field

import mithril as ml
import pytest

MARKERS = {"each", "without GPU", "faster", "raises", "warns", "later", "not run", "printed"}
FENCE = re.compile(
    r"(?P<markers>(?:^<!--[^\n]*-->\n)*)^(?P<indent> *)```python\n(?P<code>.*?)^ *```$"
    r"(?:\n\n? *```text\n(?P<printed>.*?)^ *```$)?",
    re.DOTALL | re.MULTILINE,
)
MODULES = {"torch": "torch", "jax": "jax", "mlx": "mlx"}


@dataclass
class Block:
    """A block of code of a page."""

    page: str
    line: int
    code: str
    printed: str | None
    markers: dict[str, str] = field(default_factory=dict)

    def compiled(self, code=None):
        """Code object whose lines are those of the page."""
        tree = ast.parse(self.code if code is None else code, self.page)
        return compile(ast.increment_lineno(tree, self.line), self.page, "exec")

    def pairs(self, marker):
        """Pairs ``(text, replacement)`` of a marker."""
        return [pair.split(" -> ") for pair in self.markers[marker].split("; ")] if marker in self.markers else []


def blocks(path):
    """All Python blocks of a page."""
    text = path.read_text()
    for match in FENCE.finditer(text):
        markers = dict(re.findall(r"<!-- ([^:]*): (.*) -->", match["markers"]))
        assert markers.keys() <= MARKERS, f"{path.name}: {markers}"
        assert ("later" not in markers) or "raises" in markers, f"{path.name}: `later` without `raises`"
        lines = match["code"].splitlines(keepends=True)
        code = "".join(line.removeprefix(match["indent"]) for line in lines)
        yield Block(path.name, text.count("\n", 0, match.start("code")), code, match["printed"], markers)


def frameworks(path):
    """Frameworks that the blocks of a page use."""
    text = "".join(block.code for block in blocks(path) if "not run" not in block.markers).lower()
    return [name for name in MODULES if f"{name}backend" in text or re.search(rf"^\s*import {name}\b", text, re.M)]


def is_installed(name):
    """Whether the framework of a backend is installed."""
    return name not in MODULES or importlib.util.find_spec(MODULES[name]) is not None


def installed():
    """Names of the built-in backends that run here."""
    return [name for name in ("numpy", "interpreter", "torch", "jax", "mlx") if is_installed(name)]


def has_gpu(code):
    """Whether the frameworks that a block speaks of find a GPU."""
    available, code = [], code.lower()
    if "torch" in code:
        import torch

        available.append(torch.cuda.is_available() or torch.backends.mps.is_available())
    if "jax" in code:
        import jax

        available.append(jax.default_backend() != "cpu")
    if "mlx" in code or "mx." in code:
        import mlx.core as mx

        available.append(mx.is_available(mx.gpu))
    assert available, "a block with `without GPU` names a framework"
    return all(available)


def run_page(path):
    """Run all blocks of a page.

    Raises
    ------
    Exception
        What a block raises, with the line of the page in its traceback.
    """
    shared = {"__name__": "documentation"}
    own, printed = {}, ""
    for block in blocks(path):
        if "not run" in block.markers:
            block.compiled()
        elif "printed" in block.markers:
            place = f"{block.page}:{block.line}"
            assert block.code.strip() == printed.strip(), f"{place}: the block above prints\n{printed}"
        elif "each" in block.markers:
            for name in block.markers["each"].split(", "):
                if not is_installed(name):
                    continue
                backend = own.get(name, {}).get("backend") or ml.get_backend(name)
                scope = {**shared, **own.get(name, {}), "backend": backend}
                run(block, scope)
                own[name] = {k: v for k, v in scope.items() if k not in shared or shared[k] is not v}
        else:
            printed = run(block, shared)


def run(block, scope):
    """Run a block as its markers say; return what it prints."""
    code = block.code
    for text, replacement in block.pairs("faster"):
        assert text in code, f"{block.page}:{block.line}: {text!r} is not in the block"
        code = code.replace(text, replacement)
    if "without GPU" in block.markers and not has_gpu(code):
        with pytest.raises(ml.errors.BackendUnavailableError) as caught:
            exec(block.compiled(code), dict(scope))
        assert caught.value.hint
        for text, replacement in block.pairs("without GPU"):
            assert text in code, f"{block.page}:{block.line}: {text!r} is not in the block"
            code = code.replace(text, replacement)
    printed = io.StringIO()
    with contextlib.ExitStack() as stack:
        if "without GPU" in block.markers:
            # Options of GPUs mean nothing on the CPU that stands in for one.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", ml.errors.IgnoredOptionWarning)
        stack.enter_context(contextlib.redirect_stdout(printed))
        if "warns" in block.markers:
            stack.enter_context(pytest.warns(_class(block.markers["warns"])))
        if "raises" in block.markers:
            caught = stack.enter_context(pytest.raises(_class(block.markers["raises"])))
        exec(block.compiled(code), scope)
    if "later" in block.markers:
        assert "this version of Mithril" in str(caught.value), f"{block.page}:{block.line}: {caught.value}"
    if block.printed is not None:
        expected = [line.strip() for line in block.printed.strip().splitlines()]
        actual = [line.strip() for line in printed.getvalue().strip().splitlines()]
        assert actual == expected, f"{block.page}:{block.line} prints\n{printed.getvalue()}"
    return printed.getvalue()


def _class(name):
    return getattr(ml.errors, name, None) or getattr(builtins, name)
