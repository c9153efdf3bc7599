"""Products and convolutions of bfloat16 in C, in pairs where the processor multiplies those, against float64."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

#: The largest distance relative to the largest element: every result is rounded to bfloat16 up to four times.
LEAST = 3 * 2.0**-7

RANDOM = np.random.default_rng(0)


def rounded(x):
    """The nearest bfloat16, halves to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def check(actual, expected):
    actual = np.asarray(actual, np.float64)
    assert actual.shape == expected.shape
    assert abs(actual - expected).max() <= LEAST * abs(expected).max()


def compiled(model, threads=1, **data):
    shapes = {name: list(x.shape) for name, x in data.items()}
    return ml.compile(model, ml.CBackend(num_threads=threads), precision="bfloat16", shapes=shapes, inference=True)


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 33])
@pytest.mark.parametrize(("terms", "columns"), [(1, 3), (47, 32), (64, 65), (4099, 33)])
def test_linear_layers(rows, terms, columns):
    """Few rows and many, odd numbers of terms, panels that are not full; bias, activation, and a second operand."""
    model = ml.Model()
    model |= ml.Linear(columns, name="linear")(input="x", output="sums")
    model |= ml.Relu()(input="sums", output="positive")
    model |= ml.Add()(left="positive", right="residual", output="y")
    x, residual = drawn(rows, terms), drawn(rows, columns)
    program = compiled(model, threads=2, x=x, residual=residual)
    weight, bias = drawn(columns, terms), drawn(columns)
    program.load_params({"linear.weight": weight, "linear.bias": bias})
    output = program.evaluate({}, {"x": x, "residual": residual})["y"]
    sums = rounded(x).astype(np.float64) @ rounded(weight).T.astype(np.float64) + rounded(bias)
    check(output, np.maximum(sums, 0) + rounded(residual))


@pytest.mark.parametrize(("left", "right"), [((2, 9, 31), (2, 31, 40)), ((3, 1, 65), (65, 7)), ((70, 33), (33, 70))])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_data(left, right, transposed):
    model = ml.Model()
    if transposed:
        model |= ml.Transpose(axes=(*range(len(left) - 2), len(left) - 1, len(left) - 2))(input="a", output="across")
        left = (*left[:-2], left[-1], left[-2])
    model |= ml.MatrixMultiply()(left="across" if transposed else "a", right="b", output="y")
    a, b = drawn(*left), drawn(*right)
    output = compiled(model, a=a, b=b).evaluate({}, {"a": a, "b": b})["y"]
    first = np.swapaxes(rounded(a), -1, -2) if transposed else rounded(a)
    check(output, first.astype(np.float64) @ rounded(b).astype(np.float64))


def test_what_is_not_finite_stays_so():
    x = np.array([[1, np.inf, -2, 0, 5], [1, 2, np.nan, 4, 5], [3e38, 1, 1, 1, 1], [1, 2, 3, 4, 5]], np.float32)
    program = compiled(ml.Linear(3, bias=False, name="linear"), input=x)
    weight = np.array([[1, 1, 1, 1, 1], [2, -1, 0.5, 0, 1], [0, 0, 0, 1, 0]], np.float32)
    program.load_params(dict.fromkeys(program.parameter_keys, weight))
    actual = np.asarray(program.evaluate({}, {"input": x})["output"], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = rounded(x).astype(np.float32) @ weight.T
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))


class Convolutions(nn.Module):
    """Kinds of convolutions between tensors in blocks of channels, and some whose channels do not fill blocks."""

    def __init__(self, axes, sizes):
        super().__init__()
        conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
        width, size, odd = sizes
        self.first = conv(3, width, 3, padding=1, bias=False)
        self.norm = norm(width)
        self.point = conv(width, 2 * width, 1)
        self.depth = conv(2 * width, 2 * width, 3, padding=1, stride=size, groups=2 * width)
        self.dilated = conv(2 * width, 3 * width, 3, dilation=2)
        self.residual = conv(3 * width, 3 * width, 1)
        self.groups = conv(3 * width, 6 * width, 3, padding=1, groups=3)
        self.strided = conv(6 * width, odd, 3, stride=2, padding=1)
        self.last = conv(odd, width, 1)
        self.around = [1, 2, 0, 3, 2, 0][: 2 * axes]

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        x = functional.hardswish(self.point(x))
        x = functional.relu6(self.depth(x))
        x = self.dilated(functional.pad(x, self.around))
        x = self.residual(x).relu() + x
        x = functional.gelu(self.groups(x), approximate="tanh")
        return self.last(self.strided(x).relu())


