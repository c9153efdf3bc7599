"""How exact the functions of float32 in C are: numbers from everywhere, against float64 in torch.

The bounds are those that `docs/c.md` states; results that are subnormal have no such bound.
"""

import mithril as ml
import numpy as np
import pytest
import torch
from torch.nn import functional

#: The function in float64, and the units in the last place that ours may be off.
FUNCTIONS = {
    "Exp": (torch.exp, 2),
    "Log": (torch.log, 2),
    "Tanh": (torch.tanh, 2),
    "Erf": (torch.erf, 2),
    "Sin": (torch.sin, 2),
    "Cos": (torch.cos, 2),
    "Gelu": (lambda x: 0.5 * x * torch.erfc(-x * 0.5**0.5), 6),
    "Erfc": (torch.erfc, 6),
    "Tan": (torch.tan, 4),
    "Expm1": (torch.expm1, 4),
    "Log1p": (torch.log1p, 4),
    "Log2": (torch.log2, 4),
    "Log10": (torch.log10, 4),
    "Sinh": (torch.sinh, 4),
    "Cosh": (torch.cosh, 4),
    "Asinh": (torch.asinh, 4),
    "Atanh": (torch.atanh, 4),
    "Asin": (torch.asin, 4),
    "Acos": (torch.acos, 4),
    "Atan": (torch.atan, 4),
    "Sigmoid": (torch.sigmoid, 4),
    "Silu": (lambda x: x / (1 + torch.exp(-x)), 4),
    "LogSigmoid": (lambda x: torch.minimum(x, torch.zeros(())) - torch.log1p(torch.exp(-abs(x))), 4),
    "HardSigmoid": (functional.hardsigmoid, 4),
    "HardSwish": (lambda x: torch.where(x > 3, x, x * functional.hardsigmoid(x)), 4),
}


def numbers(largest):
    """Every 4099th float up to a magnitude, and special ones."""
    bits = np.arange(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4028235e38, -3.4028235e38, 1.1754944e-38]
    return np.concatenate([x[abs(x) <= largest], x[~np.isfinite(x)][:64], np.array(special, np.float32)])


@pytest.mark.parametrize("largest", [np.inf, 8000.0])
def test_functions_are_as_exact_as_documented(largest):
    # An angle above 8192 has all angles reduced in another way.
    x = numbers(largest)
    if largest < np.inf:
        x = x[np.isfinite(x)]
    model = ml.Model()
    for name in FUNCTIONS:
        model |= getattr(ml, name)()(input="input", output=name)
    backend = ml.CBackend(num_threads=1)
    compiled = ml.compile(model, backend, shapes={"input": list(x.shape)}, inference=True)
    outputs = compiled.evaluate({}, {"input": x})
    with np.errstate(over="ignore", invalid="ignore"):
        report = [text for name in FUNCTIONS if (text := difference(name, x, outputs[name]))]
    assert not report, "\n".join(report)


def difference(name, x, actual):
    """What is wrong with the results of a function; nothing if they are as they should be."""
    function, allowed = FUNCTIONS[name]
    exact = function(torch.from_numpy(x.astype(np.float64))).numpy()
    rounded = exact.astype(np.float32)
    is_special = ~np.isfinite(rounded) | ~np.isfinite(actual)
    is_wrong = is_special & ~((np.isnan(rounded) & np.isnan(actual)) | (rounded == actual))
    # Where rounding decides whether it is infinite.
    is_wrong &= ~(abs(exact) > 3.40282e38)
    if is_wrong.any():
        return f"{name} of {x[is_wrong][0]!r} is {actual[is_wrong][0]!r}, not {rounded[is_wrong][0]!r}"
    is_normal = ~is_special & (abs(rounded) >= np.finfo(np.float32).tiny)
    units = abs(actual[is_normal] - exact[is_normal]) / np.spacing(abs(rounded[is_normal])).astype(np.float64)
    worst = units.argmax()
    if units[worst] > allowed:
        return f"{name} of {x[is_normal][worst]!r} is off by {units[worst]:.2f} units"
    return None
