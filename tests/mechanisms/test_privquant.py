"""PrivQuant: arguments, parameters, exact privacy in rational arithmetic, and the sampler against its law."""

import math
from fractions import Fraction
from math import comb

import numpy as np
import pytest
import reference
from flint import arb
from reference import g_test
from refusing import refuse
from scipy import stats

from sqsgd import PrivQuant, Task, seeded_rng
from sqsgd._internal import exact
from sqsgd._internal.kernels import sampling
from sqsgd.mechanisms import privquant
from sqsgd.mechanisms.privquant import best_threshold, boundary_law

Q = PrivQuant(8, 4, 5.0)
X = np.zeros(8, np.float32)
CODES = np.zeros(8, np.uint8)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dim": 2**24 + 1}, "dim = 16777217"),
        ({"levels": 257}, "levels = 257"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"threshold": 9}, "threshold = 9"),
        ({"keep": 1.0}, r"keep = 1\.0"),
        ({"rule": "best"}, "rule = 'best'"),
        ({"rule": "paper", "keep": 0.5}, "rule = 'paper'"),
    ],
)
def test_privquant_arguments(changes, match):
    refuse(match, lambda: PrivQuant(**{"dim": 8, "levels": 4, "epsilon": 5.0, **changes}))


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (np.full(8, 4), "contains 4"),
        (np.full(8, -1), "contains -1"),
        (np.zeros(8), "dtype float64"),
        (np.zeros(9, int), r"shape \(9,\)"),
    ],
)
def test_codes(codes, match):
    refuse(match, lambda: Q.privatize(codes, seeded_rng(1)))
    refuse(match, lambda: Q.estimate(codes, 1.0))
    refuse(match, lambda: Q.log_density(codes, CODES))
    refuse(match, lambda: Q.log_density(CODES, codes))


@pytest.mark.parametrize("dim", [1, 2, 17, 512, 5000, 1 << 20, 1 << 24])
@pytest.mark.parametrize("levels", [2, 3, 256])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 400.0, 1e5])
def test_the_whole_range_of_parameters(dim, levels, epsilon):
    q = PrivQuant(dim, levels, epsilon)
    assert q.epsilon == epsilon
    assert 1 <= q.threshold <= dim
    assert 0.0 < q.keep < 1.0
    assert 0.0 < q.scale <= 1.0
    high, low = q.law.log_densities
    assert 0.0 < high - low <= epsilon
    assert high - low >= epsilon - 1e-9 * (epsilon + dim)


def test_overrides():
    free = PrivQuant(64, 4, 20.0)
    assert PrivQuant(64, 4, 20.0, threshold=free.threshold).scale == free.scale
    fixed = PrivQuant(64, 4, threshold=free.threshold, keep=free.keep)
    assert math.isclose(fixed.epsilon, 20.0, rel_tol=1e-9)
    assert fixed.epsilon <= 20.0
    kept = PrivQuant(64, 4, 20.0, keep=0.9)
    assert kept.epsilon <= 20.0 < PrivQuant(64, 4, threshold=kept.threshold + 1, keep=0.9).epsilon
    with pytest.raises(ValueError, match="above epsilon = 19"):
        PrivQuant(64, 4, 19.0, threshold=free.threshold, keep=free.keep)


def test_the_papers_rule_is_the_corrected_one():
    q = PrivQuant(512, 16, 400.0, rule="paper")
    assert math.isclose(math.log(q.keep / q.law.drop), 40.0, rel_tol=1e-12)
    high, low = reference.side_sizes(512, 16, q.threshold)
    next_high, next_low = reference.side_sizes(512, 16, q.threshold + 1)
    assert math.log(low / high) <= 360.0 < math.log(next_low / next_high)
    with pytest.raises(ValueError, match="no threshold from 1 to 1"):
        PrivQuant(1, 16, 1.0, rule="paper")


@pytest.mark.parametrize("bound", [0.0, math.nan, "1"])
def test_bounds(bound):
    refuse("bound = ", lambda: Q.quantize(X, bound, seeded_rng(1)))
    refuse("bound = ", lambda: Q.estimate(CODES, bound))
    refuse("bound = ", lambda: Q.variance(X, bound))
    refuse("bound = ", lambda: Task(round=0, client=0, seed=0, dim=8, bound=bound))


