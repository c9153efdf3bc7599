"""Networks of the benchmark that are small enough to show what a call costs."""

from __future__ import annotations

import mithril as ml


def classifier() -> ml.Model:
    """Build three linear layers, 784-128-64-10."""
    model = ml.Model()
    model |= ml.Linear(128)(input="input", output="h1")
    model += ml.Relu()()
    model += ml.Linear(64)()
    model += ml.Relu()()
    model += ml.Linear(10)(output="output")
    return model


#: Blocks of MobileNetV2: how much wider than their input they work, channels, how many, step of the first.
BLOCKS = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> ml.Model:
    """Build MobileNetV2 with the names of torchvision: its convolutions are of one channel, or of one place."""
    features, channels = [_active(32, 3, 2, "0")], 32
    for factor, filters, count, first in BLOCKS:
        for step in [first] + [1] * (count - 1):
            features.append(_block(str(len(features)), [channels, filters], factor, step))
            channels = filters
    features.append(_active(1280, 1, 1, str(len(features))))
    pool = [ml.AdaptiveAvgPool2d(1), ml.Flatten(1)]
    return _chain([_chain(features, "features"), *pool, _chain([ml.Linear(1000, name="1")], "classifier")])


def _block(name: str, channels: list[int], factor: int, step: int) -> ml.Model:
    in_channels, filters = channels
    wide = factor * in_channels
    layers = [_active(wide, 1, 1, "0")] if factor > 1 else []
    layers.append(_active(wide, 3, step, str(len(layers)), groups=wide))
    layers.append(ml.Convolution2D(filters, 1, bias=False, name=str(len(layers))))
    layers.append(ml.BatchNorm2d(name=str(len(layers))))
    block = ml.Model(name=name)
    if step > 1 or in_channels != filters:
        block |= _chain(layers, "conv")(input="input", output="output")
        return block
    block |= _chain(layers, "conv")(input="input", output="made")
    block |= ml.Add()(left="input", right="made", output="output")
    return block


def _active(filters: int, size: int, step: int, name: str, groups: int = 1) -> ml.Model:
    around = {"stride": step, "padding": size // 2, "groups": groups, "bias": False}
    layers = [ml.Convolution2D(filters, size, **around, name="0"), ml.BatchNorm2d(name="1"), ml.Relu6()]
    return _chain(layers, name)


def _chain(layers: list[ml.Model], name: str | None = None) -> ml.Model:
    chain = ml.Model(name=name)
    for i, layer in enumerate(layers):
        first = {"input": "input"} if i == 0 else {}
        chain += layer(**first, **({"output": "output"} if i == len(layers) - 1 else {}))
    return chain
