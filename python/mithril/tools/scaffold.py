"""``mithril new-backend``: the files of a backend of one's own, working, with its test."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from ..backends.registry import list_backends
from ..errors import InvalidValueError
from ..optional_packages import DISTRIBUTION

__all__ = ["new_backend"]

_INIT = '''"""The {name} backend."""

from .backend import {title}

__all__ = ["{title}"]
'''

_MANUAL = '''"""The {name} backend: arrays, and a handful of ops; Mithril derives the rest, gradients too."""

import numpy as np
from mithril.backends.backend import Backend

from .ops import Ops
from .utils import DTYPES


class {title}(Ops, Backend):
    """Runs Mithril's models with NumPy; replace NumPy by your own framework."""

    name = "{name}"
    dtype_map = DTYPES

    def tensor(self, data, dtype=None):
        return np.array(data, dtype=self._convert_dtype(dtype))

    def zeros(self, shape, dtype=None):
        return np.zeros(shape, dtype=self._convert_dtype(dtype))

    def ones(self, shape, dtype=None):
        return np.ones(shape, dtype=self._convert_dtype(dtype))

    def to_numpy(self, tensor):
        return np.asarray(tensor)
'''

_OPS = '''"""Ops of the {name} backend. Compiled models call them; what is not here is expanded, or runs on the host."""

{array_import}
from mithril.backends.backend import Backend


class Ops(Backend):
    """Each method is an op of docs/ops.md, by its name or alias, with any names of parameters."""

    def add(self, a, b):
        return a + b

    def subtract(self, a, b):
        return a - b

    def multiply(self, a, b):
        return a * b

    def divide(self, a, b):
        return a / b

    def square(self, x):
        return x * x

    def matmul(self, a, b):
        return a @ b

    def maximum(self, a, b):
        return {xp}.maximum(a, b)

    def exp(self, x):
        return {xp}.exp(x)

    def reduce_sum(self, x, axis=None, keepdims=False):
        return {xp}.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype)

    def reshape(self, x, shape):
        return {xp}.reshape(x, shape)

    def transpose(self, x, axes):
        return {xp}.transpose(x, axes)
{backward}'''

_UTILS = '''"""What the {name} backend needs besides its ops."""

{array_import}

#: Mithril's dtypes -> those of the framework.
DTYPES = {{
    "bool": {xp}.bool_,
    "uint8": {xp}.uint8,
    "uint16": {xp}.uint16,
    "uint32": {xp}.uint32,
    "uint64": {xp}.uint64,
    "int8": {xp}.int8,
    "int16": {xp}.int16,
    "int32": {xp}.int32,
    "int64": {xp}.int64,
    "float16": {xp}.float16,
    "float32": {xp}.float32,
    "float64": {xp}.float64,
}}
'''

_BACKWARD = """
    # A gradient of your own is optional: Mithril knows those of all ops.
    def backward_exp(self, grad_output, inputs, outputs):
        return grad_output * outputs[0]
"""

_AUTOGRAD = '''"""The {name} backend: JAX as a stand-in for a framework with gradients; replace it by yours."""

import jax
import jax.numpy as jnp
import numpy as np
from mithril.backends.with_autograd.backend import AutogradBackend

from .ops import Ops
from .utils import DTYPES


class {title}(Ops, AutogradBackend):
    """Runs Mithril's models with the framework, and differentiates them with it."""

    name = "{name}"
    dtype_map = DTYPES
    # `value_and_grad` differentiates functions of a dict of arrays.
    takes_trees = True

    def tensor(self, data, dtype=None):
        return jnp.array(data, dtype=self._convert_dtype(dtype))

    def zeros(self, shape, dtype=None):
        return jnp.zeros(shape, dtype=self._convert_dtype(dtype))

    def ones(self, shape, dtype=None):
        return jnp.ones(shape, dtype=self._convert_dtype(dtype))

    def to_numpy(self, tensor):
        return np.asarray(tensor)

    def grad(self, function):
        return jax.grad(function)

    def value_and_grad(self, function):
        return jax.value_and_grad(function)
