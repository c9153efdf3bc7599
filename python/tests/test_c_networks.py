"""Networks of convolutions in C against PyTorch in double precision: parts of tensors, and random networks."""

import mithril as ml
import numpy as np
import pytest
import torch
from mithril import _core
from torch.nn import functional


def op(name, *args):
    return _core.apply_op(name, list(args))


def evaluate(connection, params, data, **options):
    """Evaluate what is made of these parameters and data, packed where the option `pack` says so."""
    pack = options.pop("pack", True)
    shapes = {name: value.shape for name, value in {**params, **data}.items()}
    backend = ml.CBackend(**{"dtype": "float64", "num_threads": 2, "flags": ["-O1"], **options})
    model = ml.Model.create(output=connection)
    data = {name: value for name, value in data.items() if name in model.input_keys}
    compiled = ml.compile(
        model,
        backend,
        shapes={name: shape for name, shape in shapes.items() if name in model.input_keys},
        dtypes={name: str(value.dtype) for name, value in data.items()},
        trainable_keys=list(params) if pack else [],
        data_keys=list(data) if pack else [*params, *data],
        inference=True,
    )
    return compiled.evaluate(params if pack else {}, data if pack else {**params, **data})["output"]


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def part(x, axis, stop):
    return op("slice", x, (None,) * axis + (None,), (None,) * axis + (stop,), (1,) * axis + (1,))


#: Axes of image and weight of which only the first elements are read; the sizes that are left, and the groups.
PARTS = [
    ((1, 7), None, (12, 5, 7, 7), 1),
    ((1, 9), (1, 9), (12, 5, 3, 3), 1),
    (None, (1, 8), (12, 5, 3, 3), 1),
    (None, (2, 5), (12, 5, 3, 3), 1),
    (None, (3, 4), (12, 5, 2, 3), 1),
    ((1, 8), None, (12, 2, 3, 3), 3),
    (None, (0, 16), (12, 5, 3, 3), 1),
]


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.parametrize(("image", "weight", "shape", "groups"), PARTS)
def test_convolutions_of_parts_of_tensors(image, weight, shape, groups, pack):
    sizes = [2, shape[1] * groups, 13, 16], list(shape)
    x, w = ml.IOKey("x"), ml.IOKey("w")
    for i, whole in enumerate((image, weight)):
        if whole is not None:
            axis, size = whole
            stop, sizes[i][axis] = sizes[i][axis], size
            x, w = (part(x, axis, stop), w) if i == 0 else (x, part(w, axis, stop))
    params, data = {"w": normal(*sizes[1], seed=1)}, {"x": normal(*sizes[0])}
    actual = evaluate(op("conv2d", x, w, None, 2, 1, 1, groups), params, data, pack=pack)
    read = torch.tensor(data["x"][:, : shape[1] * groups]), torch.tensor(params["w"])[tuple(map(slice, shape))]
    expected = functional.conv2d(*read, stride=2, padding=1, groups=groups)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


#: Channels, and how many of zeros are put in front of them and behind.
PADDED = [(13, 3, 0), (29, 3, 0), (13, 0, 3), (20, 12, 0), (9, 5, 2), (3, 5, 0)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "front", "back"), PADDED)
def test_channels_beside_zeros_between_convolutions(channels, front, back, dtype):
    total = front + channels + back
    shapes = [(channels, 16, 1, 1), (16, total, 3, 3), (16, 16, 3, 3)]
    params = {f"w{i}": normal(*shape, seed=i).astype(dtype) for i, shape in enumerate(shapes)}
    data = {"x": normal(1, 16, 9, 9).astype(dtype)}
    y = op("conv2d", ml.IOKey("x"), ml.IOKey("w0"))
    y = op("relu", op("pad", y, ((0, 0), (front, back), (0, 0), (0, 0))))
    y = op("conv2d", op("conv2d", y, ml.IOKey("w1"), None, 1, 1), ml.IOKey("w2"), None, 1, 1)
    x, *w = (torch.tensor(a, dtype=torch.float64) for a in (data["x"], *params.values()))
    expected = functional.pad(functional.conv2d(x, w[0]), (0, 0, 0, 0, front, back)).relu()
    expected = functional.conv2d(functional.conv2d(expected, w[1], padding=1), w[2], padding=1)
    eps = np.finfo(dtype).eps * float(abs(expected).max())
    np.testing.assert_allclose(evaluate(y, params, data, dtype=dtype), expected, rtol=0, atol=32 * eps)


