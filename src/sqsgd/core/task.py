"""The Task: what the server asks of one client in one round; Tasks: the same for many clients."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from sqsgd._internal import checks
from sqsgd.core.random import EVERYONE, PublicStream, many_words

MOST_DIM = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class Task:
    """The request sent by the server to a client in a given round. All fields are public.

    The range of the mechanism is given by ``bound`` (U_t). If ``clip`` (C_t) is not None, the vector is
    clipped to this l2 norm first. For privacy per record, ``bound`` is the clipping norm of a record.

    >>> Task(round=0, client=3, seed=1234, dim=119850, bound=10.0).dim
    119850
    """

    round: int
    client: int
    seed: int
    dim: int
    bound: float
    clip: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__  # plain Python numbers: kernels are compiled for one type
        put(self, "round", checks.integer("round", self.round, 0, 2**32 - 1))
        put(self, "client", checks.integer("client", self.client, 0, EVERYONE - 1))
        put(self, "seed", checks.integer("seed", self.seed, 0, 2**64 - 1))
        put(self, "dim", checks.integer("dim", self.dim, 1, MOST_DIM))
        put(self, "bound", checks.real("bound", self.bound, 1e-9, 1e30))
        if self.clip is not None:
            put(self, "clip", checks.real("clip", self.clip, 1e-9, 1e30))

    def stream(self, purpose: str, *, shared: bool) -> PublicStream:
        """Return the public stream for a purpose: the client's, or the one that all clients share."""
        client = EVERYONE if shared else self.client
        return PublicStream(seed=self.seed, round=self.round, client=client, purpose=purpose)

    @cached_property
    def binding(self) -> bytes:
        """The task as bytes. They are part of the checksum, so a report is only valid for this task."""
        clip = self.clip or 0.0
        return struct.pack("<IQQQdd", self.round, self.client, self.seed, self.dim, self.bound, clip)


class Tasks(Sequence[Task]):
    """The tasks of many clients in one round, which differ in the client's number alone.

    >>> from sqsgd import Aggregate, make_scheme, secure_rng
    >>> scheme, x = make_scheme("privunit-index", dim=8, epsilon=4.0), np.ones((2, 8), np.float32)
    >>> tasks = scheme.tasks(round=0, clients=[3, 5], seed=1, bound=1.0)
    >>> messages, total = scheme.encode_many(x, tasks, secure_rng()), Aggregate(scheme)
    >>> _ = total.add_many(tasks, messages)
    >>> len(tasks), tasks[1].client, messages.shape, total.count
    (2, 5, (2, 6), 2)
    """

    def __init__(self, task: Task, clients: npt.ArrayLike) -> None:
        """``task``: what all have in common. Its client's number is not used."""
        numbers = np.asarray(clients)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or (numbers.size and int(numbers.min()) < 0):
            raise ValueError("clients must be a vector of whole numbers from 0 on")
        self.task, self.clients = task, numbers.astype(np.uint64)
        if numbers.size and int(self.clients.max()) == EVERYONE:
            raise ValueError(f"clients contains {EVERYONE}, which stands for all clients")
        self._words: dict[tuple[str, int], npt.NDArray[np.uint64]] = {}
        self._parts: dict[int, list[Tasks]] = {}

    def __len__(self) -> int:
        return self.clients.size

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Tasks: ...
    def __getitem__(self, index: int | slice) -> Task | Tasks:
        if isinstance(index, slice):
            return Tasks(self.task, self.clients[index])
        return replace(self.task, client=int(self.clients[index]))

    def parts(self, size: int) -> list[Tasks]:
        """Return the tasks in parts of ``size``, which keep their public words for client and server."""
        if size not in self._parts:
            self._parts[size] = [self[start : start + size] for start in range(0, len(self), size)]
        return self._parts[size]

    @property
    def bindings(self) -> list[bytes]:
        """The binding of each task: only the client's number differs."""
        front, back = self.task.binding[:4], self.task.binding[12:]
        return [front + number + back for number in self.clients.astype("<u8").view("V8").tolist()]

    def words(self, purpose: str, count: int) -> npt.NDArray[np.uint64]:
        """Return the first ``count`` 64-bit words of each client's public stream, one row per client."""
        if (purpose, count) not in self._words:
            task = self.task
            self._words[purpose, count] = many_words(
                seed=task.seed, round=task.round, clients=self.clients, purpose=purpose, count=count
            )
        return self._words[purpose, count]


Result = TypeVar("Result")
_FLOATS = 1 << 20  # coordinates in a part: four megabytes


def parts_of(tasks: Tasks) -> Iterator[tuple[slice, Tasks]]:
    """The tasks in parts, each with its place among all of them."""
    size = max(1, _FLOATS // tasks.task.dim)
    for i, part in enumerate(tasks.parts(size)):
        yield slice(i * size, i * size + len(part)), part


def in_order(
    work: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Result]:
    """``work`` of each tuple of arguments, in their order, by this many threads: kernels release the lock."""
    checks.integer("workers", workers, 1, 1024)
    if workers == 1:
        yield from itertools.starmap(work, arguments)
        return
    waiting = iter(arguments)
    with ThreadPoolExecutor(workers) as pool:
        while group := list(itertools.islice(waiting, 4 * workers)):  # few results wait for their reader
            yield from pool.map(work, *zip(*group, strict=True))