'''

_TEST = '''"""The {name} backend: its ops, and a model that learns on it."""

import warnings
{skip}
import mithril as ml
import numpy as np
from mithril.errors import BackendWarning
from mithril.testing.backend_tests import run_backend_tests
from {name} import {title}


def test_ops():
    ops = {tested}
    results = run_backend_tests({title}(), ops, dtypes=["float32"], gradients={gradients})
    assert results.failures == [], results


def test_a_model_learns():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model |= ml.Relu()(input="hidden", output="active")
    model |= ml.Linear(1)(input="active", output="output")
    model |= ml.MSELoss()(input="output", target="target", output="loss")
    backend = {title}()
    with warnings.catch_warnings():
        # What the backend lacks runs on the host. Remove this line, and the warning lists what is left to define.
        warnings.simplefilter("ignore", BackendWarning)
        compiled = ml.compile(model, backend, shapes={{"input": [16, 2], "target": [16, 1]}})
        params = compiled.randomize_params(seed=0)
        x = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
        data = {{"input": x, "target": x[:, :1] * x[:, 1:]}}
        losses = []
        for _ in range(50):
            outputs, gradients = compiled.evaluate(params, data, {{"loss": 1.0}})
            losses.append(float(backend.to_numpy(outputs["loss"])))
            for name, gradient in gradients.items():
                params[name] = params[name] - 0.1 * gradient
    assert losses[-1] < 0.5 * losses[0]
'''

_PROJECT = """[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
description = "A backend for Mithril."
dependencies = ["{distribution}", "{framework}"]

[project.entry-points."mithril.backends"]
{name} = "{name}:{title}"

[tool.setuptools]
packages = ["{name}"]
"""


def new_backend(name: str, folder: str | Path = ".", autograd: bool = False) -> list[Path]:
    """Write the files of a new backend: a package with an entry point, and its test.

    Parameters
    ----------
    name : str
        Name of the package and of the backend.
    folder : path, optional
        Where the folder of the project is made.
    autograd : bool, optional
        A backend with gradients of its own framework (JAX stands in for it).

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InvalidValueError
        If the name is not a name of a package, is taken, or the folder exists.

    Examples
    --------
    >>> import tempfile
    >>> from mithril.tools.scaffold import new_backend
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in new_backend("my_backend", folder)]
    ['pyproject.toml', '__init__.py', 'backend.py', 'ops.py', 'utils.py', 'test_backend.py']
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InvalidValueError(
            f"{name!r} is not a name of a package", hint="use small letters, digits and underscores, e.g. my_backend"
        )
    if name in list_backends():
        raise InvalidValueError(f"there is a backend called {name!r} already", hint="choose another name")
    root = Path(folder) / name
    if root.exists():
        raise InvalidValueError(f"{str(root)!r} exists already", hint="choose another name or folder")
    title = "".join(part.capitalize() for part in name.removesuffix("_backend").split("_")) + "Backend"
    words = {
        "name": name,
        "title": title,
        "distribution": DISTRIBUTION,
        "framework": "jax" if autograd else "numpy",
        "array_import": "import jax.numpy as jnp" if autograd else "import numpy as np",
        "xp": "jnp" if autograd else "np",
        "backward": "" if autograd else _BACKWARD,
        "skip": '\nimport pytest\n\npytest.importorskip("jax")\n' if autograd else "",
        "tested": '["add", "matmul", "exp", "sum", "linear"]',
        "gradients": str(not autograd),
    }
    files = {
        root / "pyproject.toml": _PROJECT,
        root / name / "__init__.py": _INIT,
        root / name / "backend.py": _AUTOGRAD if autograd else _MANUAL,
        root / name / "ops.py": _OPS,
        root / name / "utils.py": _UTILS,
        root / "tests" / "test_backend.py": _TEST,
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(**words), encoding="utf-8")
    return list(files)