@pytest.mark.parametrize("levels", [2, 5, 256])
def test_values_outside_are_clamped(levels):
    """With 18 coordinates: sixteen are rounded at a time and the rest one by one."""
    q, rng = PrivQuant(18, levels, 20.0), seeded_rng(1)
    far = np.array(3 * [-1e13, -7.0, -0.5, 0.5, 7.0, 1e13], np.float32)
    for _ in range(50):
        assert q.quantize(far, 0.5, rng).tolist() == 3 * [*3 * [0], *3 * [levels - 1]]


# n, K, ε, τ*, 1-p*, m*, MSE* at 0 and U, m by the paper's rule, its MSE at 0 and U (as printed)
TABLE_1 = [
    (512, 2, 400, 512, "2.6e-20", "1.0000", "1.00", "0", "1.0000", "1.00", "0"),
    (512, 3, 400, 471, "2.3e-03", "0.8780", "0.106", "0.245", "0.8449", "0.145", "0.328"),
    (512, 8, 400, 335, "1.3e-03", "0.6043", "0.498", "1.12", "0.5739", "0.590", "1.30"),
    (512, 16, 400, 263, "2.1e-03", "0.4804", "0.860", "1.93", "0.4543", "1.009", "2.20"),
    (512, 16, 390, 259, "7.8e-04", "0.4727", "0.901", "2.01", "0.4481", "1.048", "2.27"),
    (512, 32, 400, 210, "2.7e-03", "0.3902", "1.42", "2.98", "0.3670", "1.67", "3.39"),
    (512, 128, 400, 142, "7.5e-04", "0.2715", "3.35", "6.03", "0.2540", "3.92", "6.85"),
    (8192, 2, 2000, 6827, "3.4e-04", "0.6666", "2.25", "1.25", "0.6365", "2.47", "1.47"),
    (8192, 3, 2000, 5529, "4.2e-04", "0.5122", "1.24", "2.19", "0.4870", "1.44", "2.50"),
    (8192, 16, 2000, 2352, "1.3e-04", "0.2396", "5.02", "8.18", "0.2254", "5.78", "9.19"),
    (8192, 128, 2000, 1041, "3.0e-04", "0.1202", "20.6", "27.9", "0.1120", "24.0", "31.9"),
]


def printed(value: float, like: str) -> str:
    """The value with as many decimals as a printed one."""
    if "e" in like:
        return f"{value:.1e}"
    return f"{value:.{len(like.partition('.')[2])}f}"


@pytest.mark.parametrize("row", TABLE_1, ids=lambda row: "-".join(map(str, row[:3])))
def test_table_1_to_its_printed_digits(row):
    dim, levels, epsilon, threshold, drop, *numbers = row
    best, paper = PrivQuant(dim, levels, epsilon), PrivQuant(dim, levels, epsilon, rule="paper")
    zero, edge = np.zeros(dim), np.ones(dim)
    got = []
    for q in (best, paper):
        got += [q.scale, q.variance(zero, 1.0)[0], q.variance(edge, 1.0)[0]]
    assert best.threshold == threshold
    assert printed(best.law.drop, drop) == drop
    assert [printed(value, like) for value, like in zip(got, numbers, strict=True)] == numbers


def brute_force_scale(dim: int, levels: int, epsilon: float, threshold: int) -> Fraction:
    """m on the boundary, with e^ε as a rational to fifty digits."""
    with exact.precision(400):
        power = Fraction(int((arb(epsilon).exp() * arb(2) ** 200).floor().unique_fmpz()), 2**200)
    weights = [comb(dim, count) * (levels - 1) ** (dim - count) for count in range(dim + 1)]
    high, low = sum(weights[threshold:]), sum(weights[:threshold])
    edge = comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold)
    return edge * (power - 1) / (low + power * high)


@pytest.mark.parametrize("dim", [1, 2, 6, 30])
@pytest.mark.parametrize("levels", [2, 3, 16])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 10.0, 60.0])
def test_the_threshold_is_the_best_of_all(dim, levels, epsilon):
    scales = [brute_force_scale(dim, levels, epsilon, tau) for tau in range(1, dim + 1)]
    law = boundary_law(dim, levels, epsilon)
    assert law.threshold == best_threshold(dim, levels, epsilon) == 1 + scales.index(max(scales))
    assert math.isclose(law.scale, float(max(scales)), rel_tol=1e-12)
    assert math.isclose(law.loss, float(1 - max(scales)), rel_tol=1e-12)


SMALL = [(1, 2), (1, 5), (2, 2), (2, 4), (3, 3), (4, 3), (5, 2)]


