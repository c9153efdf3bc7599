"""The tree of modules in the order in which they are called, read from what ``torch.export`` keeps of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["Module", "module_tree"]


class Module:
    """A call of a module: consecutive nodes.

    Parameters
    ----------
    path : str
        Path in the module that was exported; empty for itself.
    label : str
        Name of the model in that of the parent.
    parent : Module or None
        The module that calls it.
    """

    def __init__(self, path: str, label: str, parent: Module | None) -> None:
        self.path = path
        self.label = label
        self.parent = parent
        #: Nodes and modules in order.
        self.items: list[Any] = []
        #: What tells calls of one module apart.
        self.call = ""

    @property
    def has_own_path(self) -> bool:
        """Whether the path of the model is that of the module: not so for its second call."""
        if self.parent is None:
            return True
        return self.path.rpartition(".")[2] == self.label and self.parent.has_own_path

    def nodes(self) -> Iterator[Any]:
        """Walk through all nodes of the module."""
        for item in self.items:
            if isinstance(item, Module):
                yield from item.nodes()
            else:
                yield item

    def ancestors(self) -> list[Module]:
        """List this module and those around it, the innermost first."""
        return [self, *(self.parent.ancestors() if self.parent else [])]

    def owners(self, parameters: Mapping[Any, tuple[str, Iterable[Any]]]) -> dict[Any, Module]:
        """Find the module in whose model each parameter becomes an input, by its path and its users; for the root."""
        while True:
            owners = {key: self._owner(target, users) for key, (target, users) in parameters.items()}
            # The name of a parameter that lies further out holds the names of models in between: they are taken.
            taken = {(id(owner), owner.relative(parameters[key][0]).partition(".")[0]) for key, owner in owners.items()}
            clashes = [module for module in self.modules() if (id(module.parent), module.label) in taken]
            if not clashes:
                return owners
            for module in clashes:
                module.rename()

    def modules(self) -> Iterator[Module]:
        """Walk through this module and all in it."""
        yield self
        for item in self.items:
            if isinstance(item, Module):
                yield from item.modules()

    def relative(self, target: str) -> str:
        """Give the path of a parameter in the model of this module."""
        return target.removeprefix(f"{self.path}.") if self.path else target

    def rename(self) -> None:
        """Give the model another label than that of its module."""
        siblings = self.parent.items if self.parent else []
        name = self.path.rpartition(".")[2]
        labels = {name, *(item.label for item in siblings if isinstance(item, Module))}
        self.label = next(text for text in _labels(name) if text not in labels)

    def _owner(self, target: str, users: Iterable[Any]) -> Module:
        """Find the innermost module around all users of a parameter that its path begins with."""
        places = self._places()
        chains = [places[user].ancestors() if user in places else [self] for user in users]
        for module in chains[0]:
            is_around = all(any(module is other for other in chain) for chain in chains)
            if is_around and module.has_own_path and (not module.path or target.startswith(f"{module.path}.")):
                return module
        return self

    def _places(self) -> dict[Any, Module]:
        if "places" not in self.__dict__:
            self.places: dict[Any, Module] = {}
            pending = [self]
            while pending:
                module = pending.pop()
                for item in module.items:
                    if isinstance(item, Module):
                        pending.append(item)
                    else:
                        self.places[item] = module
        return self.places


def module_tree(nodes: Iterable[Any]) -> Module:
    """Build the tree of the modules that nodes belong to."""
    root = Module("", "", None)
    open_modules = [root]
    for node in nodes:
        path = _path(node)
        depth = 0
        while depth < len(path) and depth + 1 < len(open_modules):
            known = open_modules[depth + 1]
            if (known.path.rpartition(".")[2], known.call) != path[depth]:
                break
            depth += 1
        del open_modules[depth + 1 :]
        for name, call in path[depth:]:
            parent = open_modules[-1]
            full = f"{parent.path}.{name}" if parent.path else name
            labels = {item.label for item in parent.items if isinstance(item, Module)}
            label = next(text for text in _labels(name) if text not in labels)
            module = Module(full, label, parent)
            module.call = call
            parent.items.append(module)
            open_modules.append(module)
        open_modules[-1].items.append(node)
    return root


def _labels(name: str) -> Iterator[str]:
    yield name
    number = 1
    while True:
        yield f"{name}_{number}"
        number += 1


def _path(node: Any) -> list[tuple[str, str]]:
    """Names of the modules around a node, the outermost first, each with what tells its calls apart."""
    path: list[tuple[str, str]] = []
    for key, entry in (node.meta.get("nn_module_stack") or {}).items():
        full = re.sub(r"@\d+", "", entry[0])
        parts = [part for part in full.split(".") if part]
        call = "".join(re.findall(r"@\d+", key + entry[0]))
        names = [name for name, _ in path]
        if len(parts) <= len(path) or parts[: len(path)] != names:
            # A module that lies elsewhere in the tree, called from here.
            if parts[: len(path)] != names:
                break
            continue
        path += [(part, "") for part in parts[len(path) : -1]] + [(parts[-1], call)]
    return path


def op_name(node: Any) -> str:
    """Name of what a node calls: ``aten.add.Tensor``, ``operator.mul``; empty for other nodes."""
    if node.op != "call_function":
        return ""
    target = node.target
    return str(target) if hasattr(target, "overloadpacket") else f"{target.__module__.lstrip('_')}.{target.__name__}"
