"""Modules of PyTorch as models: values, gradients, names and errors, against PyTorch itself."""

import importlib.util

import mithril as ml
import numpy as np
import pytest
from backends import BACKENDS, backend

torch = pytest.importorskip("torch")
nn = torch.nn
F = torch.nn.functional


class Attention(nn.Module):
    def __init__(self, size=16, heads=4, is_causal=True):
        super().__init__()
        self.heads, self.is_causal = heads, is_causal
        self.qkv = nn.Linear(size, 3 * size)
        self.proj = nn.Linear(size, size, bias=False)

    def forward(self, x):
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.proj(y.transpose(1, 2).reshape(batch, length, size))


class Block(nn.Module):
    def __init__(self, size=16):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * size, size))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """Modules in lists, a parameter of its own, a buffer, tied weights."""

    def __init__(self, vocabulary=40, size=16, depth=2):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size)
        self.positions = nn.Parameter(torch.randn(1, 32, size) * 0.1)
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))
        self.head = nn.Linear(size, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.register_buffer("scale", torch.tensor([0.5]))

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


class Vision(nn.Module):
    """Convolutions of several kinds, batch norms, squeeze and excitation, resizing, changes in place."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.depthwise = nn.Conv2d(8, 8, 5, padding="same", groups=8)
        self.norm = nn.GroupNorm(2, 8)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, x):
        x = self.stem(x)
        y = F.hardswish(self.norm(self.depthwise(x)))
        y *= self.gate(y)
        y = torch.cat([F.max_pool2d(y, 2), F.avg_pool2d(x, 2)], 1).chunk(2, dim=1)[1]
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.up(x + y)


class Odd(nn.Module):
    """A module that is called twice, one within another's path, several outputs in containers, integers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.register_buffer("order", torch.tensor([5, 3, 1, 0, 2, 4]))

    def forward(self, x, *, mask=None):
        y = self.layers[1](self.layers[0](x))
        y = self.layers[0](torch.tanh(y))[:, self.order]
        values, places = y.topk(3, dim=-1)
        y = y.masked_fill(mask, -1.0)
        return {"y": y, "top": (values, places), "sum": y.sum(-1) // 1, "count": (y > 0).sum()}


def initialized(module):
    torch.manual_seed(7)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    return module.eval()


IDS = torch.arange(14).reshape(2, 7) * 3 % 40
CASES = {
    "decoder": (Decoder, (IDS,), {}),
    "vision": (Vision, (torch.linspace(-2, 2, 2 * 3 * 12 * 16).reshape(2, 3, 12, 16).sin(),), {}),
    "odd": (Odd, (torch.linspace(-1, 1, 24).reshape(4, 6),), {"mask": torch.arange(24).reshape(4, 6) % 5 == 0}),
}


def example(name):
    torch.manual_seed(3)
    make, args, kwargs = CASES[name]
    module = initialized(make())
    model, params = ml.from_torch(module, args, kwargs)
    names = [k for k in model.input_keys if k not in params]
    data = {k: x.numpy() for k, x in zip(names, [*args, *kwargs.values()], strict=True)}
    with torch.no_grad():
        expected = module(*args, **kwargs)
    return module, model, params, data, [x.numpy() for x in torch.utils._pytree.tree_leaves(expected)]


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "mlx", "c", "ggml"])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_pytorch(name, backend):
    _, model, params, data, expected = example(name)
    chosen = ml.get_backend(backend)
    compiled = ml.compile(model, chosen)
    arrays = {k: chosen.array(v) for k, v in data.items()}
    results = compiled.evaluate({k: chosen.array(v) for k, v in params.items()}, arrays)
    assert len(results) == len(expected)
    for actual, right in zip(results.values(), expected, strict=True):
        actual = np.asarray(chosen.to_numpy(actual))
        assert actual.dtype == right.dtype
        np.testing.assert_allclose(actual, right, rtol=0, atol=2e-5 * max(1.0, np.abs(right).max()))