def check_mechanism(dim, levels, densities, threshold, scale, epsilon):
    """Check an (A, B) mechanism that claims a scale and an ε exactly, over all inputs and outputs."""
    above, below = densities
    codes = reference.all_codes(dim, levels)
    values = [Fraction(2 * k, levels - 1) - 1 for k in range(levels)]
    for u in codes:
        matches = (codes == u).sum(axis=1)
        density = [above if count >= threshold else below for count in matches]
        assert sum(density) == 1, "densities do not sum to one"
        for j in range(dim):
            mean = sum(p * values[v[j]] for p, v in zip(density, codes, strict=True))
            assert mean == scale * values[u[j]], "the estimate is biased"
    ratio = max(above, below) / min(above, below)
    assert math.log(ratio) <= epsilon * (1 + 1e-12), "a likelihood ratio exceeds e^epsilon"
    assert math.log(ratio) >= epsilon * (1 - 1e-12), "epsilon is not attained"


@pytest.mark.parametrize(("dim", "levels"), SMALL)
def test_every_threshold_is_exactly_private_and_unbiased(dim, levels):
    for threshold in range(1, dim + 1):
        for keep in (Fraction(1, 2), Fraction(9, 10), Fraction(999, 1000)):
            above, below = reference.densities(dim, levels, threshold, keep)
            if above <= below:
                with pytest.raises(ValueError, match="no better than chance"):
                    PrivQuant(dim, levels, threshold=threshold, keep=keep)
                continue
            q = PrivQuant(dim, levels, threshold=threshold, keep=keep)
            weight = math.comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold)
            scale = weight * (above - below)
            check_mechanism(dim, levels, (above, below), threshold, scale, q.epsilon)
            assert math.isclose(q.scale, float(scale), rel_tol=1e-14)
            assert np.allclose(q.law.log_densities, [math.log(above), math.log(below)], rtol=1e-13)


@pytest.mark.parametrize("broken", ["p", "tau", "scale", "epsilon"])
def test_the_check_catches_a_broken_mechanism(broken):
    dim, levels, threshold, keep = 4, 3, 3, Fraction(9, 10)
    q = PrivQuant(dim, levels, threshold=threshold, keep=keep)
    above, below = reference.densities(dim, levels, threshold, keep)
    scale = math.comb(dim - 1, threshold - 1) * (levels - 1) ** (dim - threshold) * (above - below)
    epsilon = q.epsilon
    if broken == "p":
        above, below = reference.densities(dim, levels, threshold, Fraction(95, 100))
    elif broken == "tau":
        threshold -= 1
    elif broken == "scale":
        scale *= Fraction(101, 100)
    else:
        epsilon *= 0.99
    with pytest.raises(AssertionError):
        check_mechanism(dim, levels, (above, below), threshold, scale, epsilon)


@pytest.mark.parametrize(("dim", "levels"), [(1, 2), (3, 2), (3, 3), (2, 4)])
def test_log_density_averages_over_rounding(dim, levels):
    q, bound = PrivQuant(dim, levels, 2.0), 0.5
    codes = reference.all_codes(dim, levels)
    for x in ([0.1, -0.3, 0.5], [0.0, 0.0, 0.0], [9.0, -9.0, 0.26]):
        x = np.array(x[:dim])
        position = (np.clip(x, -bound, bound) + bound) * (levels - 1) / (2 * bound)
        chance = np.maximum(0, 1 - np.abs(position - codes)).prod(axis=1)
        for out in codes:
            density = sum(p * math.exp(q.log_density(out, u)) for p, u in zip(chance, codes, strict=True))
            assert math.isclose(q.log_density((out,), x, bound), math.log(density), rel_tol=1e-6)


ALARM = 1e-6  # a correct sampler fails one of these tests with this probability


def outputs(q: PrivQuant, codes, trials: int, seed: int, fused: bool = False) -> np.ndarray:
    """Counts of each possible output, numbered in base K; by privatize, or with rounding in one pass."""
    rng, place = seeded_rng(seed), q.levels ** np.arange(q.dim)[::-1]
    x = (2 * codes / (q.levels - 1) - 1).astype(np.float32)  # on the levels: rounding changes nothing
    draw = (lambda: q.randomize(x, 1.0, rng)[0]) if fused else (lambda: q.privatize(codes, rng))
    return np.bincount([int(draw() @ place) for _ in range(trials)], minlength=q.levels**q.dim)


def output_p_value(q: PrivQuant, codes, seed: int, fused: bool = False, trials: int = 20_000) -> float:
    expected = trials * np.exp([q.log_density(out, codes) for out in reference.all_codes(q.dim, q.levels)])
    return g_test(outputs(q, codes, trials, seed, fused), expected)


