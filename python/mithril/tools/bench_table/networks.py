"""The networks of the tables written by hand, once over the functions of any framework.

Parameters are those of Mithril's model by its names, so that both compute the same, which a test checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["Network", "bert", "clip", "gpt", "gpt_decode", "resnet", "t5", "vit"]

#: Takes parameters, running statistics and data; gives the outputs, and new running statistics.
Network = Callable[[Any, Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]


class _Layers:
    """Layers that find their parameters by name."""

    def __init__(self, f: Any, params: Mapping[str, Any]) -> None:
        self.f, self.params = f, params

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def linear(self, x: Any, name: str) -> Any:
        """Return ``x @ weight.T + bias``; the bias may be absent."""
        return self.f.linear(x, self.params[f"{name}.weight"], self.params.get(f"{name}.bias"))

    def norm(self, x: Any, name: str, eps: float) -> Any:
        """Return the layer normalization of the last axis."""
        return self.f.layer_norm(x, self.params[f"{name}.weight"], self.params[f"{name}.bias"], eps)

    def heads(self, x: Any, count: int) -> Any:
        """Return ``[batch, heads, length, features]`` of ``[batch, length, width]``."""
        return self.f.transpose(x.reshape(*x.shape[:2], count, x.shape[2] // count), (0, 2, 1, 3))

    def joined(self, x: Any) -> Any:
        """Return ``[batch, length, width]`` of heads."""
        x = self.f.transpose(x, (0, 2, 1, 3))
        return x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])

    def attention(self, q: Any, k: Any, v: Any, heads: int, causal: bool = False, **options: Any) -> Any:
        """Return the attention of ``[batch, length, width]``."""
        q, k, v = (self.heads(part, heads) for part in (q, k, v))
        return self.joined(self.f.attention(q, k, v, **{"scale": None, "causal": causal, **options}))

    def packed_attention(self, x: Any, weight: Any, bias: Any, heads: int, causal: bool = False) -> Any:
        """Return the attention of a text to itself, whose three matrices are one."""
        width = x.shape[-1]
        mixed = self.f.linear(x, weight, bias)
        q, k, v = (mixed[..., i * width : (i + 1) * width] for i in range(3))
        return self.attention(q, k, v, heads, causal)


def resnet(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return a residual network (He et al. 2015)."""
    is_bottleneck = sizes["block"] == "bottleneck"

    def forward(params: Any, state: Any, data: Any) -> Any:
        layers, updates = _Layers(f, params), dict[str, Any]()

        def unit(x: Any, convolution: str, norm: str, stride: int, padding: int) -> Any:
            x = f.convolution(x, params[f"{convolution}.weight"], stride, padding)
            return f.batch_norm(x, params, state, norm, training, updates)

        x = f.max_pool(f.relu(unit(data["input"], "conv1", "bn1", 2, 3)))
        for stage, depth in enumerate(sizes["depths"], 1):
            for block in range(depth):
                name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
                strides, paddings = ((1, stride, 1), (0, 1, 0)) if is_bottleneck else ((stride, 1), (1, 1))
                y = x
                for i, (step, padding) in enumerate(zip(strides, paddings, strict=True), 1):
                    y = unit(y, f"{name}.conv{i}", f"{name}.bn{i}", step, padding)
                    y = f.relu(y) if i < len(strides) else y
                if f"{name}.downsample.0.weight" in params:
                    x = unit(x, f"{name}.downsample.0", f"{name}.downsample.1", stride, 0)
                x = f.relu(x + y)
        return (layers.linear(x.mean((2, 3)), "fc"),), updates

    return forward


