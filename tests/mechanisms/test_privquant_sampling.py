"""The sampler against its exact law; the tests are seeded and fail on broken samplers."""

import math

import numpy as np
import pytest
import reference
from reference import g_test
from scipy import stats

from sqsgd import PrivQuant, seeded_rng
from sqsgd._internal.kernels import sampling
from sqsgd.mechanisms import privquant

ALARM = 1e-6  # a correct sampler fails one of these tests with this probability


@pytest.mark.parametrize(
    ("dim", "levels", "epsilon"), [(512, 16, 400.0), (512, 2, 50.0), (300, 5, 30.0), (4096, 2, 1e4)]
)
def test_the_output_has_the_drawn_number_of_matches(dim, levels, epsilon):
    q, numbers = PrivQuant(dim, levels, epsilon), np.random.default_rng(3)
    codes = numbers.integers(0, levels, dim).astype(np.uint8)
    for seed in range(50):
        wanted = q.law.sampler.draw(seeded_rng(seed))  # the first thing that privatize draws
        assert np.count_nonzero(q.privatize(codes, seeded_rng(seed)) == codes) == wanted


def outputs(q: PrivQuant, codes, trials: int, seed: int, fused: bool = False) -> np.ndarray:
    """Counts of each possible output, numbered in base K; by privatize, or with rounding in one pass."""
    rng, place = seeded_rng(seed), q.levels ** np.arange(q.dim)[::-1]
    x = (2 * codes / (q.levels - 1) - 1).astype(np.float32)  # on the levels: rounding changes nothing
    draw = (lambda: q.randomize(x, 1.0, rng)) if fused else (lambda: q.privatize(codes, rng))
    return np.bincount([int(draw() @ place) for _ in range(trials)], minlength=q.levels**q.dim)


# dim, levels, epsilon: powers of two (one and two bytes of noise), and not
WHOLE_LAWS = [(6, 2, 2.0), (7, 2, 0.1), (3, 4, 2.5), (4, 3, 1.5), (3, 5, 4.0), (2, 16, 3.0), (1, 7, 1.0)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("dim", "levels", "epsilon"), WHOLE_LAWS)
def test_every_output_has_its_exact_probability(dim, levels, epsilon, fused):
    q, trials = PrivQuant(dim, levels, epsilon), 60_000
    codes = np.arange(dim, dtype=np.uint8) % levels
    every = reference.all_codes(dim, levels)
    expected = trials * np.exp([q.log_density(out, codes) for out in every])
    assert g_test(outputs(q, codes, trials, seed=dim * levels, fused=fused), expected) > ALARM


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("dim", "levels", "epsilon"), [(6, 2, 2.0), (5, 3, 1.5), (5, 4, 3.0)])
def test_vectors_in_several_pieces_have_the_same_law(dim, levels, epsilon, fused, monkeypatch):
    """Noise shared between the pieces of a long vector would show here."""
    monkeypatch.setattr(privquant, "CHUNK", 2)
    q, trials = PrivQuant(dim, levels, epsilon), 60_000
    codes = np.arange(dim, dtype=np.uint8) % levels
    expected = trials * np.exp([q.log_density(out, codes) for out in reference.all_codes(dim, levels)])
    assert g_test(outputs(q, codes, trials, seed=5, fused=fused), expected) > ALARM


@pytest.mark.parametrize("levels", [2, 3, 16])
def test_pieces_of_a_long_vector_differ(levels):
    q, size = PrivQuant(3 * privquant.CHUNK, levels, 50.0), privquant.CHUNK
    rng = seeded_rng(4)
    for out in (
        q.privatize(np.zeros(q.dim, np.uint8), rng),
        q.randomize(np.zeros(q.dim, np.float32), 1.0, rng),
    ):
        pieces = out.reshape(3, size)
        assert abs((pieces[0] == pieces[1]).mean() - 1 / levels) < 0.05
        assert abs((pieces[1] == pieces[2]).mean() - 1 / levels) < 0.05


@pytest.mark.parametrize("dim", [40, 64])
@pytest.mark.parametrize("levels", [2, 3, 16])
def test_nearly_all_matches_are_left_at_uniform_places(dim, levels):
    """The path for counts close to dim: start from the input, change a few."""
    q = PrivQuant(dim, levels, dim * math.log(levels) + 1.0)
    codes, rng = np.zeros(dim, np.uint8), seeded_rng(levels)
    changed, others = np.zeros(dim), np.zeros(levels)
    for _ in range(20_000):
        out = q.privatize(codes, rng)
        if 0 < np.count_nonzero(out) < dim / 16:
            changed += out != 0
            others += np.bincount(out[out != 0], minlength=levels)
    assert changed.sum() > 1000
    assert stats.chisquare(changed).pvalue > ALARM
    assert levels == 2 or stats.chisquare(others[1:]).pvalue > ALARM


@pytest.mark.parametrize("broken", ["places", "codes", "count", "threshold"])
def test_broken_samplers_are_caught(broken, monkeypatch):
    dim, levels, epsilon = 4, 3, 1.5
    q, trials = PrivQuant(dim, levels, epsilon), 60_000
    codes = np.arange(dim, dtype=np.uint8) % levels
    expected = trials * np.exp([q.log_density(out, codes) for out in reference.all_codes(dim, levels)])
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
    assert g_test(outputs(q, codes, trials, seed=12), expected) < ALARM


@pytest.mark.parametrize(("dim", "levels"), [(64, 2), (64, 5), (64, 16)])
def test_mean_and_variance_are_the_closed_forms(dim, levels):
    q, bound, trials = PrivQuant(dim, levels, 60.0), 0.7, 20_000
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