def in_bfloat16(module):
    """The module in float64, whose convolutions round operands and results to bfloat16."""
    module = module.double().eval()

    def half(x):
        return torch.from_numpy(rounded(x.detach().numpy()).astype(np.float64))

    for part in module.children():
        if hasattr(part, "dilation"):
            part.weight.data = half(part.weight)
            if part.bias is not None:
                part.bias.data = half(part.bias)
            part.register_forward_pre_hook(lambda _, inputs: tuple(map(half, inputs)))
            part.register_forward_hook(lambda _, inputs, output: half(output))
    return module


@pytest.mark.parametrize(
    ("axes", "sizes", "shape", "threads"),
    [
        (1, (16, 1, 20), (2, 3, 47), 1),
        (2, (16, 1, 40), (1, 3, 13, 38), 2),
        (2, (32, 2, 48), (3, 3, 14, 14), 1),
        (3, (16, 1, 16), (1, 3, 5, 6, 9), 2),
    ],
)
def test_convolutions(axes, sizes, shape, threads):
    """Points, strides, dilation, padding of other sizes at both ends, groups, what follows, and what is not finite."""
    torch.manual_seed(0)
    module = Convolutions(axes, sizes).eval()
    data = torch.from_numpy(drawn(*shape))
    model, params = ml.from_torch(module, (data,))
    program = compiled(model, threads=threads, x=data.numpy())
    output = program.evaluate(params, {"x": data.numpy()})["output"]
    exact = in_bfloat16(module)
    check(output, exact(data.double()).detach().numpy())
    data[0, 1].view(-1)[7] = torch.nan
    actual = np.isnan(np.asarray(program.evaluate(params, {"x": data.numpy()})["output"], np.float32))
    np.testing.assert_array_equal(actual, exact(data.double()).isnan().numpy())


def network():
    model = ml.Model()
    model |= ml.Linear(64, name="linear")(input="input", output="hidden")
    model |= ml.Gelu()(input="hidden", output="active")
    model |= ml.Linear(8, name="last")(input="active", output="output")
    return model


@pytest.mark.parametrize(
    ("kind", "precision", "options"),
    [
        ("CBackend", "bfloat16", {}),
        ("CBackend", "float16", {"lanes": 1}),
        ("NumpyBackend", "bfloat16", {"lanes": 1}),
        ("NumpyBackend", "bfloat16", {"lanes": 8}),
        ("NumpyBackend", "bfloat16", {"target": "rust"}),
        ("NumpyBackend", "bfloat16", {"gradients": True}),
        ("NumpyBackend", "bfloat16", {"optimizer": ml.optim.Adam(0.01), "loss": "loss"}),
    ],
)
def test_exports_are_checked_as_exactly_as_they_compute(kind, precision, options, tmp_path):
    """Recorded by NumPy, which rounds at other places: float32 that comes of bfloat16 is only as exact as that."""
    model = network()
    if "loss" in options:
        model |= ml.Mean()(input="output", output="loss")
    trains = "loss" in options or "gradients" in options
    compiled = ml.compile(
        model, getattr(ml, kind)(), shapes={"input": [4, 64]}, inference=not trains, precision=precision
    )
    compiled.randomize_params(seed=0)
    assert compiled.export(tmp_path, **options).check.splitlines()[-1] == "ok"


def test_only_what_is_computed_in_bfloat16_is_checked_less_exactly():
    model = network()
    model |= ml.Tanh()(input="input", output="exact")
    model |= ml.ArgMax(1)(input="active", output="class")
    core = ml.compile(model, ml.NumpyBackend(), shapes={"input": [4, 64]}, precision="bfloat16")._known().core
    distances = {name: core.allowed_distance(name) for name in ("output", "exact", "class")}
    assert distances == {"output": 0.1, "exact": 1e-4, "class": 0}
    for dtype, allowed in (("float64", 1e-9), ("float32", 1e-4), ("float16", 0.02), ("bfloat16", 0.1)):
        core = ml.compile(network(), ml.NumpyBackend(dtype=dtype), shapes={"input": [4, 64]})._known().core
        assert core.allowed_distance("output") == allowed