def test_sums_side_by_side_are_aligned():
    # GCC 12 at this level gave such an array an address that its own instructions refuse.
    params, data = {"w": normal(3, 10, 2, 4)}, {"x": normal(2, 3, 7, 11)}
    x, w = ml.IOKey("x"), ml.IOKey("w")
    actual = evaluate(op("conv_transpose2d", x, w, None, 2, 0, 0, 3), params, data, pack=False, flags=["-O2"])
    expected = functional.conv_transpose2d(torch.tensor(data["x"]), torch.tensor(params["w"]), stride=2, groups=3)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [4, 9, 22])
def test_choices_by_the_loop_around_two_elements(rows, dtype):
    # GCC 12 mixed up which elements are chosen, with AVX-512.
    data = {"x": normal(3, rows, 2).astype(dtype), "y": normal(3, 3 * rows, 2, seed=1).astype(dtype)}
    output = evaluate(op("concat", 1, *map(ml.IOKey, data)), {}, data, dtype=dtype, flags=[])
    np.testing.assert_array_equal(output, np.concatenate([*data.values()], 1))


def test_gradients_of_loops_of_few_turns():
    # GCC 12 wrote the loops out, and mixed up the elements of the vectors that it then made, with AVX-512.
    x, s = ml.IOKey("x"), ml.IOKey("s")
    model = ml.Model.create(output=op("tanh", s - op("concat", 1, op("tanh", x - s), -x)))
    params = {"x": normal(2, 3), "s": normal()}
    weight = normal(2, 6, seed=1)
    backend = ml.CBackend(dtype="float64", num_threads=1)
    compiled = ml.compile(model, backend, shapes={"x": [2, 3], "s": []}, trainable_keys=["x", "s"])
    gradients = compiled.evaluate_gradients(params, {}, output_gradients={"output": weight})
    x, s = (torch.tensor(value, requires_grad=True) for value in params.values())
    (torch.tanh(s - torch.cat([torch.tanh(x - s), -x], 1)) * torch.tensor(weight)).sum().backward()
    np.testing.assert_allclose(gradients["x"], x.grad, rtol=1e-12)
    np.testing.assert_allclose(gradients["s"], s.grad, rtol=1e-12)


def test_a_number_of_a_row_is_read_at_any_position():
    data = {"x": normal(2, 3), "column": normal(3, 1), "index": np.array([0, -1, 0])}
    x, column, index = map(ml.IOKey, data)
    largest = op("max", x, None, True)
    expected = np.concatenate([data["column"], data["x"].max(keepdims=True)])
    np.testing.assert_array_equal(evaluate(op("concat", 0, column, largest), {}, data), expected)
    actual = evaluate(op("add", column, op("take", op("exp", largest), index, 0)), {}, data)
    np.testing.assert_allclose(actual, data["column"] + np.exp(data["x"].max()), rtol=1e-14)
    with pytest.raises(ml.errors.MithrilError, match="is given index 1"):
        evaluate(
            op("add", column, op("take", op("exp", largest), index, 0)), {}, {**data, "index": np.array([0, 1, 0])}
        )


#: What becomes of the sums of a convolution, in Mithril and in PyTorch, given another tensor of the same shape.
TAILS = {
    "relu": (lambda y, r: op("relu", y), lambda y, r: torch.relu(y)),
    "relu6": (lambda y, r: op("relu6", y), lambda y, r: functional.relu6(y)),
    "leaky": (lambda y, r: op("leaky_relu", y, 0.125), lambda y, r: functional.leaky_relu(y, 0.125)),
    "sum": (lambda y, r: op("relu", y + r * 0.5), lambda y, r: torch.relu(y + r * 0.5)),
    "larger": (lambda y, r: op("maximum", y, r) - 1.5, lambda y, r: torch.maximum(y, r) - 1.5),
    "smaller": (lambda y, r: op("minimum", y, 1.5) / (r * r + 1.0), lambda y, r: y.clamp(max=1.5) / (r * r + 1)),
    "swish": (lambda y, r: op("hard_swish", y), lambda y, r: functional.hardswish(y)),
    "scale": (lambda y, r: y * op("relu", ml.IOKey("s")) - r, lambda y, r: y * 0.75 - r),
    "sigmoid": (lambda y, r: op("hard_sigmoid", y) * r, lambda y, r: functional.hardsigmoid(y) * r),
}


