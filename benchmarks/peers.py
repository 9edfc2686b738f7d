"""The mean estimators of other papers and ours, measured in one run on the same vectors and ε.

python benchmarks/peers.py [--seconds 0.25] [--json FILE]

NMSE = |Σ (estimate_i - x_i)|² / n over n = 4 clients with different unit vectors: n times the squared error
of the mean estimate. Its expectation is the mean squared error of one report, for an unbiased scheme. Half of
the vectors are gradients of LeNet-5 on 32 images of mnist5k, half are Gaussian directions.

The peers are written from their papers, with our rotation, generator and PrivUnitG, and with the best
parameters for each budget. All of them assume unit vectors and decide by floating-point numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from sqsgd import Scheme, Task, make_scheme, seeded_rng
from sqsgd.core.codec import ENVELOPE_BYTES
from sqsgd.core.random import Rng
from sqsgd.core.transforms import Transform, gaussian_rotation, padded, rotated_sample
from sqsgd.mechanisms.cap_direction import Cap
from sqsgd.schemes.privunit import gaussian_cap, sphere_cap
from sqsgd.training.summary import mean_interval

Numbers = npt.NDArray[Any]
DIMS, EPSILONS, SEEDS, CLIENTS = (4096, 119850), (2.0, 8.0, 40.0, 400.0), (1, 2, 3), 4
BLOCK = 16  # candidates that are generated together, so that a decoder need not generate all of them
MOST_NUMBERS = 1.2e8  # a report that needs more random numbers than this is not run
HEAD = "scheme", "bytes", "NMSE / optimum", "by its law", "encode", "decode", "sampling", "shared randomness"
SHARED = {"MMRC": "2^bits directions", "PPR": "endless directions"}  # all others share a rotation


def forward(x: Numbers, transforms: tuple[Transform, ...], task: Task) -> Numbers:
    for transform in transforms:
        x = transform.forward(x, task)
    return x


def inverse(y: Numbers, transforms: tuple[Transform, ...], task: Task, dim: int) -> Numbers:
    for transform in reversed(transforms):
        y = transform.inverse(y, task, dim if transform is transforms[0] else padded(dim))
    return y


def mean_length(dim: int) -> float:
    """E|g| for a standard normal vector."""
    return math.sqrt(2) * math.exp(math.lgamma((dim + 1) / 2) - math.lgamma(dim / 2))


@dataclass(frozen=True, kw_only=True)
class ProjUnit:
    """FastProjUnit (Asi, Feldman, Nelson, Nguyen, Talwar, arXiv 2306.04444): PrivUnitG of a projection.

    ``size`` = k rotated coordinates are scaled to unit length, randomised by PrivUnitG and sent as float32.
    The mean length c of the projection is divided out; the authors leave it in, a bias of 1 - c < 1/(4k).
    """

    dim: int
    epsilon: float
    size: int

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        return rotated_sample(self.dim, self.size)

    @cached_property
    def length(self) -> float:
        whole = padded(self.dim)
        return mean_length(self.size) / mean_length(whole) * math.sqrt(whole / self.size)

    @property
    def nmse(self) -> float:
        error = gaussian_cap(self.size, self.epsilon).error
        return self.dim / self.size * (1 + error) / self.length**2 - 1

    def encode(self, x: Numbers, task: Task, rng: Rng) -> bytes:
        y = forward(x, self.transforms, task).astype(np.float64)
        y /= np.linalg.norm(y)
        return gaussian_cap(self.size, self.epsilon).draw(y, rng).astype("<f4").tobytes()

    def decode(self, message: bytes, task: Task) -> Numbers:
        y = np.frombuffer(message, "<f4") / (gaussian_cap(self.size, self.epsilon).scale * self.length)
        return inverse(y, self.transforms, task, self.dim)


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """The index of one of 2^bits shared vectors; two densities, whose ratio is at most e^ε.

    ``messages`` > 1 is our extension: independent indices at ε / messages each, whose vectors are averaged.
    """

    dim: int
    epsilon: float
    bits: int
    messages: int = 1

    @property
    def count(self) -> int:
        return 1 << self.bits

    @property
    def share(self) -> float:
        return self.epsilon / self.messages

    def side(self, x: Numbers, task: Task) -> tuple[Numbers, float]:
        """Which vectors are near x, and the probability that one of them is sent."""
        raise NotImplementedError

    def vector(self, index: int, task: Task) -> Numbers:
        """Unbiased, and of length 1 / E<vector, x> if the index was drawn for the unit vector x."""
        raise NotImplementedError

    def parts(self, task: Task) -> list[Task]:
        return [replace(task, client=task.client * self.messages + part) for part in range(self.messages)]

    def encode(self, x: Numbers, task: Task, rng: Rng) -> bytes:
        value = 0
        for place, part in enumerate(self.parts(task)):
            near, chance = self.side(x, part)
            offered = np.flatnonzero(near == (rng.uniform() < chance))
            value += int(offered[rng.below(offered.size)]) << place * self.bits
        return value.to_bytes(-(-self.bits * self.messages // 8), "little")

    def decode(self, message: bytes, task: Task) -> Numbers:
        value, total = int.from_bytes(message, "little"), np.zeros(self.dim)
        for place, part in enumerate(self.parts(task)):
            total += self.vector(value >> place * self.bits & (self.count - 1), part)
        return total / self.messages


class RRSC(Indexed):
    """Randomly rotating simplex coding (Isik, Chen, Özgür, Weissman, No, arXiv 2306.04924).

    Each of the k nearest of the M = 2^bits <= dim vertices of a rotated simplex has odds e^ε against each
    other vertex. The authors rotate by a QR decomposition, we by Hadamard matrices.
    """

    @cached_property
    def near(self) -> int:
        """k with the least error; Blom's scores stand for the order statistics here alone."""
        rank = np.arange(1, self.count)
        sums = np.cumsum(stats.norm.isf((rank - 0.375) / (self.count + 0.25)))
        return int(rank[np.argmax(sums / (rank + (self.count - rank) * math.exp(-self.share)))])

    @cached_property
    def chance(self) -> float:
        return self.near / (self.near + (self.count - self.near) * math.exp(-self.share))

    @cached_property
    def unit(self) -> float:
        """1 / E<v, x> for the vertex v that is sent."""
        z = np.linspace(-9, 9, 20001)
        among = stats.binom.cdf(self.near - 1, self.count - 1, stats.norm.sf(z))  # z is one of the k largest
        largest = self.count * np.trapezoid(z * stats.norm.pdf(z) * among, z) / mean_length(padded(self.dim))
        largest *= math.sqrt(self.count / (self.count - 1))
        return float(self.near / (self.chance * -math.expm1(-self.share) * largest))

    @property
    def nmse(self) -> float:
        return (self.dim / padded(self.dim) * self.unit**2 - 1) / self.messages

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        return (gaussian_rotation(self.dim, self.near),)

    def side(self, x: Numbers, task: Task) -> tuple[Numbers, float]:
        products = forward(x, self.transforms, task)[: self.count]  # but for their mean
        near = np.zeros(self.count, np.bool_)
        near[np.argpartition(-products, self.near - 1)[: self.near]] = True
        return near, self.chance

    def vector(self, index: int, task: Task) -> Numbers:
        vertex = np.zeros(padded(self.dim))
        vertex[: self.count] = -1 / self.count
        vertex[index] += 1
        vertex *= math.sqrt(self.count / (self.count - 1)) * self.unit
        return inverse(vertex, self.transforms, task, self.dim)


