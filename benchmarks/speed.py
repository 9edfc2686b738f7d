"""Speed as ratios within one run: our encode, a straightforward NumPy encode, and a copy of the vector.

Absolute times drift on shared machines, so the three are timed in turn, and the best of several turns
counts for each.

    make bench                          # or: python benchmarks/speed.py [--json]

Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd.core import Aggregate, Scheme
from sqsgd.core.codec import Column, SignedSubset
from sqsgd.core.random import PublicStream, secure_rng
from sqsgd.core.task import Task, Tasks
from sqsgd.core.transforms import Rotate
from sqsgd.mechanisms.privquant import PrivQuant
from sqsgd.mechanisms.sparse import SparseLaw
from sqsgd.schemes import make_scheme
from sqsgd.schemes.sqsgd_paper import sqsgd_paper

DIMS = (1 << 9, 1 << 13, 1 << 17, 1 << 20)
LEVELS = (2, 16, 128)
NUMPY_TARGETS = {1 << 9: 6.0, 1 << 13: 20.0, 1 << 17: 40.0, 1 << 20: 40.0}
COPY_TARGETS = {1 << 17: 20.0, 1 << 20: 20.0}
SPARSE_EPSILONS = (40.0, 100.0, 400.0)
_TURN_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number and its target: at least or at most ``target`` (None: no target)."""

    name: str
    value: float
    unit: str
    target: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the target is met; true if there is none."""
        if self.target is None:
            return True
        return self.value >= self.target if self.at_least else self.value <= self.target

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        bound = None if self.target is None else f"{'>=' if self.at_least else '<='} {self.target:g}"
        return {"name": self.name, "value": self.value, "unit": self.unit, "target": bound, "met": self.met}


def numpy_encode(
    x: npt.NDArray[np.float32],
    task: Task,
    levels: int,
    match_law: npt.NDArray[np.float64],
    rng: np.random.Generator,
) -> bytes:
    """The same message in straightforward NumPy: whole arrays, Generator, permutation, packbits."""
    n, bound = x.size, task.bound
    if not np.isfinite(x).all():
        raise ValueError("x must be finite")
    public = np.random.default_rng((task.seed, task.round))
    y = x * public.choice([-1.0, 1.0], n)
    run = 1
    while run < n:
        pairs = y.reshape(-1, 2, run)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        run *= 2
    y /= np.sqrt(n)
    position = (np.clip(y, -bound, bound) + bound) * ((levels - 1) / (2 * bound))
    codes = np.floor(position).astype(np.int64)
    codes += rng.random(n) < position - codes
    changed = rng.permutation(n)[rng.choice(n + 1, p=match_law) :]
    codes[changed] = (codes[changed] + rng.integers(1, levels, changed.size)) % levels
    bits = (codes[:, None] >> np.arange(levels.bit_length() - 1)) & 1
    body = np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    return struct.pack("<II", task.round, zlib.crc32(body)) + body


def rounded_match_law(quantizer: PrivQuant) -> npt.NDArray[np.float64]:
    """P(L = l) in floats, for NumPy's choice."""
    n, levels = quantizer.dim, quantizer.levels
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    counts = np.arange(n + 1)
    law = factorials[n] - factorials - factorials[::-1] + (n - counts) * np.log(levels - 1)
    law += np.where(counts >= quantizer.threshold, *quantizer.law.log_densities)
    law = np.exp(law - law.max())
    return np.asarray(law / law.sum())


def best_times(*jobs: Callable[[], object], turns: int = 15) -> list[float]:
    """Seconds for one call of each job: the jobs take turns, and the best turn counts."""
    repeats = []
    for job in jobs:
        job()  # compiles, fills caches
        started = time.perf_counter()
        job()
        repeats.append(max(1, int(_TURN_SECONDS / max(time.perf_counter() - started, 1e-9))))
    best = [float("inf")] * len(jobs)
    for _ in range(turns):
        for i, job in enumerate(jobs):
            started = time.perf_counter()
            for _ in range(repeats[i]):
                job()
            best[i] = min(best[i], (time.perf_counter() - started) / repeats[i])
    return best


def median_times(*jobs: Callable[[], object], turns: int = 201) -> list[float]:
    """Seconds for one call of each job: the jobs are called in turn, and the median counts."""
    seconds: list[list[float]] = [[] for _ in jobs]
    for turn in range(turns + 2):
        for job, taken in zip(jobs, seconds, strict=True):
            started = time.perf_counter()
            job()
            if turn >= 2:  # the first two compile and fill caches
                taken.append(time.perf_counter() - started)
    return [float(np.median(taken)) for taken in seconds]


def encode_figures(dims: tuple[int, ...] = DIMS, levels: tuple[int, ...] = LEVELS) -> Iterator[Figure]:
    """The complete encode of a client, against NumPy's and against a copy."""
    for dim in dims:
        for level in levels:
            # The block is the whole vector, n = dim, at a budget of one nat per coordinate.
            epsilon = min(float(dim), 1e4)
            scheme = sqsgd_paper(dim, epsilon, dim * (level.bit_length() - 1), levels=level, rule="optimal")
            yield from _encode_figures(scheme, level)


