"""Compares an imported network with PyTorch: its outputs on backends and through ONNX, its gradients in C."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .network import Network

#: How far results may be apart: as a part of the largest one.
CLOSE, CLOSE_GRADIENTS = 2e-4, 2e-3


def compare(network: Network, backends: Sequence[str], *, onnx: bool, gradients: bool) -> tuple[str, Any]:
    """Compare a network; what came of it and, of what differs or is refused, more."""
    import mithril as ml
    import torch

    module, args = network
    expected = module(*args)
    try:
        with torch.no_grad():
            exported = torch.export.export(module, args).module()(*args)
    except Exception as reason:
        return "export", f"{type(reason).__name__}: {reason}"
    if exported.shape != expected.shape or not torch.allclose(exported, expected, rtol=1e-3, atol=1e-4):
        return "export", "what torch.export returns computes something else"
    try:
        model, params = ml.from_torch(module, args)
        keys = [key for key in model.input_keys if key not in params]
        if len(keys) != len(args):
            return "call", "its first output does not depend on all inputs"
        data = {key: value.numpy() for key, value in zip(keys, args, strict=True)}
        results = {backend: _on_backend(model, params, backend, data) for backend in backends}
        if onnx:
            results |= _through_onnx(model, params, data)
        own = expected.detach().numpy()
        worst = {key: _apart(result, own) for key, result in results.items()}
        different = {key: value for key, value in worst.items() if not value <= CLOSE}
        if different:
            exact = _wide_output(module, args)
            different = {k: v for k, v in different.items() if not _is_rounding(results[k], own, exact, CLOSE)}
        if gradients:
            different |= _gradients(module, args, model, params, data)
    except ml.errors.UnsupportedOpError as reason:
        return "refused", str(reason)
    except Exception as reason:
        return "fails", f"{type(reason).__name__}: {reason}"
    return ("different", different) if different else ("agrees", max(worst.values(), default=0.0))


def _on_backend(model: Any, params: Mapping[str, Any], backend: str, data: Mapping[str, Any]) -> Any:
    """Return the output of a model with one."""
    import mithril as ml

    compiled = ml.compile(model, ml.get_backend(backend), inference=True)
    compiled.load_params(params)
    own = {key: compiled.backend.array(value) for key, value in data.items()}
    (output,) = compiled.evaluate(compiled.parameters, own).values()
    return compiled.backend.to_numpy(output)


def _through_onnx(model: Any, params: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Write a model as ONNX; what ONNX Runtime makes of the file, and what we do that read it again."""
    import mithril as ml
    import onnxruntime

    shapes = {key: value.shape for key, value in data.items()}
    file = ml.to_onnx(model, params=params, shapes=shapes, inference=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    (theirs,) = session.run(None, dict(data))
    again, weights = ml.from_onnx(file)
    return {"onnxruntime": theirs, "read again": _on_backend(again, weights, "numpy", data)}


def _apart(actual: Any, expected: Any, least: float = 0.0) -> float:
    if actual.shape != expected.shape:
        return float("inf")
    return float(np.abs(actual - expected).max(initial=0) / max(np.abs(expected).max(initial=0), least, 1e-30))


def _is_rounding(actual: Any, other: Any, exact: Any, close: float, least: float = 0.0) -> bool:
    """Whether a result is close to that of float64, or about as far from it as another of float32 is."""
    return _apart(actual, exact, least) <= max(close, 2 * _apart(other, exact, least))


def _gradients(
    module: Any, args: Any, model: Any, params: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, float]:
    """Return the parameters whose gradients in C are not those of PyTorch, also where these move a little.

    By rounding, a value may lie on the other side of a kink, as that of a ReLU: that does not happen again.
    """
    import mithril as ml
    import torch

    compiled = ml.compile(model, ml.CBackend())
    first = _different_gradients(module, args, compiled, params, data)
    if not first:
        return {}
    with torch.no_grad():
        for parameter in filter(torch.is_floating_point, module.parameters()):
            parameter.mul_(1 + 1e-3 * torch.randn_like(parameter))
    moved = {name: parameter.detach().numpy() for name, parameter in module.named_parameters() if name in params}
    second = _different_gradients(module, args, compiled, {**params, **moved}, data)
    return {key: value for key, value in first.items() if key in second}


def _different_gradients(
    module: Any, args: Any, compiled: Any, params: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, float]:
    """Return the parameters whose gradients are not those of PyTorch, and how far they are from these."""
    import torch

    compiled.load_params(params)
    module.zero_grad()
    expected = module(*args)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    (output,) = compiled.output_keys
    found = compiled.evaluate_gradients(compiled.parameters, data, {output: cotangent.numpy()})
    theirs = {key: p.grad.numpy() for key, p in module.named_parameters() if p.grad is not None}
    # What nearly cancels is small beside the other gradients.
    least = 1e-3 * max((np.abs(gradient).max(initial=0) for gradient in theirs.values()), default=0)
    missing = [key for key, gradient in theirs.items() if key not in found and gradient.any()]
    different = {f"gradient of {key}": float("inf") for key in missing}
    wide: dict[str, Any] | None = None
    for key, gradient in found.items():
        other = theirs.get(key, np.zeros_like(gradient))
        apart = _apart(gradient, other, least)
        if apart <= CLOSE_GRADIENTS:
            continue
        # A rounding error may have moved either of them across a kink, as that of a ReLU.
        try:
            wide = _wide_gradients(module, args, cotangent) if wide is None else wide
            exact = wide.get(key, np.zeros_like(gradient))
            is_right = _is_rounding(gradient, other, exact, CLOSE_GRADIENTS, least)
            is_right = is_right or _is_slope(module, args, cotangent, key, gradient, other)
        except RuntimeError:
            # Some compute in float32 whatever they are given.
            is_right = False
        if not is_right:
            different[f"gradient of {key}"] = apart
    return different


def _wide(module: Any, args: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a module and what it takes in float64."""
    import torch

    with torch.no_grad():
        # Some keep what they computed, and results with gradients cannot be copied.
        module(*args)
    return copy.deepcopy(module).double(), tuple(arg.double() if arg.is_floating_point() else arg for arg in args)


def _wide_output(module: Any, args: Any) -> Any:
    """Return what PyTorch computes in float64."""
    exact, wide = _wide(module, args)
    return exact(*wide).detach().numpy()


def _wide_gradients(module: Any, args: Any, cotangent: Any) -> dict[str, Any]:
    """Return the gradients of PyTorch in float64."""
    exact, wide = _wide(module, args)
    exact.zero_grad()
    exact(*wide).backward(cotangent.double())
    return {key: p.grad.numpy() for key, p in exact.named_parameters() if p.grad is not None}


def _is_slope(module: Any, args: Any, cotangent: Any, key: str, gradient: Any, other: Any) -> bool:
    """Whether a gradient is that of finite differences: along its difference from another, and in random directions."""
    import torch

    exact, wide = _wide(module, args)
    parameter = dict(exact.named_parameters())[key]
    ours = torch.from_numpy(gradient).double()
    apart = ours - torch.from_numpy(other).double()
    for direction in (apart, torch.randn_like(ours), torch.randn_like(ours)):
        direction = direction / direction.norm()
        sides = []
        with torch.no_grad():
            for step in (1e-5, -1e-5):
                moved = parameter + direction * step
                result = torch.func.functional_call(exact, {key: moved}, wide)
                sides.append(float((result * cotangent.double()).sum()))
        error = abs((sides[0] - sides[1]) / 2e-5 - float((ours * direction).sum()))
        if not error <= CLOSE_GRADIENTS * float(apart.norm()):
            return False
    return True
