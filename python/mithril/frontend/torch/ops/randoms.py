"""Random numbers: other ones than PyTorch's, of the same distributions, and new ones at each call."""

from __future__ import annotations

from typing import Any

from .movement import size_of
from .registry import Use, apply, cast, convert, is_connection


def _drawn(use: Use, op: str, shape: Any, *args: Any) -> Any:
    """Draw numbers of the dtype of the result."""
    return apply(op, None, tuple(shape), *args, use.dtype)


@convert("rand.default")
def _rand(use: Use, shape: Any, **named: Any) -> Any:
    return _drawn(use, "random_uniform", shape, 0.0, 1.0)


@convert("randn.default")
def _randn(use: Use, shape: Any, **named: Any) -> Any:
    return _drawn(use, "random_normal", shape, 0.0, 1.0)


def _shape_like(use: Use, x: Any) -> tuple[Any, ...]:
    return tuple(size_of(use, x, 0, i) for i in range(use.rank_of(0)))


@convert("rand_like.default")
def _rand_like(use: Use, x: Any, **named: Any) -> Any:
    return _rand(use, _shape_like(use, x))


@convert("randn_like.default")
def _randn_like(use: Use, x: Any, **named: Any) -> Any:
    return _randn(use, _shape_like(use, x))


@convert("normal.float_float")
def _normal(use: Use, mean: float, std: float, shape: Any, **named: Any) -> Any:
    return _drawn(use, "random_normal", shape, float(mean), float(std))


@convert("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def _normal_of_tensors(use: Use, mean: Any, std: Any = 1.0, **named: Any) -> Any:
    # One of both may be broadcast to the other.
    whole = [i for i, x in enumerate((mean, std)) if is_connection(x) and tuple(use.operand(i).shape) == use.shape]
    if not whole:
        raise use.refuse("of two tensors that are broadcast to a third shape")
    like = (mean, std)[whole[0]]
    shape = (size_of(use, like, whole[0], i) for i in range(use.rank))
    noise = _drawn(use, "random_normal", shape, 0.0, 1.0)
    return apply("add", mean, apply("multiply", noise, std))


@convert("normal_functional.default")
def _normal_like(use: Use, x: Any, mean: float = 0.0, std: float = 1.0, **named: Any) -> Any:
    return _drawn(use, "random_normal", _shape_like(use, x), float(mean), float(std))


@convert("uniform.default")
def _uniform(use: Use, x: Any, low: float = 0.0, high: float = 1.0, **named: Any) -> Any:
    return _drawn(use, "random_uniform", _shape_like(use, x), float(low), float(high))


@convert("exponential.default")
def _exponential(use: Use, x: Any, rate: float = 1.0, **named: Any) -> Any:
    uniform = _drawn(use, "random_uniform", _shape_like(use, x), 0.0, 1.0)
    return apply("divide", apply("negative", apply("log1p", apply("negative", uniform))), float(rate))


@convert("randint.default", "randint.low")
def _randint(use: Use, *args: Any, **named: Any) -> Any:
    low, high, shape = (0, *args) if len(args) == 2 else args
    return cast(apply("random_randint", None, tuple(shape), low, high), use.dtype)


@convert("randint_like.default", "randint_like.low_dtype")
def _randint_like(use: Use, x: Any, *bounds: int, **named: Any) -> Any:
    return _randint(use, *bounds, _shape_like(use, x))


@convert("randperm.default")
def _randperm(use: Use, n: Any, **named: Any) -> Any:
    return cast(apply("random_permutation", None, n), use.dtype)


@convert("bernoulli.default", "bernoulli.p")
def _bernoulli(use: Use, x: Any, p: Any = None, **named: Any) -> Any:
    drawn = apply("random_bernoulli", None, x if p is None else p, _shape_like(use, x))
    return cast(drawn, use.dtype)


@convert("multinomial.default")
def _multinomial(use: Use, x: Any, count: int, replacement: bool = False, **named: Any) -> Any:
    # The largest of the logarithms with Gumbel noise are a sample without replacement.
    if replacement and count > 1:
        shape = (count, *_shape_like(use, x))
        noisy = _with_noise(use, apply("expand_dims", x, 0), shape)
        return apply("moveaxis", apply("argmax", noisy, -1, False), 0, -1)
    return apply("topk", _with_noise(use, x, _shape_like(use, x)), count, -1, True, True)[1]


def _with_noise(use: Use, weights: Any, shape: Any) -> Any:
    uniform = apply("random_uniform", None, tuple(shape), 1e-30, 1.0, "float32")
    noise = apply("negative", apply("log", apply("negative", apply("log", uniform))))
    logs = apply("log", cast(weights, "float32") if is_connection(weights) else weights)
    return apply("add", logs, noise)
