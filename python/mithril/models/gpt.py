"""GPT-2 (Radford et al. 2019): a stack of transformer blocks that predicts the next token."""

from __future__ import annotations

from typing import Any

from .._core import Connection, IOKey, Model
from .._generated.layers import Embedding, Gelu, LayerNorm, Linear
from ..errors import InvalidValueError

__all__ = ["create_gpt"]


def create_gpt(
    bias: bool = True,
    block_size: int = 128,
    dims: int = 768,
    num_heads: int = 12,
    num_layers: int = 12,
    vocab_size: int = 50304,
    *,
    tied: bool = True,
) -> Model:
    """Build GPT-2: the defaults are its smallest size, 124 million parameters, for short texts.

    Parameters are called as in the published weights (``transformer.h.0.attn.c_attn.weight``); matrices are laid out
    as those of `Linear`, ``[out, in]``.

    Parameters
    ----------
    bias : bool, optional
        Whether linear layers and normalisations have biases.
    block_size : int, optional
        Largest number of tokens of a text.
    dims : int, optional
        Number of features of a token.
    num_heads : int, optional
        Heads of the attention; a divisor of ``dims``.
    num_layers : int, optional
        Number of blocks.
    vocab_size : int, optional
        Number of different tokens.
    tied : bool, optional
        Whether the table of token embeddings is also the matrix of the output layer, as in GPT-2. Otherwise that
        has a matrix of its own, ``lm_head.weight``.

    Returns
    -------
    Model
        From ``input``, integers ``[batch, length]``, to ``output``, logits ``[batch, length, vocab_size]``.

    Examples
    --------
    >>> import mithril as ml
    >>> import numpy as np
    >>> from mithril.models import create_gpt
    >>> model = create_gpt(block_size=16, dims=32, num_heads=4, num_layers=2, vocab_size=100)
    >>> compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": ["batch", "length"]})
    >>> compiled(np.array([[1, 2, 3]])).shape
    (1, 3, 100)
    """
    sizes = {
        "block_size": block_size,
        "dims": dims,
        "num_heads": num_heads,
        "num_layers": num_layers,
        "vocab_size": vocab_size,
    }
    for name, size in sizes.items():
        if isinstance(size, bool) or not hasattr(size, "__index__") or size < 1:
            raise InvalidValueError(f"{name} is {size!r}", hint="give a positive integer")
    if dims % num_heads != 0:
        raise InvalidValueError(f"{dims} dims cannot be divided among {num_heads} heads", hint="give a divisor of dims")

    transformer = Model(name="transformer")
    transformer |= Embedding(vocab_size, dims, name="wte")(input="input", output="tokens")
    transformer |= positions(block_size, dims)(input="input", output="positions")
    blocks = Model(name="h")
    for i in range(num_layers):
        blocks += block(dims, num_heads, bias, str(i))()
    transformer |= blocks(input=IOKey("tokens") + IOKey("positions"), output="blocks")
    transformer |= LayerNorm(bias=bias, name="ln_f")(input="blocks", output="output")

    gpt = Model(name="gpt")
    gpt |= transformer(input="input", output="features")
    head = Linear(vocab_size, bias=False, name="lm_head")
    shared: dict[str, Any] = {"weight": "transformer.wte.weight"} if tied else {}
    gpt |= head(input="features", output="output", **shared)
    return gpt


def positions(block_size: int, dims: int) -> Model:
    """Build the learned vectors of the positions: as many as the text has tokens."""
    tokens = IOKey("input", shape=[None, None], dtype="int64")
    table = IOKey("weight", shape=[block_size, dims], trainable=True)
    model = Model.create(output=table.slice((0,), (tokens.shape[1],)))
    model.name = "wpe"
    return model


def block(dims: int, num_heads: int, bias: bool, name: str) -> Model:
    """Build a block: attention and two linear layers, each behind a normalisation and beside a shortcut."""
    x = IOKey("input", shape=[None, None, dims])
    x1 = x + attention(dims, num_heads, bias)(LayerNorm(bias=bias, name="ln_1")(x))
    model = Model.create(output=x1 + mlp(dims, bias)(LayerNorm(bias=bias, name="ln_2")(x1)))
    model.name = name
    return model


def attention(dims: int, num_heads: int, bias: bool) -> Model:
    """Build causal self-attention with several heads."""
    x = IOKey("input", shape=[None, None, dims])
    batch, length = x.shape[0], x.shape[1]

    def heads(part: Connection) -> Any:
        return part.reshape((batch, length, num_heads, dims // num_heads)).transpose((0, 2, 1, 3))

    query, key, value = map(heads, Linear(3 * dims, bias=bias, name="c_attn")(x).split(3, axis=-1))
    attended = query.scaled_dot_product_attention(key, value, is_causal=True)
    merged = attended.transpose((0, 2, 1, 3)).reshape((batch, length, dims))
    model = Model.create(output=Linear(dims, bias=bias, name="c_proj")(merged))
    model.name = "attn"
    return model


def mlp(dims: int, bias: bool) -> Model:
    """Build the two linear layers of a block."""
    model = Model(name="mlp")
    model |= Linear(4 * dims, bias=bias, name="c_fc")(input="input")
    model += Gelu(approximate="tanh")()
    model += Linear(dims, bias=bias, name="c_proj")(output="output")
    return model
