"""Every module of torch.nn, converted and run on NumPy in float64, against PyTorch."""

import warnings

import mithril as ml
import numpy as np
import pytest
from mithril.errors import UnsupportedOpError

torch = pytest.importorskip("torch")
nn = torch.nn


def x(*shape):
    return torch.randn(shape, dtype=torch.float64)


def ids(high, *shape):
    return torch.randint(high, shape)


class Applied(nn.Module):
    """A module whose results or arguments are not plain tensors."""

    def __init__(self, module, function):
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, *args):
        return self.function(self.module, *args)


def places(kernel):
    """Pooling and its inverse."""

    def function(module, x):
        pool = getattr(nn.functional, f"max_pool{x.dim() - 2}d")
        return module(*pool(x, kernel, return_indices=True))

    return function


ATTENTION = {"batch_first": True, "dropout": 0.0}
LSTM = {"num_layers": 2, "bidirectional": True, "batch_first": True}
#: Modules with examples of what they take.
MODULES = {
    **{
        name: lambda name=name: (getattr(nn, name)(), x(3, 4))
        for name in (
            *("CELU", "ELU", "GELU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "LogSigmoid"),
            *(
                "Mish",
                "PReLU",
                "ReLU",
                "ReLU6",
                "SELU",
                "SiLU",
                "Sigmoid",
                "Softplus",
                "Softshrink",
                "Softsign",
                "Tanh",
            ),
            *("Tanhshrink", "RReLU", "GLU", "Flatten"),
        )
    },
    **{name: lambda name=name: (getattr(nn, name)(dim=-1), x(3, 4)) for name in ("Softmax", "LogSoftmax", "Softmin")},
    "Softmax2d": lambda: (nn.Softmax2d(), x(2, 3, 4, 4)),
    "Threshold": lambda: (nn.Threshold(0.1, -2.0), x(3, 4)),
    # Without training, dropout does nothing.
    **{
        name: lambda name=name: (nn.Sequential(getattr(nn, name)(), nn.Tanh()), x(2, 3, 4))
        for name in ("Dropout", "Dropout1d", "AlphaDropout", "FeatureAlphaDropout", "Identity")
    },
    "Dropout2d": lambda: (nn.Sequential(nn.Dropout2d(), nn.Tanh()), x(2, 3, 4, 4)),
    "Dropout3d": lambda: (nn.Sequential(nn.Dropout3d(), nn.Tanh()), x(2, 3, 2, 2, 2)),
    **{
        f"{lazy}Conv{n}d": lambda n=n, own=own, lazy=lazy: (
            getattr(nn, f"{lazy}Conv{n}d")(*own, 6, 3, stride=2, padding=1, groups=2, padding_mode="reflect"),
            x(2, 4, *[7] * n),
        )
        for n in (1, 2, 3)
        for lazy, own in (("", (4,)), ("Lazy", ()))
    },
    **{
        f"{lazy}ConvTranspose{n}d": lambda n=n, own=own, lazy=lazy: (
            getattr(nn, f"{lazy}ConvTranspose{n}d")(*own, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            x(2, 4, *[4] * n),
        )
        for n in (1, 2, 3)
        for lazy, own in (("", (4,)), ("Lazy", ()))
    },
    **{
        f"{lazy}{kind}Norm{n}d": lambda n=n, own=own, lazy=lazy, kind=kind: (
            getattr(nn, f"{lazy}{kind}Norm{n}d")(*own, affine=True, track_running_stats=True),
            x(2, 4, *[3] * n),
        )
        for n in (1, 2, 3)
        for kind in ("Batch", "Instance")
        for lazy, own in (("", (4,)), ("Lazy", ()))
    },
    **{
        name: lambda name=name, args=args, shape=shape: (getattr(nn, name)(*args), x(*shape))
        for name, args, shape in (
            *((f"AdaptiveAvgPool{n}d", (3,), (2, 3, *[7] * n)) for n in (1, 2, 3)),
            *((f"AdaptiveMaxPool{n}d", (3, True), (2, 3, *[7] * n)) for n in (1, 2, 3)),
            *((f"AvgPool{n}d", (3, 2, 1), (2, 3, *[7] * n)) for n in (1, 2, 3)),
            *((f"MaxPool{n}d", (3, 2, 1, 1, True), (2, 3, *[7] * n)) for n in (1, 2, 3)),
            *((f"LPPool{n}d", (2, 3), (2, 3, *[7] * n)) for n in (1, 2, 3)),
            *((f"{kind}Pad{n}d", (1,), (2, 3, *[4] * n)) for n in (1, 2, 3) for kind in ("Circular", "Reflection")),
            *((f"{kind}Pad{n}d", (1,), (2, 3, *[4] * n)) for n in (1, 2, 3) for kind in ("Replication", "Zero")),
            *((f"ConstantPad{n}d", (2, 1.5), (2, 3, *[4] * n)) for n in (1, 2, 3)),
            ("ChannelShuffle", (2,), (2, 4, 3, 3)),
            ("PixelShuffle", (2,), (2, 8, 3, 3)),
            ("PixelUnshuffle", (2,), (2, 2, 4, 6)),
            ("Unfold", ((2, 3), 1, 1, 2), (2, 3, 5, 6)),
            ("Fold", ((5, 6), (2, 3), 1, 1, 2), (2, 12, 9)),
            ("Unflatten", (1, (2, 3)), (4, 6)),
            ("UpsamplingBilinear2d", (None, 2), (2, 3, 4, 5)),
            ("UpsamplingNearest2d", ((7, 6),), (2, 3, 4, 5)),
            ("Linear", (4, 3), (2, 4)),
            ("LazyLinear", (3,), (2, 4)),
            ("LayerNorm", (4,), (2, 4)),
            ("RMSNorm", (4,), (2, 4)),
            ("GroupNorm", (2, 4), (2, 4, 3)),
            ("LocalResponseNorm", (3,), (2, 4, 3, 3)),
            ("GRU", (3, 4, 2), (5, 2, 3)),
            ("RNN", (3, 4), (5, 2, 3)),
            ("LSTM", (3, 4), (5, 2, 3)),
            ("GRUCell", (3, 4), (2, 3)),
            ("RNNCell", (3, 4), (2, 3)),
            ("LSTMCell", (3, 4), (2, 3)),
        )
    },
    "Upsample": lambda: (nn.Upsample(scale_factor=1.5, mode="trilinear"), x(1, 2, 3, 4, 5)),
    "projected LSTM": lambda: (nn.LSTM(3, 4, proj_size=2, **LSTM), x(2, 5, 3)),
    "bidirectional GRU": lambda: (nn.GRU(3, 4, **LSTM), x(2, 5, 3)),
    **{
        f"FractionalMaxPool{n}d": lambda n=n: (
            Applied(
                getattr(nn, f"FractionalMaxPool{n}d")(2, output_size=3),
                lambda module, x, samples: getattr(nn.functional, f"fractional_max_pool{x.dim() - 2}d")(
                    x, module.kernel_size, module.output_size, _random_samples=samples
                ),
            ),
            x(2, 3, *[7] * n),
            torch.rand(2, 3, n, dtype=torch.float64),
        )
        for n in (2, 3)
    },
    **{
        f"MaxUnpool{n}d": lambda n=n: (Applied(getattr(nn, f"MaxUnpool{n}d")(2), places(2)), x(2, 3, *[4] * n))
        for n in (1, 2, 3)
    },
    "Bilinear": lambda: (nn.Bilinear(3, 4, 5), x(2, 3), x(2, 4)),
    "CosineSimilarity": lambda: (nn.CosineSimilarity(), x(2, 3), x(2, 3)),
    "PairwiseDistance": lambda: (nn.PairwiseDistance(), x(2, 3), x(2, 3)),
    "Embedding": lambda: (nn.Embedding(5, 3, padding_idx=1), ids(5, 2, 3)),
    "EmbeddingBag": lambda: (nn.EmbeddingBag(5, 3), ids(5, 6), torch.tensor([0, 2, 3])),
    "MultiheadAttention": lambda: (nn.MultiheadAttention(8, 2, **ATTENTION), x(2, 5, 8), x(2, 3, 8), x(2, 3, 8)),
    "TransformerEncoderLayer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, **ATTENTION), x(2, 5, 8)),
    "TransformerDecoderLayer": lambda: (nn.TransformerDecoderLayer(8, 2, 16, **ATTENTION), x(2, 5, 8), x(2, 3, 8)),
    # With a mask, which PyTorch compares with a causal one.
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, **ATTENTION), 2),
        x(2, 5, 8),
        nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
    ),
    "TransformerDecoder": lambda: (
        nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, **ATTENTION), 2),
        x(2, 5, 8),
        x(2, 3, 8),
        nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
    ),
    "Transformer": lambda: (nn.Transformer(8, 2, 1, 1, 16, **ATTENTION), x(2, 5, 8), x(2, 3, 8)),
    **{
        name: lambda name=name: (getattr(nn, name)(), x(3, 4), x(3, 4))
        for name in ("HuberLoss", "L1Loss", "MSELoss", "PoissonNLLLoss", "SmoothL1Loss", "BCEWithLogitsLoss")
    },
    "BCELoss": lambda: (nn.BCELoss(), x(3, 4).sigmoid(), x(3, 4).sigmoid()),
    "KLDivLoss": lambda: (nn.KLDivLoss(reduction="batchmean"), x(3, 4), x(3, 4).softmax(-1)),
    "CrossEntropyLoss": lambda: (nn.CrossEntropyLoss(label_smoothing=0.1), x(3, 4), ids(4, 3)),
    **{name: lambda name=name: (getattr(nn, name)(), x(3, 4), ids(4, 3)) for name in ("NLLLoss", "MultiMarginLoss")},
    "NLLLoss2d": lambda: (nn.NLLLoss(), x(3, 4, 2, 2), ids(4, 3, 2, 2)),
    **{
        name: lambda name=name: (getattr(nn, name)(), x(3, 4), x(3, 4).sign())
        for name in ("HingeEmbeddingLoss", "SoftMarginLoss")
    },
    "CosineEmbeddingLoss": lambda: (nn.CosineEmbeddingLoss(), x(3, 4), x(3, 4), x(3).sign()),
    "MarginRankingLoss": lambda: (nn.MarginRankingLoss(), x(3), x(3), x(3).sign()),
    "MultiLabelMarginLoss": lambda: (nn.MultiLabelMarginLoss(), x(2, 4), torch.tensor([[3, 0, -1, 1], [1, -1, 0, 2]])),
    "MultiLabelSoftMarginLoss": lambda: (nn.MultiLabelSoftMarginLoss(), x(3, 4), (x(3, 4) > 0).double()),
    "TripletMarginLoss": lambda: (nn.TripletMarginLoss(), x(3, 4), x(3, 4), x(3, 4)),
    "TripletMarginWithDistanceLoss": lambda: (nn.TripletMarginWithDistanceLoss(), x(3, 4), x(3, 4), x(3, 4)),
    "AdaptiveLogSoftmaxWithLoss": lambda: (
        Applied(nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 7], div_value=2), lambda module, x: module.log_prob(x)),
        x(3, 6),
    ),
    "CTCLoss": lambda: (
        Applied(nn.CTCLoss(), lambda module, x, *rest: module(x.log_softmax(-1), *rest)),
        *(x(5, 2, 4), 1 + ids(3, 2, 2), torch.tensor([5, 4]), torch.tensor([2, 1])),
    ),
    "GaussianNLLLoss": lambda: (nn.GaussianNLLLoss(full=True), x(3), x(3), x(3).exp()),
    "LinearCrossEntropyLoss": lambda: (nn.LinearCrossEntropyLoss(4, 5), x(3, 4), ids(5, 3)),
}
#: What is refused, and what the error says.
REFUSED = {
    "CrossMapLRN2d": (lambda: (nn.CrossMapLRN2d(3), x(2, 4, 3, 3)), "cannot decompose"),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: (nn.AdaptiveLogSoftmaxWithLoss(6, 10, [3, 7], div_value=2), x(3, 6), ids(10, 3)),
        "depends on data",
    ),
    "BatchNorm1d": (lambda: (nn.BatchNorm1d(3, momentum=None).double().train(), x(4, 3)), "give a momentum"),
    "LSTM": (
        lambda: (
            Applied(
                nn.LSTM(3, 4, batch_first=True),
                lambda module, x, n: module(nn.utils.rnn.pack_padded_sequence(x, n, batch_first=True))[1][0],
            ),
            x(2, 5, 3),
            torch.tensor([5, 3]),
        ),
        "packed sequences depend on data(?s:.*)padded",
    ),
}
#: Classes that compute nothing by themselves, or need a process for each device.
OTHERS = {
    *("Container", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "RNNBase", "RNNCellBase"),
    *("Sequential", "LinearCrossEntropyOptions", "SyncBatchNorm"),
}


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [leaf for part in value if part is not None for leaf in leaves(part)]