def _encode_figures(scheme: Scheme, levels: int) -> Iterator[Figure]:
    dim = scheme.dim
    numbers = np.random.default_rng(1)
    x = (numbers.standard_normal(dim) / np.sqrt(dim)).astype(np.float32)
    task = Task(round=0, client=0, seed=1, dim=dim, bound=4.0 / dim**0.5)
    rng, target = secure_rng(), np.empty_like(x)
    match_law = rounded_match_law(PrivQuant(dim, levels, scheme.privacy.epsilon))
    ours, straightforward, copy = best_times(
        lambda: scheme.encode(x, task, rng),
        lambda: numpy_encode(x, task, levels, match_law, numbers),
        lambda: np.copyto(target, x),
    )
    name = f"encode dim=2^{dim.bit_length() - 1} K={levels}"
    yield Figure(name=f"{name}: ours", value=1e9 * ours / dim, unit="ns/coordinate")
    yield Figure(
        name=f"{name}: NumPy / ours",
        value=straightforward / ours,
        unit="x",
        target=NUMPY_TARGETS.get(dim),
        at_least=True,
    )
    yield Figure(name=f"{name}: ours / copy", value=ours / copy, unit="x", target=COPY_TARGETS.get(dim))


def server_figures(dims: tuple[int, ...] = DIMS[2:], levels: tuple[int, ...] = LEVELS) -> Iterator[Figure]:
    """Unpacking a column and adding it to the sum, against a copy of a float32 vector of that length."""
    for dim in dims:
        x, target, total = np.ones(dim, np.float32), np.empty(dim, np.float32), np.zeros(dim, np.float32)
        for level in levels:
            column, quantizer = Column(dim, level), PrivQuant(dim, level, 100.0)
            packed = column.pack(np.zeros(dim, np.uint8))
            ours, copy = best_times(
                lambda: quantizer.add_levels(column.unpack(packed), 0.5, total),  # noqa: B023
                lambda: np.copyto(target, x),  # noqa: B023
            )
            name = f"unpack and sum dim=2^{dim.bit_length() - 1} K={level}: ours / copy"
            yield Figure(name=name, value=ours / copy, unit="x", target=4.0)


def aggregate_figures() -> Iterator[Figure]:
    """All of a server's work for one report, including envelope, checksum and per-client transforms."""
    for name, dim, size in (("sqsgd-paper", 1 << 17, 1 << 16), ("sqsgd", 119850, 256)):
        scheme = make_scheme(name, dim=dim, epsilon=1000.0, bytes=size)
        task = Task(round=0, client=0, seed=1, dim=dim, bound=1.0)
        x, target, total = np.ones(dim, np.float32), np.empty(dim, np.float32), Aggregate(scheme)
        message = scheme.encode(x, task, secure_rng())
        ours, copy = best_times(
            lambda: total.add(task, message),  # noqa: B023
            lambda: np.copyto(target, x),  # noqa: B023
        )
        yield Figure(name=f"aggregate a report, {name} dim={dim}: ours / copy", value=ours / copy, unit="x")


def sparse_figures(dim: int = 119850, epsilons: tuple[float, ...] = SPARSE_EPSILONS) -> Iterator[Figure]:
    """Sparse codes against signs of the same scheme and budget: encoding, and adding a report to the sum."""
    for name in ("sqsgd-stateless", "sqsgd"):
        for epsilon in epsilons:
            codes = ("sparse", "signs")
            schemes = [make_scheme(name, dim=dim, epsilon=epsilon, bytes=256, code=code) for code in codes]
            # Two seeds: clients of equal seeds would share the coordinates that one of them has drawn.
            jobs = zip(*(_next_client(scheme, seed) for seed, scheme in enumerate(schemes)), strict=True)
            for what, pair in zip(("encode", "aggregate"), jobs, strict=True):
                sparse, signs = median_times(*pair)
                figure = f"{what} {name} epsilon={epsilon:g}: sparse / signs"
                yield Figure(name=figure, value=sparse / signs, unit="x", target=1.5)