@pytest.mark.parametrize("name", ["decoder", "vision"])
def test_gradients_are_those_of_pytorch(name):
    module, model, params, data, _ = example(name)
    _, args, kwargs = CASES[name]
    output = module(*args, **kwargs)
    direction = torch.linspace(-1, 1, output.numel()).reshape(output.shape)
    (output * direction).sum().backward()
    compiled = ml.compile(model, ml.NumpyBackend())
    actual = compiled.evaluate(params, data, {"output": direction.numpy()})[1]
    expected = {k: p.grad.numpy() for k, p in module.named_parameters()}
    assert expected.keys() <= set(actual)
    for key, gradient in expected.items():
        scale = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(actual[key], gradient, rtol=0, atol=5e-5 * scale, err_msg=key)


def test_modules_become_models_and_parameters_keep_their_names():
    module, model, params, _, _ = example("decoder")
    assert set(params) <= set(module.state_dict())
    assert set(params) == set(dict(module.named_parameters()))
    assert {"tokens", "blocks", "head"} & set(model.layer_keys) >= {"blocks"}
    source = ml.compile(model, ml.NumpyBackend()).source
    assert 'params["blocks.1.mlp.3.weight"]' in source
    assert "scaled_dot_product_attention" in source
    # Weights are PyTorch's own memory.
    with torch.no_grad():
        module.blocks[0].mlp[0].weight[0, 0] = 123.0
    assert params["blocks.0.mlp.0.weight"][0, 0] == 123.0


def test_statistics_are_kept_fixed_in_training():
    _, model, params, _, _ = example("vision")
    compiled = ml.compile(model, ml.NumpyBackend())
    assert set(compiled.frozen_keys) == {"stem.1.running_mean", "stem.1.running_var"}
    assert "stem.1.weight" in params


def test_a_dimension_stays_open():
    module = initialized(Decoder())
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=32)
    model, params = ml.from_torch(module, (IDS,), dynamic_shapes=({0: batch, 1: length},))
    compiled = ml.compile(model, ml.NumpyBackend())
    for shape in [(2, 7), (5, 3), (3, 32)]:
        ids = torch.randint(0, 40, shape)
        output = compiled.evaluate(params, {"ids": ids.numpy()})["output"]
        np.testing.assert_allclose(output, module(ids).detach().numpy(), rtol=0, atol=2e-5)
    assert list(model.shape_of("ids")) == ["batch", "length"]


@pytest.mark.parametrize("make", [nn.Module, nn.Sequential])
def test_inputs_stand_in_the_order_of_the_arguments(make):
    class Reversed(make):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, a, b, c=None, *, d, e):
            return self.linear(e["q"] * d) + b - self.linear(e["p"]) * (a @ c)

    module = Reversed()
    a, b, c, d, p, q = (torch.randn(shape) for shape in [(2, 3), (3,), (3, 3), (2,), (2, 2), (2, 2)])
    model, params = ml.from_torch(module, (a, b, c), {"d": d, "e": {"q": q, "p": p}})
    names = [k for k in model.input_keys if k not in params]
    assert [name.split("_")[0] for name in names] == ["a", "b", "c", "d", "e", "e"]
    compiled = ml.compile(model, ml.NumpyBackend())
    inputs = [x.numpy() for x in (a, b, c, d, *torch.utils._pytree.tree_leaves({"q": q, "p": p}))]
    actual = compiled(*inputs, params=params)
    np.testing.assert_allclose(actual, module(a, b, c, d=d, e={"q": q, "p": p}).detach().numpy(), rtol=0, atol=1e-5)


def test_dropout_is_kept_in_train_mode():
    module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5)).train()
    model, params = ml.from_torch(module, (torch.ones(3, 4),))
    (name,) = [k for k in model.input_keys if k not in params]
    compiled = ml.compile(model, ml.NumpyBackend(), inference=False)
    results = compiled.evaluate(params, {name: np.ones((3, 4), np.float32)})
    results = (results if isinstance(results, dict) else results[0])["output"]
    assert 0.2 < (results == 0).mean() < 0.8


