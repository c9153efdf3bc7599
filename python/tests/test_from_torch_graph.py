"""Graphs of PyTorch as they are read: regions, known conditions, shared memory, sizes, messages."""

import mithril as ml
import numpy as np
import pytest
from torch_common import check_import

torch = pytest.importorskip("torch")
nn = torch.nn


class Regions(nn.Module):
    """Values without gradients that others use, among them some with gradients again."""

    def __init__(self, decomposes):
        super().__init__()
        self.linear, self.decomposes = nn.Linear(4, 4), decomposes

    def forward(self, x):
        y = self.linear(x)
        with torch.no_grad():
            z = self.linear(x).tanh()
            with torch.enable_grad():
                v = self.linear(x).sigmoid() * z
        # An op that PyTorch decomposes makes it trace the module again.
        return (y * z + y.detach() * (torch.sinc(y) if self.decomposes else y.sin())) * v


@pytest.mark.parametrize("decomposes", [False, True])
def test_no_gradient_flows_out_of_no_grad(decomposes):
    torch.manual_seed(0)
    module, x = Regions(decomposes), torch.randn(3, 4)
    model, params = ml.from_torch(module, (x,))
    module(x).sum().backward()
    compiled = ml.compile(model, ml.NumpyBackend())
    gradients = compiled.evaluate(params, {"x": x.numpy()}, {"output": np.ones((3, 4), np.float32)})[1]
    for key, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-5)


class Written(nn.Module):
    """Tensors that are written into where autograd does not see it: they keep their gradients."""

    def __init__(self, decomposes):
        super().__init__()
        self.linear, self.decomposes = nn.Linear(4, 4), decomposes

    def forward(self, x):
        y, z = self.linear(x).exp().clone(), self.linear(x).exp().clone()
        with torch.no_grad():
            y.clamp_(min=0.9)
            z[0] = z[0] * 2 + y[0]
            with torch.enable_grad():
                v = self.linear(x) + z
            z.mul_(1.5)
            w = z * 3
            left, right = v.clone().chunk(2, -1), z.chunk(2, -1)[1]
            right.mul_(0.5)
            left[0].relu_()
        return y.log() * (torch.sinc(y) if self.decomposes else y) + z.log() * z + v + w


@pytest.mark.parametrize("decomposes", [False, True])
def test_what_is_written_under_no_grad_keeps_its_gradient(decomposes):
    torch.manual_seed(0)
    check_import(Written(decomposes), (torch.randn(3, 4),), ml.NumpyBackend())


def test_one_tensor_for_several_arguments_is_several_inputs():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((3, 4), 100.0))

        def forward(self, x, parts, w, *, k):
            return x + 2 * parts["u"] + 3 * parts["v"][0] + 4 * parts["rows"].sum() + 5 * k + 6 * w + self.weight

    module, x = Sum(), torch.ones(3, 4)
    # The same tensor, nested, as a view, and the module's own parameter.
    model, params = ml.from_torch(module, (x, {"u": x, "v": [x], "rows": x[1:]}, module.weight), {"k": x})
    names = [key for key in model.input_keys if key not in params]
    assert names == ["x", "parts_u", "parts_v_0", "parts_rows", "w", "k"]
    data = {name: np.full((2 if name == "parts_rows" else 3, 4), 10.0**i, np.float32) for i, name in enumerate(names)}
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, data)["output"]
    np.testing.assert_allclose(output, 1 + 2 * 10 + 3 * 100 + 4 * 8 * 1000 + 5 * 1e5 + 6 * 1e4 + 100)


def test_a_buffer_that_only_dead_code_reads_is_no_parameter():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("inv_freq", torch.ones(2), persistent=False)

        @torch.no_grad()
        def forward(self, x, positions):
            angles = self.inv_freq[None, :, None].float().expand(1, -1, 1) @ positions[:, None, :].float()
            return angles.cos().to(x.dtype), angles.sin()

    class Network(nn.Module):
        def __init__(self, is_used):
            super().__init__()
            self.rotary, self.linear, self.is_used = Rotary(), nn.Linear(3, 3), is_used

        def forward(self, x):
            cos, _ = self.rotary(x, torch.arange(3)[None])
            # PyTorch traces the second one again.
            return self.linear(x + cos[0, 0] if self.is_used else torch.sinc(x))

    for is_used in (False, True):
        module, x = Network(is_used).eval(), torch.randn(2, 3)
        model, params = ml.from_torch(module, (x,))
        assert ("rotary.inv_freq" in params) == is_used
        output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})["output"]
        np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=0, atol=1e-6)


