"""What the tables of torch ops have in common."""

import mithril as ml
import numpy as np
import torch

DTYPES = {
    name: getattr(torch, name)
    for name in (
        "bool",
        "uint8",
        "int8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
}


def torch_dtype(dtype):
    return None if dtype is None else DTYPES[str(dtype)]


def as_tuple(value, n):
    return tuple(value) if isinstance(value, tuple) else (value,) * n


def all_axes(x, axis):
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(a % x.ndim if x.ndim else 0 for a in axes)


def at_positions(x, key):
    """Read ``x[key]`` with NumPy's rules, through the positions of the elements."""
    positions = np.arange(x.numel()).reshape(tuple(x.shape))[key]
    return x.reshape(-1)[torch.tensor(np.array(positions))]


def pad_pairs(pads, n):
    if isinstance(pads, int):
        return ((pads, pads),) * n
    if isinstance(pads[0], tuple):
        return pads
    return (pads,) * n if len(pads) == 2 else tuple(zip(pads[::2], pads[1::2], strict=True))


def check_import(module, args, backend, *, dynamic_shapes=None, others=None, rtol=1e-4, atol=1e-5):
    """Compare outputs and gradients of parameters with those of PyTorch; ``others`` are inputs of other sizes.

    Gradients may differ by ``atol`` times the largest, or than 1 if all are smaller.
    """
    model, params = ml.from_torch(module, args, dynamic_shapes=dynamic_shapes)
    names = [key for key in model.input_keys if key not in params]
    args = [x.detach() for x in others or args]
    outputs = torch.utils._pytree.tree_leaves(module(*(x.clone() for x in args)))
    factors = [torch.randn(y.shape) for y in outputs]
    used = {name: p for name, p in module.named_parameters() if name in params}
    gradients = torch.autograd.grad(outputs, list(used.values()), factors, allow_unused=True)
    data = {name: x.numpy() for name, x in zip(names, args, strict=True)}
    compiled = ml.compile(model, backend, data_keys=set(names), shapes={name: x.shape for name, x in data.items()})
    factors = {name: factor.numpy() for name, factor in zip(model.output_keys, factors, strict=True)}
    results, grads = compiled.evaluate(params, data, factors)
    for name, right in zip(model.output_keys, outputs, strict=True):
        np.testing.assert_allclose(results[name], right.detach(), rtol=rtol, atol=atol, err_msg=name)
    for name, right in zip(used, gradients, strict=True):
        right = torch.zeros_like(used[name]) if right is None else right
        right = torch.view_as_real(right) if right.is_complex() else right
        scale = atol * max(1.0, right.abs().max().item())
        np.testing.assert_allclose(grads[name], right, rtol=rtol, atol=scale, err_msg=name)
