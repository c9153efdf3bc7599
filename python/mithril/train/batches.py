"""Data as batches, epoch by epoch, from any position on."""

from __future__ import annotations

import itertools
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from ..backends.exchange import to_host
from ..errors import ParameterError

__all__ = ["Arrays", "Batches", "Stream", "examples_of", "fingerprint", "named", "open_data"]

Batch = Mapping[str, Any]
#: What makes arrays of NumPy.
Convert = Callable[[Any], "np.ndarray[Any, Any]"]


class Batches(ABC):
    """Data cut into batches.

    Attributes
    ----------
    settings : dict
        What the batches depend on, apart from the data themselves.
    per_epoch : int or None
        Number of batches of an epoch, where it is known.
    """

    settings: dict[str, Any]
    per_epoch: int | None = None

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of an epoch; the first is number 1."""

    @abstractmethod
    def resume(self, number: int, done: int) -> tuple[Batch | None, Iterator[Batch]]:
        """Return the batch that was used last, if it can be told, and those of an epoch that are left.

        Parameters
        ----------
        number : int
            Number of the epoch.
        done : int
            How many of its batches were used already.
        """


class Arrays(Batches):
    """Arrays with the examples along the first axis; the order of an epoch depends on nothing but seed and epoch."""

    def __init__(
        self,
        arrays: Mapping[str, Any],
        size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        convert: Convert = to_host,
    ) -> None:
        self._arrays = {name: convert(value) for name, value in arrays.items()}
        lengths = {name: len(value) if value.ndim else 0 for name, value in self._arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ParameterError(
                f"data holds different numbers of examples: {lengths}", hint="examples lie along the first axis of each"
            )
        self._examples = next(iter(lengths.values()), 0)
        if drop_last and self._examples < size:
            raise ParameterError(
                f"the data have {self._examples} examples, and a batch has {size}, so that there is no whole batch",
                hint=f"pass batch_size={max(self._examples, 1)} or less, or drop_last=False",
            )
        self._batches = self.per_epoch = self._examples // size if drop_last else -(-self._examples // size)
        self._size, self._shuffle, self._seed = size, shuffle, seed
        self.settings = {
            "examples": self._examples,
            "batch_size": size,
            "shuffle": shuffle,
            "drop_last": drop_last,
            "seed": seed,
        }

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of an epoch; see `Batches.epoch`."""
        return self._from(number, 0)

    def resume(self, number: int, done: int) -> tuple[Batch | None, Iterator[Batch]]:
        """Return the last batch and those that are left; see `Batches.resume`."""
        epoch, index = (number, done - 1) if done else (number - 1, self._batches - 1)
        last = self._batch(self._order(epoch), index) if epoch and 0 <= index < self._batches else None
        return last, self._from(number, done)

    def _from(self, number: int, first: int) -> Iterator[Batch]:
        order = self._order(number)
        return (self._batch(order, index) for index in range(first, self._batches))

    def _order(self, number: int) -> np.ndarray[Any, Any]:
        # A negative seed is as good as any other, but NumPy's generators take none.
        key = [self._seed % 2**64, number]
        return np.random.default_rng(key).permutation(self._examples) if self._shuffle else np.arange(self._examples)

    def _batch(self, order: np.ndarray[Any, Any], index: int) -> Batch:
        chosen = order[index * self._size : (index + 1) * self._size]
        return {name: value[chosen] for name, value in self._arrays.items()}


class Stream(Batches):
    """Batches that somebody else cuts: an iterable, or a function of the epoch that returns one."""

    def __init__(
        self,
        source: Iterable[Any] | Callable[[int], Iterable[Any]],
        names: Sequence[str],
        seed: int,
        *,
        is_repeatable: bool = False,
    ) -> None:
        self._source, self._names, self._seed = source, names, seed
        if is_repeatable:
            _give_generators(source)
        self.per_epoch = len(source) if isinstance(source, Sized) else None
        self.settings = {"seed": seed}

    def epoch(self, number: int) -> Iterator[Batch]:
        """Return the batches of an epoch; see `Batches.epoch`."""
        source: Any = self._source
        key = int(np.random.SeedSequence([self._seed % 2**64, number]).generate_state(1)[0])
        # Of a DataLoader of PyTorch: the order of an epoch must not depend on the epochs before.
        for generator in _generators(source):
            generator.manual_seed(key)
        for sampler in _samplers(source):
            if callable(getattr(sampler, "set_epoch", None)):
                sampler.set_epoch(number)
        batches = source if isinstance(source, Iterable) else source(number)
        if not isinstance(batches, Iterable):
            raise ParameterError(
                f"the data of epoch {number} are a {type(batches).__name__}",
                hint="return an iterator of batches, or write the function with `yield`",
            )
        return (named(batch, self._names) for batch in batches)

    def resume(self, number: int, done: int) -> tuple[Batch | None, Iterator[Batch]]:
        """Return the last batch and those that are left; see `Batches.resume`."""
        batches, last, read = self.epoch(number), None, 0
        for batch in itertools.islice(batches, done):
            last, read = batch, read + 1
        return last if read == done else None, batches


