"""What the networks by hand need of a framework: a table of functions for each, as its users would write them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

__all__ = ["FRAMEWORKS", "Jax", "Mlx", "Torch"]

_MOMENTUM, _EPSILON = 0.1, 1e-5
_LEARNING_RATE, _HEAVY_BALL = 0.01, 0.9


class Torch:
    """PyTorch."""

    def __init__(self, device: str = "cpu") -> None:
        self.torch = import_module("torch")
        self.f = self.torch.nn.functional
        self.device = device

    def array(self, value: Any) -> Any:
        """Return a tensor of a NumPy array."""
        return self.torch.from_numpy(value.copy()).to(self.device)

    def wait(self, result: Any) -> None:
        """Wait for results; on the CPU they are there."""
        if not self.device.startswith("cpu"):
            self.torch.accelerator.synchronize()

    def to_numpy(self, value: Any) -> Any:
        """Return a NumPy array of a tensor."""
        return value.detach().cpu().numpy()

    def forward(self, function: Callable[..., Any], jit: bool) -> Callable[..., Any]:
        """Return a forward pass as a user runs it for inference."""
        chosen = self.torch.compile(function) if jit else function

        def run(*arguments: Any) -> Any:
            with self.torch.inference_mode():
                return chosen(*arguments)

        return run

    def step(self, loss: Callable[..., Any], params: Any, state: Any, jit: bool) -> Callable[[Any], Any]:
        """Return a training step with SGD and momentum; it changes the parameters."""
        leaves = {name: value.detach().clone().requires_grad_() for name, value in params.items()}
        optimizer = self.torch.optim.SGD(leaves.values(), _LEARNING_RATE, _HEAVY_BALL)
        chosen = self.torch.compile(loss) if jit else loss

        def run(data: Any) -> Any:
            optimizer.zero_grad()
            value, _ = chosen(leaves, state, data)
            value.backward()
            optimizer.step()
            return value.detach()

        return run

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """``x @ weight.T + bias``."""
        return self.f.linear(x, weight, bias)

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        """Convolution of images ``[batch, channels, height, width]`` without bias."""
        return self.f.conv2d(x, weight, None, stride, padding)

    def max_pool(self, x: Any) -> Any:
        """Maxima of 3 by 3 pixels, every second one."""
        return self.f.max_pool2d(x, 3, 2, 1)

    def relu(self, x: Any) -> Any:
        """``max(x, 0)``."""
        return self.f.relu(x)

    def gelu(self, x: Any) -> Any:
        """GELU by the error function."""
        return self.f.gelu(x)

    def gelu_tanh(self, x: Any) -> Any:
        """GELU by the hyperbolic tangent."""
        return self.f.gelu(x, approximate="tanh")

    def quick_gelu(self, x: Any) -> Any:
        """``x * sigmoid(1.702 x)``."""
        return x * self.torch.sigmoid(1.702 * x)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        """Layer normalization of the last axis."""
        return self.f.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        """Division by the root of the mean square."""
        return self.f.rms_norm(x, (x.shape[-1],), weight, eps)

    def attention(self, q: Any, k: Any, v: Any, *, scale: float | None, causal: bool = False, bias: Any = None) -> Any:
        """Attention of ``[batch, heads, length, features]``."""
        return self.f.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=causal, scale=scale)

    def batch_norm(self, x: Any, params: Any, state: Any, name: str, training: bool, updates: dict[str, Any]) -> Any:
        """Batch normalization of channels; in training it changes the running statistics."""
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        return self.f.batch_norm(x, mean, var, weight, bias, training, _MOMENTUM, _EPSILON)

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any:
        """Return the axes in another order."""
        return x.permute(axes)

    def concat(self, parts: list[Any], axis: int) -> Any:
        """Join along an axis."""
        return self.torch.cat(parts, axis)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Repeat to a shape."""
        return x.expand(shape)

    def function(self, name: str) -> Callable[[Any], Any]:
        """Return an elementwise function by name."""
        result: Callable[[Any], Any] = getattr(self.torch, name)
        return result

    def argmax(self, x: Any) -> Any:
        """Return where the largest of the last axis is."""
        return x.argmax(-1)

    def positions(self, count: int) -> Any:
        """Return the numbers from 0."""
        return self.torch.arange(count, device=self.device)

    def unit_length(self, x: Any) -> Any:
        """Divide by the norm of the last axis."""
        return x / x.norm(dim=-1, keepdim=True)

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        """Mean cross entropy of ``[examples, classes]``."""
        return self.f.cross_entropy(logits, target)


