"""The networks of the benchmark written by hand, as a user of each framework would.

A framework is a table of a few functions; the networks are written once over it. Parameters are those of the model
that Mithril compiles, by its names, so that both compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOMENTUM, EPSILON = 0.1, 1e-5


class Torch:
    """PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch, self.f = torch, torch.nn.functional

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.torch.compile(function, fullgraph=True)

    def wait(self, result: Any) -> None:
        pass

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.f.linear(x, weight, bias)

    def relu(self, x: Any) -> Any:
        return self.f.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.f.gelu(x, approximate="tanh")

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        return self.f.conv2d(x, weight, None, stride, padding)

    def max_pool(self, x: Any) -> Any:
        return self.f.max_pool2d(x, 3, 2, 1)

    def average(self, x: Any) -> Any:
        return x.mean((2, 3))

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.f.layer_norm(x, (x.shape[-1],), weight, bias, EPSILON)

    def attention(self, x: Any, heads: int) -> Any:
        batch, length, dims = x.shape[0], x.shape[1], x.shape[2] // 3
        query, key, value = (
            part.view(batch, length, heads, dims // heads).transpose(1, 2) for part in x.split(dims, dim=2)
        )
        mixed = self.f.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, length, dims)

    def batch_norm(self, x: Any, params: Any, state: Any, name: str, training: bool, updates: dict[str, Any]) -> Any:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return self.f.batch_norm(x, mean, var, weight, bias, training, MOMENTUM, EPSILON)

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        return self.f.cross_entropy(logits, target)

    def value_and_grad(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        def step(params: Any, *rest: Any) -> Any:
            leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
            value = loss(leaves, *rest)[0]
            return value.detach(), dict(zip(leaves, self.torch.autograd.grad(value, leaves.values()), strict=True))

        return step

    def jit_gradients(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return self.value_and_grad(self.jit(loss))


class Jax:
    """JAX."""

    def __init__(self) -> None:
        import jax

        self.jax, self.jnp = jax, jax.numpy

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.jit(function)

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.jax.nn.gelu(x, approximate=True)

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        pads = [(padding, padding)] * 2
        return self.jax.lax.conv_general_dilated(x, weight, (stride, stride), pads)

    def max_pool(self, x: Any) -> Any:
        edges = [(0, 0), (0, 0), (1, 1), (1, 1)]
        return self.jax.lax.reduce_window(x, -self.jnp.inf, self.jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), edges)

    def average(self, x: Any) -> Any:
        return x.mean((2, 3))

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        var = self.jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * self.jax.lax.rsqrt(var + EPSILON) * weight + bias

    def attention(self, x: Any, heads: int) -> Any:
        batch, length, dims = x.shape[0], x.shape[1], x.shape[2] // 3
        query, key, value = (part.reshape(batch, length, heads, dims // heads) for part in self.jnp.split(x, 3, axis=2))
        mixed = self.jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return mixed.reshape(batch, length, dims)

    def batch_norm(self, x: Any, params: Any, state: Any, name: str, training: bool, updates: dict[str, Any]) -> Any:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if training:
            old_mean, old_var, count = mean, var, x.shape[0] * x.shape[2] * x.shape[3]
            mean = x.mean((0, 2, 3))
            var = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
            updates[f"{name}.running_mean"] = (1 - MOMENTUM) * old_mean + MOMENTUM * mean
            updates[f"{name}.running_var"] = (1 - MOMENTUM) * old_var + MOMENTUM * var * (count / (count - 1))
        scale = params[f"{name}.weight"] / (var + EPSILON) ** 0.5
        return (x - mean[:, None, None]) * scale[:, None, None] + params[f"{name}.bias"][:, None, None]

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        picked = self.jnp.take_along_axis(self.jax.nn.log_softmax(logits), target[:, None], axis=1)
        return -picked.mean()

    def value_and_grad(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return self.jax.value_and_grad(loss, has_aux=True)

    def jit_gradients(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return self.jit(self.value_and_grad(loss))


class Mlx(Jax):
    """MLX. Its convolutions want channels last: the images are turned once, and back at the end."""

    def __init__(self) -> None:
        import mlx.core as mx

        self.mx = mx

    def jit(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return self.mx.compile(function)

    def wait(self, result: Any) -> None:
        self.mx.eval(result)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.mx.addmm(bias, x, weight.T)

    def relu(self, x: Any) -> Any:
        return self.mx.maximum(x, 0)

    def gelu(self, x: Any) -> Any:
        return 0.5 * x * (1 + self.mx.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        turned = self.mx.conv2d(x.transpose(0, 2, 3, 1), weight.transpose(0, 2, 3, 1), stride, padding)
        return turned.transpose(0, 3, 1, 2)

    def max_pool(self, x: Any) -> Any:
        import mlx.nn as nn

        return nn.MaxPool2d(3, 2, 1)(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    def layer_norm(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.mx.fast.layer_norm(x, weight, bias, EPSILON)

    def attention(self, x: Any, heads: int) -> Any:
        batch, length, dims = x.shape[0], x.shape[1], x.shape[2] // 3
        query, key, value = (
            part.reshape(batch, length, heads, dims // heads).transpose(0, 2, 1, 3)
            for part in self.mx.split(x, 3, axis=2)
        )
        scale = (dims // heads) ** -0.5
        mixed = self.mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask="causal")
        return mixed.transpose(0, 2, 1, 3).reshape(batch, length, dims)

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        picked = self.mx.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return (self.mx.logsumexp(logits, axis=1) - picked).mean()

    def value_and_grad(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        return self.mx.value_and_grad(loss)


#: Name of a backend -> its framework by hand.
FRAMEWORKS: dict[str, Callable[[], Any]] = {"torch": Torch, "jax": Jax, "mlx": Mlx}


def mlp(f: Any) -> Callable[..., Any]:
    """Return the forward pass of three linear layers."""

    def forward(params: Any, x: Any) -> Any:
        x = f.relu(f.linear(x, params["linear.weight"], params["linear.bias"]))
        x = f.relu(f.linear(x, params["linear_1.weight"], params["linear_1.bias"]))
        return f.linear(x, params["linear_2.weight"], params["linear_2.bias"])

    return forward


def resnet18(f: Any, training: bool) -> Callable[..., Any]:
    """Return the forward pass of ResNet-18; it gives the logits and the new running statistics."""

    def forward(params: Any, state: Any, x: Any) -> Any:
        updates: dict[str, Any] = {}

        def unit(x: Any, convolution: str, norm: str, stride: int, padding: int) -> Any:
            x = f.convolution(x, params[f"{convolution}.weight"], stride, padding)
            return f.batch_norm(x, params, state, norm, training, updates)

        x = f.max_pool(f.relu(unit(x, "conv1", "bn1", 2, 3)))
        for layer in range(1, 5):
            for block in range(2):
                name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
                y = f.relu(unit(x, f"{name}.conv1", f"{name}.bn1", stride, 1))
                y = unit(y, f"{name}.conv2", f"{name}.bn2", 1, 1)
                if stride == 2:
                    x = unit(x, f"{name}.downsample.0", f"{name}.downsample.1", 2, 0)
                x = f.relu(x + y)
        return f.linear(f.average(x), params["fc.weight"], params["fc.bias"]), updates

    return forward


def resnet18_loss(f: Any) -> Callable[..., Any]:
    """Return the loss of ResNet-18 with its new running statistics."""
    forward = resnet18(f, training=True)

    def loss(params: Any, state: Any, x: Any, target: Any) -> Any:
        logits, updates = forward(params, state, x)
        return f.cross_entropy(logits, target), updates

    return loss


def gpt_of_one_block(f: Any, heads: int) -> Callable[..., Any]:
    """Return the forward pass of GPT-2 with one block, for texts of the largest length."""

    def forward(params: Any, tokens: Any) -> Any:
        def linear(x: Any, name: str) -> Any:
            return f.linear(x, params[f"transformer.h.0.{name}.weight"], params[f"transformer.h.0.{name}.bias"])

        def norm(x: Any, name: str) -> Any:
            return f.layer_norm(x, params[f"transformer.{name}.weight"], params[f"transformer.{name}.bias"])

        table = params["transformer.wte.weight"]
        x = table[tokens] + params["transformer.wpe.weight"]
        x = x + linear(f.attention(linear(norm(x, "h.0.ln_1"), "attn.c_attn"), heads), "attn.c_proj")
        x = x + linear(f.gelu(linear(norm(x, "h.0.ln_2"), "mlp.c_fc")), "mlp.c_proj")
        return norm(x, "ln_f") @ table.T

    return forward
