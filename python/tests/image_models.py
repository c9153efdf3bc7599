"""Small networks for images, a ResNet and a U-Net, whose images are divided in space (`test_space.py`)."""

import mithril as ml
import numpy as np

RANDOM = np.random.default_rng(0)


def _residual(model, name, start, end, filters, stride=1, project=False):
    """Add a residual block."""
    conv = {"padding": 1, "bias": False}
    model |= ml.Conv2d(filters, 3, stride=stride, name=f"{name}_first", **conv)(input=start, output=f"{name}_1")
    model |= ml.BatchNorm2d(name=f"{name}_norm")(input=f"{name}_1", output=f"{name}_2")
    model |= ml.Relu()(input=f"{name}_2", output=f"{name}_3")
    model |= ml.Conv2d(filters, 3, name=f"{name}_second", **conv)(input=f"{name}_3", output=f"{name}_4")
    model |= ml.BatchNorm2d(name=f"{name}_last")(input=f"{name}_4", output=f"{name}_5")
    if project:
        model |= ml.Conv2d(filters, 1, stride=stride, bias=False, name=f"{name}_short")(input=start, output=f"{name}_0")
    model |= ml.Add()(left=f"{name}_5", right=f"{name}_0" if project else start, output=f"{name}_6")
    model |= ml.Relu()(input=f"{name}_6", output=end)


def resnet():
    """A stem, two blocks, of which one halves the image, and the mean of it."""
    model = ml.Model()
    model |= ml.Conv2d(4, 7, stride=2, padding=3, bias=False, name="stem")(input="input", output="s1")
    model |= ml.BatchNorm2d(name="stem_norm")(input="s1", output="s2")
    model |= ml.Relu()(input="s2", output="s3")
    model |= ml.MaxPool2d(3, stride=2, padding=1)(input="s3", output="h0")
    _residual(model, "one", "h0", "h1", 4)
    _residual(model, "two", "h1", "h2", 8, stride=2, project=True)
    model |= ml.Mean(axis=(2, 3))(input="h2", output="pooled")
    model |= ml.Linear(4, name="head")(input="pooled", output="output")
    return model, {"input": RANDOM.standard_normal((4, 3, 32, 32))}


def unet():
    """Down by a maximum and a mean of windows, up by a transposed convolution and by nearest neighbors."""
    model = ml.Model()

    def conv(name, start, filters, **options):
        nonlocal model
        model |= ml.Conv2d(filters, 3, padding="same", name=name, **options)(input=start, output=f"{name}_1")
        model |= ml.Gelu()(input=f"{name}_1", output=f"{name}_2")

    def join(left, right, output):
        nonlocal model
        layer = ml.Concat(axis=1, n=2)
        first, second = layer.input_keys
        model |= layer(**{first: left, second: right, "output": output})

    conv("down", "input", 4)
    model |= ml.MaxPool2d(2)(input="down_2", output="d1")
    conv("middle", "d1", 4, dilation=2)
    model |= ml.AvgPool2d(2)(input="middle_2", output="d2")
    conv("deep", "d2", 4, groups=4)
    model |= ml.ConvTranspose2d(4, 2, stride=2, name="up")(input="deep_2", output="u1")
    join("u1", "middle_2", "j1")
    conv("mix", "j1", 4)
    model |= ml.Lambda(lambda x: ml.NumpyBackend().interpolate(x, scale_factor=2))(input="mix_2", output="u0")
    join("u0", "down_2", "j0")
    conv("last", "j0", 4)
    model |= ml.Conv2d(2, 1, name="head")(input="last_2", output="output")
    return model, {"input": RANDOM.standard_normal((2, 3, 16, 16))}


def worst(actual, expected):
    """Largest distance in parts of the largest element, which is taken as 1e-3 at least."""
    return max(
        np.abs(np.asarray(actual[k]) - expected[k]).max() / max(np.abs(expected[k]).max(), 1e-3) for k in expected
    )