class Jax(Torch):
    """JAX."""

    def __init__(self, device: str = "cpu") -> None:
        # Arrays go where JAX puts them, as those of the backend do.
        self.jax = import_module("jax")
        self.jnp = import_module("jax.numpy")

    def array(self, value: Any) -> Any:
        return self.jnp.asarray(value)

    def wait(self, result: Any) -> None:
        self.jax.block_until_ready(result)

    def to_numpy(self, value: Any) -> Any:
        return import_module("numpy").asarray(value)

    def forward(self, function: Callable[..., Any], jit: bool) -> Callable[..., Any]:
        chosen: Callable[..., Any] = self.jax.jit(function) if jit else function
        return chosen

    def step(self, loss: Callable[..., Any], params: Any, state: Any, jit: bool) -> Callable[[Any], Any]:
        gradients = self._gradients(loss)

        def pure(params: Any, momenta: Any, state: Any, data: Any) -> Any:
            (value, updates), gradient_values = gradients(params, state, data)
            momenta = {name: _HEAVY_BALL * momenta[name] + gradient_values[name] for name in params}
            params = {name: params[name] - _LEARNING_RATE * momenta[name] for name in params}
            return value, params, momenta, {**state, **updates}

        chosen: Any = self._compiled(pure) if jit else pure
        # The step may write into these.
        own = {name: self.jnp.array(value) for name, value in params.items()}
        kept = [own, {name: 0 * value for name, value in own.items()}, dict(state)]

        def run(data: Any) -> Any:
            value, *kept[:] = chosen(*kept, data)
            self.wait(kept)
            return value

        return run

    def _gradients(self, loss: Callable[..., Any]) -> Any:
        return self.jax.value_and_grad(loss, has_aux=True)

    def _compiled(self, function: Callable[..., Any]) -> Any:
        return self.jax.jit(function, donate_argnums=(0, 1))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return x @ weight.T if bias is None else x @ weight.T + bias

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        return self.jax.lax.conv_general_dilated(x, weight, (stride, stride), [(padding, padding)] * 2)

    def max_pool(self, x: Any) -> Any:
        edges = [(0, 0), (0, 0), (1, 1), (1, 1)]
        return self.jax.lax.reduce_window(x, -self.jnp.inf, self.jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), edges)

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return self.jax.nn.gelu(x, approximate=False)

    def gelu_tanh(self, x: Any) -> Any:
        return self.jax.nn.gelu(x, approximate=True)

    def quick_gelu(self, x: Any) -> Any:
        return x * self.jax.nn.sigmoid(1.702 * x)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered * self.jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + eps) * weight + bias

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return x * self.jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def attention(self, q: Any, k: Any, v: Any, *, scale: float | None, causal: bool = False, bias: Any = None) -> Any:
        q, k, v = (part.transpose(0, 2, 1, 3) for part in (q, k, v))
        mixed = self.jax.nn.dot_product_attention(q, k, v, bias, scale=scale, is_causal=causal)
        return mixed.transpose(0, 2, 1, 3)

    def batch_norm(self, x: Any, params: Any, state: Any, name: str, training: bool, updates: dict[str, Any]) -> Any:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if training:
            old_mean, old_var, count = mean, var, x.shape[0] * x.shape[2] * x.shape[3]
            mean = x.mean((0, 2, 3))
            var = ((x - mean[:, None, None]) ** 2).mean((0, 2, 3))
            updates[f"{name}.running_mean"] = (1 - _MOMENTUM) * old_mean + _MOMENTUM * mean
            updates[f"{name}.running_var"] = (1 - _MOMENTUM) * old_var + _MOMENTUM * var * (count / (count - 1))
        scale = params[f"{name}.weight"] / (var + _EPSILON) ** 0.5
        return (x - mean[:, None, None]) * scale[:, None, None] + params[f"{name}.bias"][:, None, None]

    def transpose(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.transpose(axes)

    def concat(self, parts: list[Any], axis: int) -> Any:
        return self.jnp.concatenate(parts, axis)

    def broadcast(self, x: Any, shape: tuple[int, ...]) -> Any:
        return self.jnp.broadcast_to(x, shape)

    def function(self, name: str) -> Callable[[Any], Any]:
        result: Callable[[Any], Any] = getattr(self.jnp, name)
        return result

    def positions(self, count: int) -> Any:
        return self.jnp.arange(count)

    def unit_length(self, x: Any) -> Any:
        return x / self.jnp.linalg.norm(x, axis=-1, keepdims=True)

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        picked = self.jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return (self.jax.nn.logsumexp(logits, axis=1) - picked).mean()


class Mlx(Jax):
    """MLX. Its convolutions want channels last: the images are transposed around each."""

    def __init__(self, device: str = "cpu") -> None:
        self.mx = self.jnp = import_module("mlx.core")

    def array(self, value: Any) -> Any:
        return self.mx.array(value)

    def wait(self, result: Any) -> None:
        self.mx.eval(result)

    def forward(self, function: Callable[..., Any], jit: bool) -> Callable[..., Any]:
        chosen: Callable[..., Any] = self.mx.compile(function) if jit else function
        return chosen

    def _gradients(self, loss: Callable[..., Any]) -> Any:
        # It takes what else the loss returns as it is.
        return self.mx.value_and_grad(loss)

    def _compiled(self, function: Callable[..., Any]) -> Any:
        return self.mx.compile(function)

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        return x @ weight.T if bias is None else self.mx.addmm(bias, x, weight.T)

    def convolution(self, x: Any, weight: Any, stride: int, padding: int) -> Any:
        last = self.mx.conv2d(x.transpose(0, 2, 3, 1), weight.transpose(0, 2, 3, 1), stride, padding)
        return last.transpose(0, 3, 1, 2)

    def max_pool(self, x: Any) -> Any:
        pool = import_module("mlx.nn").MaxPool2d(3, 2, 1)
        return pool(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)

    def relu(self, x: Any) -> Any:
        return self.mx.maximum(x, 0)

    def gelu(self, x: Any) -> Any:
        return x * (1 + self.mx.erf(x * 0.7071067811865476)) / 2

    def gelu_tanh(self, x: Any) -> Any:
        return 0.5 * x * (1 + self.mx.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))

    def quick_gelu(self, x: Any) -> Any:
        return x * self.mx.sigmoid(1.702 * x)

    def layer_norm(self, x: Any, weight: Any, bias: Any, eps: float) -> Any:
        return self.mx.fast.layer_norm(x, weight, bias, eps)

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        return self.mx.fast.rms_norm(x, weight, eps)

    def attention(self, q: Any, k: Any, v: Any, *, scale: float | None, causal: bool = False, bias: Any = None) -> Any:
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        mask = "causal" if causal else bias
        return self.mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    def cross_entropy(self, logits: Any, target: Any) -> Any:
        picked = self.mx.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return (self.mx.logsumexp(logits, axis=1) - picked).mean()


#: Name of a backend -> its framework by hand.
FRAMEWORKS: dict[str, Callable[[str], Any]] = {"torch": Torch, "jax": Jax, "mlx": Mlx}