class Ordered(nn.Module):
    """Buffers that become constants, in the module itself and in another one."""

    def __init__(self):
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), nn.Module()
        self.register_buffer("order", torch.tensor([3, 0, 1, 2]))
        self.inner.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x):
        return self.linear(x)[:, self.order] * self.inner.mask


def test_the_original_checkpoint_fits():
    module, x = Ordered().eval(), torch.randn(2, 4)
    model, params = ml.from_torch(module, (x,))
    assert list(params) == ["linear.weight", "linear.bias"]
    compiled = ml.compile(model, ml.NumpyBackend())
    weights = {key: value.numpy() for key, value in module.state_dict().items()}
    report = ml.load_weights(compiled, weights)
    assert report.is_complete
    assert set(report.ignored) == {"order", "inner.mask"}
    np.testing.assert_allclose(compiled.evaluate({}, {"x": x.numpy()})["output"], module(x).detach().numpy(), atol=1e-6)
    # Another order would be another model.
    weights["order"] = np.arange(4)
    with pytest.raises(ml.errors.ParameterError, match="'order' is a constant of the model, and has another value"):
        ml.load_weights(compiled, weights)
    assert ml.load_weights(compiled, weights, strict=False).unexpected == ("order",)


class Biased(nn.Module):
    """Rows of a table at constant places, read before what the module is called with."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(4, 3))
        self.register_buffer("rows", torch.tensor([3, 0]), persistent=False)

    def forward(self, x):
        return self.table[self.rows] + x


def test_a_module_that_reads_a_buffer_before_its_input():
    module, x = nn.Sequential(nn.Linear(3, 3), Biased()).eval(), torch.randn(2, 3)
    model, params = ml.from_torch(module, (x,))
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"input": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("flag", [True, False])
def test_a_known_condition_is_its_branch(flag):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("flag", torch.tensor(flag))

        def forward(self, x):
            return torch.cond(self.flag.logical_not(), lambda v: v.sin(), lambda v: v.cos() + 1, (x,))

    module, x = Branching().eval(), torch.randn(2, 3)
    model, params = ml.from_torch(module, (x,))
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(output, module(x).numpy(), rtol=0, atol=1e-6)


class Counted(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("counts", torch.tensor([1, 2, 3]))

    def forward(self, x):
        if self.case == "buffer":
            known = self.count.add_(1)
        elif self.case == "view":
            counts = self.counts.clone()
            counts[0].add_(5)
            known = counts[0]
        elif self.case == "later":
            known = self.counts[0]
            x = torch.cond(known > 3, lambda v: v + 1, lambda v: v * 10, (x,))
            self.counts.add_(7)
        else:
            known = torch.randint_like(self.counts, 4, 5)[0] if self.case == "random" else self.counts[2]
        return torch.cond(known > 3, lambda v: v + 1, lambda v: v * 10, (x,))


@pytest.mark.parametrize("case", ["buffer", "view", "later", "random", "constant"])
def test_a_condition_on_what_is_written_is_not_known(case):
    x = torch.tensor([1.0, 2.0])
    module = Counted(case).eval()
    model, params = ml.from_torch(module, (x,))
    assert [module.count.item(), *module.counts.tolist()] == [3, 1, 2, 3]
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})["output"]
    np.testing.assert_array_equal(output, Counted(case)(x).numpy())


class Padded(nn.Module):
    """Pads to a multiple of a stride that is a buffer, as codecs of audio do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Conv1d(2, 3, 4, 3)
        self.register_buffer("stride", torch.tensor(3))
        self.register_buffer("total", torch.tensor([1, 2]))

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] - 4 + self.total[0]) / self.stride).to(torch.int64)
        x = nn.functional.pad(x, (self.total[0], frames * self.stride + 4 - x.shape[-1]))
        y = self.linear(x)
        return y.reshape(y.shape[0], -1), y[..., : y.shape[-1] - 1].transpose(1, 2)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_sizes_that_follow_from_constants_are_known(is_dynamic):
    torch.manual_seed(0)
    module, x = Padded().eval(), torch.randn(5, 2, 12)
    dims = ({0: torch.export.Dim("batch", min=2, max=64)},) if is_dynamic else None
    model, params = ml.from_torch(module, (x,), dynamic_shapes=dims)
    compiled = ml.compile(model, ml.NumpyBackend())
    for rows in (5, 3) if is_dynamic else (5,):
        outputs = compiled.evaluate(params, {"x": x[:rows].numpy()})
        for actual, right in zip(outputs.values(), module(x[:rows]), strict=True):
            np.testing.assert_allclose(actual, right.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_errors_name_lines_of_the_module():
    model, _ = ml.from_torch(nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval(), (torch.ones(2, 4),))
    (row,) = [row for row in ml.check(model, "numpy") if row.op == "gelu"]
    assert "activation.py:" in row.place


@pytest.mark.parametrize("name", ["numpy", "c", "interpreter"])
def test_sizes_out_of_the_range_of_a_dim_are_errors(name):
    batch, half = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("half", min=3, max=8)
    sizes = ({0: batch, 1: 2 * half},)
    model, _ = ml.from_torch(nn.ReLU(), (torch.ones(4, 6),), dynamic_shapes=sizes)
    loaded = ml.Model.from_json(model.to_json())
    outside = {(1, 6): "axis 0 of `input` is 1", (65, 6): "is 65", (4, 18): "axis 1 of `input` is 18"}
    for shape in [(3, 6), (64, 16)]:
        compiled = ml.compile(loaded, ml.get_backend(name))
        assert compiled.evaluate({}, {"input": np.ones(shape, np.float32)})["output"].shape == shape
        # Compiled for all sizes by now, and anew.
        for again in (compiled, ml.compile(model, ml.get_backend(name))):
            for other, reason in outside.items():
                with pytest.raises(ml.errors.MithrilError, match=rf"{reason}, and the model holds for \d+ to \d+"):
                    again.evaluate({}, {"input": np.ones(other, np.float32)})
    outer = ml.Model()
    outer |= model(input="data", output="result")
    with pytest.raises(ml.errors.MithrilError, match="is 100, and the model holds for 2 to 64"):
        ml.compile(outer, ml.get_backend(name), shapes={"data": [100, 6]})


def test_what_pytorch_prints_stays_away(capfd):
    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x

    with pytest.raises(ml.errors.UnsupportedOpError, match="a size or a condition depends on data") as caught:
        ml.from_torch(Branch(), (torch.ones(3),))
    assert "torch.where" in caught.value.hint
    assert "test_from_torch_graph.py" in str(caught.value)
    for args, reason in {(): "missing a required argument: 'x'", (1, 2): "too many positional arguments"}.items():
        with pytest.raises(ml.errors.InvalidValueError, match=rf"do not fit Branch.forward\(x\): {reason}"):
            ml.from_torch(Branch(), args)
    with pytest.raises(ml.errors.InvalidValueError, match="by name, not a value of type Tensor") as caught:
        ml.from_torch(nn.Bilinear(3, 3, 2), torch.ones(2, 3), torch.ones(2, 3))
    assert "as one tuple" in caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_a_module_may_return_its_input():
    model, _ = ml.from_torch(nn.Identity(), (torch.ones(2, 3),))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ml.compile(model, ml.NumpyBackend()).evaluate({}, {"input": x})["output"], x)


