"""From a jaxpr to a model: calls are inlined, loops unrolled, and what is known when tracing is computed by JAX."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import _core
from ..._core import IOKey, Model
from ...errors import InvalidValueError, MithrilError, UnsupportedOpError
from ..complexes import Complex
from ..example_inputs import check_kwargs
from ..rows import apply, is_connection, times
from ..state import ordered
from ..verification import verify as verify_model
from .control import cond, is_known, parts_of_scan, scan, while_loop
from .custom_rules import has_own_rule, surrogate, with_gradients_of, without_rules
from .missing import error, hint, line, place
from .ops import OPS, Use, constant
from .ops.complexes import COMPLEX, PARTS, convert_complex, is_complex
from .ops.keys import KEYS, Key, convert_key, input_key, reads_keys
from .ops.linalg import determinant, linear_system
from .ops.registry import dtype_name, has_open_sizes, is_key, tensor
from .sizes import Sizes, declared, reading
from .trees import argument_names, leaf_names, unique

__all__ = ["from_jax"]

#: Elements of a constant that is computed when converting.
_FOLDED = 1 << 24
#: Primitives that call another jaxpr with their own arguments.
_CALLS = frozenset(
    (
        *("jit", "pjit", "closed_call", "core_call", "core_closed_call", "checkpoint", "remat", "remat2"),
        *("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_gradient", "named_call"),
    )
)


def from_jax(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    params: Any = None,
    verify: bool = False,
) -> tuple[Model, dict[str, Any]]:
    """Make a model of a function of JAX, and take its parameters along.

    The function is traced by ``jax.make_jaxpr`` with example inputs, which say shapes and dtypes but nothing of values.

    Parameters
    ----------
    function : callable
        A pure function of arrays, such as ``model.apply`` of Flax or Haiku, or a callable pytree, such as a module of
        Equinox, whose arrays are the parameters.
    args : sequence
        Example inputs: arrays, ``jax.ShapeDtypeStruct``, or pytrees of them. Sizes may have
        names, as `jax.export.symbolic_args_specs` gives them: those are read when the model runs.
    kwargs : mapping
        Example inputs that are given by keyword.
    params : pytree, optional
        The parameters: the first argument of the function, before ``args``. Default: the first of several ``args`` if
        it is a dict, a list or another container of arrays, but no tuple, as in ``apply(params, x)``. To make inputs of
        what such a container holds, describe it by ``jax.ShapeDtypeStruct``.
    verify : bool, optional
        Compare the model on NumPy with the function on the examples, which have to be arrays then (default False).

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
    NumericsError
        If ``verify`` finds an output that differs by more than 0.001 of its largest element (0.1 with 16 bits).

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
        raise InvalidValueError(
            f"from_jax takes a function, not a value of type {type(function).__name__}",
            hint="give the function first, and then its example inputs: ml.from_jax(function, (x,))",
        )
    check_kwargs("from_jax", kwargs)
    if not isinstance(args, (list, tuple)):
        args = (args,)
    own, structure = jax.tree_util.tree_flatten(function)
    arrays = [leaf for leaf in own if hasattr(leaf, "shape")]
    if params is None and not arrays and len(args) > 1 and _is_tree(args[0], jax):
        params, args = args[0], args[1:]
    if params is not None:
        tree, skipped, paths = params, 1, leaf_names(params, "", jax, ".")

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            return function(tree, *args, **kwargs)
    elif arrays:
        paths = leaf_names(function, "", jax, ".")
        tree, paths = arrays, [path for path, leaf in zip(paths, own, strict=True) if hasattr(leaf, "shape")]
        skipped = 0

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            arrays = iter(tree)
            leaves = [next(arrays) if hasattr(leaf, "shape") else leaf for leaf in own]
            return jax.tree_util.tree_unflatten(structure, leaves)(*args, **kwargs)
    else:
        tree, skipped, paths = {}, 0, []

        def called(tree: Any, args: Any, kwargs: Any) -> Any:
            return function(*args, **kwargs)

    kwargs = dict(kwargs or {})
    names = unique(argument_names(function, args, kwargs, skipped, jax), paths)
    conversion = Conversion(jax, called, (tree, tuple(args), kwargs), unique_paths(paths), names)
    model, arrays_by_name = conversion.result()
    if verify:
        _verify(model, arrays_by_name, conversion, called, (tree, tuple(args), kwargs))
    return model, arrays_by_name


