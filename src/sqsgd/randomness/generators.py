"""The private generators of many clients at once: their first words in bulk, without an object for each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from sqsgd import checks
from sqsgd.randomness import Keystream
from sqsgd.randomness.keystream import fastest_mode
from sqsgd.randomness.private import FIRST_WORDS, SEEDED, Rng
from sqsgd.randomness.public import derived

Words = npt.NDArray[np.uint64]


class Rngs(Sequence[Rng]):
    """As many private generators as there are keys; make them with ``secure_rngs`` or ``seeded_rngs``.

    A batch takes ``words`` and ``later`` of all generators. Where these words do not decide a client's
    draw, ``rngs[i]`` starts again from the client's first word, so that the decision rests on the same
    bits and further ones: no draw is repeated because of its outcome.

    Guarantees
    ----------
    * They serve one batch of reports, in the process that made them; a second use, which would repeat the
      noise, is refused: tests/randomness/test_generators.py::test_generators_serve_one_batch.
    * ``words`` and ``later`` are what the generators themselves return:
      tests/randomness/test_generators.py::test_words_are_those_of_single_generators.

    >>> rngs = seeded_rngs(1 << 64, np.array([5, 6], np.uint64))
    >>> rngs.words(1).tolist() == [[rng.word()] for rng in rngs]
    True
    """

    def __init__(self, keys: Words, seeds: tuple[int, Words] | None = None) -> None:
        self._keys, self._seeds = keys, seeds
        self._used = np.zeros(len(keys), np.bool_)  # shared with the parts that slices are
        self._process = os.getpid()

    def claim(self) -> None:
        """Reserve the generators for one batch; raises RuntimeError if they served another."""
        if self._process != os.getpid():
            raise RuntimeError("these generators were created in another process, which has the same noise")
        if self._used.any():
            raise RuntimeError("these generators have served a batch of reports: their noise would repeat")
        self._used[:] = True

    @property
    def protects(self) -> bool:
        """Whether the keys come from the operating system."""
        return self._seeds is None

    def __len__(self) -> int:
        return len(self._keys)

    @overload
    def __getitem__(self, index: int) -> Rng: ...
    @overload
    def __getitem__(self, index: slice) -> Rngs: ...
    def __getitem__(self, index: int | slice) -> Rng | Rngs:
        """One generator, at its beginning; or some of them."""
        if isinstance(index, slice):
            seeds = None if self._seeds is None else (self._seeds[0], self._seeds[1][index])
            part = Rngs(self._keys[index], seeds)
            part._used, part._process = self._used[index], self._process
            return part
        if self._seeds is not None:
            return Rng(self._seeds[0] + int(self._seeds[1][index]))
        return Rng(key=self._keys[index].tobytes())

    def words(self, count: int) -> Words:
        """What each generator's first ``count`` calls of ``word`` return, one row per generator."""
        checks.integer("count", count, 1, FIRST_WORDS)
        even = count + (count & 1)  # a generator returns the words of its first blocks from the last one on
        return self._stream(FIRST_WORDS - even, even)[:, ::-1][:, :count]

    def later(self, count: int) -> Words:
        """What each generator's ``words(count)`` returns after one to FIRST_WORDS calls of ``word``."""
        return self._stream(FIRST_WORDS, count)

    def __reduce__(self) -> NoReturn:
        raise TypeError("private generators cannot be copied or pickled: copies would repeat their noise")

    def _stream(self, first: int, count: int) -> Words:
        """``count`` words of each keystream from the word ``first`` on, which is even."""
        from sqsgd.kernels.keystreams import HARDWARE, streams

        rows = np.empty((len(self), count), np.uint64)
        if HARDWARE or not self.protects:
            streams(self._keys, first // 2, rows)
            return rows
        for key, row in zip(self._keys, rows, strict=True):  # tables in memory would reveal the key
            keystream, skipped = Keystream(key.tobytes(), fastest_mode()), np.empty(8 * first, np.uint8)
            keystream.fill(skipped)
            keystream.fill(row.view(np.uint8))
        return rows


def uniforms_of(words: Words) -> npt.NDArray[np.float64]:
    """What ``Rng.uniform`` makes of each word."""
    return np.asarray((words >> np.uint64(11)) * 2.0**-53, np.float64)


def ranks_of(words: Words, bounds: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """What ``Rng.below`` makes of each word, and whether it accepts the word; bounds are from 1 to 2^63.

    tests/randomness/test_generators.py::test_ranks_are_those_of_below.
    """
    below = np.broadcast_to(np.asarray(bounds, np.uint64), words.shape)
    uneven = np.negative(below) % below  # 2^64 mod bound: as many words are rejected, the largest ones
    return (words % below).astype(np.int64), (uneven == 0) | (words < np.negative(uneven))


def secure_rngs(count: int) -> Rngs:
    """Generators for real data, each with its own key from the operating system: see ``secure_rng``.

    >>> len(secure_rngs(3)), secure_rngs(3).protects
    (3, True)
    """
    keys = np.frombuffer(os.urandom(32 * count), np.uint64).reshape(count, 4)
    return Rngs(keys.copy())


def seeded_rngs(base: int, numbers: npt.NDArray[np.uint64]) -> Rngs:
    """The generators ``seeded_rng(base + number)``, which protect nobody; base is a multiple of 2^64.

    >>> seeded_rngs(0, np.array([7], np.uint64))[0]
    seeded_rng(7)  # for experiments: protects nobody
    """
    if base % 2**64 or not 0 <= base < 2**256:
        raise ValueError(f"base = {base} must be a multiple of 2^64 below 2^256")
    message: Any = base.to_bytes(32, "little") + bytes(8)
    return Rngs(derived(SEEDED, message, 0, numbers), (base, numbers))