def build(make):
    torch.manual_seed(0)
    module, *args = make()
    module = module.double()
    # Lazy modules take their shapes from a first call.
    if any(isinstance(p, nn.UninitializedParameter) for p in (*module.parameters(), *module.buffers())):
        module(*args)
    return module, args


def test_every_class_has_a_case():
    missing = set(nn.modules.__all__) - set(MODULES) - set(REFUSED) - OTHERS
    assert not missing, "give them an entry in MODULES, REFUSED or OTHERS"


@pytest.mark.parametrize("name", MODULES)
def test_modules_compute_what_pytorch_computes(name):
    module, args = build(MODULES[name])
    module.eval()
    expected = [value.detach().numpy() for value in leaves(module(*args))]
    model, params = ml.from_torch(module, tuple(args))
    compiled = ml.compile(model, ml.NumpyBackend())
    inputs = [key for key in model.input_keys if key not in params]
    outputs = list(compiled.evaluate(params, dict(zip(inputs, map(torch.Tensor.numpy, args), strict=True))).values())
    assert [(value.shape, value.dtype) for value in outputs] == [(value.shape, value.dtype) for value in expected]
    for actual, right in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_modules_say_what_helps(name):
    make, text = REFUSED[name]
    module, args = build(make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UnsupportedOpError, match=text):
            ml.from_torch(module, tuple(args))
