"""From the graph of ``torch.export`` to nested models: a module becomes a model, its parameters keep their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ... import _core
from ..._core import IOKey, Model
from ...errors import MithrilError, UnsupportedOpError
from ..complexes import Complex, has_complex
from ..example_inputs import check_kwargs
from ..state import ordered, with_state
from .export import dim_names, exported, is_known
from .missing import Missing, error, line, origin
from .modules import Module, module_tree, op_name
from .ops import OPS, Use
from .ops.complexes import convert_complex
from .ops.registry import apply, cast, dtype_name, is_connection
from .ops.sizes import SIZES, materialized
from .tensors import array, tied

__all__ = ["from_torch"]


def from_torch(
    module: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    verify: bool = False,
) -> tuple[Model, dict[str, Any]]:
    """Make a model of a PyTorch module, and take its parameters along.

    The module is traced by ``torch.export`` with example inputs, which say shapes and dtypes but nothing of values.
    Modules become nested models, and parameters keep the names that they have in the state dict.

    Parameters
    ----------
    module : torch.nn.Module, torch.export.ExportedProgram or path
        What to convert: a module, a program that was exported, or the path of one (``.pt2``).
    args : sequence of torch.Tensor
        Example inputs; not needed for a program that was exported.
    kwargs : mapping
        Example inputs that are given by keyword.
    dynamic_shapes : optional
        Sizes that stay open, as ``torch.export.export`` takes them. Each becomes a symbol of the model.
    verify : bool, optional
        Compare the model on NumPy with the module on the example inputs (default False). What is exported may differ
        from the module, where that depends on values.

    Returns
    -------
    model : Model
        Its inputs are those of ``forward``, in their order; its outputs are ``output``, or ``output_0``, ``output_1``
        … if there are several.
    params : dict
        NumPy arrays of all parameters and buffers by name, without a copy of PyTorch's memory. Buffers that the
        module changes, such as the running statistics of batch norms in training mode, are state of the model.

    Raises
    ------
    UnsupportedOpError
        If PyTorch cannot export the module, or if ops have no counterpart. The error lists all of them.
    ModelFileError
        If a file does not exist, is damaged, or holds what ``torch.export.save`` does not write. Nothing in it is run.
    BackendUnavailableError
        If PyTorch is not installed.
    NumericsError
        If ``verify`` finds an output that differs by more than 0.001 of its largest element (0.1 with 16 bits).

    Examples
    --------
    >>> import mithril as ml
    >>> import torch
    >>> module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    >>> model, params = ml.from_torch(module, (torch.ones(3, 4),))
    >>> list(params)
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> compiled = ml.compile(model, ml.NumpyBackend())
    >>> compiled.evaluate(params, {"input": torch.ones(3, 4).numpy()})["output"].shape
    (3, 2)
    """
    torch = _torch()
    check_kwargs("from_torch", kwargs)
    program = exported(module, args, kwargs, dynamic_shapes, torch)
    conversion = Conversion(program, dim_names(program, dynamic_shapes))
    model, params = conversion.result()
    if verify:
        from .check import verify_module

        given = (args,) if isinstance(args, torch.Tensor) else args
        verify_module(model, params, module, given, kwargs or {}, conversion.places, torch)
    return model, params


def _torch() -> Any:
    from ...backends.frameworks import require

    return require("from_torch", "torch")


class Scope:
    """A module that is being converted: what the nodes of PyTorch's graph are in its model.

    Parameters
    ----------
    module : Module
        The module.
    parent : Scope or None
        That of the module around it.
    parameters : iterable of str
        Names of the parameters of its model, which nothing else may have.
    """

    def __init__(self, module: Module, parent: Scope | None, parameters: Iterable[str]) -> None:
        self.module = module
        self.parent = parent
        self.taken = {name.partition(".")[0] for name in parameters}
        self.taken.update(item.label for item in module.items if isinstance(item, Module))
        #: Connections, or what is known when converting, by node.
        self.values: dict[Any, Any] = {}
        #: For each input of the model the connection outside, and the one that stands for it inside.
        self.inputs: dict[str, Any] = {}
        self.inside: dict[str, Any] = {}

    def read(self, outside: Any) -> Any:
        """Read a connection of the parent: it becomes an input of this model, once."""
        if isinstance(outside, list):
            return type(outside)(self.read(item) for item in outside)
        if not is_connection(outside):
            return outside
        for name, known in self.inputs.items():
            if known is outside:
                return self.inside[name]
        name = self.fresh("input")
        self.inputs[name] = outside
        self.inside[name] = IOKey(name)
        return self.inside[name]

    def fresh(self, name: str) -> str:
        """Make a name that nothing in the model has yet."""
        number, text = 0, name
        while text in self.taken:
            number += 1
            text = f"{name}_{number}"
        self.taken.add(text)
        return text


class Conversion:
    """The conversion of one program.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        In ops that are in `OPS`; all others are an error.
    names : mapping
        Names of symbolic sizes.
    unchanged : collection of str
        Buffers that are written with their own value, which makes them parameters like any other.
    """

    def __init__(self, program: Any, names: Mapping[str, str], unchanged: Collection[str] = ()) -> None:
        self.program = program
        self.names = names
        self.ignored = frozenset(unchanged)
        #: Further ones that the conversion comes across.
        self.unchanged: set[str] = set()
        self.nodes = list(program.graph.nodes)
        self.root = module_tree([node for node in self.nodes if node.op in ("call_function", "get_attr")])
        stored = program.tensors()
        specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        first = tied(stored)
        self.tensors: dict[Any, tuple[str, Any]] = {}
        #: Of placeholders for one tensor, the one that stands for all.
        self.same: dict[Any, Any] = {}
        users: dict[Any, tuple[str, list[Any]]] = {}
        by_target: dict[str, Any] = {}
        for node in self.nodes:
            target = specs[node.name].target if node.op == "placeholder" and node.name in specs else None
            if target is not None and node.users:
                target = first[target]
                known = self.same[node] = by_target.setdefault(target, node)
                self.tensors[known] = (target, stored[target])
                users.setdefault(known, (target, []))[1].extend(node.users)
        by_name = {node.name: node for node in self.nodes}
        #: Nodes that are new values of buffers, with the placeholders of these.
        self.changes: list[tuple[Any, Any]] = []
        for spec in program.graph_signature.output_specs:
            if spec.kind.name == "BUFFER_MUTATION" and first.get(spec.target) in by_target:
                placeholder = by_target[first[spec.target]]
                if self.tensors[placeholder][0] in self.ignored:
                    continue
                self.changes.append((placeholder, by_name[spec.arg.name]))
                users[placeholder][1].append(by_name[spec.arg.name])
        self.results = {
            spec.arg.name for spec in program.graph_signature.output_specs if spec.kind.name == "USER_OUTPUT"
        }
        self.owners = self.root.owners(users)
        self.missing = Missing()
        #: Ops that PyTorch can decompose, and did not.
        self.whole = Missing()
        #: For inputs and outputs of the model, which ones of the program they are.
        self.places: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self.params: dict[str, Any] = {}
        self.frozen: list[str] = []

    def result(self) -> tuple[Model, dict[str, Any]]:
        """Model and parameters."""
        # A buffer that is written but never read does not matter to the model.
        # Tokens only say in which order checks are made.
        kinds = ("USER_OUTPUT", "BUFFER_MUTATION", "TOKEN")
        changed = [spec for spec in self.program.graph_signature.output_specs if spec.kind.name not in kinds]
        if changed:
            notes = [f"`{spec.target}` is changed ({spec.kind.name.lower()})" for spec in changed]
            hint = "let the module return the new values, rather than write them over what it was given"
            raise error("the module changes what is not a buffer of its own", notes, hint)
        root = self._scope(self.root, None)
        inputs = []
        specs = [s for s in self.program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
        positions = {getattr(spec.arg, "name", None): i for i, spec in enumerate(specs)}
        for node in self.nodes:
            if node.op == "placeholder" and node not in self.same:
                value = root.values[node] = self._input(node, root)
                inputs += [value.name] if is_connection(value) else []
                if is_connection(value) and node.name in positions:
                    self.places[0][value.name] = positions[node.name]
        try:
            self._convert(root)
            self.missing.refuse()
            self.whole.refuse()
        except Exception:
            # What stands for the results of ops that are missing may not do for the ops that follow.
            self.missing.refuse()
            raise
        finally:
            _core.converted_line(None, 0)
        whole = self._model(root, dict(self._outputs(root)))
        if self.unchanged:
            again = Conversion(self.program, self.names, self.ignored | self.unchanged)
            result, self.places = again.result(), again.places
            return result
        model = ordered(whole, inputs)
        # What only ops read that ignore it is no parameter.
        params = {name: value for name, value in self.params.items() if model.has_connection(name)}
        frozen = [name for name in self.frozen if name in params]
        if frozen:
            model.set_differentiability(dict.fromkeys(frozen, False))
        return model, params

    # --- inputs, parameters, outputs ----------------------------------------------------------------------------------

    def _scope(self, module: Module, parent: Scope | None) -> Scope:
        own = (module.relative(self.tensors[node][0]) for node, owner in self.owners.items() if owner is module)
        return Scope(module, parent, own)

    def _input(self, node: Any, root: Scope) -> Any:
        value = node.meta.get("val")
        if is_complex(node):
            raise error(f"the input `{node.name}` is complex", [], "take its parts, as torch.view_as_real returns them")
        if not hasattr(value, "dtype"):
            # A number or nothing: it holds as it was when exporting.
            return value
        name, shape = root.fresh(node.name), [self._size(n) for n in value.shape]
        ranges = {i: bounds for i, n in enumerate(value.shape) if (bounds := self._range(n)) is not None}
        return IOKey(name, shape=shape, dtype=dtype_name(value.dtype), ranges=ranges)

    def _range(self, n: Any) -> tuple[int, int | None] | None:
        """Find the smallest and largest size of an axis, if the user set bounds."""
        if isinstance(n, int):
            return None
        expression = n.node.expr
        if len(expression.free_symbols) != 1:
            return None
        (symbol,) = expression.free_symbols
        bounds = self.program.range_constraints.get(symbol)
        if bounds is None:
            return None
        # An axis such as `2 * batch` grows with its symbol.
        ends = (expression.subs(symbol, end) if end.is_Integer else None for end in (bounds.lower, bounds.upper))
        low, high = (int(end) if end is not None and end.is_Integer else None for end in ends)
        high = None if high is not None and high >= 2**62 else high
        # PyTorch traces with 2 or more, and says so also where nobody set a bound.
        return None if (low is None or low <= 2) and high is None else (low or 0, high)

    def _size(self, n: Any) -> Any:
        if isinstance(n, int):
            return n
        text = str(n.node.expr)
        return self.names.get(text, text) if text.isidentifier() else None

    def _parameter(self, node: Any, module: Module) -> Any:
        target, tensor = self.tensors[node]
        if tensor.is_complex():
            return self._complex_parameter(node, module)
        values = array(tensor)
        name = module.relative(target)
        if any(changed is node for changed, _ in self.changes):
            self.params[target] = values
            return IOKey(name, shape=list(values.shape), dtype=dtype_name(tensor.dtype))
        is_float = tensor.dtype.is_floating_point
        is_frozen = not (is_float and tensor.requires_grad)
        if not is_float or (is_frozen and not module.path):
            # The name is for checkpoints that hold it, too.
            return IOKey(name, value=values)
        self.params[target] = values
        if is_frozen:
            self.frozen.append(target)
        return IOKey(name, shape=list(values.shape), dtype=dtype_name(tensor.dtype), trainable=True)

    def _complex_parameter(self, node: Any, module: Module) -> Complex:
        """Keep a complex parameter as its parts, along a last axis of two; what is not trained is a constant."""
        target, tensor = self.tensors[node]
        if any(changed is node for changed, _ in self.changes):
            hint = "keep its parts, as torch.view_as_real returns them"
            raise error(f"`{target}` is complex, and changes from call to call", [], hint)
        if not tensor.requires_grad:
            return Complex(IOKey(value=array(part).copy()) for part in (tensor.real, tensor.imag))
        parts = array(tensor.resolve_conj()).copy()
        values = parts.view(parts.real.dtype).reshape(*parts.shape, 2)
        self.params[target] = values
        key = IOKey(module.relative(target), shape=list(values.shape), dtype=dtype_name(tensor.dtype), trainable=True)
        return Complex(apply("view_as_complex", key))

    def _outputs(self, root: Scope) -> Iterator[tuple[str, Any]]:
        import torch.utils._pytree as pytree

        specs = [s for s in self.program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"]
        by_name = {node.name: node for node in self.nodes}
        inputs = [root.values[node] for node in self.nodes if node.op == "placeholder" and node in root.values]
        tree = pytree.tree_unflatten(list(range(len(specs))), self.program.out_spec)
        for name, number in _leaves(tree, ""):
            node = by_name.get(getattr(specs[number].arg, "name", None))
            value = None if node is None else self._value(root, node)
            if isinstance(value, Complex):
                raise error(f"the output `{name or 'output'}` is complex", [], "return its parts: torch.view_as_real")
            if node is None or not is_connection(value):
                continue
            if any(value is given for given in inputs):
                # The module returns what it was given: still a value of its own.
                value = cast(value, dtype_name(node.meta["val"].dtype))
            name = root.fresh(name or "output")
            self.places[1][name] = number
            yield name, value

    # --- modules ------------------------------------------------------------------------------------------------------

    def _convert(self, scope: Scope) -> None:
        """Convert a module: its own nodes, and its children as models."""
        for item in scope.module.items:
            if isinstance(item, Module):
                self._child(scope, item)
            elif op_name(item) not in SIZES:
                scope.values[item] = self._node(scope, item)

    def _child(self, scope: Scope, module: Module) -> None:
        inner = self._scope(module, scope)
        self._convert(inner)
        inside = set(module.nodes())
        # What others read: a connection, or one of those in a list.
        places: list[tuple[Any, int | None]] = []
        for node in module.nodes():
            if op_name(node) in SIZES or not self._is_read_outside(node, module, inside):
                continue
            value = inner.values.get(node)
            if isinstance(value, list):
                scope.values[node] = type(value)(value)
                places += [(node, i) for i, item in enumerate(value) if is_connection(item)]
            elif is_connection(value):
                places.append((node, None))
            else:
                scope.values[node] = value
        if not places:
            return
        inner_values = [inner.values[node] if i is None else inner.values[node][i] for node, i in places]
        distinct: list[Any] = []
        for value in inner_values:
            if not any(value is known for known in distinct):
                distinct.append(value)
        passed = {id(value): inner.inputs[name] for name, value in inner.inside.items()}
        computed = [value for value in distinct if id(value) not in passed]
        results: dict[int, Any] = dict(passed)
        if computed:
            names = [inner.fresh("output" if len(computed) == 1 else f"output_{i}") for i in range(len(computed))]
            model = self._model(inner, dict(zip(names, computed, strict=True)))
            model.name = module.label
            data = [inner.inputs[name] for name in model.input_keys if name in inner.inputs]
            # What a module makes of its own parameters alone is a connection as well.
            connections = model(*data) if data else _core.connections(model)
            connections = connections if isinstance(connections, tuple) else (connections,)
            results |= {id(value): result for value, result in zip(computed, connections, strict=True)}
        for (node, i), value in zip(places, inner_values, strict=True):
            if i is None:
                scope.values[node] = results[id(value)]
            else:
                scope.values[node][i] = results[id(value)]

    def _is_read_outside(self, node: Any, module: Module, inside: set[Any]) -> bool:
        if any(user not in inside and user.op != "output" for user in node.users) or node.name in self.results:
            return True
        owners = (self.owners[placeholder] for placeholder, new in self.changes if new is node)
        return any(owner is not module and module in owner.modules() for owner in owners)

    def _model(self, scope: Scope, outputs: dict[str, Any]) -> Model:
        """Make the model of a module; buffers that it owns and changes are its state."""
        updates = []
        for placeholder, new in self.changes:
            if self.owners[placeholder] is scope.module:
                target, tensor = self.tensors[placeholder]
                buffer, value = self._value(scope, placeholder), self._value(scope, new)
                if value is buffer:
                    self.unchanged.add(target)
                    continue
                if not is_connection(value):
                    raise error(f"the buffer `{target}` becomes a constant", [], "leave it as it is")
                name = scope.fresh("next")
                outputs[name] = value
                updates.append((scope.module.relative(target), name, array(tensor)))
        model = Model.create(**outputs)
        unread = [(name, new) for name, new, _ in updates if not model.has_connection(name)]
        if unread:
            # What replaces a buffer that nothing reads does not matter to the model.
            updates = [update for update in updates if update[:2] not in unread]
            model = Model.create(**{k: v for k, v in outputs.items() if k not in {new for _, new in unread}})
        return with_state(model, updates) if updates else model

    def _value(self, scope: Scope, node: Any) -> Any:
        """Find what a node is in a scope; what is computed elsewhere is an input of its model."""
        node = self.same.get(node, node)
        if node in scope.values:
            return scope.values[node]
        if op_name(node) in SIZES:
            # Sizes are read again from the tensor, rather than handed on as numbers.
            value = self._node(scope, node)
        elif self.owners.get(node) is scope.module:
            value = self._parameter(node, scope.module)
        elif scope.parent is None:
            raise KeyError(node.name)
        else:
            value = scope.read(self._value(scope.parent, node))
        scope.values[node] = value
        return value

    def _node(self, scope: Scope, node: Any) -> Any:
        def value(argument: Any) -> Any:
            if hasattr(argument, "op") and hasattr(argument, "users"):
                return self._value(scope, argument)
            if isinstance(argument, (list, tuple)):
                return [value(item) for item in argument]
            return argument

        if node.op == "get_attr":
            # A graph that is called.
            return None

        args = [value(a) for a in node.args]
        name = op_name(node)
        if name == "operator.getitem":
            return self._part(scope, node, args[0][args[1]])
        kwargs = {k: value(v) for k, v in node.kwargs.items() if k not in IGNORED}
        try:
            if name in OPS:
                _core.converted_line(*line(origin(node)[1]))
                use = Use(node, args)
                if name not in SIZES:
                    args, kwargs = materialized(use, args, kwargs)
                if has_complex(args):
                    return convert_complex(use, name, args, kwargs)
                result = OPS[name](use, *args, **kwargs)
                if is_complex(node) and not has_complex(result):
                    raise UnsupportedOpError("of complex numbers")
                return result
            if is_known(name):
                # PyTorch would have decomposed it, were there not others.
                self.whole.add(name, *origin(node))
                return self._stand_in(scope, node.meta.get("val"))
            reason = ""
        except UnsupportedOpError as refusal:
            reason = refusal.message
        except MithrilError:
            raise
        except Exception as problem:
            reason = f"with these arguments: {problem}"
        self.missing.add(name or node.op, *origin(node), reason)
        return self._stand_in(scope, node.meta.get("val"))

    def _part(self, scope: Scope, node: Any, value: Any) -> Any:
        """Return a result of an op that has several; one that was not converted must not be read."""
        checked = ("torch.ops.higher_order.with_effects", "aten._linalg_check_errors.default")
        if value is not None or node.meta.get("val") is None or all(op_name(user) in checked for user in node.users):
            return value
        source = node.args[0]
        self.missing.add(op_name(source), *origin(source), f"its result {node.args[1]} has no counterpart")
        return self._stand_in(scope, node.meta["val"])

    def _stand_in(self, scope: Scope, value: Any) -> Any:
        """Make values of the right shapes for the results of an op that is missing: what follows is looked at, too."""
        if isinstance(value, (list, tuple)):
            return [self._stand_in(scope, item) for item in value]
        if not hasattr(value, "dtype"):
            return value
        if value.is_complex():
            return Complex(self._stand_in(scope, part) for part in (value.real, value.imag))
        shape = [self._size(n) for n in value.shape]
        return IOKey(scope.fresh("missing"), shape=shape, dtype=dtype_name(value.dtype))


def is_complex(node: Any) -> bool:
    """Whether the result of a node is complex."""
    value = node.meta.get("val")
    return bool(getattr(getattr(value, "dtype", None), "is_complex", False))


#: Arguments that say where and how PyTorch keeps a tensor.
IGNORED = frozenset(("device", "layout", "pin_memory", "memory_format", "generator"))


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Numbers in a tree of containers, with names made of keys and positions."""
    if isinstance(tree, int):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _leaves(item, f"{name}_{key}" if name else str(key))
    elif isinstance(tree, (list, tuple)):
        for i, item in enumerate(tree):
            # A tuple of one result is that result.
            yield from _leaves(item, name if len(tree) == 1 else f"{name or 'output'}_{i}")
