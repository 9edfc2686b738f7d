"""Whether the time of an encode tells what was encoded, or what was drawn.

python benchmarks/timing.py [ENCODES [SCHEME]]

Two attackers know the CPU time of one encode. The first decides which of two fixed vectors it was (a dense
one at 0.9 of the bound, a sparse one at 0.2 of it). The second decides between two sides of the private draw:
a near or a far vertex, a code that was kept or not, more matches or fewer. Both know the scheme, the task and
the machine. Reported is the area under the curve (AUC) of the better direction, 0.5 where time tells nothing,
with its standard error if it tells nothing; the smaller of the two clocks' errors does not matter, so the
larger AUC of CPU time and wall time counts. Encodes alternate at random, so that drifts cancel out.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sqsgd import Scheme, Task, make_scheme, secure_rng
from sqsgd._internal.exact import InverseCdf, nearest
from sqsgd.mechanisms.sparse import SparseMatches

DIM = 119850
Side = Callable[["Encode"], float]
"""A number that is larger on one side of the private draw than on the other."""


@dataclass(frozen=True, kw_only=True)
class Encode:
    """One encode: the words that were ready for its single draws, how many it used, and its codes."""

    words: list[int]
    used: int
    codes: tuple[npt.NDArray[Any], ...]


@dataclass(frozen=True, kw_only=True)
class Row:
    """A scheme at its usual size. ``coin``: which single word decides the coin, and by which law."""

    name: str
    epsilon: float
    options: dict[str, Any]
    dim: int = DIM
    bytes: int | None = 256
    coin: tuple[int, Callable[[Any], InverseCdf]] | None = None
    side: Side | None = None
    what: str = "kept or not"

    def make(self) -> Scheme:
        """The scheme."""
        return make_scheme(self.name, dim=self.dim, epsilon=self.epsilon, bytes=self.bytes, **self.options)


def matches(mechanism: Any) -> InverseCdf:
    """The law of the number of matches."""
    law: InverseCdf = (mechanism if isinstance(mechanism, SparseMatches) else mechanism.quantizer).law.sampler
    return law


def _edge(mechanism: Any, law: InverseCdf) -> int:
    """The word from which on the draw is on the high side."""
    quantizer, last_low = getattr(mechanism, "quantizer", None), 0
    if quantizer and law is quantizer.law.sampler:
        last_low = quantizer.threshold - 1
    elif isinstance(mechanism, SparseMatches):
        last_low = mechanism.law.rank(mechanism.law.threshold, 0) - 1
    return min(max(int(nearest(lambda: law._cdf(last_low)) * 2.0**64), 1), 2**64 - 1)


def _total(encode: Encode) -> float:
    return float(np.sum(encode.codes[-1], dtype=np.float64))


def _first(encode: Encode) -> float:
    """A larger first word means more matches."""
    return float(encode.words[0])


def _used(encode: Encode) -> float:
    return float(encode.used)


SIGNS = {"code": "signs"}
ROWS = (
    Row(name="sqsgd", epsilon=400.0, options={}, coin=(1, matches)),
    Row(name="sqsgd", epsilon=8.0, options={}, coin=(1, matches)),
    Row(name="sqsgd-stateless", epsilon=400.0, options={}, coin=(1, matches)),
    Row(name="sqsgd-stateless", epsilon=8.0, options={}, coin=(1, matches)),
    Row(name="sqsgd", epsilon=400.0, options=SIGNS, coin=(0, matches)),
    Row(name="sqsgd", epsilon=400.0, options=SIGNS, coin=(2, lambda m: m.norm._stays), what="norm kept"),
    Row(name="sqsgd", epsilon=8.0, options=SIGNS, coin=(0, matches)),
    Row(name="sqsgd-stateless", epsilon=400.0, options=SIGNS, coin=(0, matches)),
    Row(name="sqsgd-paper", epsilon=400.0, options={}, side=_first, what="more or fewer matches"),
    Row(name="sqsgd-paper", epsilon=400.0, options={"levels": 5}, side=_first, what="more or fewer matches"),
    Row(name="sqsgd-paper", epsilon=400.0, options={"rule": "optimal"}, coin=(0, matches)),
    Row(name="privunit-inf", epsilon=400.0, options={}, coin=(0, matches)),
    Row(name="sqkr", epsilon=400.0, options={}, coin=(0, matches)),
    Row(name="privunit-index", epsilon=1.0, options={}, coin=(1, lambda m: m._is_near), what="near or far"),
    Row(name="privunit-index", epsilon=8.0, options={}, coin=(1, lambda m: m._is_near), what="near or far"),
    Row(name="vqsgd", epsilon=400.0, options={}, side=_used, what="many or few kept"),
    Row(
        name="fedsel", epsilon=400.0, options={}, what="many or few from the top",
        side=lambda encode: sum(word >> 63 for word in encode.words[:24]),
    ),
    Row(name="piecewise", epsilon=400.0, options={}, side=_total, what="large or small codes"),
    Row(name="ldp-fed", epsilon=400.0, options={}, side=_total, what="large or small codes"),
    Row(name="ldp-fl", epsilon=400.0, options={}, side=_total, what="large or small codes"),
    Row(name="cpsgd", epsilon=400.0, options={}, side=_total, what="large or small codes"),
)  # fmt: skip


def auc(times: npt.NDArray[np.float64], side: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """The area under the curve, at least 1/2, and its standard error where both sides have the same law."""
    _, place, counts = np.unique(times, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    ones = int(np.count_nonzero(side))
    zeros = side.size - ones
    area = (ranks[side].sum() - ones * (ones + 1) / 2) / (ones * zeros)
    error = float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros)))
    return max(area, 1 - area), error


def vectors(dim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The two fixed inputs, for a bound of one."""
    numbers = np.random.default_rng(1)
    dense = numbers.standard_normal(dim)
    sparse = np.zeros(dim)
    sparse[numbers.choice(dim, 10, replace=False)] = numbers.standard_normal(10)
    return tuple(
        (share * x / np.linalg.norm(x)).astype(np.float32) for share, x in ((0.9, dense), (0.2, sparse))
    )  # type: ignore[return-value]