def _samplers(source: Any) -> list[Any]:
    """Return what chooses the examples of a DataLoader of PyTorch."""
    samplers = [getattr(source, "sampler", None), getattr(source, "batch_sampler", None)]
    samplers.append(getattr(samplers[1], "sampler", None))
    return [s for i, s in enumerate(samplers) if s is not None and all(s is not other for other in samplers[:i])]


def _generators(source: Any) -> list[Any]:
    """Return the random numbers of a DataLoader of PyTorch."""
    generators = [getattr(owner, "generator", None) for owner in (source, *_samplers(source))]
    generators = [
        g for i, g in enumerate(generators) if hasattr(g, "manual_seed") and all(g is not o for o in generators[:i])
    ]
    return generators


def _give_generators(source: Any) -> None:
    """Give samplers of PyTorch that shuffle by the global random numbers a generator of their own."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(source, torch.utils.data.DataLoader):
        return
    for sampler in _samplers(source):
        if getattr(sampler, "generator", sampler) is None:
            sampler.generator = torch.Generator()


def open_data(
    data: Any,
    names: Sequence[str],
    size: int,
    *,
    shuffle: bool = True,
    drop_last: bool = True,
    seed: int = 0,
    convert: Convert = to_host,
    is_repeatable: bool = False,
) -> Batches:
    """Make batches of what a user calls data.

    Parameters
    ----------
    data : mapping, pair, iterable or callable
        See `mithril.train.fit`.
    names : sequence of str
        The inputs of the model.
    size : int
        Examples of a batch, where the data are arrays.
    shuffle, drop_last : bool, optional
        Order of the examples, and what becomes of an incomplete batch, where the data are arrays.
    seed : int, optional
        Seed of the order.
    convert : callable, optional
        Makes arrays of NumPy of those that are given.
    is_repeatable : bool, optional
        Whether a loader that shuffles has to give the same batches again.
    """
    if isinstance(data, tuple) and len(data) == 2 and not hasattr(data[1], "shape"):
        data = _as_pair(data)
    if isinstance(data, tuple) and len(data) == 2 and hasattr(data[1], "shape"):
        data = {**data[0], "target": data[1]} if isinstance(data[0], Mapping) else named(data, names)
    if isinstance(data, Mapping):
        return Arrays(data, size, shuffle=shuffle, drop_last=drop_last, seed=seed, convert=convert)
    # A model is callable, too; so are arrays of examples without targets, which are not batches.
    if hasattr(data, "shape") or not (isinstance(data, Iterable) or callable(data)):
        raise ParameterError(
            f"data is a {type(data).__name__}", hint="pass a dict of arrays, inputs and targets, or a list of batches"
        )
    return Stream(data, names, seed, is_repeatable=is_repeatable)


def _as_pair(data: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return inputs and targets that are given as lists of numbers as arrays; anything else as it is."""
    if not all(isinstance(part, (list, tuple)) for part in data) or any(map(_holds_batches, data)):
        return data
    try:
        inputs, targets = (np.asarray(part) for part in data)
    except ValueError as error:
        raise ParameterError(
            f"data is a pair of lists that are not arrays: {error}", hint="give rows of equal length"
        ) from error
    if any(array.dtype.kind not in "biuf" for array in (inputs, targets)):
        return data
    return inputs, targets


def _holds_batches(part: Sequence[Any]) -> bool:
    """Whether a list is one of arrays, or of dicts, and so a batch rather than numbers."""
    return any(hasattr(item, "shape") or isinstance(item, Mapping) for item in part)


def named(batch: Any, names: Sequence[str]) -> Batch:
    """Return a batch as a mapping; a pair is the one input and the target."""
    if isinstance(batch, Mapping):
        return batch
    inputs = [name for name in names if name != "target"]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or len(inputs) != 1:
        shown = repr(batch) if len(repr(batch)) <= 60 else f"{repr(batch)[:57]}..."
        pair = f", or pairs ({inputs[0]}, target)" if len(inputs) == 1 else ""
        example = ", ".join(f"{name!r}: array" for name in names)
        hint = f"a batch is a dict {{{example}}}{pair}; for lists of numbers pass a dict of arrays instead"
        raise ParameterError(f"a batch of the data is {shown}, of type {type(batch).__name__}", hint=hint)
    return {inputs[0]: batch[0], "target": batch[1]}


def examples_of(batch: Batch) -> int:
    """Return the number of examples of a batch: the length of its arrays, of the target if there is one."""
    first = batch["target"] if "target" in batch else next(iter(batch.values()), ())
    shape = np.shape(first)
    return int(shape[0]) if shape else 1


def fingerprint(batch: Batch, convert: Convert = to_host) -> int:
    """Return a number that tells apart batches with different contents."""
    checksum = 0
    for name in sorted(batch):
        host = np.ascontiguousarray(convert(batch[name]))
        checksum = zlib.crc32(f"{name} {host.dtype} {host.shape}".encode(), checksum)
        checksum = zlib.crc32(host.tobytes(), checksum)
    return checksum