def test_dropout_of_channels_drops_whole_channels():
    model, params = ml.from_torch(nn.Dropout2d(0.25).train(), (torch.ones(40, 50, 2, 3),))
    x = np.full((40, 50, 2, 3), 3, np.float32)
    y = ml.compile(model, ml.NumpyBackend())(x, params=params)
    np.testing.assert_array_equal(y, np.broadcast_to(y[..., :1, :1], y.shape))
    assert set(np.unique(y)) == {0, 4}
    # Four standard deviations of 2,000 draws.
    assert abs((y == 0).mean() - 0.25) < 0.04
    np.testing.assert_array_equal(ml.compile(model, ml.NumpyBackend(), inference=True)(x, params=params), x)


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
def test_dropout_between_the_layers_of_a_recurrent_network(name):
    torch.manual_seed(0)
    kind = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[name]
    module = kind(4, 8, num_layers=3, dropout=0.4, bidirectional=name == "gru", batch_first=name == "lstm").train()
    x = torch.randn(3, 2, 4)
    model, params = ml.from_torch(module, (x,))
    trained = ml.compile(model, ml.NumpyBackend())
    (key,) = [key for key in model.input_keys if key not in params]
    with torch.no_grad():
        ours, theirs = (
            [np.concatenate([np.ravel(leaf) for leaf in torch.utils._pytree.tree_leaves(call())]) for _ in range(300)]
            for call in (lambda: list(trained.evaluate(params, {key: x.numpy()}).values()), lambda: module(x))
        )
        expected = [leaf.numpy() for leaf in torch.utils._pytree.tree_leaves(module.eval()(x))]
    spread = np.sqrt((np.var(ours, 0) + np.var(theirs, 0)) / 300) + 1e-6
    assert np.max(np.abs(np.mean(ours, 0) - np.mean(theirs, 0)) / spread) < 5
    assert np.mean(np.std(ours, 0)) == pytest.approx(np.mean(np.std(theirs, 0)), rel=0.05)
    compiled = ml.compile(model, ml.NumpyBackend(), inference=True)
    for actual, right in zip(compiled.evaluate(params, {key: x.numpy()}).values(), expected, strict=True):
        np.testing.assert_allclose(actual, right, atol=1e-6)


@pytest.mark.parametrize("mask", [None, "causal", "bool", "added"])
def test_dropout_of_attention(mask):
    options = {}
    if mask in ("bool", "added"):
        allowed = torch.rand(3, 5, generator=torch.Generator().manual_seed(0)) > 0.4
        # A query that attends to nothing.
        allowed[1] = False
        options["attn_mask"] = allowed if mask == "bool" else torch.where(allowed, 0.5, -torch.inf)

    class Attention(nn.Module):
        def forward(self, q, k, v):
            p = 0.5 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(
                q, k, v, dropout_p=p, is_causal=mask == "causal", enable_gqa=True, scale=0.3, **options
            )

    module = Attention().train()
    q, k = (torch.randn(2, h, n, 8, generator=torch.Generator().manual_seed(n)) for h, n in ((4, 3), (2, 5)))
    # Values that say which keys were dropped.
    inputs = [q, k, torch.eye(5).expand(2, 2, 5, 5).contiguous()]
    model, params = ml.from_torch(module, tuple(inputs))
    trained = ml.compile(model, ml.NumpyBackend())
    draws = np.stack([trained(*(x.numpy() for x in inputs), params=params) for _ in range(400)])
    expected = module.eval()(*inputs).numpy()
    # Each weight is zero or doubled, and its mean stays.
    np.testing.assert_allclose(draws, np.where(draws == 0, 0, 2 * expected), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(draws.mean(0), expected, atol=0.25)
    # Without training it is the op.
    compiled = ml.compile(model, ml.TorchBackend(), inference=True)
    assert "scaled_dot_product_attention(" in compiled.source
    np.testing.assert_allclose(compiled(*inputs, params=params), module(*inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("last", ["batch norm", "in place"])
def test_the_output_is_an_op_that_is_replaced(last):
    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            if last == "batch norm":
                return self.norm(x)
            x.add_(1.0)
            return x

    module = Network().eval()
    data = torch.randn(2, 3, 5, 6)
    model, params = ml.from_torch(module, (data,))
    assert list(model.output_keys) == ["output"]
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": data.numpy()})["output"]
    np.testing.assert_allclose(output, module(data).detach().numpy(), rtol=1e-5, atol=1e-5)


def test_an_exported_program_and_its_file_are_read(tmp_path):
    module = initialized(Block())
    x = torch.linspace(-1, 1, 96).reshape(2, 3, 16)
    program = torch.export.export(module, (x,))
    torch.export.save(program, tmp_path / "block.pt2")
    for source in (program, tmp_path / "block.pt2"):
        model, params = ml.from_torch(source)
        output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})["output"]
        np.testing.assert_allclose(output, module(x).detach().numpy(), rtol=0, atol=2e-5)


class Named(nn.Module):
    """Names of parameters and modules that inputs and outputs of models have, too."""

    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.input, self.output = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

        def forward(self, x, y):
            return self.input - x * self.output.exp() + y

    def __init__(self):
        super().__init__()
        self.inner, self.y, self.x = self.Inner(), nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (self.inner(self.x * x, self.y(x)),)


class Rewritten(nn.Module):
    """Parts that are written over, comparisons and divisions of integers, functions with thresholds."""

    def forward(self, x):
        y = torch.full((3, 4), float("nan"))
        y.copy_(x[0])
        y[1] = 7.0
        y[:, 1:3] = x[:, 1:3] * 2
        whole = (x * 10).int()
        return y, F.softplus(x, 2.0, 1.0), F.softplus(x), whole > 2.5, whole // 3, whole % -3, x.max(1).indices


@pytest.mark.parametrize("make", [Named, Rewritten])
def test_what_is_easily_mistaken(make):
    module = initialized(make())
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    model, params = ml.from_torch(module, (x,))
    (name,) = [key for key in model.input_keys if key not in params]
    actual = ml.compile(model, ml.NumpyBackend()).evaluate(params, {name: x.numpy()})
    expected = [y.detach().numpy() for y in module(x)]
    assert list(actual) == (["output"] if len(expected) == 1 else [f"output_{i}" for i in range(len(expected))])
    for ours, right in zip(actual.values(), expected, strict=True):
        assert ours.dtype == right.dtype
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-6)


