"""Backends as users write them, and models to train on them, for several test files."""

import warnings

import mithril as ml
import numpy as np
from mithril.backends.backend import Backend
from mithril.errors import BackendWarning


class MyCustomBackend(Backend):
    """The backend of the documentation: it creates arrays, and that is all."""

    def __init__(self):
        super().__init__()

    def tensor(self, data, dtype=None):
        return np.array(data, dtype=self._convert_dtype(dtype))

    def zeros(self, shape, dtype=None):
        assert type(shape) is tuple
        return np.zeros(shape, dtype=self._convert_dtype(dtype))

    def ones(self, shape, dtype=None):
        assert type(shape) is tuple
        return np.ones(shape, dtype=self._convert_dtype(dtype))

    def _convert_dtype(self, dtype):
        if dtype is None:
            return None
        assert type(dtype) is str
        dtype_map = {
            "float32": np.float32,
            "float64": np.float64,
            "int32": np.int32,
            "int64": np.int64,
            "bool": np.bool_,
        }
        return dtype_map.get(dtype)


class EnhancedNumpyBackend(ml.NumpyBackend):
    """The backend of the documentation that adds to a built-in one."""

    def __init__(self, use_bfloat16=False):
        super().__init__()
        self.use_bfloat16 = use_bfloat16
        self._custom_functions = {}

    def tensor(self, data, dtype=None):
        if dtype == "bfloat16" and self.use_bfloat16:
            arr = np.array(data, dtype=np.float32)
            return self._simulate_bfloat16(arr)
        return super().tensor(data, dtype)

    def _simulate_bfloat16(self, arr):
        as_uint32 = arr.view(np.uint32)
        as_uint32 = as_uint32 & 0xFFFF0000
        return as_uint32.view(np.float32)

    def fft(self, x):
        return np.fft.fft(x)

    def ifft(self, x):
        return np.fft.ifft(x)

    def solve(self, a, b):
        return np.linalg.solve(a, b)

    def register_function(self, name, function):
        self._custom_functions[name] = function

    def call_custom(self, name, *args, **kwargs):
        if name not in self._custom_functions:
            raise ValueError(f"Custom function '{name}' not registered")
        return self._custom_functions[name](*args, **kwargs)


class Handful(MyCustomBackend):
    """A few ops in users' own words; each counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = {}

    def _count(self, op):
        self.calls[op] = self.calls.get(op, 0) + 1

    def add(self, a, b):
        self._count("add")
        return a + b

    def multiply(self, x1, x2):
        self._count("multiply")
        return x1 * x2

    def matmul(self, a, b):
        self._count("matmul")
        return a @ b

    def exp(self, x):
        self._count("exp")
        return np.exp(x)

    def reduce_sum(self, x, axis=None, keepdims=False):
        self._count("reduce_sum")
        return np.sum(x, axis=axis, keepdims=keepdims)

    def transpose(self, x, axes):
        self._count("transpose")
        return np.transpose(x, axes)

    def conv2d(self, x, filters, kernel_size, strides=(1, 1), padding="SAME"):
        """Channels last inside, as the documentation shows it; only SAME and VALID."""
        self._count("conv2d")
        assert kernel_size == filters.shape[2:]
        assert type(strides) is tuple
        x = self.transpose(x, (0, 2, 3, 1))
        pads = [(0, 0), (0, 0)]
        if padding == "SAME":
            total = [
                max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(x.shape[1:3], kernel_size, strides, strict=True)
            ]
            pads = [(t // 2, t - t // 2) for t in total]
        else:
            assert padding == "VALID"
        x = np.pad(x, [(0, 0), *pads, (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(x, kernel_size, axis=(1, 2))
        result = np.einsum("nhwckl,ockl->nhwo", windows[:, :: strides[0], :: strides[1]], filters, dtype=x.dtype)
        return self.transpose(result, (0, 3, 1, 2))


def quiet(make):
    """Compile or run without the warning that ops run on the host."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BackendWarning)
        return make()


def mlp():
    model = ml.Model()
    model |= ml.Linear(8)(input="input", output="hidden")
    model |= ml.Relu()(input="hidden", output="active")
    model |= ml.Linear(3)(input="active", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def cnn():
    model = ml.Model()
    model |= ml.Conv2d(filters=4, kernel_size=3, stride=1, padding="same")(input="input", output="conv")
    model |= ml.Relu()(input="conv", output="active")
    model |= ml.MaxPool2d(kernel_size=2)(input="active", output="pooled")
    model |= ml.Conv2d(filters=3, kernel_size=2, stride=1, padding=0)(input="pooled", output="small")
    model |= ml.Flatten()(input="small", output="flat")
    model |= ml.Linear(3)(input="flat", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


MODELS = {"mlp": (mlp, (16, 4)), "cnn": (cnn, (6, 2, 6, 6))}


def train(model, backend, shape, steps=20):
    """Losses of gradient descent on separable data, and the gradients of the first step."""
    random = np.random.default_rng(0)
    x = random.normal(size=shape).astype(np.float32)
    y = (x.reshape(shape[0], -1)[:, :3]).argmax(axis=1)
    compiled = ml.compile(model, backend, shapes={"input": ["batch", *shape[1:]], "target": ["batch"]})
    params = compiled.randomize_params(seed=3)
    losses, first = [], None
    for _ in range(steps):
        outputs, gradients = compiled.evaluate(params, {"input": x, "target": y}, True)
        first = first or gradients
        losses.append(float(backend.to_numpy(outputs["loss"])))
        for name in gradients:
            step = backend.tensor(0.1 * backend.to_numpy(gradients[name]), "float32")
            params[name] = params[name] - step
    return losses, {name: backend.to_numpy(g) for name, g in first.items()}
