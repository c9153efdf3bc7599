"""What models made of expressions cannot say: state that is kept from call to call, and the order of inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._core import Model

__all__ = ["ordered", "with_state"]


def with_state(model: Model, updates: Sequence[tuple[str, str, Any]]) -> Model:
    """Make inputs of a model its state.

    Parameters
    ----------
    model : Model
        The model.
    updates : sequence of tuple
        Name of the input, name of the output that replaces it (no output from then on), and the initial value.

    Returns
    -------
    Model
        The same with state.
    """
    file = json.loads(model.to_json())
    parts = file["models"][-1]["body"]["parts"]
    connections = parts["connections"]
    by_name = {edge["name"]: i for i, edge in enumerate(connections) if "name" in edge}
    outputs = dict(parts["outputs"])
    for name, new, value in updates:
        declared = connections[by_name[name]].setdefault("declared", {})
        declared |= {"shape": list(value.shape), "dtype": str(value.dtype), "role": "state", "init": _initial(value)}
        edge = outputs.pop(new)
        parts.setdefault("updates", []).append([by_name[name], edge])
        if connections[edge].get("name") == new:
            del connections[edge]["name"]
    parts["outputs"] = [[name, edge] for name, edge in outputs.items()]
    for other in file["models"]:
        _follow_the_mode(other, file["models"])
    return Model.from_json(json.dumps(file))


def ordered(model: Model, names: Sequence[str]) -> Model:
    """Put inputs of a model into this order, where they stand in another one."""
    inputs = [name for name in names if name in model.input_keys]
    if [name for name in model.input_keys if name in set(inputs)] == inputs:
        return model
    file = json.loads(model.to_json())
    parts = file["models"][-1]["body"]["parts"]
    by_name = {edge.get("name"): i for i, edge in enumerate(parts["connections"])}
    places = [by_name[name] for name in inputs]
    moved = dict(zip(places, sorted(places), strict=True))
    parts["connections"] = _permuted(parts["connections"], moved)
    for child in parts["children"]:
        child["inputs"] = [
            {"from": moved.get(bound["from"], bound["from"])} if isinstance(bound, dict) and "from" in bound else bound
            for bound in child["inputs"]
        ]
    parts["outputs"] = [[name, moved.get(edge, edge)] for name, edge in parts["outputs"]]
    parts["updates"] = [[moved.get(edge, edge) for edge in pair] for pair in parts.get("updates", [])]
    return Model.from_json(json.dumps(file))


def _permuted(items: Sequence[Any], moved: Mapping[int, int]) -> list[Any]:
    result = list(items)
    for old, new in moved.items():
        result[new] = items[old]
    return result


def _follow_the_mode(model: Mapping[str, Any], models: Sequence[Mapping[str, Any]]) -> None:
    """Let batch norms with running statistics use those when compiled for inference, as PyTorch's modules do."""
    for child in model["body"].get("parts", {}).get("children", []):
        op = models[child["model"]]["body"].get("op", {})
        if op.get("is") != "batch_norm":
            continue
        ports = [port["name"] for port in op["ports"]]
        training, mean = ports.index("training"), ports.index("running_mean")
        is_connected = isinstance(child["inputs"][mean], dict) and "from" in child["inputs"][mean]
        if is_connected and child["inputs"][training] == {"value": {"bool": True}}:
            child["inputs"][training] = "default"


def _initial(array: Any) -> Any:
    if array.size and not array.any() and array.dtype.kind == "f":
        return "zeros"
    if array.size and (array == 1).all() and array.dtype.kind == "f":
        return "ones"
    array = np.asarray(array, array.dtype.newbyteorder("<"))
    return {"value": {"dtype": str(array.dtype), "shape": list(array.shape), "data": array.tobytes().hex()}}
