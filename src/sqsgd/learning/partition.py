"""Which client holds which images, which clients take part in a round, and which images they use.

Everything here is a pure function of its arguments, so a resumed run is bit-identical. Random words come
directly from PCG64, whose stream NumPy keeps stable; of the methods of ``Generator``, which may change
between NumPy versions, only the Dirichlet draw is used.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]
_Labels: TypeAlias = npt.NDArray[np.generic]

_PARTITION, _COHORT, _BATCH, _DRAW = 1, 2, 3, 5  # purposes: each has its own stream
NATURAL = "natural"


def partition(
    labels: npt.ArrayLike, clients: int, scheme: str, seed: int, owners: Indices | None = None
) -> Parts:
    """Assign images to clients: one array of positions per client, all views into one array.

    - ``iid``: a random split, sizes differing by at most one.
    - ``dirichlet:BETA``: each class is split with shares drawn from Dirichlet(BETA); a small BETA gives each
      client few classes (Hsu, Qi and Brown 2019, drawn class by class). Sizes differ.
    - ``shards:N``: sorted by label and cut into ``N * clients`` shards, N per client (McMahan et al. 2017,
      section 3).
    - ``drawn``: one image per client, drawn with replacement, for any number of clients.
    - ``natural``: the data's own clients, given by ``owners``; the first of them if ``clients`` are fewer.

    Except with ``drawn`` and ``natural``, every image goes to exactly one client. No client is empty.

    >>> [len(part) for part in partition([0, 1] * 5, clients=3, scheme="iid", seed=7)]
    [3, 3, 4]
    """
    classes = np.asarray(labels)
    _require_at_least(clients=(clients, 1), seed=(seed, 0))
    if scheme == NATURAL:
        return _natural(owners, clients)
    kind = scheme.partition(":")[0]
    written = next((each for each in PARTITIONS if each == scheme or each.startswith(f"{kind}:")), None)
    if written is None:
        *others, last = *PARTITIONS, NATURAL
        raise ValueError(f"partition {scheme!r} is unknown; write {', '.join(others)} or {last}")
    if kind in ("dirichlet", "shards") and (classes.ndim != 1 or classes.dtype.kind == "f"):
        raise ValueError(f"partition {scheme!r} needs one class per example; write iid, drawn or {NATURAL}")
    return PARTITIONS[written](classes, clients, scheme, seed)


def cohort(clients: int, size: int, round: int, seed: int) -> Indices:
    """A uniform subset of the clients for one round, in increasing order, in O(size) memory.

    >>> cohort(clients=10_000, size=4, round=0, seed=7).shape
    (4,)
    """
    _require_at_least(clients=(clients, 1), size=(size, 1), round=(round, 0), seed=(seed, 0))
    if size > clients:
        raise ValueError(f"a cohort of {size:,} cannot be drawn from {clients:,} clients")
    return _subset(clients, size, _stream(_COHORT, seed, round))


class Parts(Sequence[Indices], ABC):
    """The positions of each client's images."""

    @overload
    def __getitem__(self, client: int) -> Indices: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Indices]: ...
    def __getitem__(self, client: int | slice) -> Indices | Sequence[Indices]:
        if isinstance(client, slice):
            return [self[each] for each in range(*client.indices(len(self)))]
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self._part(client)

    @abstractmethod
    def _part(self, client: int) -> Indices:
        """The positions of one client's images."""

    @abstractmethod
    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        """The positions of many clients one after the other, and where each client's begin; the end, last."""


class SharedParts(Parts):
    """Parts that are views into one array.

    >>> parts = SharedParts(np.array([4, 5, 6, 7]), np.array([0, 3, 4]))
    >>> parts[0].tolist(), [array.tolist() for array in parts.together(np.array([1, 0]))]
    ([4, 5, 6], [[7, 4, 5, 6], [0, 1, 4]])
    """

    def __init__(self, order: Indices, bounds: Indices) -> None:
        self._order, self._bounds = order, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _part(self, client: int) -> Indices:
        return self._order[self._bounds[client] : self._bounds[client + 1]]

    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        starts, stops = self._bounds[clients], self._bounds[clients + 1]
        bounds = np.append(0, np.cumsum(stops - starts))
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], stops - starts)
        return self._order[places], bounds