class Batches(nn.Module):
    """Functions of single rows and of pairs of positions, applied to all of them."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, allowed):
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

        positions = torch.arange(x.shape[0])
        with TransformGetItemToIndex():
            # Indices of tensors, in a function of one pair.
            pairs = torch.vmap(lambda i: torch.vmap(lambda j: allowed[i, j] & (j <= i))(positions))(positions)
        rows = torch.vmap(lambda row, scale: self.linear(row).tanh() * row.sum() * scale, in_dims=(0, None))(x, x[0, 0])
        with torch.no_grad():
            still = torch.vmap(lambda row: self.linear(row).sin())(x)
        return torch.where(pairs, rows @ (rows + still).T, 0.0)


def test_vmap_is_written_out():
    pytest.importorskip("torch._dynamo._trace_wrapped_higher_order_op")
    torch.manual_seed(0)
    module, x = Batches(), torch.randn(5, 4)
    allowed = torch.rand(5, 5) > 0.3
    model, params = ml.from_torch(module, (x, allowed))
    direction = torch.randn(5, 5)
    right = module(x, allowed)
    right.backward(direction)
    compiled = ml.compile(model, ml.NumpyBackend())
    data = {"x": x.numpy(), "allowed": allowed.numpy()}
    outputs, gradients = compiled.evaluate(params, data, {"output": direction.numpy()})
    np.testing.assert_allclose(outputs["output"], right.detach().numpy(), rtol=1e-4, atol=1e-5)
    for key, parameter in module.named_parameters():
        np.testing.assert_allclose(gradients[key], parameter.grad.numpy(), rtol=1e-4, atol=1e-5)