def directions(task: Task, block: int, dim: int, count: int = BLOCK) -> Numbers:
    """Shared random directions, in rows."""
    generator = np.random.default_rng((task.seed, task.round, task.client, block))
    rows = generator.standard_normal((count, dim), np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


class MMRC(Indexed):
    """Modified minimal random coding (Shah, Chen, Ballé, Kairouz, Theis, arXiv 2111.00092) of PrivUnit.

    N = 2^bits shared directions; a share β of them lies in the cap around x. With PrivUnit's densities A and
    B for a cap of measure F, the cap gets the mass min(β A, 1 - (1 - β) B), spread evenly, so that every
    direction has a probability between B / N and A / N: exactly ε-LDP. F is the best for this N, not the
    authors'.
    """

    @property
    def numbers(self) -> float:
        return float(self.messages * self.count * self.dim)

    def chances(self, inside: Numbers, tail: float) -> Numbers:
        """The mass of the cap, for numbers of directions in it."""
        low, beta = 1 / (1 + math.expm1(self.share) * tail), inside / self.count
        mass = np.minimum(beta * low * math.exp(self.share), 1 - (1 - beta) * low)
        return np.where(beta > 0, mass, 0.0)

    def edge_and_mean(self, tail: float) -> tuple[float, float]:
        """The cap's edge, and the mean of t = <sent direction, x>."""
        a, inside = (self.dim - 1) / 2, np.arange(self.count + 1)
        rest = float(special.betaincinv(a, 0.5, 2 * tail))  # 1 - edge²
        log_beta = math.log(math.pi) / 2 + math.lgamma(a) - math.lgamma(a + 0.5)
        moment = math.exp(a * math.log(rest) - log_beta) / (self.dim - 1)  # E[t; t >= edge]
        kept = float(stats.binom.pmf(inside, self.count, tail) @ self.chances(inside, tail))
        return math.sqrt(1 - rest), moment * (kept / tail - (1 - kept) / (1 - tail))

    @cached_property
    def cap(self) -> tuple[float, float, float]:
        """F, the edge and the mean: the largest mean has the least error."""
        tails = np.exp(np.linspace(math.log(0.3 / self.count), math.log(0.49), 100)).tolist()
        return max(((tail, *self.edge_and_mean(tail)) for tail in tails), key=lambda each: each[2])

    @property
    def nmse(self) -> float:
        return (1 / self.cap[2] ** 2 - 1) / self.messages

    def side(self, x: Numbers, task: Task) -> tuple[Numbers, float]:
        blocks = (directions(task, block, self.dim) for block in range(-(-self.count // BLOCK)))
        near = np.concatenate([block @ x for block in blocks])[: self.count] >= self.cap[1]
        return near, float(self.chances(np.count_nonzero(near), self.cap[0]))

    def vector(self, index: int, task: Task) -> Numbers:
        return directions(task, index // BLOCK, self.dim)[index % BLOCK] / self.cap[2]


@dataclass(frozen=True, kw_only=True)
class PPR:
    """Poisson private representation (Liu, Chen, Özgür, Li, arXiv 2405.20782) of PrivUnit, with α = 2.

    Points (T, V) of a Poisson process of rate e^-v on t, v > 0, in the order of T, get the shared directions
    Z_1, Z_2, ...; K minimises T² V / r(Z)², where r is PrivUnit's density. Z_K has exactly PrivUnit's law.
    An ε'-LDP mechanism becomes 2 α ε'-LDP, so PrivUnit runs at ε / 4. K is sent in Elias's delta code.
    """

    dim: int
    epsilon: float

    @cached_property
    def cap(self) -> Cap:
        return sphere_cap(self.dim, self.epsilon / 4)

    @property
    def nmse(self) -> float:
        return self.cap.error

    @property
    def numbers(self) -> float:
        """The root of the minimum is exponential with mean 1/√π."""
        return math.exp(self.cap.log_densities[0]) / math.sqrt(math.pi) * self.dim

    def index(self, x: Numbers, task: Task, rng: Rng) -> int:
        """K, from 1.

        The points whose T √min(V, 1) is below a limit are drawn at once; they hold the minimum but for e^-40.
        The numbers of the other points between them give their ranks in the order of T. Directions are made
        in the order of T √min(V, 1) until none can win.
        """
        high, low = (math.exp(density) for density in self.cap.log_densities)
        numbers = np.random.default_rng(rng.words(4))
        limit, first = 40 * high / math.sqrt(math.pi), math.sqrt(math.pi) * math.erf(1)
        count = numbers.poisson(limit * (math.exp(-1) + first))
        root = np.sort(numbers.uniform(0, limit, count))
        small = (
            special.erfinv(numbers.random(count) * math.erf(1)) ** 2
        )  # V given V < 1, with density ~ v^-½ e^-v
        large = 1 + numbers.exponential(size=count)
        value = np.where(numbers.random(count) * (math.exp(-1) + first) < first, small, large)
        when = root / np.sqrt(np.minimum(value, 1))
        order = np.argsort(when)
        late = np.maximum(when[order], limit)  # before this time all points are drawn
        mass = late * np.exp(-((limit / late) ** 2)) + limit * math.sqrt(math.pi) * special.erf(limit / late)
        others = numbers.poisson(np.maximum(np.diff(mass, prepend=mass[:1]), 0))  # ∫ exp(-(limit / t)²) dt
        rank = np.empty(count, np.int64)
        rank[order] = np.arange(count) + np.cumsum(others)
        best, chosen = math.inf, 0
        for place in range(count):
            if root[place] / high >= best:
                break
            inside = directions(task, int(rank[place]), self.dim, 1)[0] @ x >= self.cap.edge
            found = when[place] * math.sqrt(value[place]) / (high if inside else low)
            if found < best:
                best, chosen = found, int(rank[place]) + 1
        return chosen

    def encode(self, x: Numbers, task: Task, rng: Rng) -> bytes:
        index = self.index(x, task, rng)
        size = index.bit_length()
        code = "0" * (size.bit_length() - 1) + f"{size:b}" + f"{index:b}"[1:]
        return int(code[::-1], 2).to_bytes(-(-len(code) // 8), "little")

    def decode(self, message: bytes, task: Task) -> Numbers:
        code = f"{int.from_bytes(message, 'little'):0{8 * len(message)}b}"[::-1]
        zeros = code.index("1")
        size = int(code[zeros : 2 * zeros + 1], 2)
        index = int("1" + code[2 * zeros + 1 : 2 * zeros + size], 2) - 1
        return directions(task, index, self.dim, 1)[0] / self.cap.scale


@dataclass(frozen=True, kw_only=True)
class EDEN:
    """EDEN (Vargaftik et al., arXiv 2108.08842) with one bit for each of ``size`` rotated coordinates.

    With all coordinates it is DRIVE (arXiv 2105.08339). One float32 makes the estimate unbiased. Not private.
    """

    dim: int
    size: int

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        return rotated_sample(self.dim, self.size)

    @property
    def nmse(self) -> float:
        whole = padded(self.dim)
        return (math.pi / 2 * whole / self.size - 1) * self.dim / whole

    def encode(self, x: Numbers, task: Task, rng: Rng) -> bytes:
        y = forward(x, self.transforms, task)
        factor = np.array([y @ y / np.abs(y).sum()], "<f4")
        return factor.tobytes() + np.packbits(y > 0).tobytes()

    def decode(self, message: bytes, task: Task) -> Numbers:
        signs = np.unpackbits(np.frombuffer(message, np.uint8, offset=4), count=self.size) * 2.0 - 1
        return inverse(signs * float(np.frombuffer(message, "<f4", 1)[0]), self.transforms, task, self.dim)


def rows(dim: int, epsilon: float) -> Iterator[tuple[str, Any]]:
    """Ours, then the peers, at the budgets at which they can be compared; a text is why one is missing."""
    make = partial(make_scheme, dim=dim, epsilon=epsilon)
    most, whole, best = dim.bit_length() - 1, padded(dim), make("sqsgd-stateless", bytes=256)
    yield "`sqsgd-stateless`", best
    yield "`privunit-index`", make("privunit-index")
    if epsilon <= 8:
        yield "`sqsgd-stateless`, 1 byte", make("sqsgd-stateless", bytes=1)
    yield "`privunit`, 4,000 bytes", make("privunit", bytes=4000)
    if dim > 10000:
        yield "`privunit`, 40,000 bytes", make("privunit", bytes=40000)
    for size in (24, 1000, 10000):  # about our bytes; the authors'; ten times as many
        if size <= dim:
            yield f"ProjUnit, k = {size:,}", ProjUnit(dim=dim, epsilon=epsilon, size=size)
    simplex, coding = partial(RRSC, dim=dim, epsilon=epsilon), partial(MMRC, dim=dim, epsilon=epsilon)
    for bits in sorted({round(epsilon), 8, most} if epsilon <= 8 else {most}):
        yield f"RRSC, {bits} bits", simplex(bits=bits)
    if epsilon <= 8:
        for bits in (8, 12):
            yield f"MMRC, {bits} bits", coding(bits=bits)
    else:
        split = min(
            (simplex(bits=most, messages=count) for count in range(2, 61)), key=lambda each: each.nmse
        )
        yield f"RRSC, {split.messages} x {most} bits (extension)", split
        needed = 1 / float(sphere_cap(dim, epsilon).tail())
        yield "MMRC", f"not feasible: the optimum needs about {needed:.0e} directions"
        count = round(epsilon / 8)
        yield f"MMRC, {count} x 12 bits (extension)", coding(bits=12, messages=count)
    yield "PPR", PPR(dim=dim, epsilon=epsilon)
    yield "DRIVE (not private)", EDEN(dim=dim, size=whole)
    size = best.bits - 8 * ENVELOPE_BYTES - 32
    if size > 0:
        yield "EDEN, as many bytes as ours (not private)", EDEN(dim=dim, size=size)


def vectors(dim: int, count: int, seed: int) -> Numbers:
    """Unit vectors in rows: gradients of LeNet-5 at its first weights, then Gaussian directions."""
    import torch

    from sqsgd.learning.datasets import load_dataset
    from sqsgd.learning.gradients import loss_gradient, prepare_torch
    from sqsgd.learning.models import LeNet5

    prepare_torch()
    torch.manual_seed(seed)
    model, data = LeNet5(10, (1, 28, 28)), load_dataset("mnist5k")
    first = 0 if dim == DIMS[1] else 1664  # the second convolution
    found = []
    for batch in torch.randperm(len(data.train_labels))[: 32 * (count // 2)].split(32):
        gradient = loss_gradient(model, data.train_inputs[batch], data.train_labels[batch])[1]
        found.append(gradient[first : first + dim])
    numbers = np.random.default_rng(seed).standard_normal((count - len(found), dim), np.float32)
    both = np.concatenate([np.stack(found), numbers])
    return np.asarray(both / np.linalg.norm(both, axis=1, keepdims=True), np.float32)


def measure(peer: Any, inputs: dict[int, Numbers], optimum: float, seconds: float) -> dict[str, Any]:
    """For each seed at least one group of clients, and more until ``seconds`` of CPU time."""
    ours = isinstance(peer, Scheme)
    figures: dict[str, Any] = {
        "nmse_by_law": peer.nmse,
        "ratio_by_law": peer.nmse / optimum,
        "sampling": "exact" if ours and peer.privacy.arithmetic == "exact" else "floats",
        "shared": "rotation" if ours else SHARED.get(type(peer).__name__, "rotation"),
    }
    if (numbers := getattr(peer, "numbers", 0.0)) > MOST_NUMBERS:
        return figures | {"reason": f"not run: {numbers:.0e} random numbers per report"}
    groups, sizes, encoding, decoding = [], [], [], []
    single: list[list[float]] = [[], []]
    for seed, x in inputs.items():
        rng, started = seeded_rng(seed), time.process_time()
        for group in range(100):
            if group and time.process_time() - started > seconds / len(inputs):
                break
            error = np.zeros(peer.dim)
            for client, vector in enumerate(x):
                task = Task(round=group, client=client, seed=seed, dim=peer.dim, bound=1.0)
                begun = time.thread_time()
                message = peer.encode(vector, task, rng)
                encoded = time.thread_time()
                own = peer.decode(message, task)
                decoding.append(time.thread_time() - encoded)
                encoding.append(encoded - begun)
                own -= vector
                sizes.append(len(message))
                single[2 * client >= len(x)].append(float(own @ own))
                error += own
            groups.append(float(error @ error) / len(x))
    nmse, half_width = mean_interval(groups)
    return figures | {
        "nmse": nmse,
        "ratio": nmse / optimum,
        "ratio_half_width": half_width / optimum,
        "ratio_of_gradients": statistics.fmean(single[0]) / optimum,
        "ratio_of_gaussian": statistics.fmean(single[1]) / optimum,
        "bytes": statistics.fmean(sizes) - (ENVELOPE_BYTES if ours else 0),
        "encode_us": 1e6 * statistics.median(encoding),
        "decode_us": 1e6 * statistics.median(decoding),
        "reports": len(sizes),
    }


def line(name: str, figures: dict[str, Any], reference: dict[str, Any]) -> str:
    """A row of the table; times relative to the reference's."""
    law = f"{figures['ratio_by_law']:.4g}" if "ratio_by_law" in figures else ""
    end = f"{figures.get('sampling', '')} | {figures.get('shared', '')} |"
    if "reason" in figures:
        return f"| {name} | {figures['reason']} | | {law} | | | {end}"
    measured = f"{figures['ratio']:.4g} ± {figures['ratio_half_width']:.2g}"
    encode, decode = (f"{figures[key] / reference[key]:,.2g}" for key in ("encode_us", "decode_us"))
    return f"| {name} | {figures['bytes']:,.5g} | {measured} | {law} | {encode} | {decode} | {end}"


def main() -> None:
    """Print a table for each length and ε."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=0.25, help="CPU time per row")
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    saved = []
    for dim in options.dims:
        inputs = {seed: vectors(dim, CLIENTS, seed) for seed in SEEDS}
        for epsilon in options.epsilons:
            print(f"\nd = {dim:,}, ε = {epsilon:g}: the optimum is {sphere_cap(dim, epsilon).error:.5g}\n")
            print("|", " | ".join(HEAD), "|")
            print("|" + "---|" * len(HEAD))
            reference: dict[str, Any] = {}
            for name, peer in rows(dim, epsilon):
                if isinstance(peer, str):
                    figures = {"reason": peer}
                else:
                    figures = measure(peer, inputs, sphere_cap(dim, epsilon).error, options.seconds)
                reference = reference or figures
                print(line(name, figures, reference), flush=True)
                saved.append({"scheme": name, "dim": dim, "epsilon": epsilon} | figures)
    if options.json:
        options.json.write_text(json.dumps(saved, indent=1) + "\n")


if __name__ == "__main__":
    main()
