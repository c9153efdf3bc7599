"""Architectures of transformers with random weights, as small as their configs allow, and inputs for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .network import FirstTensor, Network, NotCompared, fill_zeros

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

#: Those that fit almost any other size.
FEW = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "vocab_size")

#: Elements of all parameters at most.
MOST_PARAMETERS = 60e6


def names() -> list[str]:
    """Names of all architectures."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return list(MODEL_MAPPING_NAMES)


def _shrink(config: Any, sizes: Sequence[str], depth: int = 0) -> Any:
    """Set the sizes that a config has, also in the configs inside of it; dropout is switched off."""
    for key, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 2:
            _shrink(value, sizes, depth + 1)
        elif isinstance(value, float) and "drop" in key:
            setattr(config, key, 0.0)
    for key in sizes:
        if type(getattr(config, key, None)) is int:
            setattr(config, key, SIZES[key])
    return config


def _build(name: str, sizes: Sequence[str]) -> tuple[Any, Any]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    kind = CONFIG_MAPPING[name]
    try:
        # Some sizes follow from others when a config is made.
        plain = kind().to_dict()
        config = _shrink(kind(**{key: SIZES[key] for key in sizes if type(plain.get(key)) is int}), ())
        for value in vars(config).values():
            if hasattr(value, "to_dict"):
                _shrink(value, sizes, 1)
    except Exception:
        config = _shrink(kind(), sizes)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    model = MODEL_MAPPING[type(config)]
    model = model[0] if isinstance(model, (tuple, list)) else model
    import torch

    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model(config).parameters())
    if count > MOST_PARAMETERS:
        raise NotCompared(f"{count / 1e6:.0f} million parameters")
    return config, model(config).eval()


def _inputs(config: Any, model: Any) -> dict[str, Any]:
    """Return inputs by the name of the main one."""
    import torch

    name, generator = model.main_input_name, np.random.default_rng(0)
    if name == "input_ids":
        tokens = torch.from_numpy(generator.integers(3, 90, (2, 7)))
        is_pair = getattr(config, "is_encoder_decoder", False)
        return {name: tokens, **({"decoder_input_ids": tokens[:, :5].contiguous()} if is_pair else {})}

    def size(key: str, otherwise: int) -> int:
        value = getattr(config, key, otherwise)
        return value if isinstance(value, int) else otherwise

    shapes = {
        "pixel_values": (1, size("num_channels", 3), size("image_size", 32), size("image_size", 32)),
        "input_values": (1, 2000),
        "input_features": (1, size("num_mel_bins", 80), 3000 if config.model_type == "whisper" else 64),
    }
    if name not in shapes:
        raise NotCompared(f"it reads `{name}`")
    return {name: torch.from_numpy(generator.standard_normal(shapes[name], np.float32))}


def network(name: str) -> Network:
    """Return an architecture, as small as it works."""
    import torch

    reason: NotCompared | None = None
    for sizes in (tuple(SIZES), FEW):
        torch.manual_seed(0)
        stage = "build"
        try:
            config, model = _build(name, sizes)
            fill_zeros(model)
            stage = "call"
            inputs = _inputs(config, model)
            module, args = FirstTensor(model, list(inputs)).eval(), tuple(inputs.values())
            with torch.no_grad():
                module(*args)
        except Exception as failure:
            # That of the smallest network says most.
            reason = reason or NotCompared(f"{stage}: {type(failure).__name__}: {failure}")
        else:
            return Network(module, args)
    raise reason or NotCompared("build: there are no sizes")