def _verify(model: Model, params: Mapping[str, Any], conversion: Conversion, function: Any, example: Any) -> None:
    """Compare a model with the function that it was made of."""
    jax = conversion.jax
    leaves = jax.tree_util.tree_leaves(example[1:])
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
        raise InvalidValueError(
            "verify=True calls the function, and the examples say nothing but shapes", hint="give arrays as args"
        )
    results = jax.tree_util.tree_leaves(function(*example))
    host = [np.asarray(_words(value)) for value in (*leaves, *results)]
    verify_model(
        model,
        params,
        dict(zip(conversion.names, host, strict=False)),
        dict(zip(conversion.outputs, host[len(leaves) :], strict=True)),
        "the function",
        lambda: "please report this with the function",
    )


def _is_tree(value: Any, jax: Any) -> bool:
    """Whether an argument is a container of arrays, and so parameters; tuples are states and groups of inputs."""
    leaves = jax.tree_util.tree_leaves(value)
    if isinstance(value, tuple) or not leaves or jax.tree_util.all_leaves([value]):
        return False
    return all(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in leaves)


def _parts(values: Any) -> Any:
    """Lay real and imaginary parts along a last axis of two."""
    return np.stack([values.real, values.imag], -1)


class Conversion:
    """The conversion of one function.

    Parameters
    ----------
    jax : module
        JAX.
    function : callable
        Takes parameters, arguments and keyword arguments.
    example : tuple
        Examples of these.
    paths, names : list of str
        Names of the parameters and of the inputs.
    """

    def __init__(
        self,
        jax: Any,
        function: Callable[..., Any],
        example: tuple[Any, Any, Any],
        paths: list[str],
        names: list[str],
    ) -> None:
        self.jax = jax
        try:
            self.closed, self.shape = jax.make_jaxpr(function, return_shape=True)(*example)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UnsupportedOpError(
                f"jax.make_jaxpr cannot trace the function: {reason}",
                hint="call jax.make_jaxpr on it to see JAX's whole report",
            ) from error
        self.names = names
        #: Names of the outputs, in the order of the leaves that the function returns.
        self.outputs: list[str] = []
        self.paths = paths
        self.leaves = jax.tree_util.tree_leaves(example[0])

    def result(self) -> tuple[Model, dict[str, Any]]:
        """Model and parameters."""
        jaxpr = self.closed.jaxpr
        inputs: list[Any] = []
        params: dict[str, Any] = {}
        for path, leaf, var in zip(self.paths, self.leaves, jaxpr.invars, strict=False):
            if _is_key(leaf):
                inputs.append(leaf)
                continue
            if np.issubdtype(var.aval.dtype, np.complexfloating):
                # Its parts, along a last axis of two.
                params[path] = parts = _parts(np.asarray(leaf, var.aval.dtype))
                key = IOKey(path, shape=list(parts.shape), dtype=str(parts.dtype), trainable=True)
                inputs.append(Complex(apply("view_as_complex", key)))
                continue
            dtype = dtype_name(var.aval)
            value = np.asarray(leaf).astype(dtype if dtype != "bfloat16" else var.aval.dtype, copy=False)
            if value.dtype.kind in "biu":
                inputs.append(value)
            else:
                params[path] = value
                inputs.append(IOKey(path, shape=list(value.shape), dtype=dtype, trainable=True))
        sizes = Sizes()
        missing: dict[str, list[Any]] = defaultdict(list)
        flags = [not (is_connection(x) or isinstance(x, Complex)) for x in inputs] + [False] * len(self.names)
        _missing(jaxpr, [True] * len(jaxpr.constvars), flags, missing)
        if missing:
            notes = [f"`{name}`, {times(len(eqns))}{place(eqns[0])}" for name, eqns in sorted(missing.items())]
            raise error("the function has primitives that Mithril cannot convert", notes, hint(list(missing)))
        for name, var in zip(self.names, jaxpr.invars[len(self.leaves) :], strict=True):
            shape = declared(name, var.aval.shape)
            if is_key(var.aval):
                words = IOKey(name, shape=[*shape, 2], dtype="uint32", trainable=False)
                inputs.append(input_key(words))
                continue
            if np.issubdtype(var.aval.dtype, np.complexfloating):
                raise error(f"the input `{name}` is complex", [], "take its real and imaginary parts")
            inputs.append(IOKey(name, shape=shape, dtype=dtype_name(var.aval), trainable=False))
            sizes.add(inputs[-1], var.aval.shape)
        try:
            with reading(sizes):
                results = run(jaxpr, self.closed.consts, inputs)
        finally:
            _core.converted_line(None, 0)
        results = [_words(value) for value in results]
        if any(isinstance(value, Complex) or np.iscomplexobj(value) for value in results if not is_connection(value)):
            names = _output_names(self.shape, self.jax)
            which = next(n for n, v in zip(names, results, strict=True) if isinstance(v, Complex) or np.iscomplexobj(v))
            raise error(f"the output `{which}` is complex", [], "return its real and imaginary parts")
        names = self.outputs = unique(_output_names(self.shape, self.jax), [*self.names, *params])
        outputs = {
            name: value if is_connection(value) else _output(value) for name, value in zip(names, results, strict=True)
        }
        if all(any(value is x for x in inputs) for value in outputs.values()):
            # A model has something to compute.
            shapes = [var.aval.shape for var in jaxpr.outvars]
            with reading(sizes):
                outputs = {
                    name: apply("reshape", x, shape) for (name, x), shape in zip(outputs.items(), shapes, strict=True)
                }
        model = ordered(Model.create(**outputs), self.names)
        # What nothing reads is no parameter.
        return model, {name: value for name, value in params.items() if model.has_connection(name)}


