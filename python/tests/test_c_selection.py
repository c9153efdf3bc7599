"""What the C target makes of networks whose parts lie in other orders than they are used: values against PyTorch, and
kernels where loops would be many times slower."""

import mithril as ml
import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


class Windows(nn.Module):
    """A layer over the pixels of each window, whose results go back to where the windows were."""

    def __init__(self, channels=32, window=7):
        super().__init__()
        self.window = window
        self.layer = nn.Linear(channels, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        size = self.window
        tokens = x.reshape(n, c, h // size, size, w // size, size).permute(0, 2, 4, 3, 5, 1)
        y = F.gelu(self.layer(tokens))
        return x + y.permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)


class Positions(nn.Module):
    """A convolution over time, transposed, with positions that are looked up."""

    def __init__(self, channels=128, length=100):
        super().__init__()
        self.conv = nn.Conv1d(48, channels, 3, stride=2, padding=1)
        self.positions = nn.Embedding(length, channels)

    def forward(self, x):
        y = F.gelu(self.conv(x)).permute(0, 2, 1)
        return y + self.positions(torch.arange(y.shape[1]))


class Branches(nn.Module):
    """Concatenations of branches that convolutions, pools and elementwise layers read; parts of ``width`` channels."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(16, width, 3, padding=1)
        self.second = nn.Conv2d(16, 2 * width, 1)
        self.norm = nn.BatchNorm2d(3 * width + 16)
        self.one = nn.Conv2d(3 * width + 16, 16, 1)
        self.pool = nn.MaxPool2d(3, stride=1, padding=1)
        self.two = nn.Conv2d(3 * width + 16, 16, 3, padding=1)

    def forward(self, x):
        x = F.relu(x)
        joined = torch.cat([self.first(x), x, self.second(x)], 1)
        return self.one(joined) + self.two(self.pool(joined)) + self.one(F.relu(self.norm(joined)))


class Kernels(nn.Module):
    """Kernels of several sizes for parts of the channels, as of MixNet; parts of ``width`` channels."""

    def __init__(self, width):
        super().__init__()
        self.width = width
        self.widen = nn.ModuleList(nn.Conv2d(12, 2 * width, 1, bias=False) for _ in range(2))
        self.before, self.behind = nn.BatchNorm2d(4 * width), nn.BatchNorm2d(4 * width)
        self.depth = nn.ModuleList(
            nn.Conv2d(width, width, k, stride=s, padding=k // 2 * d, dilation=d, groups=width)
            for k, s, d in ((3, 1, 1), (5, 1, 1), (9, 1, 1), (3, 1, 2))
        )
        self.narrow = nn.Conv2d(2 * width, 12, 3, padding=1)

    def forward(self, x):
        joined = torch.cat([conv(x) for conv in self.widen], 1)
        parts = torch.split(F.silu(self.before(joined)), self.width, 1)
        y = F.silu(self.behind(torch.cat([conv(part) for conv, part in zip(self.depth, parts, strict=True)], 1)))
        left, right = (y * torch.sigmoid(y.mean((2, 3), keepdim=True))).chunk(2, 1)
        return self.narrow(left) + self.narrow(right)


class Resized(nn.Module):
    """A resized image between convolutions of ``width`` channels."""

    def __init__(self, width, **how):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, width, 3, padding=1), nn.Conv2d(width, 8, 3, padding=1)
        self.how = how

    def forward(self, x):
        return self.second(F.gelu(F.interpolate(F.relu(self.first(x)), **self.how)))


class Relative(nn.Module):
    """Attention with biases of relative positions, which are looked up."""

    def __init__(self, heads=3, size=5):
        super().__init__()
        self.heads = heads
        self.table = nn.Parameter(torch.randn(heads, 2 * size - 1))
        self.register_buffer("positions", torch.arange(size)[:, None] - torch.arange(size)[None] + size - 1)

    def forward(self, x):
        scores = x @ x.transpose(-2, -1) + self.table[:, self.positions]
        return torch.softmax(scores, -1) @ x


class Gate(nn.Module):
    """Squeeze and excitation: convolutions of one pixel."""

    def __init__(self, channels=256):
        super().__init__()
        self.conv = nn.Conv2d(16, channels, 3, padding=1)
        self.down, self.up = nn.Conv2d(channels, 64, 1), nn.Conv2d(64, channels, 1)

    def forward(self, x):
        x = F.silu(self.conv(x))
        return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3), keepdim=True)))))


def in_c(module, x, threads=1):
    torch.manual_seed(0)
    module.eval()
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend(num_threads=threads), inference=True)
    compiled.load_params(params)
    output = compiled.evaluate({}, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=2e-4, atol=2e-5)
    return compiled


@pytest.mark.parametrize("batch", [1, 2])
def test_layers_of_windows_are_products_of_all_their_rows(batch):
    x = torch.randn(batch, 32, 14, 21)
    compiled = in_c(Windows(), x)
    assert f"32x{14 * 21}x32 product" in compiled.source


def test_sums_whose_results_read_at_positions_are_kernels():
    x = torch.randn(1, 48, 200)
    compiled = in_c(Positions(), x)
    assert "convolution of 48 channels to 128" in compiled.source


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("width", [16, 32, 24, 5])
def test_branches_that_are_joined(width, threads):
    in_c(Branches(width), torch.randn(2, 16, 11, 13), threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("width", [16, 12, 5])
def test_kernels_of_parts_of_the_channels(width, batch, threads):
    source = in_c(Kernels(width), torch.randn(batch, 12, 19, 22), threads).source
    for kernel in ("3x3", "5x5", "9x9"):
        assert f"convolution of {width} channels to {width}, {kernel} weights" in source


@pytest.mark.parametrize(
    "how", [{"size": (17, 9)}, {"scale_factor": 2, "mode": "bilinear"}, {"size": (6, 7), "mode": "bilinear"}]
)
@pytest.mark.parametrize("width", [32, 16, 12])
def test_images_that_are_resized_between_convolutions(width, how):
    source = in_c(Resized(width, **how), torch.randn(2, 8, 9, 13), 2).source
    # The positions are constants: they were compared with the size when the code was generated.
    assert "mithril_wrapped_index" not in source


@pytest.mark.parametrize("threads", [1, 2])
def test_biases_that_are_looked_up_are_packed(threads):
    source = in_c(Relative(), torch.randn(2, 3, 5, 8), threads).source
    lookup = "model_getitem(model_constant, table, getitem"
    assert source.count(lookup) == 1
    assert source.index(lookup) > source.rindex("int model_pack_part(")


@pytest.mark.parametrize("batch", [1, 3])
def test_convolutions_of_one_pixel_are_products(batch):
    x = torch.randn(batch, 16, 12, 12)
    source = in_c(Gate(), x).source
    assert f"{batch}x64x256 product" in source
    assert f"{batch}x256x64 product" in source


def test_steps_of_a_recurrent_network_share_packed_weights():
    lstm = nn.LSTM(32, 64, batch_first=True)
    x = torch.randn(1, 12, 32)

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = lstm

        def forward(self, x):
            return self.lstm(x)[0]

    module = Last().eval()
    model, params = ml.from_torch(module, (x,))
    compiled = ml.compile(model, ml.CBackend(num_threads=1), inference=True)
    packed = compiled.pack(params)
    output = compiled.evaluate(packed, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
    # Not once for each of the twelve steps.
    assert packed.bytes < 2 * sum(value.numel() for value in lstm.parameters()) * 4


@pytest.mark.parametrize(("dilation", "left"), [(5, "3x3"), (9, "1x3"), ((4, 12), "3x1")])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_that_meet_zeros_alone_are_left_out(dilation, left, stride, dtype):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 1), nn.ReLU(), nn.Conv2d(32, 48, 3, stride, dilation, dilation), nn.Conv2d(48, 8, 1)]
    module = nn.Sequential(*layers).to(getattr(torch, dtype)).eval()
    data = torch.randn(2, 3, 9, 11, dtype=getattr(torch, dtype))
    output = module(data)
    weight = torch.randn_like(output)
    output.backward(weight)
    model, params = ml.from_torch(module, (data,))
    (key,) = set(model.input_keys) - set(params)
    (name,) = model.output_keys
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-10, "atol": 1e-10}
    for threads in (1, 2):
        compiled = ml.compile(model, ml.CBackend(num_threads=threads, dtype=dtype), inference=True)
        actual = compiled.evaluate(params, {key: data.numpy()})[name]
        np.testing.assert_allclose(actual, output.detach().numpy(), **tolerance)
        assert f"32 channels to 48, {left} weights" in compiled.stages["kernel_selection"]
        trained = ml.compile(model, ml.CBackend(num_threads=threads, dtype=dtype))
        gradients = trained.evaluate_gradients(params, {key: data.numpy()}, {name: weight.numpy()})
        expected = {value.shape: value.grad.numpy() for value in module.parameters()}
        for value in map(np.asarray, gradients.values()):
            np.testing.assert_allclose(value, expected[value.shape], **tolerance)


@pytest.mark.parametrize("seed", range(6))
def test_branches_of_several_dilations_read_one_image(seed):
    """Some branches skip weights that meet only zeros and read no halo, others read the halo of the same tensor."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    channels, filters = [(32, 32), (48, 16), (80, 40)][seed % 3]
    height, width = map(int, random.integers(6, 16, 2))
    dtype, tolerance = [(torch.float32, 1e-4), (torch.float64, 1e-11)][seed // 3]

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, channels, 1)
            last = (int(random.integers(1, 4)), int(random.integers(4, 14)))
            branches = [((3, 3), (1, 1)), ((3, 3), (height - 2, width - 2)), ((3, 2), last), ((5, 3), (3, width // 2))]
            self.branches = nn.ModuleList(
                nn.Conv2d(
                    channels,
                    filters,
                    kernel,
                    1,
                    [d * (k // 2) for k, d in zip(kernel, dilation, strict=True)],
                    dilation,
                )
                for kernel, dilation in branches
            )

        def forward(self, x):
            x = torch.relu(self.first(x))
            return torch.cat([torch.relu(branch(x))[..., :height, :2] for branch in self.branches], 1)

    module = Branches().to(dtype).eval()
    data = torch.randn(1 + seed % 2, 3, height, width, dtype=dtype)
    with torch.no_grad():
        expected = module(data).numpy()
    model, params = ml.from_torch(module, (data,))
    (key,) = set(model.input_keys) - set(params)
    for threads in (1, 2):
        backend = ml.CBackend(num_threads=threads, dtype=str(dtype).removeprefix("torch."))
        compiled = ml.compile(model, backend, inference=True)
        (actual,) = compiled.evaluate(params, {key: data.numpy()}).values()
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(8))
def test_groups_of_channels_in_blocks(seed):
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    channels = [16, 32, 48, 64][seed % 4]
    of_group = [each for each in (2, 4, 8, 16, 32) if channels % each == 0][seed // 2 % 3]
    filters = channels // of_group * [of_group, 2 * of_group, of_group][seed % 3]
    kernel, stride, dilation = (tuple(map(int, random.integers(1, 4, 2))) for _ in range(3))
    padding = tuple(map(int, random.integers(0, 3, 2)))
    dtype, tolerance = [(torch.float32, 1e-4), (torch.float64, 1e-11)][seed % 2]
    grouped = nn.Conv2d(channels, filters, kernel, stride, padding, dilation, channels // of_group, bias=seed < 4)
    layers = [nn.Conv2d(3, channels, 1), nn.ReLU(), grouped, nn.SiLU(), nn.Conv2d(filters, 16, 1)]
    module = nn.Sequential(*layers).to(dtype).eval()
    data = torch.randn(1 + seed % 3, 3, 13, 17, dtype=dtype)
    with torch.no_grad():
        expected = module(data).numpy()
    model, params = ml.from_torch(module, (data,))
    (key,) = set(model.input_keys) - set(params)
    for threads in (1, 3):
        backend = ml.CBackend(num_threads=threads, dtype=str(dtype).removeprefix("torch."))
        compiled = ml.compile(model, backend, inference=True)
        (actual,) = compiled.evaluate(params, {key: data.numpy()}).values()
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)