def vit(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return a vision transformer (Dosovitskiy et al. 2020)."""
    heads, patch, eps = sizes["num_heads"], sizes["patch_size"], 1e-6

    def forward(params: Any, state: Any, data: Any) -> Any:
        layers = _Layers(f, params)
        x = f.convolution(data["input"], params["conv_proj.weight"], patch, 0)
        x = f.transpose(x.reshape(x.shape[0], x.shape[1], -1), (0, 2, 1)) + params["conv_proj.bias"]
        first = f.broadcast(params["class_token"], (x.shape[0], 1, x.shape[2]))
        x = f.concat([first, x], 1) + params["encoder.pos_embedding"]
        for i in range(sizes["num_layers"]):
            name = f"encoder.layers.encoder_layer_{i}"
            weight, bias = (params[f"{name}.self_attention.in_proj_{kind}"] for kind in ("weight", "bias"))
            mixed = layers.packed_attention(layers.norm(x, f"{name}.ln_1", eps), weight, bias, heads)
            x = x + layers.linear(mixed, f"{name}.self_attention.out_proj")
            y = f.gelu(layers.linear(layers.norm(x, f"{name}.ln_2", eps), f"{name}.mlp.0"))
            x = x + layers.linear(y, f"{name}.mlp.3")
        return (layers.linear(layers.norm(x[:, 0], "encoder.ln", eps), "heads.head"),), {}

    return forward


def bert(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return BERT (Devlin et al. 2018); with a head for classes in training."""
    heads, eps = sizes["num_heads"], 1e-12

    def forward(params: Any, state: Any, data: Any) -> Any:
        layers, tokens, name = _Layers(f, params), data["input"], "embeddings"
        x = params[f"{name}.word_embeddings.weight"][tokens] + params[f"{name}.token_type_embeddings.weight"][0]
        x = x + params[f"{name}.position_embeddings.weight"][: tokens.shape[1]]
        x = layers.norm(x, f"{name}.LayerNorm", eps)
        for i in range(sizes["num_layers"]):
            name = f"encoder.layer.{i}"
            q, k, v = (layers.linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
            mixed = layers.linear(layers.attention(q, k, v, heads), f"{name}.attention.output.dense")
            x = layers.norm(x + mixed, f"{name}.attention.output.LayerNorm", eps)
            y = layers.linear(f.gelu(layers.linear(x, f"{name}.intermediate.dense")), f"{name}.output.dense")
            x = layers.norm(x + y, f"{name}.output.LayerNorm", eps)
        if training:
            x = layers.linear(f.function("tanh")(layers.linear(x[:, 0], "pooler.dense")), "classifier")
        return (x,), {}

    return forward


def gpt(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return GPT-2 (Radford et al. 2019)."""

    def forward(params: Any, state: Any, data: Any) -> Any:
        x, _ = _gpt(_Layers(f, params), sizes, data["input"], None)
        return (x,), {}

    return forward


def gpt_decode(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return GPT-2 behind a text whose keys and values are known, which are joined with the new ones."""

    def forward(params: Any, state: Any, data: Any) -> Any:
        past = [(data[f"past_key_{i}"], data[f"past_value_{i}"]) for i in range(sizes["num_layers"])]
        x, caches = _gpt(_Layers(f, params), sizes, data["input"], past)
        return (x, *caches), {}

    return forward


def _gpt(layers: _Layers, sizes: Mapping[str, Any], tokens: Any, past: Any) -> Any:
    f, params, heads, eps = layers.f, layers.params, sizes["num_heads"], 1e-5
    start = 0 if past is None else past[0][0].shape[2]
    places = params["transformer.wpe.weight"][start : start + tokens.shape[1]]
    x, caches = params["transformer.wte.weight"][tokens] + places, []
    for i in range(sizes["num_layers"]):
        name = f"transformer.h.{i}"
        y = layers.linear(layers.norm(x, f"{name}.ln_1", eps), f"{name}.attn.c_attn")
        width = x.shape[-1]
        q, k, v = (layers.heads(y[..., j * width : (j + 1) * width], heads) for j in range(3))
        if past is not None:
            k, v = f.concat([past[i][0], k], 2), f.concat([past[i][1], v], 2)
            caches += [k, v]
        mixed = layers.joined(f.attention(q, k, v, scale=None, causal=past is None))
        x = x + layers.linear(mixed, f"{name}.attn.c_proj")
        y = f.gelu_tanh(layers.linear(layers.norm(x, f"{name}.ln_2", eps), f"{name}.mlp.c_fc"))
        x = x + layers.linear(y, f"{name}.mlp.c_proj")
    x = layers.norm(x, "transformer.ln_f", eps)
    return f.linear(x, params["transformer.wte.weight"]), caches


def t5(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return encoder and decoder of T5 (Raffel et al. 2020)."""
    heads, eps = sizes["num_heads"], 1e-6

    def forward(params: Any, state: Any, data: Any) -> Any:
        layers = _Layers(f, params)

        def attend(x: Any, memory: Any, name: str, bias: Any) -> Any:
            q, k, v = (layers.linear(read, f"{name}.{part}") for part, read in (("q", x), ("k", memory), ("v", memory)))
            return layers.linear(layers.attention(q, k, v, heads, scale=1.0, bias=bias), f"{name}.o")

        def norm(x: Any, name: str) -> Any:
            return f.rms_norm(x, params[f"{name}.weight"], eps)

        def stack(x: Any, side: str, memory: Any) -> Any:
            is_decoder = memory is not None
            table = params[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
            length = x.shape[1]
            bias = f.transpose(table[f.array(_buckets(length, not is_decoder))], (2, 0, 1))[None]
            if is_decoder:
                bias = bias + f.array(np.triu(np.full((length, length), -1e9, np.float32), 1))
            for i in range(sizes["num_layers"]):
                name = f"{side}.block.{i}.layer"
                y = norm(x, f"{name}.0.layer_norm")
                x = x + attend(y, y, f"{name}.0.SelfAttention", bias)
                if is_decoder:
                    x = x + attend(norm(x, f"{name}.1.layer_norm"), memory, f"{name}.1.EncDecAttention", None)
                name = f"{name}.{2 if is_decoder else 1}"
                y = f.relu(layers.linear(norm(x, f"{name}.layer_norm"), f"{name}.DenseReluDense.wi"))
                x = x + layers.linear(y, f"{name}.DenseReluDense.wo")
            return norm(x, f"{side}.final_layer_norm")

        shared = params["shared.weight"]
        memory = stack(shared[data["source"]], "encoder", None)
        x = stack(shared[data["input"]], "decoder", memory)
        return (f.linear(x * shared.shape[1] ** -0.5, shared),), {}

    return forward


def _buckets(length: int, both_ways: bool, count: int = 32, farthest: int = 128) -> np.ndarray[Any, Any]:
    """Return the bucket of each distance between tokens: near ones each their own, far ones by their logarithm."""
    distance = np.arange(length)[None] - np.arange(length)[:, None]
    result: np.ndarray[Any, Any] = np.zeros_like(distance)
    if both_ways:
        count //= 2
        result += count * (distance > 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(-distance, 0)
    near = count // 2
    far = np.log(np.maximum(distance, 1).astype(np.float32) / near) / math.log(farthest / near) * (count - near)
    buckets: np.ndarray[Any, Any] = np.where(distance < near, distance, np.minimum(near + far.astype(int), count - 1))
    result += buckets
    return result


def clip(f: Any, sizes: Mapping[str, Any], training: bool) -> Network:
    """Return CLIP with a vision transformer (Radford et al. 2021)."""
    eps = 1e-5

    def forward(params: Any, state: Any, data: Any) -> Any:
        layers = _Layers(f, params)

        def blocks(x: Any, side: str, count: int, heads: int, causal: bool) -> Any:
            for i in range(count):
                name = f"{side}transformer.resblocks.{i}"
                weight, bias = (params[f"{name}.attn.in_proj_{kind}"] for kind in ("weight", "bias"))
                mixed = layers.packed_attention(layers.norm(x, f"{name}.ln_1", eps), weight, bias, heads, causal)
                x = x + layers.linear(mixed, f"{name}.attn.out_proj")
                y = f.quick_gelu(layers.linear(layers.norm(x, f"{name}.ln_2", eps), f"{name}.mlp.c_fc"))
                x = x + layers.linear(y, f"{name}.mlp.c_proj")
            return x

        x = f.convolution(data["image"], params["visual.conv1.weight"], sizes["vision_patch_size"], 0)
        x = f.transpose(x.reshape(x.shape[0], x.shape[1], -1), (0, 2, 1))
        first = f.broadcast(params["visual.class_embedding"], (x.shape[0], 1, x.shape[2]))
        x = layers.norm(f.concat([first, x], 1) + params["visual.positional_embedding"], "visual.ln_pre", eps)
        x = blocks(x, "visual.", sizes["vision_layers"], sizes["vision_width"] // 64, False)
        image = f.unit_length(layers.norm(x[:, 0], "visual.ln_post", eps) @ params["visual.proj"])
        tokens = data["text"]
        x = params["token_embedding.weight"][tokens] + params["positional_embedding"][: tokens.shape[1]]
        x = blocks(x, "", sizes["transformer_layers"], sizes["transformer_heads"], True)
        ends = layers.norm(x, "ln_final", eps)[f.positions(tokens.shape[0]), f.argmax(tokens)]
        text = f.unit_length(ends @ params["text_projection"])
        per_image = f.function("exp")(params["logit_scale"]) * (image @ text.T)
        return (per_image, per_image.T, image, text), {}

    return forward
