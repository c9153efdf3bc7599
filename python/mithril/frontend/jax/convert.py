"""From a jaxpr to a model: calls are inlined, loops unrolled, and what is known when tracing is computed by JAX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _core
from ..._core import IOKey, Model
from ...errors import InvalidValueError, UnsupportedOpError
from ..rows import apply, is_connection, times
from ..state import ordered
from .ops import OPS, Use, constant
from .ops.registry import dtype_name
from .trees import argument_names, leaf_names, unique

__all__ = ["from_jax"]

#: Equations that a loop may become.
_UNROLLED = 20_000
#: Elements of a constant that is computed when converting.
_FOLDED = 1 << 24
#: Primitives that call another jaxpr, and what they call it.
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def from_jax(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    params: Any = None,
) -> tuple[Model, dict[str, Any]]:
    """Make a model of a function of JAX, and take its parameters along.

    The function is traced by ``jax.make_jaxpr`` with example inputs, which say shapes and dtypes but nothing of values.

    Parameters
    ----------
    function : callable
        A pure function of arrays, such as ``model.apply`` of Flax or Haiku, or a callable pytree, such as a module of
        Equinox, whose arrays are the parameters.
    args : sequence
        Example inputs, without the parameters: arrays, ``jax.ShapeDtypeStruct``, or pytrees of them.
    kwargs : mapping
        Example inputs that are given by keyword.
    params : pytree, optional
        The parameters: the first argument of the function, before ``args``.

    Returns
    -------
    model : Model
        Its inputs are the arrays of ``args`` and ``kwargs``, in their order; its outputs are ``output``, or
        ``output_0``, ``output_1`` … or the keys of a dict.
    params : dict
        NumPy arrays of the parameters. Names are the keys of the pytree with dots between.

    Raises
    ------
    UnsupportedOpError
        If primitives have no counterpart. The error lists all of them, with the lines that use them.
    BackendUnavailableError
        If JAX is not installed.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> import mithril as ml
    >>> import numpy as np
    >>> def network(params, x):
    ...     return jnp.tanh(x @ params["dense"]["kernel"]) + params["bias"]
    >>> tree = {"dense": {"kernel": np.ones((4, 2), np.float32)}, "bias": np.zeros(2, np.float32)}
    >>> model, params = ml.from_jax(network, (np.ones((3, 4), np.float32),), params=tree)
    >>> list(params)
    ['bias', 'dense.kernel']
    >>> compiled = ml.compile(model, ml.NumpyBackend())
    >>> compiled.evaluate(params, {"x": np.ones((3, 4), np.float32)})["output"].shape
    (3, 2)
    """
    from ...backends.frameworks import require

    jax = require("from_jax", "jax")
    if not callable(function):
        raise InvalidValueError(f"from_jax takes a function, not a {type(function).__name__}")
    if not isinstance(args, (list, tuple)):
        args = (args,)
    own, structure = jax.tree_util.tree_flatten(function)
    arrays = [leaf for leaf in own if hasattr(leaf, "shape")]
    if params is not None:
        tree, skipped, paths = params, 1, leaf_names(params, "", jax, ".")

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            return function(tree, *args, **kwargs)
    elif arrays:
        paths = leaf_names(function, "", jax, ".")
        tree, paths = arrays, [path for path, leaf in zip(paths, own, strict=True) if hasattr(leaf, "shape")]
        skipped = 0

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            given = iter(tree)
            leaves = [next(given) if hasattr(leaf, "shape") else leaf for leaf in own]
            return jax.tree_util.tree_unflatten(structure, leaves)(*args, **kwargs)
    else:
        tree, skipped, paths = {}, 0, []

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

    kwargs = dict(kwargs or {})
    names = unique(argument_names(function, args, kwargs, skipped, jax), paths)
    conversion = Conversion(jax, called, (tree, tuple(args), kwargs), unique_paths(paths), names)
    return conversion.result()


class Conversion:
    """The conversion of one function.

    Parameters
    ----------
    jax : module
        JAX.
    function : callable
        Takes parameters, arguments and keyword arguments.
    given : tuple
        Examples of these.
    paths, names : list of str
        Names of the parameters and of the inputs.
    """

    def __init__(
        self,
        jax: Any,
        function: Callable[..., Any],
        given: tuple[Any, Any, Any],
        paths: list[str],
        names: list[str],
    ) -> None:
        self.jax = jax
        try:
            self.closed, self.shape = jax.make_jaxpr(function, return_shape=True)(*given)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UnsupportedOpError(
                f"jax.make_jaxpr cannot trace the function: {reason}",
                hint="call jax.make_jaxpr on it to see JAX's whole report",
            ) from error
        self.names = names
        self.paths = paths
        self.leaves = jax.tree_util.tree_leaves(given[0])

    def result(self) -> tuple[Model, dict[str, Any]]:
        """Model and parameters."""
        jaxpr = self.closed.jaxpr
        inputs: list[Any] = []
        params: dict[str, Any] = {}
        for path, leaf, var in zip(self.paths, self.leaves, jaxpr.invars, strict=False):
            dtype = dtype_name(var.aval)
            value = np.asarray(leaf).astype(dtype if dtype != "bfloat16" else var.aval.dtype, copy=False)
            if value.dtype.kind in "biu":
                inputs.append(value)
            else:
                params[path] = value
                inputs.append(IOKey(path, shape=list(value.shape), dtype=dtype, trainable=True))
        missing: dict[str, list[Any]] = defaultdict(list)
        flags = [not is_connection(x) for x in inputs] + [False] * len(self.names)
        _missing(jaxpr, [True] * len(jaxpr.constvars), flags, missing)
        if missing:
            notes = [f"`{name}`, {times(len(eqns))}{place(eqns[0])}" for name, eqns in sorted(missing.items())]
            raise _error("the function has primitives that Mithril cannot convert", notes, "replace these parts")
        for name, var in zip(self.names, jaxpr.invars[len(self.leaves) :], strict=True):
            inputs.append(IOKey(name, shape=list(var.aval.shape), dtype=dtype_name(var.aval), trainable=False))
        try:
            results = run(jaxpr, self.closed.consts, inputs)
        finally:
            _core.converted_line(None, 0)
        names = unique(_output_names(self.shape, self.jax), [*self.names, *params])
        outputs = {
            name: value if is_connection(value) else apply("broadcast_to", constant(value), tuple(np.shape(value)))
            for name, value in zip(names, results, strict=True)
        }
        return ordered(Model.create(**outputs), self.names), params


def unique_paths(names: Sequence[str]) -> list[str]:
    """Make paths distinct; what is also the beginning of another one gets a number."""
    found: list[str] = []
    for name in names:
        number, text = 0, name or "param"
        while text in found or any(other.startswith(f"{text}.") for other in names):
            number += 1
            text = f"{name or 'param'}_{number}"
        found.append(text)
    return found


def run(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Walk through a jaxpr: values are connections, or arrays of NumPy where they are known."""
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, (np.asarray(c) for c in consts), strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> Any:
        return np.asarray(var.val, var.aval.dtype) if hasattr(var, "val") else values[var]

    for eqn in jaxpr.eqns:
        results = _equation(eqn, [read(var) for var in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _equation(eqn: Any, args: list[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    is_small = all(np.prod(var.aval.shape, dtype=np.int64) <= _FOLDED for var in eqn.outvars)
    if not any(map(is_connection, args)) and (is_small or name not in OPS):
        found = eqn.primitive.bind(*args, **eqn.params)
        return [np.asarray(x) for x in (found if eqn.primitive.multiple_results else [found])]
    if name == "scan":
        return _scan(eqn, args)
    if name == "cond":
        branch = eqn.params["branches"][int(np.clip(args[0], 0, len(eqn.params["branches"]) - 1))]
        return run(branch.jaxpr, branch.consts, args[1:])
    inner = _called(eqn)
    if inner is not None:
        return run(*inner, args)
    _core.converted_line(*line(eqn))
    try:
        found = OPS[name](Use(eqn), *args, **eqn.params)
    except UnsupportedOpError as error:
        raise _error(
            f"{name} cannot be converted: {error.message}", [f"it stands{place(eqn)}"], "rewrite this part"
        ) from None
    return found if eqn.primitive.multiple_results else [found]


def _called(eqn: Any) -> tuple[Any, Sequence[Any]] | None:
    """Find the jaxpr that an equation calls, with its constants."""
    if eqn.primitive.name in OPS or eqn.primitive.name == "while":
        return None
    for word in _CALLS:
        inner = eqn.params.get(word)
        if hasattr(inner, "consts"):
            return inner.jaxpr, inner.consts
        if hasattr(inner, "eqns"):
            return inner, ()
    return None


def _scan(eqn: Any, args: list[Any]) -> list[Any]:
    params = eqn.params
    body, length = params["jaxpr"], params["length"]
    constants, carries = params["num_consts"], params["num_carry"]
    fixed, state, rows = args[:constants], args[constants : constants + carries], args[constants + carries :]
    if length * len(body.jaxpr.eqns) > _UNROLLED:
        raise _error(
            f"a scan of {length} steps with {len(body.jaxpr.eqns)} equations is too long to be unrolled",
            [f"it stands{place(eqn)}"],
            "scan over fewer steps",
        )
    steps: list[list[Any]] = []
    order = range(length - 1, -1, -1) if params["reverse"] else range(length)
    for i in order:
        found = run(body.jaxpr, body.consts, [*fixed, *state, *(row[i] for row in rows)])
        state = found[:carries]
        steps.append(found[carries:])
    if params["reverse"]:
        steps.reverse()
    return [*state, *(_stacked(column) for column in zip(*steps, strict=True))]


def _stacked(rows: Sequence[Any]) -> Any:
    if not any(map(is_connection, rows)):
        return np.stack(rows)
    return apply("stack", 0, *(row if is_connection(row) else constant(row) for row in rows))


def _missing(jaxpr: Any, consts: Sequence[bool], inputs: Sequence[bool], found: dict[str, list[Any]]) -> list[bool]:
    """Collect equations that have no counterpart; returns which results are known when converting."""
    known: dict[Any, bool] = {
        **dict(zip(jaxpr.constvars, consts, strict=True)),
        **dict(zip(jaxpr.invars, inputs, strict=True)),
    }

    def read(var: Any) -> bool:
        return True if hasattr(var, "val") else known[var]

    for eqn in jaxpr.eqns:
        flags = [read(var) for var in eqn.invars]
        name, inner = eqn.primitive.name, _called(eqn)
        results = [all(flags)] * len(eqn.outvars)
        if all(flags):
            pass
        elif name == "scan":
            body = eqn.params["jaxpr"]
            _missing(body.jaxpr, [True] * len(body.consts), [False] * len(body.jaxpr.invars), found)
        elif name == "cond" and flags[0]:
            for branch in eqn.params["branches"]:
                _missing(branch.jaxpr, [True] * len(branch.consts), flags[1:], found)
        elif inner is not None:
            results = _missing(inner[0], [True] * len(inner[1]), flags, found)
        elif name not in OPS:
            what = {"cond": "cond of a predicate that is data", "while": "while of a number of turns that is data"}
            found[what.get(name, name)].append(eqn)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _error(text: str, notes: Sequence[str], hint: str) -> UnsupportedOpError:
    lines = "".join(f"\n  note: {note}" for note in notes)
    return UnsupportedOpError(
        f"error[{UnsupportedOpError.code}]: {text}{lines}\n  help: {hint}", message=text, notes=tuple(notes), hint=hint
    )


def place(eqn: Any) -> str:
    """Say where an equation stands."""
    file, number = line(eqn)
    return f' at "{file}", line {number}' if file else ""


def line(eqn: Any) -> tuple[str | None, int]:
    """Find the line of the user's program that JAX keeps of an equation."""
    try:
        from jax._src.source_info_util import user_frame

        frame = user_frame(eqn.source_info.traceback)
    except (ImportError, AttributeError, TypeError):
        return None, 0
    return (frame.file_name, frame.start_line) if frame is not None else (None, 0)


def _output_names(shape: Any, jax: Any) -> list[str]:
    is_tuple = isinstance(shape, (list, tuple)) and len(shape) != 1
    names = leaf_names(shape, "output" if is_tuple else "", jax, "_")
    if len(names) == 1 and isinstance(shape, (list, tuple)):
        return ["output"]
    return [f"output_{name}" if name[:1].isdigit() else name or "output" for name in names]