def _transformed(scheme: Scheme, x: npt.NDArray[np.float32], task: Task) -> npt.NDArray[np.float32]:
    for transform in scheme.transforms:
        x = transform.forward(x, task)
    return x


def encodes(
    row: Row, scheme: Scheme, count: int, whole: bool
) -> Iterator[tuple[int, bool, Encode, int, int]]:
    """(which input, which forced side, the encode, CPU ns, wall ns) of ``count`` encodes after a warm-up.

    ``whole``: from the vector to the message; otherwise the private step alone.
    """
    inputs = vectors(scheme.dim)
    task = Task(round=1, client=2, seed=3, dim=scheme.dim, bound=scheme.first_bound * scheme.unit_bound)
    numbers, rng, mechanism = np.random.default_rng(2), secure_rng(), scheme.mechanism
    edge = _edge(mechanism, row.coin[1](mechanism)) if row.coin else 0
    rotated = [_transformed(scheme, x, task) for x in inputs]
    for turn in range(count + 200):
        which, high = (int(bit) for bit in numbers.integers(0, 2, 2))
        words = numbers.integers(0, 2**64, 128, np.uint64).tolist()
        if row.coin:
            share = words[row.coin[0]]  # a uniform word of the chosen side
            words[row.coin[0]] = edge + share * (2**64 - edge) // 2**64 if high else share * edge // 2**64
        rng.words(1)
        rng._spare = words[::-1]
        x, y = inputs[which], rotated[which]
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        if whole:
            columns = scheme.randomize(x, task, rng)
            scheme.seal(columns, task)
        else:
            columns = mechanism.randomize(y, task.bound, rng)
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        if turn >= 200:
            yield which, bool(high), Encode(words=words, used=128 - len(rng._spare), codes=columns), cpu, wall


def measured(row: Row, count: int, whole: bool = True) -> dict[str, tuple[float, float]]:
    """The AUC of both attackers, each with its standard error, and the median time in microseconds."""
    scheme = row.make()
    gc.collect()
    gc.disable()
    try:
        runs = list(encodes(row, scheme, count, whole))
    finally:
        gc.enable()
    which = np.array([run[0] == 1 for run in runs])
    if row.coin:
        side = np.array([run[1] for run in runs])
    else:
        assert row.side is not None  # noqa: S101
        values = np.array([row.side(run[2]) for run in runs])
        side = values > np.median(values)
        if row.side is _total:  # the input moves the codes as well: compare within one input
            side = np.where(which, values > np.median(values[which]), values > np.median(values[~which]))
    clocks = [np.array([run[place] for run in runs], np.float64) for place in (3, 4)]
    found = {"inputs": max(auc(clock, which) for clock in clocks)}
    found["coin"] = max(auc(clock, side) for clock in clocks)
    found["microseconds"] = float(np.median(clocks[0])) / 1e3, 0.0
    return found


def main(count: int = 4000, only: str = "") -> None:
    """Print the table."""
    head = "scheme", "ε", "private draw", "two inputs", "the draw", "step: two inputs", "step: the draw", "µs"
    print("|", " | ".join(head), "|")
    print("|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if only and row.name != only:
            continue
        found, step = measured(row, count), measured(row, count, whole=False)
        label = " ".join([row.name, *(f"{key}={value}" for key, value in row.options.items())])
        areas = " | ".join(
            "{:.3f} (SE {:.3f})".format(*part[key]) for part in (found, step) for key in ("inputs", "coin")
        )
        times = f"{found['microseconds'][0]:.0f}, {step['microseconds'][0]:.0f}"
        print(f"| `{label}` | {row.epsilon:g} | {row.what} | {areas} | {times} |", flush=True)


if __name__ == "__main__":
    main(*(int(argument) if argument.isdigit() else argument for argument in sys.argv[1:]))  # type: ignore[arg-type]
