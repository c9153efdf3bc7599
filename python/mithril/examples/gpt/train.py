"""Train a small GPT on a real text, character by character, on every backend that is installed.

The text is the reference of the Python language, as the standard library has it for ``help()``. All backends start from
the same parameters and see the same batches. For comparison: the entropy of the characters (what one can know
without looking at the characters before), and that of a character when the one before is known.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np

import mithril as ml
from mithril.generation import Sampling, compile_decoder, generate_tokens
from mithril.models import create_gpt

from ..curves import COMPILED, parser, train_everywhere

#: Sizes of the model, and characters of an example.
LENGTH = 64
SIZES: dict[str, Any] = {"block_size": LENGTH, "dims": 64, "num_heads": 4, "num_layers": 2}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Text:
    """A text as numbers of characters.

    Attributes
    ----------
    characters : list of str
        All that occur.
    train, validation : ndarray
        Examples ``[n, length + 1]``: one character more than the model reads, so that each has a next one.
    """

    characters: list[str]
    train: Array
    validation: Array

    @classmethod
    def of(cls, text: str, length: int = LENGTH, share: float = 0.9) -> Text:
        """Cut a text into examples; the last tenth of it is for validation."""
        characters = sorted(set(text))
        numbers = {character: number for number, character in enumerate(characters)}
        tokens = np.array([numbers[character] for character in text])
        at = int(share * len(tokens))
        return cls(characters, *(_examples(part, length) for part in (tokens[:at], tokens[at:])))

    def entropies(self) -> dict[str, float]:
        """Return the entropy of the characters, and of those whose predecessor is known, in nats."""
        pairs = np.zeros((len(self.characters), len(self.characters)))
        np.add.at(pairs, (self.train[:, :-1].ravel(), self.train[:, 1:].ravel()), 1)
        pairs /= pairs.sum()
        alone, before = pairs.sum(0), pairs.sum(1)
        return {"entropy": _entropy(alone), "entropy, predecessor known": _entropy(pairs.ravel()) - _entropy(before)}


def _examples(tokens: Array, length: int) -> Array:
    starts = np.arange(0, len(tokens) - length, length)
    windows: Array = tokens[starts[:, None] + np.arange(length + 1)]
    return windows


def _entropy(shares: Array) -> float:
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())


def reference(size: int = 200_000) -> str:
    """Return the beginning of the reference of the Python language."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))[:size]


def initial(compiled: ml.PhysicalModel, seed: int = 0) -> dict[str, Array]:
    """Draw parameters as GPT-2 does, with a deviation of 0.1 instead of 0.02: this model is much narrower."""
    rng = np.random.default_rng(seed)
    params: dict[str, Array] = {}
    for name, value in sorted(compiled.get_parameters().items()):
        if name.endswith("bias"):
            params[name] = np.zeros(value.shape)
        elif ".ln_" in name:
            params[name] = np.ones(value.shape)
        else:
            params[name] = 0.1 * rng.normal(size=value.shape)
    return params


def train(
    backend: ml.Backend, text: Text, epochs: int, sizes: dict[str, Any] = SIZES, **options: Any
) -> tuple[ml.train.History, ml.PhysicalModel]:
    """Train a model on a text; see `mithril.train.fit` for the options."""
    gpt = create_gpt(vocab_size=len(text.characters), **sizes)
    shapes = {"input": ["batch", "length"]}
    compiled = ml.compile(gpt, backend, shapes=shapes, jit=backend.name in COMPILED)
    compiled.load_params(initial(compiled))
    chosen = {"optimizer": ml.optim.AdamW(0.003), "batch_size": 16, "metrics": ["accuracy"], **options}
    history = ml.train.fit(
        compiled,
        (text.train[:, :-1], text.train[:, 1:]),
        loss="token_cross_entropy",
        validation=(text.validation[:, :-1], text.validation[:, 1:]),
        epochs=epochs,
        **chosen,
    )
    return history, compiled


def sample(compiled: ml.PhysicalModel, text: Text, beginning: str = "The ") -> str:
    """Let the model write."""
    decoder = compile_decoder(create_gpt(vocab_size=len(text.characters), **SIZES), compiled.backend)
    decoder.load_params(compiled.get_parameters())
    prompt = [text.characters.index(character) for character in beginning]
    sampling = Sampling(temperature=0.7, seed=1)
    written = generate_tokens(decoder, [prompt], LENGTH - len(prompt), sampling=sampling, context=LENGTH)
    return beginning + "".join(text.characters[token] for [token] in written if token is not None)


def main(arguments: list[str] | None = None) -> int:
    """Run the program."""
    options = parser(__doc__ or "", epochs=4).parse_args(arguments)
    text = Text.of(reference())
    print(f"{len(text.characters)} different characters; {len(text.train)} examples of {LENGTH}")
    for name, value in text.entropies().items():
        print(f"{name}: {value:.3f}")

    def run(backend: ml.Backend, options: argparse.Namespace) -> tuple[ml.train.History, ml.PhysicalModel]:
        folder = None if options.checkpoint is None else options.checkpoint / f"{backend.name}-{options.dtype}"
        return train(backend, text, options.epochs, checkpoint=folder)

    compiled = train_everywhere(run, options, "gpt", text.entropies())
    print(f"the model writes: {sample(compiled, text)!r}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