def _next_client(scheme: Scheme, seed: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Jobs for each of eight clients in turn: encode its vector; add its report to the sum."""
    x = np.random.default_rng(1).standard_normal(scheme.dim)
    x, rng, total = (x / np.linalg.norm(x)).astype(np.float32), secure_rng(), Aggregate(scheme)
    bound = scheme.unit_bound
    tasks = [Task(round=0, client=i, seed=seed, dim=scheme.dim, bound=bound) for i in range(8)]
    clients, reports = cycle(tasks), cycle([(task, scheme.encode(x, task, rng)) for task in tasks])
    return lambda: scheme.encode(x, next(clients), rng), lambda: total.add(*next(reports))


def choice_figures(size: int = 1 << 21) -> Iterator[Figure]:
    """Choosing the parameters of a sparse code at ε = 5000, building its exact tables, and packing codes."""
    searches = []
    for turn in range(5):  # at slightly different ε, because choices are cached
        started = time.process_time()
        make_scheme("sqsgd", dim=size, epsilon=5000.0 + turn, bytes=1 << 17, code="sparse", coordinates=size)
        searches.append(1e3 * (time.process_time() - started))
    name = f"dim=2^{size.bit_length() - 1}"
    yield Figure(name=f"choose a sparse code, {name}", value=min(searches), unit="ms", target=50.0)
    started = time.process_time()
    law = SparseLaw(size=size, near=2819, count=675, threshold=673, epsilon=5000.0)
    law.sampler, law.mean_matches  # noqa: B018  # what the first encode and decode need
    building = 1e3 * (time.process_time() - started)
    yield Figure(name=f"build SparseLaw, {name}, tables included", value=building, unit="ms", target=300.0)
    column, codes = SignedSubset(1000, size), np.arange(1000, dtype=np.uint32) * np.uint32(size // 500)
    packed = column.pack(codes)
    times = median_times(lambda: column.pack(codes), lambda: column.unpack(packed), turns=51)
    for what, seconds in zip(("pack", "unpack"), times, strict=True):
        yield Figure(
            name=f"{what} 1,000 signed coordinates, {name}", value=1e3 * seconds, unit="ms", target=5.0
        )


def many_figures(users: int = 512) -> Iterator[Figure]:
    """Clients and server together: users whose reports are encoded and added in a second, by one thread."""
    sparse = {"epsilon": 20.0, "bytes": 8, "code": "sparse"}
    for name, options in (("privunit-index", {"epsilon": 4.0}), ("sqsgd-stateless", sparse)):
        scheme = make_scheme(name, dim=3920, **options)
        task = Task(round=0, client=0, seed=1, dim=3920, bound=1.0)
        x = np.random.default_rng(1).standard_normal((users, 3920)).astype(np.float32) / np.float32(3920**0.5)
        total = Aggregate(scheme)

        def one_by_one() -> None:
            for client in range(16):
                own = replace(task, client=client)  # noqa: B023
                total.add(own, scheme.encode(x[client], own, secure_rng()))  # noqa: B023

        def many() -> None:
            tasks = Tasks(task, np.arange(users))  # noqa: B023
            total.add_many(tasks, scheme.encode_many(x, tasks, secure_rng()))  # noqa: B023

        alone, together = best_times(one_by_one, many, turns=8)
        speed, ratio = users / together, (alone / 16) / (together / users)
        label = f"many users, {name} n=4096"
        # The targets are those of simulations in which each user reports once.
        targets = (8000.0, 10.0) if name == "privunit-index" else (None, None)
        yield Figure(name=f"{label}: one core", value=speed, unit="users/s", target=targets[0], at_least=True)
        yield Figure(name=f"{label}: / one by one", value=ratio, unit="x", target=targets[1], at_least=True)


def other_figures() -> Iterator[Figure]:
    """Choosing coordinates, building a mechanism, rotating."""
    stream = PublicStream(seed=1, round=0, client=0, purpose="coordinates")
    (selecting,) = best_times(lambda: stream.subset(10**8, 5 * 10**5), turns=3)
    yield Figure(name="select 5*10^5 of 10^8", value=1e9 * selecting / 5e5, unit="ns/index", target=40.0)
    started = time.perf_counter()
    quantizer = PrivQuant(1 << 20, 2, 101.0)
    quantizer.law.sampler, quantizer.scale  # noqa: B018  # what the first encode and decode need
    building = time.perf_counter() - started
    yield Figure(name="build PrivQuant dim=2^20, tables included", value=building, unit="s", target=1.0)
    dim = 1 << 17
    x, target, rotate = np.ones(dim, np.float32), np.empty(dim, np.float32), Rotate()
    task = Task(round=0, client=0, seed=1, dim=dim, bound=1.0)
    rotating, copy = best_times(lambda: rotate.forward(x, task), lambda: np.copyto(target, x))
    yield Figure(name="rotate dim=2^17: ours / copy", value=rotating / copy, unit="x")


def all_figures() -> Iterator[Figure]:
    """Every figure, in the order in which they are printed."""
    yield from encode_figures()
    yield from server_figures()
    yield from aggregate_figures()
    yield from sparse_figures()
    yield from choice_figures()
    yield from many_figures()
    yield from other_figures()


def main() -> int:
    """Print every figure with its target; 1 if a target is missed."""
    parser = argparse.ArgumentParser(description="Speed as ratios within one run.")
    parser.add_argument("--json", action="store_true", help="print JSON")
    as_json, figures = parser.parse_args().json, []
    for figure in all_figures():
        figures.append(figure)
        if not as_json:
            target = figure.to_dict()["target"]
            verdict = f"{target} {'met' if figure.met else 'MISSED'}" if target else ""
            print(f"{figure.name:60} {figure.value:10.3f} {figure.unit:13} {verdict}".rstrip(), flush=True)
    if as_json:
        print(json.dumps([figure.to_dict() for figure in figures], indent=2))
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
