"""T5 (Raffel et al. 2020) from a configuration: its encoder and its decoder, defined in `mithril.models`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mithril._core import Model
from mithril.errors import InvalidValueError
from mithril.models import from_config

__all__ = ["t5_decode", "t5_encode"]

#: What a configuration says about the model, by the names of transformers.
_ENTRIES = (
    "vocab_size",
    "d_model",
    "d_kv",
    "d_ff",
    "num_layers",
    "num_decoder_layers",
    "num_heads",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "layer_norm_epsilon",
    "feed_forward_proj",
    "tie_word_embeddings",
    "scale_decoder_outputs",
)


def t5_encode(config: Any, **arguments: Any) -> Model:
    """Build the encoder of T5.

    Parameters
    ----------
    config : mapping, path-like or object
        Entries by the names of transformers (``d_model``, ``d_kv``, ``num_heads``, ``num_layers``, ``vocab_size`` …):
        a dict, a folder with a ``config.json``, or an object with such attributes. What is not there is as in the
        smallest published model.
    **arguments
        Further arguments of `mithril.models.t5_encode`, such as ``mask=True``.

    Returns
    -------
    Model
        From ``input``, tokens ``[batch, length]``, to ``output``, features ``[batch, length, d_model]``.

    Examples
    --------
    >>> from mithril.examples.t5 import t5_encode
    >>> t5_encode({"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 100})
    t5_encode(2 layers, inputs=[input], outputs=[output])
    """
    return _build("encoder", config, arguments)


def t5_decode(config: Any, **arguments: Any) -> Model:
    """Build the decoder of T5.

    Parameters
    ----------
    config : mapping, path-like or object
        As for `t5_encode`.
    **arguments
        Further arguments of `mithril.models.t5_decode`, such as ``cache=True``.

    Returns
    -------
    Model
        From ``input``, tokens ``[batch, length]``, and ``memory``, the features of the encoder, to ``output``, logits
        ``[batch, length, vocab_size]``.

    Examples
    --------
    >>> from mithril.examples.t5 import t5_decode
    >>> t5_decode({"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "num_layers": 2, "vocab_size": 100})
    t5_decode(3 layers, inputs=[input, memory], outputs=[output])
    """
    return _build("decoder", config, arguments)


def _build(part: str, config: Any, arguments: Mapping[str, Any]) -> Model:
    if isinstance(config, (str, os.PathLike)):
        return from_config(config, part=part, **arguments)
    if isinstance(config, Mapping):
        entries = {"model_type": "t5", **config}
    else:
        settings = {name: getattr(config, name) for name in _ENTRIES if hasattr(config, name)}
        if not settings:
            raise InvalidValueError(
                f"the configuration is a {type(config).__name__}",
                hint="give a dict, a folder, or an object with attributes such as d_model",
            )
        entries = {"model_type": getattr(config, "model_type", "t5"), **settings}
    return from_config(entries, part=part, **arguments)