# dim, levels, epsilon: powers of two (one and two bytes of noise), and not
WHOLE_LAWS = [(6, 2, 2.0), (3, 4, 2.5), (5, 3, 1.5), (5, 4, 3.0), (2, 16, 3.0), (1, 7, 1.0)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("dim", "levels", "epsilon"), WHOLE_LAWS)
def test_every_output_has_its_exact_probability(dim, levels, epsilon, fused, monkeypatch):
    """Also of vectors in several pieces: noise that these share would show here."""
    q, codes = PrivQuant(dim, levels, epsilon), np.arange(dim, dtype=np.uint8) % levels
    for pieces in (1, 3) if dim > 4 else (1,):
        monkeypatch.setattr(privquant, "CHUNK", -(-dim // pieces))
        assert output_p_value(q, codes, seed=dim * levels, fused=fused) > ALARM


@pytest.mark.parametrize("broken", ["places", "codes", "count", "threshold"])
def test_broken_samplers_are_caught(broken, monkeypatch):
    dim, levels, epsilon = 4, 3, 1.5
    q, codes = PrivQuant(dim, levels, epsilon), np.arange(dim, dtype=np.uint8) % levels
    if broken == "places":  # adjusts the first candidates instead of uniform ones

        def adjust(codes, out, count, wanted, levels, words):
            for i in range(codes.size):
                if count > wanted and out[i] == codes[i]:
                    out[i], count = (codes[i] + 1) % levels, count - 1
                elif count < wanted and out[i] != codes[i]:
                    out[i], count = codes[i], count + 1
            return count

        monkeypatch.setattr(sampling, "adjust", adjust)
    elif broken == "codes":  # prefers the next level
        scramble = sampling.scramble

        def scramble_unevenly(codes, levels, keep, noise, out):
            scramble(codes, levels, keep, noise, out)
            moved = (out != codes) & (noise % 4 == 0)
            out[moved] = (codes[moved] + 1) % levels
            return np.count_nonzero(out == codes)

        monkeypatch.setattr(sampling, "scramble", scramble_unevenly)
    elif broken == "count":  # draws L from a slightly wrong law
        q.law.__dict__["sampler"] = PrivQuant(dim, levels, 1.1 * epsilon).law.sampler
    else:  # τ off by one
        q.law.__dict__["sampler"] = PrivQuant(dim, levels, epsilon, threshold=q.threshold - 1).law.sampler
    assert output_p_value(q, codes, seed=12) < ALARM


@pytest.mark.parametrize(("dim", "levels"), [(64, 2), (64, 5), (64, 16)])
def test_mean_and_variance_are_the_closed_forms(dim, levels):
    q, bound, trials = PrivQuant(dim, levels, 60.0), 0.7, 8_000
    x = np.linspace(-0.7, 0.7, dim).astype(np.float32)
    rng = seeded_rng(5)
    estimates = np.array(
        [q.estimate(q.privatize(q.quantize(x, bound, rng), rng), bound) for _ in range(trials)]
    )
    variance = q.variance(x, bound)
    z = (estimates.mean(axis=0) - x) / np.sqrt(variance / trials)
    assert np.abs(z).max() < 5.5
    assert stats.chi2.sf(np.sum(z**2), dim) > ALARM  # nearly independent coordinates
    assert abs(estimates.var(axis=0).sum() / variance.sum() - 1) < 0.02
    wrong = (estimates.mean(axis=0) * 1.05 - x) / np.sqrt(variance / trials)
    assert stats.chi2.sf(np.sum(wrong**2), dim) < ALARM


def test_quantize_is_unbiased_even_far_below_the_sixteenth_bit():
    """Coordinates of 3e-5 of the range: plain 16-bit rounding would lose a third of each."""
    q, rng = PrivQuant(1 << 20, 2, 1.0), seeded_rng(8)
    x = np.full(1 << 20, 1e-5, np.float32)
    mean = np.mean([q.quantize(x, 1.0, rng).mean() for _ in range(64)]) * 2 - 1
    assert abs(mean - 1e-5) < 5 * (64 * 2**20) ** -0.5
    fine = np.full(1 << 20, 2.0**-17, np.float32)
    ups = sum(int(q.quantize(fine, 0.5, rng).sum()) for _ in range(64))
    expected = 64 * 2**20 * (0.5 + 2.0**-17)
    assert abs(ups - expected) < 5 * (16 * 2**20) ** 0.5