class DrawnParts(Parts):
    """One image for each of any number of clients, drawn with replacement and computed on access.

    >>> parts = DrawnParts(images=60_000, clients=10**9, seed=7)
    >>> len(parts), len(parts[123_456_789])
    (1000000000, 1)
    """

    def __init__(self, *, images: int, clients: int, seed: int) -> None:
        _require_at_least(images=(images, 1), clients=(clients, 1), seed=(seed, 0))
        self._images, self._clients = images, clients
        self._key = np.uint64(_stream(_DRAW, seed).random_raw())

    def __len__(self) -> int:
        return self._clients

    def _part(self, client: int) -> Indices:
        return self.together(np.array([client]))[0]

    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        high, low = np.divmod(_mixed(clients.astype(np.uint64) ^ self._key), np.uint64(1 << 32))
        images = np.uint64(self._images)
        # The upper half of word * images, which errs by less than images / 2^64.
        found = (high * images + (low * images >> np.uint64(32))) >> np.uint64(32)
        return found.astype(np.int64), np.arange(len(clients) + 1)


def batch_indices(
    indices: Indices,
    batch_size: int,
    round: int,
    client: int,
    seed: int,
) -> Indices:
    """A client's batch R for one round: uniform without replacement; all its data if there is no more.

    >>> batch_indices(np.arange(10), batch_size=10, round=0, client=3, seed=7)
    array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """
    _require_at_least(batch_size=(batch_size, 1), round=(round, 0), client=(client, 0), seed=(seed, 0))
    if batch_size >= len(indices):
        return indices
    return indices[_subset(len(indices), batch_size, _stream(_BATCH, seed, round, client))]


def _drawn(classes: _Labels, clients: int, scheme: str, seed: int) -> DrawnParts:
    return DrawnParts(images=len(classes), clients=clients, seed=seed)


def _iid(classes: _Labels, clients: int, scheme: str, seed: int) -> SharedParts:
    words = _split_stream(classes, clients, seed)
    return SharedParts(_permutation(len(classes), words), _even_bounds(len(classes), clients))


def _dirichlet(classes: _Labels, clients: int, scheme: str, seed: int) -> SharedParts:
    beta, words = _positive_number(scheme), _split_stream(classes, clients, seed)
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
        # Some client has at least two images, because there are no more clients than images.
        giver = int(np.argmax(sizes))
        sizes[giver] -= 1
        sizes[empty] = 1
        owners[order[starts[giver] + sizes[giver]]] = empty
    return SharedParts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes)))


def _shards(classes: _Labels, clients: int, scheme: str, seed: int) -> SharedParts:
    each, words = _positive_count(scheme), _split_stream(classes, clients, seed)
    count = clients * each
    if count > len(classes):
        raise ValueError(
            f"partition 'shards:{each}' needs {count:,} shards for {clients:,} clients, but there are only "
            f"{len(classes):,} images; write shards:{len(classes) // clients} or less"
        )
    shuffled = _permutation(len(classes), words)
    by_label = shuffled[np.argsort(classes[shuffled], kind="stable")]
    shards = SharedParts(by_label, _even_bounds(len(classes), count))
    dealt = [shards[shard] for shard in _permutation(count, words)]
    sizes = np.array([len(shard) for shard in dealt]).reshape(clients, each).sum(axis=1)
    return SharedParts(np.concatenate(dealt), np.append(0, np.cumsum(sizes)))


def _natural(owners: Indices | None, clients: int) -> SharedParts:
    if owners is None:
        raise ValueError(f"partition {NATURAL!r}: these data do not say which client an example belongs to")
    sizes = np.bincount(owners)
    if clients > len(sizes):
        raise ValueError(
            f"partition {NATURAL!r}: clients = {clients:,}, but {len(sizes):,} clients have training examples"
        )
    return SharedParts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes[:clients])))


PARTITIONS: Mapping[str, Callable[[_Labels, int, str, int], Parts]] = {
    "iid": _iid,
    "dirichlet:BETA": _dirichlet,
    "shards:N": _shards,
    "drawn": _drawn,
}
"""How a partition is written, and the function (labels, clients, scheme, seed) that makes it."""


def _split_stream(classes: _Labels, clients: int, seed: int) -> np.random.PCG64:
    """The stream of a split in which each client gets at least one image."""
    if clients > len(classes):
        raise ValueError(f"{clients:,} clients cannot share {len(classes):,} images: each needs at least one")
    return _stream(_PARTITION, seed)


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


def _positive_number(scheme: str) -> float:
    try:
        value = float(scheme.partition(":")[2])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"partition {scheme!r}: BETA must be a positive number, for example dirichlet:0.5")
    return value


def _positive_count(scheme: str) -> int:
    text = scheme.partition(":")[2]
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ValueError(f"partition {scheme!r}: N must be a positive whole number, for example shards:2")
    return int(text)
