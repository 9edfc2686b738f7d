"""Which client holds which examples, which clients take part in a round, and which examples they use.

Everything here is a pure function of its arguments, so a resumed run is bit-identical.
"""

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = npt.NDArray[np.int64]
_Labels: TypeAlias = npt.NDArray[np.generic]

_PARTITION, _COHORT, _BATCH, _DRAW, _EPOCH = 1, 2, 3, 5, 6  # purposes: each has its own stream
NATURAL = "natural"


class Parts:
    """The positions of each client's examples: parts of one array."""

    def __init__(self, order: Indices, bounds: Indices) -> None:
        self._order, self._bounds = order, bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, client: int) -> Indices:
        if not 0 <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        return self.together(np.array([client]))[0]

    def together(self, clients: Indices) -> tuple[Indices, Indices]:
        """The positions of many clients one after the other, and where each client's begin; the end, last."""
        starts, stops = self._bounds[clients], self._bounds[clients + 1]
        bounds = np.append(0, np.cumsum(stops - starts))
        places = np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], stops - starts)
        return self._order[places], bounds


class DrawnParts(Parts):
    """One example for each of any number of clients, drawn with replacement and computed on access."""

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
            - ``dirichlet:BETA``: shares of each class from Dirichlet(BETA) (Hsu, Qi and Brown 2019).
            - ``shards:N``: sorted by label and cut into shards, N per client (McMahan et al. 2017).
            - ``drawn``: one example per client, drawn with replacement, for any number of clients.
            - ``natural``: the data's own clients; the first of them if ``clients`` are fewer.
        seed: Decides every draw.
        owners: The owner of each example, if the data name them, whose rows are never split:
            tests/training/test_owners.py::test_owners_are_the_clients_or_nothing_runs.
    """
    classes = np.asarray(labels)
    kind, _, value = scheme.partition(":")
    if scheme == NATURAL:
        return _natural(owners, clients)
    if owners is not None:
        named = f"the data name {int(owners.max()) + 1:,} owners, so leave partition out"
        split = "gives rows of one owner to several clients, each of which spends an owner's epsilon again"
        raise ValueError(f"partition {scheme!r} {split}: {named}")
    if scheme == "drawn":
        return DrawnParts(examples=len(classes), clients=clients, seed=seed)
    if scheme != "iid" and kind not in ("dirichlet", "shards"):
        known = f"iid, dirichlet:BETA, shards:N, drawn or {NATURAL}"
        raise ValueError(f"partition {scheme!r} is unknown; write {known}")
    if kind != "iid" and (classes.ndim != 1 or classes.dtype.kind == "f"):
        raise ValueError(f"partition {scheme!r} needs one class per example; write iid, drawn or {NATURAL}")
    if clients > len(classes):
        there = f"{clients:,} clients cannot share {len(classes):,} examples: each needs at least one"
        raise ValueError(f"{there}; partition = 'drawn' lets them draw one each")
    words = _stream(_PARTITION, seed)
    if kind == "iid":
        return Parts(_permutation(len(classes), words), _even_bounds(len(classes), clients))
    return (_dirichlet if kind == "dirichlet" else _shards)(classes, clients, value, words)


def cohort(clients: int, size: int, round: int, seed: int) -> Indices:
    """Return a uniform subset of the clients for one round, in increasing order, in O(size) memory."""
    if size > clients:
        raise ValueError(f"a cohort of {size:,} cannot be drawn from {clients:,} clients")
    return _subset(clients, size, _stream(_COHORT, seed, round))


def batch_indices(indices: Indices, batch_size: int, round: int, client: int, seed: int) -> Indices:
    """Return a client's batch R for one round, without replacement, or all its data if it has no more."""
    if batch_size >= len(indices):
        return indices
    return indices[_subset(len(indices), batch_size, _stream(_BATCH, seed, round, client))]


def epoch_batches(
    indices: Indices, batch_size: int, epochs: int, round: int, client: int, seed: int
) -> Iterator[Indices]:
    """A client's batches of one round that goes through all its data, shuffled again each time."""
    words = _stream(_EPOCH, seed, round, client)
    for _ in range(epochs):
        order = indices[_permutation(len(indices), words)]
        yield from (order[start : start + batch_size] for start in range(0, len(order), batch_size))


def _dirichlet(classes: _Labels, clients: int, value: str, words: np.random.PCG64) -> Parts:
    try:
        beta = float(value)
    except ValueError:
        beta = math.nan
    if not 0 < beta < math.inf:
        raise ValueError(f"partition 'dirichlet:{value}': BETA must be positive, for example dirichlet:0.5")
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
        # Some client has at least two examples, because clients are at most as many as examples.
        giver = int(np.argmax(sizes))
        sizes[giver] -= 1
        sizes[empty] = 1
        owners[order[starts[giver] + sizes[giver]]] = empty
    return Parts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes)))


def _shards(classes: _Labels, clients: int, value: str, words: np.random.PCG64) -> Parts:
    each = int(value) if value.isascii() and value.isdecimal() else 0
    count = clients * each
    if not 0 < count <= len(classes):
        most = f"{len(classes) // clients}, because {clients:,} clients share {len(classes):,} images"
        raise ValueError(f"partition 'shards:{value}': N must be a whole number of at most {most}")
    shuffled = _permutation(len(classes), words)
    by_label = shuffled[np.argsort(classes[shuffled], kind="stable")]
    shards = Parts(by_label, _even_bounds(len(classes), count))
    dealt, bounds = shards.together(_permutation(count, words))
    return Parts(dealt, bounds[::each])


def _natural(owners: Indices | None, clients: int) -> Parts:
    if owners is None:
        raise ValueError(f"partition {NATURAL!r}: these data do not say which client an example belongs to")
    sizes = np.bincount(owners)
    if clients > len(sizes):
        there = f"{len(sizes):,} owners have training examples; leave clients out, and each is one"
        raise ValueError(f"partition {NATURAL!r}: clients = {clients:,}, but {there}")
    return Parts(np.argsort(owners, kind="stable"), np.append(0, np.cumsum(sizes[:clients])))


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
