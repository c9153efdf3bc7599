"""A page on which a decoder continues texts: that of a folder, or one of GPT-2's size with random weights.

Random weights write nonsense as fast as trained ones write sense: they show what a page can do without a download.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mithril as ml
from mithril.generation import TextGenerator, Tokenizer, compile_decoder
from mithril.models import create_gpt
from mithril.optional_packages import require

__all__ = ["GPT2", "tokenizer_of_sources", "write"]

#: Sizes of GPT-2 with 124 million parameters.
GPT2 = {"block_size": 1024, "dims": 768, "num_heads": 12, "num_layers": 12, "vocab_size": 50257}


def write(
    folder: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    quantize: str | None = None,
    context: int = 256,
    sizes: Mapping[str, int] = GPT2,
) -> Any:
    """Write the page and its model.

    Parameters
    ----------
    folder : path
        Made where it does not exist.
    model : path, optional
        The folder of a checkpoint, or a file of GGUF. Default: random weights.
    quantize : str, optional
        Scheme of the weights; see `mithril.CBackend`. Default: float32.
    context : int, optional
        Largest number of tokens of a text.
    sizes : mapping, optional
        Sizes of the model with random weights (default: GPT-2's).

    Returns
    -------
    ExportedWeb
        What was exported into ``folder``.

    Raises
    ------
    BackendUnavailableError
        If there is no compiler for WebAssembly.
    MissingDependencyError
        If the package ``tokenizers`` is not installed.
    """
    backend: Any = ml.NumpyBackend() if quantize is None else ml.CBackend(quantize=quantize, num_threads=1)
    if model is not None:
        return TextGenerator.from_folder(model, backend).export(folder, context=context, prefix="writer")
    gpt = create_gpt(**dict[str, Any](sizes), cache=True, last_only=True)
    decoder = compile_decoder(gpt, backend)
    tokenizer = tokenizer_of_sources(sizes["vocab_size"])
    generator = TextGenerator(decoder, tokenizer, context=sizes["block_size"], start_token=0)
    return generator.export(folder, context=min(context, sizes["block_size"]), prefix="writer")


def tokenizer_of_sources(size: int) -> Tokenizer:
    """Learn byte pairs, as GPT-2 has them, from the sources of Mithril.

    Parameters
    ----------
    size : int
        Number of tokens; those that the sources do not give are called ``<1000>`` and so on.

    Returns
    -------
    Tokenizer
    """
    library = require("tokenizers", "making a tokenizer")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    letters = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=letters, special_tokens=["<|endoftext|>"], show_progress=False
    )
    files = sorted(Path(ml.__file__).parent.rglob("*.py"))
    tokenizer.train([str(file) for file in files], trainer)
    tokenizer.add_tokens([f"<{number}>" for number in range(tokenizer.get_vocab_size(), size)])
    return Tokenizer(tokenizer)
