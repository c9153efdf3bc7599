"""The program in a file of ``torch.export``: JSON, checked against a closed grammar and written again.

PyTorch looks functions up by the names that are in it, and writes the other names into Python code that it runs. What
comes out of here has only names that are identifiers, ops of ATen, numbers, and texts that nothing evaluates. What
Mithril does not use (sources of nodes, guards, example inputs, calls of submodules) stays behind.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .expressions import SYMBOL, Malformed, expression
from .treespec import container

__all__ = ["checked_program", "checked_tensor_meta", "graphs"]

#: A rule takes a value and returns what is passed on; it raises `Malformed`.
Rule = Callable[[Any], Any]

_TARGET = re.compile(r"torch\.ops\.([A-Za-z]\w*)\.(\w+)(\.\w+)?")
_FQN = re.compile(r"[^\x00-\x1f\x7f'\"\\#(){}\[\]=;,]{0,400}")
_FRAME = re.compile(r'\s*(File "[^"\n\r]{1,400}", line \d{1,9}), in ')
_STACK = re.compile(r"[\w.@'\[\]]{0,200}")
#: Functions of Python numbers that programs hold. None takes texts or lists, which could be multiplied.
NUMBERS = frozenset(
    (
        *(f"_operator.{n}" for n in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "pos", "abs")),
        *(f"_operator.{n}" for n in ("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_")),
        *(f"math.{n}" for n in ("ceil", "floor", "trunc")),
        *(f"torch.sym_{n}" for n in ("max", "min", "not", "int", "float", "ite", "sum", "sqrt")),
    )
)


# --- rules of values ------------------------------------------------------------------------------------------------


def _integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise Malformed(f"{_short(value)} is not an integer")
    return value


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise Malformed(f"{_short(value)} is not a truth value")
    return value


def _number(value: Any) -> float:
    if value in ("Infinity", "-Infinity", "NaN"):
        return float(value)
    if type(value) not in (int, float):
        raise Malformed(f"{_short(value)} is not a number")
    return float(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > 1 << 16:
        raise Malformed(f"{_short(value)} is not a text")
    return value


def _identifier(value: Any) -> str:
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value) or value.startswith("__"):
        raise Malformed(f"{_short(value)} is not a name")
    return value


def _path(value: Any) -> str:
    """Check the name of a parameter, such as ``blocks.0.weight``."""
    if not isinstance(value, str) or not value or not _FQN.fullmatch(value):
        raise Malformed(f"{_short(value)} is not the name of a parameter")
    if any(part.startswith("__") or not part for part in value.split(".")):
        raise Malformed(f"{_short(value)} is not the name of a parameter")
    return value


def _none(value: Any) -> bool:
    return True


def _device(value: Any) -> dict[str, Any]:
    # Whatever it was exported on: the program is only read.
    return {"type": "cpu", "index": None}


def _expression(value: Any) -> str:
    return expression(_text(value))


def _symbol(value: Any) -> str:
    if not isinstance(value, str) or not SYMBOL.fullmatch(value):
        raise Malformed(f"{_short(value)} is not a symbol")
    return value


def _optional(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


def _many(rule: Rule) -> Rule:
    def check(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise Malformed(f"{_short(value)} is not a list")
        return [rule(item) for item in value]

    return check


def _mapping(key: Rule, rule: Rule) -> Rule:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed(f"{_short(value)} is not an object")
        return {key(k): rule(v) for k, v in value.items()}

    return check


def _union(**rules: Rule) -> Rule:
    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) != 1:
            raise Malformed(f"{_short(value)} is not one of {', '.join(rules)}")
        ((kind, item),) = value.items()
        if kind not in rules:
            raise Malformed(f"values of the kind {_short(kind)} cannot be read")
        return {kind: rules[kind](item)}

    return check


class _Object:
    """An object with these fields; unknown ones are an error unless they say nothing.

    Parameters
    ----------
    fields : mapping
        A rule for each. Those of `_left_behind` are not passed on.
    optional : iterable of str
        Fields that older files do not have.
    """

    def __init__(self, fields: Mapping[str, Rule], optional: tuple[str, ...] = ()) -> None:
        self.fields = fields
        self.optional = optional

    def __call__(self, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed(f"{_short(value)} is not an object")
        absent = [name for name in self.fields if name not in value and name not in self.optional]
        if absent:
            raise Malformed(f"an object has no {absent[0]}")
        unknown = [name for name in value if name not in self.fields and value[name] not in (None, False, [], {}, "")]
        if unknown:
            raise Malformed(f"the field {_short(unknown[0])} is not known: the file is of a newer PyTorch")
        return {
            name: rule(value[name]) for name, rule in self.fields.items() if name in value and rule is not _left_behind
        }


def _left_behind(value: Any) -> None:
    return None


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, bool, type(None))) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- the grammar of programs ------------------------------------------------------------------------------------------


def _argument(value: Any) -> Any:
    return _ARGUMENT(value)


def _graph(value: Any) -> Any:
    return _GRAPH(value)


def _symbolic(kind: str, rule: Rule) -> Rule:
    hint = _optional(_union(as_int=_integer, as_bool=_boolean, as_float=_number))
    return _union(as_expr=_Object({"expr_str": _expression, "hint": hint}, ("hint",)), **{f"as_{kind}": rule})


_SYM_INT = _symbolic("int", _integer)
_TENSOR = _Object({"name": _identifier})
_OPTIONAL_TENSOR = _union(as_tensor=_TENSOR, as_none=_none)
_SYM_INT_ARGUMENT = _union(as_name=_identifier, as_int=_integer)
_SYM_FLOAT_ARGUMENT = _union(as_name=_identifier, as_float=_number)
_SYM_BOOL_ARGUMENT = _union(as_name=_identifier, as_bool=_boolean)
_TENSOR_META = _Object(
    {
        "dtype": _integer,
        "sizes": _many(_SYM_INT),
        "requires_grad": _boolean,
        "device": _device,
        "strides": _many(_SYM_INT),
        "storage_offset": _SYM_INT,
        "layout": _integer,
    }
)
_ARGUMENT = _union(
    as_none=_none,
    as_tensor=_TENSOR,
    as_tensors=_many(_TENSOR),
    as_int=_integer,
    as_ints=_many(_integer),
    as_float=_number,
    as_floats=_many(_number),
    as_string=_text,
    as_strings=_many(_text),
    as_sym_int=_SYM_INT_ARGUMENT,
    as_sym_ints=_many(_SYM_INT_ARGUMENT),
    as_sym_float=_SYM_FLOAT_ARGUMENT,
    as_sym_floats=_many(_SYM_FLOAT_ARGUMENT),
    as_sym_bool=_SYM_BOOL_ARGUMENT,
    as_sym_bools=_many(_SYM_BOOL_ARGUMENT),
    as_scalar_type=_integer,
    as_memory_format=_integer,
    as_layout=_integer,
    as_device=_device,
    as_bool=_boolean,
    as_bools=_many(_boolean),
    as_graph=_Object({"name": _identifier, "graph": _graph}),
    as_optional_tensors=_many(_OPTIONAL_TENSOR),
    as_optional_tensor=_OPTIONAL_TENSOR,
    as_complex=_Object({"real": _number, "imag": _number}),
)


def _metadata(value: Any) -> dict[str, str]:
    """Keep where a node comes from: the modules around it, and lines of code."""
    if not isinstance(value, dict):
        raise Malformed("the metadata of a node is not an object")
    kept: dict[str, str] = {}
    stack = value.get("nn_module_stack")
    if isinstance(stack, str) and stack:
        entries = [_stack_entry(entry) for entry in stack.split(";")]
        if all(entries):
            kept["nn_module_stack"] = ";".join(filter(None, entries))
    trace = value.get("stack_trace")
    if isinstance(trace, str):
        frames = [match.group(1) for line in trace.splitlines() if (match := _FRAME.match(line))]
        kept["stack_trace"] = "\n".join(f"  {frame}, in forward" for frame in frames[-20:])
    return kept


def _stack_entry(entry: str) -> str | None:
    """Keep key and path of a module; the rest names its class."""
    parts = entry.split(",")
    if len(parts) < 3 or not all(_STACK.fullmatch(part) for part in parts[:2]):
        return None
    return f"{parts[0]},{parts[1]},torch.nn.Module"


def _target(value: Any) -> str:
    if not isinstance(value, str) or not (_TARGET.fullmatch(value) or value in NUMBERS):
        if isinstance(value, str) and value.startswith("torch._functorch."):
            # Marks of where a call begins and ends are resolved by calling them, which changes the state of PyTorch.
            raise Malformed("it holds calls of torch.vmap, which are not resolved")
        raise Malformed(f"{_short(value)} is not an op")
    return value


def _node(value: Any) -> dict[str, Any]:
    node: dict[str, Any] = _NODE(value)
    kinds = {"as_none", "as_int", "as_float", "as_bool", "as_sym_int", "as_sym_float", "as_sym_bool"}
    if node["target"] in NUMBERS and any(kind not in kinds for part in node["inputs"] for kind in part["arg"]):
        raise Malformed(f"the arguments of {node['target']} are not numbers")
    return node


_NODE = _Object(
    {
        "target": _target,
        "inputs": _many(
            _Object(
                {
                    "name": lambda v: "" if v == "" else _argument_name(v),
                    "arg": _argument,
                    "kind": _optional(_integer),
                },
                ("kind",),
            )
        ),
        "outputs": _many(_argument),
        "metadata": _metadata,
        "is_hop_single_tensor_return": _optional(_boolean),
        "name": _optional(_identifier),
    },
    ("is_hop_single_tensor_return", "name"),
)


def _argument_name(value: Any) -> str:
    """Check the name of an argument in a schema, such as ``self`` or ``from``."""
    if not isinstance(value, str) or not value.isidentifier():
        raise Malformed(f"{_short(value)} is not a name")
    return value


def _empty(value: Any) -> dict[str, Any]:
    if value:
        raise Malformed("objects of classes of C++ or Python cannot be read")
    return {}


_GRAPH = _Object(
    {
        "inputs": _many(_argument),
        "outputs": _many(_argument),
        "nodes": _many(_node),
        "tensor_values": _mapping(_identifier, _TENSOR_META),
        "sym_int_values": _mapping(_identifier, _SYM_INT),
        "sym_bool_values": _mapping(_identifier, _symbolic("bool", _boolean)),
        "is_single_tensor_return": _boolean,
        "custom_obj_values": _empty,
        "sym_float_values": _mapping(_identifier, _symbolic("float", _number)),
    },
    ("custom_obj_values", "sym_float_values", "is_single_tensor_return"),
)
_CONSTANT = _union(as_none=_none, as_int=_integer, as_float=_number, as_string=_text, as_bool=_boolean)
_ARG = {"arg": _TENSOR}
_SIGNATURE = _Object(
    {
        "input_specs": _many(
            _union(
                user_input=_Object({"arg": _argument}),
                parameter=_Object({**_ARG, "parameter_name": _path}),
                buffer=_Object({**_ARG, "buffer_name": _path, "persistent": _boolean}),
                tensor_constant=_Object({**_ARG, "tensor_constant_name": _path}),
                constant_input=_Object({"name": _identifier, "value": _CONSTANT}),
            )
        ),
        "output_specs": _many(
            _union(
                user_output=_Object({"arg": _argument}),
                loss_output=_Object(_ARG),
                buffer_mutation=_Object({**_ARG, "buffer_name": _path}),
                parameter_mutation=_Object({**_ARG, "parameter_name": _path}),
                user_input_mutation=_Object({**_ARG, "user_input_name": _identifier}),
            )
        ),
    }
)
_CALL = _Object(
    {
        "inputs": _left_behind,
        "outputs": _left_behind,
        "in_spec": _text,
        "out_spec": _text,
        "forward_arg_names": _optional(_many(_argument_name)),
    },
    ("forward_arg_names",),
)
_PROGRAM = _Object(
    {
        "graph_module": _Object(
            {
                "graph": _graph,
                "signature": _SIGNATURE,
                "module_call_graph": lambda value: value,
                "metadata": _left_behind,
                "treespec_namedtuple_fields": _left_behind,
            },
            ("metadata", "treespec_namedtuple_fields"),
        ),
        "opset_version": _mapping(_text, _integer),
        "range_constraints": _mapping(
            _symbol, _Object({"min_val": _optional(_integer), "max_val": _optional(_integer)})
        ),
        "schema_version": _Object({"major": _integer, "minor": _integer}),
        "verifiers": lambda names: [name for name in names or () if name in ("TRAINING", "ATEN")],
        "torch_version": _left_behind,
        "guards_code": _left_behind,
    },
    ("verifiers", "torch_version", "guards_code"),
)


def checked_program(value: Any) -> dict[str, Any]:
    """Check a program, and write it without what could be evaluated.

    Parameters
    ----------
    value : object
        What JSON holds.

    Raises
    ------
    Malformed
        If it is anything but what ``torch.export.save`` writes.
    """
    try:
        program = _PROGRAM(value)
        module = program["graph_module"]
        module["module_call_graph"] = [_root_call(module)]
    except RecursionError as error:
        raise Malformed("the program is nested too deeply") from error
    names = [next(iter(v.values())) for v in module["graph"]["inputs"]]
    if len(module["signature"]["input_specs"]) != len(names):
        raise Malformed("the signature does not list the inputs of the graph")
    return program


def _root_call(module: dict[str, Any]) -> dict[str, Any]:
    """Keep the containers of the inputs and outputs of the program itself."""
    calls = module["module_call_graph"]
    if not isinstance(calls, list) or not calls or not isinstance(calls[0], dict) or calls[0].get("fqn") != "":
        raise Malformed("the program does not say which containers its inputs and outputs are in")
    call = _CALL(calls[0].get("signature"))
    inputs = sum("user_input" in spec or "constant_input" in spec for spec in module["signature"]["input_specs"])
    outputs = sum("user_output" in spec for spec in module["signature"]["output_specs"])
    (in_spec, taken), (out_spec, returned) = container(call["in_spec"]), container(call["out_spec"])
    if (taken, returned) != (inputs, outputs):
        raise Malformed("the containers of inputs or outputs do not hold all of them")
    signature = {"inputs": [], "outputs": [], "in_spec": in_spec, "out_spec": out_spec}
    # PyTorch writes the names of arguments into a function.
    names = call.get("forward_arg_names")
    if names and all(not keyword.iskeyword(name) and not name.startswith("__") for name in names):
        signature["forward_arg_names"] = names
    return {"fqn": "", "signature": signature}


def checked_tensor_meta(value: Any) -> dict[str, Any]:
    """Check the shape, strides and dtype of a tensor in a file: all of them numbers."""
    meta = _TENSOR_META(value)
    for part in (*meta["sizes"], *meta["strides"], meta["storage_offset"]):
        if part.get("as_int", -1) < 0:
            raise Malformed("the shape of a tensor is not known")
    return meta


def graphs(graph: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Walk through a graph and those in it."""
    yield graph
    for node in graph["nodes"]:
        for part in node["inputs"]:
            if "as_graph" in part["arg"]:
                yield from graphs(part["arg"]["as_graph"]["graph"])