def _words(value: Any) -> Any:
    """Return a key as its words."""
    if isinstance(value, Key):
        return apply("stack", -1, *value)
    if _is_key(value):
        import jax

        return np.asarray(jax.random.key_data(value))
    return value


def _output(value: np.ndarray[Any, Any]) -> Any:
    """Make a connection of an output that is known."""
    if value.ndim == 0:
        return apply("full", (), value.item(), str(value.dtype))
    return apply("broadcast_to", constant(value), value.shape)


def unique_paths(names: Sequence[str]) -> list[str]:
    """Make paths distinct; what is also the beginning of another one gets a number."""
    paths: list[str] = []
    for name in names:
        number, text = 0, name or "param"
        while text in paths or any(other.startswith(f"{text}.") for other in names):
            number += 1
            text = f"{name or 'param'}_{number}"
        paths.append(text)
    return paths


def run(jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Walk through a jaxpr: values are connections, pairs of them, or arrays of NumPy where they are known."""
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, map(_array, consts), strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))

    def read(var: Any) -> Any:
        return np.asarray(var.val, var.aval.dtype) if hasattr(var, "val") else values[var]

    for eqn in jaxpr.eqns:
        results = _equation(eqn, [read(var) for var in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [_now(read(var)) for var in jaxpr.outvars]


class _Factors:
    """Factors of a matrix, which are computed if something other than a system as a whole reads them."""

    def __init__(self, eqn: Any, args: list[Any]) -> None:
        self.eqn, self.args = eqn, args
        self.values: list[Any] = []

    def read(self, i: int) -> Any:
        if not self.values:
            self.values = list(_converted(self.eqn, self.args))
        return self.values[i]


@dataclass
class _Factor:
    """One of the results of a factorization."""

    factors: _Factors
    number: int


def _now(x: Any) -> Any:
    return x.factors.read(x.number) if isinstance(x, _Factor) else x


def _is_key(x: Any) -> bool:
    """Whether a value is a key of random numbers with a dtype of its own: there are no arrays of it in NumPy."""
    import jax

    dtype = getattr(x, "dtype", None)
    return dtype is not None and bool(jax.numpy.issubdtype(dtype, jax.dtypes.prng_key))


def _array(x: Any) -> Any:
    return x if _is_key(x) else np.asarray(x)


def _equation(eqn: Any, args: list[Any]) -> Sequence[Any]:
    name = eqn.primitive.name
    if name == "platform_index":
        return [_platform(eqn.params["platforms"])]
    if any(isinstance(x, _Factor) for x in args):
        solution = _whole(eqn)
        if solution is not None:
            _core.converted_line(*line(eqn))
            return solution(args)
        args = list(map(_now, args))
    if _is_computed(eqn, map(is_known, args)) and (_is_small(eqn) or name not in OPS):
        computed = _computed(eqn, args)
        return [_array(x) for x in (computed if eqn.primitive.multiple_results else [computed])]
    if name in _CONTROL:
        return _CONTROL[name](eqn, args, run)
    if name == "lu":
        factors = _Factors(eqn, args)
        return [_Factor(factors, i) for i in range(len(eqn.outvars))]
    _core.converted_line(*line(eqn))
    solution = _whole(eqn)
    if solution is not None:
        return solution(args)
    inner = _called(eqn)
    if inner is not None:
        jaxpr, consts, chosen = inner
        results = run(jaxpr, consts, [args[i] for i in chosen])
        rule = surrogate(eqn, jaxpr) if has_own_rule(eqn, jaxpr) else None
        return results if rule is None else with_gradients_of(rule, eqn, args, results, run)
    return _converted(eqn, args)


def _open_errors() -> tuple[type[Exception], ...]:
    """Return what is raised where a size that has a name would have to be a number."""
    import jax

    return TypeError, ValueError, NotImplementedError, jax.errors.InconclusiveDimensionOperation


def _computed(eqn: Any, args: list[Any]) -> Any:
    """Let JAX compute an equation whose arguments are known."""
    bound = eqn.primitive.get_bind_params(eqn.params)
    # Functions that the equation holds are arguments of their own in older versions of JAX.
    functions, named = bound if isinstance(bound, tuple) else ((), bound)
    return eqn.primitive.bind(*functions, *args, **named)


def _is_computed(eqn: Any, are_known: Iterable[bool]) -> bool:
    """Whether the results of an equation are known when converting."""
    return all(are_known) and not _reads_sizes(eqn)


def _reads_sizes(eqn: Any) -> bool:
    """Whether sizes that have names occur in an equation, or in what it calls."""
    inner = [getattr(value, "jaxpr", value) for value in eqn.params.values()]
    return (
        eqn.primitive.name == "dim_as_value"
        or has_open_sizes(eqn)
        or any(_reads_sizes(other) for jaxpr in inner for other in getattr(jaxpr, "eqns", ()))
    )


def _is_small(eqn: Any) -> bool:
    return all(np.prod(var.aval.shape, dtype=np.int64) <= _FOLDED for var in eqn.outvars)


def _converted(eqn: Any, args: list[Any]) -> Sequence[Any]:
    """Convert a primitive."""
    name = str(eqn.primitive.name)
    try:
        use = Use(eqn, run)
        if reads_keys(eqn):
            result = convert_key(use, args, eqn.params)
        elif is_complex(eqn):
            result = convert_complex(use, name, args, eqn.params)
        elif name in OPS:
            result = OPS[name](use, *args, **eqn.params)
        else:
            # Of a function that another primitive holds.
            raise use.refuse("Mithril has no counterpart")
    except UnsupportedOpError as refusal:
        raise error(
            f"{name} cannot be converted: {refusal.message}", [f"it stands{place(eqn)}"], "rewrite this part"
        ) from None
    except MithrilError:
        raise
    except _open_errors() as problem:
        if not has_open_sizes(eqn):
            raise
        raise error(
            f"{name} cannot be converted for sizes that have names", [f"it stands{place(eqn)}"], "give it fixed sizes"
        ) from problem
    return result if eqn.primitive.multiple_results else [result]


_CONTROL: dict[str, Callable[[Any, list[Any], Any], list[Any]]] = {"scan": scan, "cond": cond, "while": while_loop}


def _platform(platforms: Sequence[Any]) -> Any:
    """Choose what a function has for processors, or for all platforms that it does not name."""
    for i, names in enumerate(platforms):
        if names is None or "cpu" in names:
            return np.asarray(i, np.int32)
    raise UnsupportedOpError(f"the function is one for {platforms}", hint="write it for other platforms, too")


def _whole(eqn: Any) -> Callable[[list[Any]], list[Any]] | None:
    """Find what an equation computes that JAX writes as a factored matrix and steps with it."""
    if has_open_sizes(eqn):
        return None
    if eqn.primitive.name == "custom_linear_solve":
        solve = linear_system(eqn, run)
        return None if solve is None else lambda args: [solve(tensor(args[0]), tensor(args[-1]))]
    inner = _called(eqn) if eqn.primitive.name == "custom_jvp_call" else None
    function = None if inner is None else determinant(eqn, *inner[:2], run)
    return None if function is None else lambda args: function(args[0])


def _called(eqn: Any) -> tuple[Any, Sequence[Any], Sequence[int]] | None:
    """Find the jaxpr that an equation calls, with its constants, and which of the arguments it takes."""
    name, count = str(eqn.primitive.name), len(eqn.invars)
    if name == "custom_linear_solve":
        solve, sizes = eqn.params["jaxprs"].solve, eqn.params["const_lengths"]
        # What it computes from constants of the product has other gradients than the solution of the system.
        is_plain = solve is not None and not sizes.matvec and not sizes.vecmat
        return (solve.jaxpr, solve.consts, range(count)) if is_plain else None
    if name == "call_hi_primitive":  # since JAX 0.12: it stands for what its method `expand` computes
        return (*_expanded(eqn), range(count))
    if name not in _CALLS:
        return None
    for word in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(word)
        if hasattr(inner, "consts"):
            return inner.jaxpr, inner.consts, range(count)
        if hasattr(inner, "eqns"):
            return inner, (), range(count)
    return None


def _expanded(eqn: Any) -> tuple[Any, Sequence[Any]]:
    """Return the jaxpr that a composed primitive stands for, and its constants."""
    import jax

    whole = eqn.params["_prim"]

    def expand(*args: Any) -> Any:
        return whole.expand(*jax.tree_util.tree_unflatten(whole.in_tree, args))

    closed = jax.make_jaxpr(expand)(*(v.aval for v in eqn.invars))
    return closed.jaxpr, closed.consts


def _missing(jaxpr: Any, consts: Sequence[bool], inputs: Sequence[bool], missing: dict[str, list[Any]]) -> list[bool]:
    """Collect equations that have no counterpart; returns which results are known when converting."""
    known: dict[Any, bool] = {
        **dict(zip(jaxpr.constvars, consts, strict=True)),
        **dict(zip(jaxpr.invars, inputs, strict=True)),
    }

    def read(var: Any) -> bool:
        return True if hasattr(var, "val") else known[var]

    for eqn in jaxpr.eqns:
        flags = [read(var) for var in eqn.invars]
        name = eqn.primitive.name
        is_computed = _is_computed(eqn, flags)
        results = [is_computed] * len(eqn.outvars)
        whole = None if is_computed else _whole(eqn)
        if is_computed or whole is not None or name == "platform_index":
            pass
        elif name in _CONTROL:
            results = _missing_inside(eqn, flags, missing)
        elif (inner := _called(eqn)) is not None:
            results = _missing(inner[0], [True] * len(inner[1]), [flags[i] for i in inner[2]], missing)
            if has_own_rule(eqn, inner[0]) and (rule := surrogate(eqn, inner[0])) is not None:
                with without_rules():
                    _missing(rule[0], [True] * len(rule[1]), [False] * len(rule[0].invars), missing)
        elif reads_keys(eqn):
            if name not in KEYS and name not in PARTS:
                missing[f"{name} of keys"].append(eqn)
        elif is_complex(eqn):
            if name not in COMPLEX and name not in PARTS:
                missing[f"{name} of complex numbers"].append(eqn)
        elif name not in OPS:
            missing[name].append(eqn)
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(var) for var in jaxpr.outvars]


def _missing_inside(eqn: Any, flags: Sequence[bool], missing: dict[str, list[Any]]) -> list[bool]:
    """Collect what is missing in control flow; returns which results are known."""
    params, name = eqn.params, eqn.primitive.name

    def inside(closed: Any, flags: Sequence[bool], missing: dict[str, list[Any]]) -> list[bool]:
        return _missing(closed.jaxpr, [True] * len(closed.consts), flags, missing)

    if name == "cond":
        taken = [inside(branch, flags[1:], missing) for branch in params["branches"]]
        return [flags[0] and all(column) for column in zip(*taken, strict=True)]
    if name == "scan":
        body, (first, count) = params["jaxpr"], parts_of_scan(params)
        tested: Sequence[bool] = ()
        fixed, state, rows = flags[:first], flags[first : first + count], flags[first + count :]
    else:
        body, first, count = params["body_jaxpr"], params["cond_nconsts"], params["body_nconsts"]
        tested, fixed, state, rows = flags[:first], flags[first : first + count], flags[first + count :], ()
        count = len(state)
    # What is known before the loop may not be after a step.
    while True:
        results = inside(body, [*fixed, *state, *rows], defaultdict(list))
        after: Sequence[bool] = [a and b for a, b in zip(state, results[:count], strict=True)]
        if after == list(state):
            break
        state = after
    if name == "while" and not all(inside(params["cond_jaxpr"], [*tested, *state], defaultdict(list))):
        missing["while whose number of iterations is data"].append(eqn)
    else:
        results = inside(body, [*fixed, *state, *rows], missing)
    return [*state, *results[count:]]


def _output_names(shape: Any, jax: Any) -> list[str]:
    is_tuple = isinstance(shape, (list, tuple)) and len(shape) != 1
    names = leaf_names(shape, "output" if is_tuple else "", jax, "_")
    if len(names) == 1 and isinstance(shape, (list, tuple)):
        return ["output"]
    return [f"output_{name}" if name[:1].isdigit() else name or "output" for name in names]