@pytest.mark.parametrize("tail", TAILS)
def test_what_becomes_of_sums_in_vectors(tail):
    # Whole numbers, so that sums are exact. Only what convolutions hand to one another lies in vectors of channels: the
    # second one is there for that, and hands NaN and infinity on to all channels.
    rng = np.random.default_rng(1)
    x = rng.integers(-3, 4, (2, 16, 8, 9)).astype("float32")
    x[0, 3, 2, 3], x[1, 5, 0, 0], x[1, 0, 7, 8] = np.nan, np.inf, -np.inf
    w = rng.integers(-2, 3, (32, 16, 1, 1)).astype("float32")
    one = np.eye(32, dtype="float32")[:, :, None, None]
    ours, theirs = TAILS[tail]
    keys = {name: ml.IOKey(name) for name in ("x", "w", "one")}
    convolution = op("conv2d", keys["x"], keys["w"], None, 1, 0, 1, 1)
    other = op("conv2d", keys["x"] * 0.5, keys["w"], None, 1, 0, 1, 1)
    actual = evaluate(
        op("conv2d", ours(convolution, other), keys["one"], None, 1, 0, 1, 1),
        {"w": w, "one": one},
        {"x": x, "s": np.array(0.75, "float32")},
        dtype="float32",
    )
    convolution = functional.conv2d(torch.tensor(x), torch.tensor(w))
    convolution = theirs(convolution, functional.conv2d(torch.tensor(x * 0.5), torch.tensor(w)))
    expected = functional.conv2d(convolution, torch.tensor(one))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize(("size", "kernel", "padding"), [(9, 3, 1), (11, 5, 2), (17, 10, 1), (23, 11, 2), (19, 7, 3)])
def test_gradients_of_windows_that_slide_by_several_pixels(size, kernel, padding, stride):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, size, size + 1), np.float32)
    model = ml.Model()
    model |= ml.AvgPool2d(kernel_size=kernel, stride=stride, padding=padding)(input="input", output="output")
    compiled = ml.compile(model, ml.CBackend(), shapes={"input": list(x.shape)}, trainable_keys=["input"])
    leaf = torch.tensor(x, requires_grad=True)
    expected = functional.avg_pool2d(leaf, kernel, stride, padding)
    cotangent = rng.standard_normal(tuple(expected.shape), np.float32)
    expected.backward(torch.tensor(cotangent))
    gradients = compiled.evaluate({"input": x}, {}, {"output": cotangent})[1]
    np.testing.assert_allclose(gradients["input"], leaf.grad.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("sizes", "kernel"), [((1, 1), 1), ((1, 8), 1), ((5, 1), 3), ((1, 1), 3)])
def test_convolutions_of_repeated_pixels(sizes, kernel):
    # The loops of an image that is enlarged read the same pixel again: no kernel may take that for its padding.
    params, data = {"w": normal(32, 16, kernel, kernel, seed=1)}, {"x": normal(2, 16, *sizes)}
    large = op("interpolate", ml.IOKey("x"), (5, 8), None, "nearest")
    expected = functional.conv2d(torch.tensor(data["x"]).expand(2, 16, 5, 8), torch.tensor(params["w"]))
    for pack in (False, True):
        actual = evaluate(op("conv2d", large, ml.IOKey("w")), params, data, pack=pack)
        np.testing.assert_allclose(actual, expected, rtol=1e-11, atol=1e-11)