def test_all_that_cannot_be_converted_is_one_error():
    class Rare(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            x = torch.special.bessel_j0(self.inner(x))
            return torch.special.bessel_j1(torch.special.bessel_j0(x))

    with pytest.raises(ml.errors.UnsupportedOpError) as caught:
        ml.from_torch(Rare(), (torch.ones(2, 4),))
    text = str(caught.value)
    assert "`aten.special_bessel_j0.default`, 2 times, first at" in text
    assert "`aten.special_bessel_j1.default`, once at" in text
    assert "test_from_torch.py" in text

    class Masked(nn.Module):
        def forward(self, x):
            return x[x > 0].sum(), torch.special.bessel_j0(x), x.nonzero(), torch.bincount(x.flatten().long())

    with pytest.raises(ml.errors.UnsupportedOpError) as caught:
        ml.from_torch(Masked(), (torch.ones(2, 4),))
    assert [note.partition(", once")[0] for note in caught.value.notes] == [
        "`aten.bincount.default` (without minlength, the shape of the result depends on data)",
        "`aten.index.Tensor` (a mask as an index: the shape of the result depends on data)",
        "`aten.nonzero.default` (the shape of the result depends on data)",
        "`aten.special_bessel_j0.default`",
    ]
    assert "torch.where(mask, x, 0)" in caught.value.hint


def test_other_things_are_refused(tmp_path):
    with pytest.raises(ml.errors.ModelFileError, match="does not exist"):
        ml.from_torch(tmp_path / "absent.pt2")
    (tmp_path / "text.pt2").write_text("no archive")
    with pytest.raises(ml.errors.ModelFileError, match=r"is not a file of torch\.export"):
        ml.from_torch(tmp_path / "text.pt2")
    with pytest.raises(ml.errors.InvalidValueError, match="not Model"):
        ml.from_torch(ml.Model())
    for example in [np.ones((2, 4)), (np.ones((2, 4)),), ([np.float32(1)],)]:
        with pytest.raises(ml.errors.InvalidValueError, match=r"array of NumPy.*\n.*torch\.from_numpy"):
            ml.from_torch(nn.Linear(4, 4), example)
    with pytest.raises(ml.errors.UnsupportedOpError, match="cannot export Sequential"):
        ml.from_torch(nn.Sequential(nn.Linear(4, 4)), (torch.ones(2, 5),))


NETWORKS = {
    "resnet18": lambda vision: (vision.models.resnet18(weights=None), 64),
    "mobilenet_v3_small": lambda vision: (vision.models.mobilenet_v3_small(weights=None), 64),
    "shufflenet": lambda vision: (vision.models.shufflenet_v2_x0_5(weights=None), 64),
    "swin": lambda vision: (vision.models.swin_transformer.SwinTransformer([4, 4], 16, [1, 1], [2, 4], [2, 2]), 32),
}


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="torchvision is not installed")
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_torchvision(name):
    import torchvision

    torch.manual_seed(0)
    module, size = NETWORKS[name](torchvision)
    module = module.eval()
    x = torch.randn(2, 3, size, size)
    model, params = ml.from_torch(module, (x,))
    assert set(params) <= set(module.state_dict())
    output = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"x": x.numpy()})["output"]
    right = module(x).detach().numpy()
    np.testing.assert_allclose(output, right, rtol=0, atol=1e-4 * np.abs(right).max())


SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
TRANSFORMERS = {
    "bert": ("BertModel", "BertConfig", SIZES),
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**GROUPED, "head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**GROUPED, "num_local_experts": 4}),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
}


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_networks_of_transformers(name):
    import transformers

    torch.manual_seed(0)
    network, config, sizes = TRANSFORMERS[name]
    module = getattr(transformers, network)(getattr(transformers, config)(**sizes)).eval()
    module.config.use_cache = False
    ids = torch.randint(0, 50, (2, 9))
    model, params = ml.from_torch(module, (), {"input_ids": ids})
    actual = ml.compile(model, ml.NumpyBackend()).evaluate(params, {"input_ids": ids.numpy()})
    with torch.no_grad():
        expected = {k: v.numpy() for k, v in module(input_ids=ids).items()}
    assert list(actual) == list(expected)
    for key, right in expected.items():
        np.testing.assert_allclose(actual[key], right, rtol=0, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("autodiff", ["native", "graph"])
@pytest.mark.parametrize("name", BACKENDS)
def test_no_gradient_flows_through_detach(name, autodiff):
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)

        def forward(self, x):
            y = self.inner(x)
            return y * y.detach().exp()

    torch.manual_seed(0)
    module, x = Gate(), torch.randn(4, 3)
    model, params = ml.from_torch(module, (x,))
    target = backend(name)
    if autodiff not in target.engine.autodiff:
        pytest.skip(f"{name} has its gradients in one way only")
    compiled = ml.compile(model, target, autodiff=autodiff)
    params = {key: target.array(value) for key, value in params.items()}
    gradients = compiled.evaluate_gradients(
        params, {"x": target.array(x.numpy())}, output_gradients={"output": target.ones(4, 3)}
    )
    module(x).sum().backward()
    for key, parameter in module.named_parameters():
        np.testing.assert_allclose(
            np.asarray(target.to_numpy(gradients[key])), parameter.grad.numpy(), rtol=1e-4, atol=1e-5
        )


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.direction = nn.Parameter(torch.randn(6, 4))

    def forward(self):
        return self.direction / self.direction.norm(dim=1, keepdim=True)


class OfParameters(nn.Module):
    """Modules that take no data: one of a parameter, and PyTorch's own parametrization of a convolution."""

    def __init__(self):
        super().__init__()
        self.scaled = Scaled()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1), dim=2)

    def forward(self, x):
        return F.linear(self.conv(x).transpose(1, 2), self.scaled())


@pytest.mark.parametrize("name", BACKENDS)
def test_modules_that_take_no_data_are_models(name):
    torch.manual_seed(0)
    module, x = OfParameters().eval(), torch.randn(2, 4, 5)
    model, params = ml.from_torch(module, (x,))
    assert set(params) == set(module.state_dict())
    compiled = ml.compile(model, backend(name))
    compiled.load_params(params)
    output = compiled.evaluate({}, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(compiled.backend.to_numpy(output), module(x).detach().numpy(), rtol=1e-4, atol=1e-5)
