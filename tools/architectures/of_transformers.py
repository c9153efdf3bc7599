"""Architectures of transformers with random weights, as small as their configs allow, and inputs for them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .network import Network, NotCompared, called, check_size, fill_zeros

#: Sizes that make networks small, by the names that configs have for them.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("linear_num_value_heads", "linear_num_key_heads", "rotary_dim"), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group", "bos_token_id"), 1),
    **dict.fromkeys(("num_experts_per_tok", "num_key_value_heads", "type_vocab_size", "eos_token_id"), 2),
    "moe_intermediate_size": 32,
    "pad_token_id": 0,
    "image_size": 32,
    "patch_size": 8,
    "sliding_window": 4,
    "vocab_size": 99,
}

#: Names that configs have for numbers of layers.
LAYERS = (
    "num_hidden_layers",
    "n_layer",
    "num_layers",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "num_decoder_layers",
)

#: Sizes that fit almost any others, with so many layers.
FEW = {layers: {**dict.fromkeys(LAYERS, layers), "vocab_size": 99} for layers in (2, 4)}

#: The same with few experts.
FEW_EXPERTS = {**FEW[2], **{key: SIZES[key] for key in SIZES if "expert" in key or "group" in key}}

#: Heads as wide as those of large networks.
WIDE_HEADS = {**SIZES, "hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}

#: What is tried in order: sizes, and what the widths are divided by that an architecture has of its own. Some need a
#: width that is a multiple of another, and some have layers of a second kind at each fourth place.
ATTEMPTS = (
    (SIZES, 1),
    (SIZES | FEW[4], 1),
    (FEW[2], 8),
    (FEW[4], 8),
    (FEW_EXPERTS, 8),
    (WIDE_HEADS, 1),
    (FEW[2], 1),
)

#: Names of sizes that are divided together.
WIDTHS = re.compile(
    r"dim|width|hidden|embd|rank|inner|d_model|intermediate|channels|filters|section|features|d_ff|d_kv"
)


def names() -> list[str]:
    """Names of all architectures."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def _shrink(config: Any, sizes: Mapping[str, int], divisor: int, depth: int = 0) -> Any:
    """Set the sizes that a config has, also in the configs inside of it; dropout is switched off."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 2:
            _shrink(value, sizes, divisor, depth + 1)
        elif isinstance(value, float) and "drop" in key:
            setattr(config, key, 0.0)
        elif divisor > 1 and WIDTHS.search(key):
            setattr(config, key, _divided(value, divisor))
        elif divisor > 1 and isinstance(value, dict):
            setattr(config, key, {k: _divided(v, divisor) if WIDTHS.search(str(k)) else v for k, v in value.items()})
    for key, size in sizes.items():
        if type(getattr(config, key, None)) is int:
            setattr(config, key, size)
    return config


def _divided(value: Any, divisor: int) -> Any:
    """Divide widths, of a list each; what is small already stays."""
    if isinstance(value, list | tuple):
        small = [_divided(v, divisor) for v in value]
        return type(value)(small) if all(a != b for a, b in zip(value, small, strict=True)) else value
    return value // divisor if type(value) is int and value >= divisor and value % divisor == 0 else value


def _build(name: str, sizes: Mapping[str, int], divisor: int) -> tuple[Any, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    kind = CONFIG_MAPPING[name]
    try:
        # Some sizes follow from others when a config is made.
        plain = kind().to_dict()
        config = kind(**{key: size for key, size in sizes.items() if type(plain.get(key)) is int})
        _shrink(config, {}, divisor, 2)
        for value in vars(config).values():
            if hasattr(value, "to_dict"):
                _shrink(value, sizes, divisor, 1)
    except Exception:
        config = _shrink(kind(), sizes, divisor)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = MODEL_MAPPING[type(config)]
    model = model[0] if isinstance(model, (tuple, list)) else model
    check_size(lambda: model(config))
    return config, model(config).eval()


def _size(config: Any, keys: Sequence[str], otherwise: int) -> int:
    """Return a size by one of its names, of a config or of one inside of it."""
    nested = [value for value in vars(config).values() if hasattr(value, "to_dict")]
    for part in (config, *nested):
        for key in keys:
            value = getattr(part, key, None)
            value = value[0] if isinstance(value, list | tuple) and value else value
            if type(value) is int:
                return value
    return otherwise


def _candidates(config: Any, model: Any) -> Iterator[dict[str, Any]]:
    """Return inputs to try, by name: at first the main one alone."""
    import torch

    generator = np.random.default_rng(0)

    def floats(*shape: int) -> Any:
        return torch.from_numpy(generator.standard_normal(shape, np.float32))

    def images(pixels: int) -> Any:
        return floats(1, _size(config, ("num_channels", "in_channels", "in_chans"), 3), pixels, pixels)

    name, own = model.main_input_name, _size(config, ("image_size",), 32)
    takes = inspect.signature(model.forward).parameters
    if name == "input_ids":
        tokens = torch.from_numpy(generator.integers(3, 90, (2, 7)))
        is_pair = getattr(config, "is_encoder_decoder", False)
        texts = {name: tokens, **({"decoder_input_ids": tokens[:, :5].contiguous()} if is_pair else {})}
        yield texts
        if "bbox" in takes:
            yield {**texts, "bbox": torch.from_numpy(np.sort(generator.integers(0, 60, (2, 7, 4)), -1))}
        if "pixel_values" in takes:
            yield {**texts, "pixel_values": images(own)}
    elif name == "pixel_values":
        for pixels in dict.fromkeys((own, 64, 128, 256)):
            yield {name: images(pixels)}
    elif name in ("input_values", "input_features"):
        bins = _size(config, ("num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", "n_mels"), 80)
        for shape in ((1, 2000), (1, 1, 4000), (1, bins, 64), (1, 64, bins), (1, bins, 3000)):
            yield {name: floats(*shape)}
    elif name == "inputs_embeds":
        yield {name: floats(2, 7, _size(config, ("hidden_size", "d_model"), 32))}
    else:
        raise NotCompared(f"it reads `{name}`")


def network(name: str) -> Network:
    """Return an architecture, as small as it works."""
    reasons = []
    for sizes, divisor in ATTEMPTS:
        try:
            return _attempt(name, sizes, divisor)
        except NotCompared as reason:
            reasons.append(reason)
    # That of the smallest network says most.
    raise reasons[0]


def _attempt(name: str, sizes: Mapping[str, int], divisor: int) -> Network:
    """Build an architecture with certain sizes, and call it."""
    import torch

    torch.manual_seed(0)
    stage = "build"
    reason: Exception | None = None
    try:
        config, model = _build(name, sizes, divisor)
        fill_zeros(model)
        stage = "call"
        for inputs in _candidates(config, model):
            try:
                return called(model, tuple(inputs.values()), tuple(inputs))
            except Exception as failure:
                reason = reason or failure
    except Exception as failure:
        reason = failure
    raise NotCompared(f"{stage}: {type(reason).__name__}: {reason}") from reason
