"""Which client holds which examples, which clients take part in a round, and which examples they use.

Everything here is a pure function of its arguments, so a resumed run is bit-identical. Random words come
directly from PCG64, whose stream NumPy keeps stable; of the methods of ``Generator``, which may change
between NumPy versions, only the Dirichlet draw is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]
_Labels: TypeAlias = npt.NDArray[np.generic]

_PARTITION, _COHORT, _BATCH, _DRAW = 1, 2, 3, 5  # purposes: each has its own stream
NATURAL = "natural"


class Parts(ABC):
    """The positions of each client's examples."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of clients."""

    @abstractmethod
    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        """The positions of many clients one after the other, and where each client's begin; the end, last."""

    def __getitem__(self, client: int) -> Indices:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.together(np.array([client]))[0]


class SharedParts(Parts):
    """Parts that divide one array.

    >>> parts = SharedParts(np.array([4, 5, 6, 7]), np.array([0, 3, 4]))
    >>> parts[0].tolist(), [array.tolist() for array in parts.together(np.array([1, 0]))]
    ([4, 5, 6], [[7, 4, 5, 6], [0, 1, 4]])
    """

    def __init__(self, order: Indices, bounds: Indices) -> None:
        self._order, self._bounds = order, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        starts, stops = self._bounds[clients], self._bounds[clients + 1]
        bounds = np.append(0, np.cumsum(stops - starts))
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], stops - starts)
        return self._order[places], bounds


class DrawnParts(Parts):
    """One example for each of any number of clients, drawn with replacement and computed on access.

    >>> parts = DrawnParts(examples=60_000, clients=10**9, seed=7)
    >>> len(parts), len(parts[123_456_789])
    (1000000000, 1)
    """

    def __init__(self, *, examples: int, clients: int, seed: int) -> None:
        self._examples, self._clients = examples, clients
        self._key = np.uint64(_stream(_DRAW, seed).random_raw())

    def __len__(self) -> int:
        return self._clients

    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        high, low = np.divmod(_mixed(clients.astype(np.uint64) ^ self._key), np.uint64(1 << 32))
        count = np.uint64(self._examples)
        # The upper half of word * count, which errs by less than count / 2^64.
        found = (high * count + (low * count >> np.uint64(32))) >> np.uint64(32)
        return found.astype(np.int64), np.arange(len(clients) + 1)


def partition(
    labels: npt.ArrayLike, clients: int, scheme: str, seed: int, owners: Indices | None = None
) -> Parts:
    """Assign examples to clients. Except with ``drawn`` and ``natural`` each goes to exactly one client.

    Args:
        labels: The label of each example.
        clients: How many clients there are. None of them is empty.
        scheme: One of

            - ``iid``: a random split, sizes differing by at most one.
            - ``dirichlet:BETA``: each class is split with shares drawn from Dirichlet(BETA); a small BETA
              gives each client few classes (Hsu, Qi and Brown 2019, drawn class by class). Sizes differ.
            - ``shards:N``: sorted by label and cut into ``N * clients`` shards, N per client (McMahan et al.
              2017, section 3).
            - ``drawn``: one example per client, drawn with replacement, for any number of clients.
            - ``natural``: the data's own clients; the first of them if ``clients`` are fewer.
        seed: Decides every draw.
        owners: The client of each example, 0, 1, 2, ..., for ``natural``.

    Raises:
        ValueError: If the scheme is unknown, or does not fit the labels or the number of clients.

    >>> [len(part) for part in partition([0, 1] * 5, clients=3, scheme="iid", seed=7)]
    [3, 3, 4]
    """
    classes = np.asarray(labels)
    _require_at_least(clients=(clients, 1), seed=(seed, 0))
    kind, _, value = scheme.partition(":")
    if scheme == NATURAL:
        return _natural(owners, clients)
    if scheme == "drawn":
        return DrawnParts(examples=len(classes), clients=clients, seed=seed)
    if scheme != "iid" and kind not in ("dirichlet", "shards"):
        raise ValueError(
            f"partition {scheme!r} is unknown; write iid, dirichlet:BETA, shards:N, drawn or {NATURAL}"
        )
    if kind != "iid" and (classes.ndim != 1 or classes.dtype.kind == "f"):
        raise ValueError(f"partition {scheme!r} needs one class per example; write iid, drawn or {NATURAL}")
    if clients > len(classes):
        raise ValueError(f"{clients:,} clients cannot share {len(classes):,} images: each needs at least one")
    words = _stream(_PARTITION, seed)
    if kind == "iid":
        return SharedParts(_permutation(len(classes), words), _even_bounds(len(classes), clients))
    return (_dirichlet if kind == "dirichlet" else _shards)(classes, clients, value, words)


