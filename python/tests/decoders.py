"""A tiny decoder, with a cache and without, and GPT-2 of transformers with its weights for ours."""

import mithril as ml
from mithril import Embedding, IOKey, Linear, Model

VOCABULARY, DIMS, HEADS, CONTEXT = 11, 8, 2, 200


def tiny_decoder(cache=False, last_only=False):
    """One layer of attention with learned positions; the cache is written by products with zeros and ones."""
    tokens = IOKey("input", shape=[None, None], dtype="int64")
    batch, length = tokens.shape[0], tokens.shape[1]
    features = DIMS // HEADS

    def heads(part):
        return part.reshape((batch, length, HEADS, features)).transpose((0, 2, 1, 3))

    slots = length.arange().reshape((1, length))
    if cache:
        position = IOKey("position", shape=[], dtype="int64")
        padding = IOKey("padding", shape=[None], dtype="int64")
        past_key, past_value = (
            IOKey(name, shape=[None, HEADS, None, features]) for name in ("past_key_0", "past_value_0")
        )
        new = slots + position
        capacity = past_key.shape[2]
        every = capacity.arange()
        written = (every.reshape((capacity, 1)) == new).cast("float32")
        kept = (1 - written.sum(axis=1)).reshape((capacity, 1))
        seen = every.reshape((1, capacity)) <= new.reshape((length, 1))
        later = every.reshape((1, 1, 1, capacity)) >= padding.reshape((batch, 1, 1, 1))
        mask = seen.reshape((1, 1, length, capacity)) & later
        places = (new - padding.reshape((batch, 1))).maximum(0)
    else:
        mask = (slots <= slots.reshape((length, 1))).reshape((1, 1, length, length))
        places = slots
    x = Embedding(VOCABULARY, DIMS, name="tokens")(tokens) + Embedding(CONTEXT, DIMS, name="places")(places)
    query, key, value = map(heads, Linear(3 * DIMS, name="attention")(x).split(3, axis=-1))
    if cache:
        key, value = past_key * kept + written @ key, past_value * kept + written @ value
    scores = mask.where(query @ key.transpose((0, 1, 3, 2)), -1e9)
    attended = (scores.softmax(axis=-1) @ value).transpose((0, 2, 1, 3)).reshape((batch, length, DIMS))
    output = Linear(VOCABULARY, name="head")(x + attended)
    if not cache:
        return Model.create(output=output)
    output = output.slice((None, -1), (None, None)) if last_only else output
    return Model.create(output=output, key_0=key, value_0=value)


def weights(seed=0, scale=2.0):
    """Parameters of the tiny decoder, large enough that it does not repeat itself."""
    compiled = ml.compile(tiny_decoder(), ml.NumpyBackend(), shapes={"input": ["batch", "length"]})
    return {name: array * scale for name, array in compiled.randomize_params(seed).items()}