class Network:
    """A network that grows, in Mithril and in PyTorch at once: connections, and what they are worth."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.params, self.data = {}, {}
        image = self.random.integers(5, 22, 2)
        channels = self.random.choice([3, 7, 8, 16, 33])
        self.values = [self.input(self.data, self.random.choice([1, 2, 3]), channels, *image)]

    def input(self, among, *shape):
        name = f"{'w' if among is self.params else 'x'}{len(among)}"
        # Exact in every dtype.
        among[name] = self.random.standard_normal(shape).astype(np.float32).astype(np.float64)
        return ml.IOKey(name), torch.tensor(among[name])

    def pick(self):
        return self.values[-1 if self.random.random() < 0.7 else self.random.integers(len(self.values))]

    def numbers(self, *bounds, size=2):
        return tuple(int(n) for n in self.random.integers(*bounds, size=size))

    def convolution(self):
        x, value = self.pick()
        channels = value.shape[1]
        kernel, stride, dilation = self.numbers(1, 5), self.numbers(1, 3), self.numbers(1, 3)
        if self.random.random() < 0.4:
            kernel, stride, dilation = (3, 3), (1, 1), (1, 1)
        pads = tuple(self.numbers(0, k) for k in kernel)
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        groups = 1 if self.random.random() < 0.6 else int(self.random.choice(divisors))
        filters = groups * max(1, self.random.choice([5, 8, 16, 32, 40]) // groups)
        weight, bias = (self.input(self.params, *s) for s in ((filters, channels // groups, *kernel), (filters,)))
        scale = (channels // groups * kernel[0] * kernel[1]) ** -0.5
        padded = functional.pad(value, (*pads[1], *pads[0]))
        size = [n - d * (k - 1) for n, d, k in zip(padded.shape[2:], dilation, kernel, strict=True)]
        if min(size) < 1:
            return None
        expected = functional.conv2d(padded, weight[1] * scale, bias[1], stride, 0, dilation, groups)
        scaled = op("multiply", weight[0], scale)
        return op("conv2d", x, scaled, bias[0], stride, pads, dilation, groups), expected

    def batch_norm(self):
        x, value = self.pick()
        g, b, m, v = (self.input(self.params, value.shape[1]) for _ in range(4))
        positive = op("add", op("abs", v[0]), 0.5)
        output = op("batch_norm", x, g[0], b[0], m[0], positive, False)[0]
        return output, functional.batch_norm(value, m[1], v[1].abs() + 0.5, g[1], b[1])

    def activation(self):
        x, value = self.pick()
        name = self.random.choice(["relu", "gelu", "silu", "sigmoid"])
        of_torch = {"sigmoid": torch.sigmoid}.get(name) or getattr(functional, name)
        return op(name, x), of_torch(value)

    def pooling(self):
        x, value = self.pick()
        kernel = self.numbers(1, min(4, *(n + 1 for n in value.shape[2:])))
        window = kernel, self.numbers(1, 3), tuple(self.random.integers(k // 2 + 1).item() for k in kernel)
        if self.random.random() < 0.5:
            return op("max_pool2d", x, *window), functional.max_pool2d(value, *window)
        return op("avg_pool2d", x, *window), functional.avg_pool2d(value, *window)

    def part(self):
        x, value = self.pick()
        stop = int(self.random.integers(1, value.shape[1] + 1))
        return part(x, 1, stop), value[:, :stop]

    def joined(self):
        x, value = self.pick()
        fits = [v for v in self.values if v[1].shape[2:] == value.shape[2:]]
        other = fits[self.random.integers(len(fits))]
        if other[1].shape == value.shape and self.random.random() < 0.5:
            return op("add", x, other[0]), value + other[1]
        return op("concat", 1, x, other[0]), torch.cat([value, other[1]], 1)

    def grow(self, count):
        ways = [self.convolution] * 5 + [self.activation] * 2 + [self.batch_norm, self.pooling, self.part, self.joined]
        while count:
            grown = ways[self.random.integers(len(ways))]()
            if grown is not None and 0 < grown[1].numel() < 1 << 17:
                self.values.append(grown)
                count -= 1
        return self.values[-1]


@pytest.mark.parametrize("seed", range(12))
def test_random_networks(seed):
    network = Network(seed)
    root, expected = network.grow(9)
    scale = max(1.0, expected.abs().max().item())
    model = ml.Model.create(output=root)
    names = set(model.input_keys)
    params, data = ({k: v for k, v in arrays.items() if k in names} for arrays in (network.params, network.data))
    if not params:
        return
    dtype, allowed = [("float64", 1e-11), ("float32", 1e-4)][seed % 2]
    params, data = ({k: v.astype(dtype) for k, v in arrays.items()} for arrays in (params, data))
    result = evaluate(root, params, data, dtype=dtype, pack=seed % 3 > 0, num_threads=1 + seed % 3)
    assert result.shape == tuple(expected.shape)
    assert np.abs(result - expected.numpy()).max() <= allowed * scale