def cohort(clients: int, size: int, round: int, seed: int) -> Indices:
    """A uniform subset of the clients for one round, in increasing order, in O(size) memory.

    >>> cohort(clients=10_000, size=4, round=0, seed=7).shape
    (4,)
    """
    _require_at_least(clients=(clients, 1), size=(size, 1), round=(round, 0), seed=(seed, 0))
    if size > clients:
        raise ValueError(f"a cohort of {size:,} cannot be drawn from {clients:,} clients")
    return _subset(clients, size, _stream(_COHORT, seed, round))


def batch_indices(indices: Indices, batch_size: int, round: int, client: int, seed: int) -> Indices:
    """A client's batch R for one round: uniform without replacement; all its data if there is no more.

    >>> batch_indices(np.arange(10), batch_size=10, round=0, client=3, seed=7)
    array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    _require_at_least(batch_size=(batch_size, 1), round=(round, 0), client=(client, 0), seed=(seed, 0))
    if batch_size >= len(indices):
        return indices
    return indices[_subset(len(indices), batch_size, _stream(_BATCH, seed, round, client))]


def _dirichlet(classes: _Labels, clients: int, value: str, words: np.random.PCG64) -> SharedParts:
    try:
        beta = float(value)
    except ValueError:
        beta = math.nan
    if not 0 < beta < math.inf:
        raise ValueError(
            f"partition 'dirichlet:{value}': BETA must be a positive number, for example dirichlet:0.5"
        )
    generator = np.random.Generator(words)
    owners = np.empty(len(classes), np.int64)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        members = members[_permutation(len(members), words)]
        shares = np.cumsum(generator.dirichlet(np.full(clients, beta)))
        # The last bound is set, not computed: the sum of the shares may round to just below one.
        bounds = np.append(np.floor(shares[:-1] * len(members)), len(members))
        owners[members] = np.searchsorted(bounds, np.arange(len(members)), side="right")
    order, sizes = np.argsort(owners, kind="stable"), np.bincount(owners, minlength=clients)
    starts = np.cumsum(sizes) - sizes
    for empty in np.flatnonzero(sizes == 0):
        # Some client has at least two examples, because there are no more clients than examples.
        giver = int(np.argmax(sizes))
        sizes[giver] -= 1
        sizes[empty] = 1
        owners[order[starts[giver] + sizes[giver]]] = empty
    return SharedParts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes)))


def _shards(classes: _Labels, clients: int, value: str, words: np.random.PCG64) -> SharedParts:
    each = int(value) if value.isascii() and value.isdecimal() else 0
    count = clients * each
    if not 0 < count <= len(classes):
        raise ValueError(
            f"partition 'shards:{value}': N must be a whole number, for example shards:2, and at most "
            f"{len(classes) // clients}, because {clients:,} clients share {len(classes):,} images"
        )
    shuffled = _permutation(len(classes), words)
    by_label = shuffled[np.argsort(classes[shuffled], kind="stable")]
    dealt, bounds = SharedParts(by_label, _even_bounds(len(classes), count)).together(
        _permutation(count, words)
    )
    return SharedParts(dealt, bounds[::each])


def _natural(owners: Indices | None, clients: int) -> SharedParts:
    if owners is None:
        raise ValueError(f"partition {NATURAL!r}: these data do not say which client an example belongs to")
    sizes = np.bincount(owners)
    if clients > len(sizes):
        raise ValueError(
            f"partition {NATURAL!r}: clients = {clients:,}, but {len(sizes):,} clients have training examples"
        )
    return SharedParts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes[:clients])))


def _even_bounds(total: int, parts: int) -> Indices:
    return np.arange(parts + 1, dtype=np.int64) * total // parts


def _stream(*key: int) -> np.random.PCG64:
    # NumPy keeps both SeedSequence and PCG64 stable between versions.
    return np.random.PCG64(np.random.SeedSequence(key))


def _permutation(size: int, words: np.random.PCG64) -> Indices:
    # The order of random 64-bit keys: two of 100,000 keys are equal with probability below 3e-10.
    return np.argsort(words.random_raw(size), kind="stable")


def _mixed(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014): every input bit affects every output bit."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)


def _subset(total: int, size: int, words: np.random.PCG64) -> Indices:
    """Floyd's algorithm: every subset is equally likely, in O(size) memory (Bentley and Floyd 1987)."""
    chosen: set[int] = set()
    for last, word in zip(range(total - size, total), words.random_raw(size).tolist(), strict=True):
        # Scaling a 64-bit word to 0..last errs by less than total / 2^64 in probability.
        candidate = word * (last + 1) >> 64
        chosen.add(last if candidate in chosen else candidate)
    return np.array(sorted(chosen), np.int64)


def _require_at_least(**bounds: tuple[int, int]) -> None:
    for name, (value, least) in bounds.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}, not {value}")
