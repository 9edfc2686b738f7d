"""The peers of benchmarks/peers.py have the laws, the privacy and the errors of their papers."""

import math

import numpy as np
import pytest
from scipy import stats
from test_benchmarks import benchmark

from sqsgd import Task, seeded_rng
from sqsgd.schemes.privunit import sphere_cap

peers = benchmark("peers")
DIM, EPSILON = 128, 6.0
PEERS = (
    peers.ProjUnit(dim=DIM, epsilon=EPSILON, size=32),
    peers.RRSC(dim=DIM, epsilon=EPSILON, bits=5),
    peers.RRSC(dim=100, epsilon=EPSILON, bits=6, messages=2),
    peers.MMRC(dim=DIM, epsilon=EPSILON, bits=6),
    peers.MMRC(dim=DIM, epsilon=2 * EPSILON, bits=6, messages=2),
    peers.PPR(dim=DIM, epsilon=2 * EPSILON),
    peers.EDEN(dim=DIM, size=DIM),
    peers.EDEN(dim=100, size=40),
)


def named(peer):
    return f"{type(peer).__name__} {peer.dim} {getattr(peer, 'messages', '')}"


def direction(dim, seed=0):
    x = np.random.default_rng(seed).standard_normal(dim, np.float32)
    return x / np.linalg.norm(x)


def task(peer, round=0):
    return Task(round=round, client=1, seed=5, dim=peer.dim, bound=1.0)


@pytest.mark.parametrize("peer", PEERS, ids=named)
def test_unbiased_with_the_predicted_error(peer):
    """Over 1,000 reports, within four standard errors; errors within 2 %: 128 rotated coordinates are few."""
    x, rng = direction(peer.dim), seeded_rng(3)
    tasks = [task(peer, round) for round in range(1000)]
    estimates = np.stack([peer.decode(peer.encode(x, each, rng), each) for each in tasks])
    along = estimates @ x
    assert abs(along.mean() - 1) < 4 * along.std() / math.sqrt(len(tasks)) + 0.01
    across = estimates.mean(axis=0) - along.mean() * x
    errors = ((estimates - x) ** 2).sum(axis=1)
    assert across @ across < 1.6 * errors.mean() / len(tasks)  # nothing but noise: its square is chi2 / dim
    assert abs(errors.mean() - peer.nmse) < 4 * errors.std() / math.sqrt(len(tasks)) + 0.02 * peer.nmse


def probabilities(peer, x, task):
    near, chance = peer.side(x, task)
    return np.where(near, chance / max(1, near.sum()), (1 - chance) / max(1, (~near).sum()))


def worst_ratio(peer):
    worst = 0.0
    for round in range(40):
        laws = [probabilities(peer, sign * direction(DIM, round), task(peer, round)) for sign in (1, -1)]
        assert all(abs(law.sum() - 1) < 1e-12 for law in laws)
        worst = max(worst, float((laws[0] / laws[1]).max()))
    return math.log(worst)


@pytest.mark.parametrize("peer", [PEERS[1], PEERS[3]], ids=named)
def test_the_likelihood_ratio_of_an_index(peer):
    assert EPSILON - 0.3 < worst_ratio(peer) <= EPSILON + 1e-9


@pytest.mark.parametrize("peer", [PEERS[1], PEERS[3]], ids=named)
def test_the_index_is_drawn_from_this_law(peer):
    x, rng, each = direction(DIM), seeded_rng(4), task(peer)
    counts = np.bincount([peer.encode(x, each, rng)[0] for _ in range(3000)], minlength=peer.count)
    law = probabilities(peer, x, each)
    order = np.argsort(law)[::-1]
    pooled = np.add.reduceat(law[order] * 3000, np.arange(0, peer.count, 8))
    assert stats.chisquare(np.add.reduceat(counts[order], np.arange(0, peer.count, 8)), pooled).pvalue > 1e-4


def test_the_poisson_representation_has_the_law_of_its_definition():
    """P(K = k) is the mean of (T_k / r_k)^-2 / Σ (T_i / r_i)^-2; for two inputs its ratio is at most e^ε."""
    peer, numbers = peers.PPR(dim=8, epsilon=8.0), np.random.default_rng(0)
    each, cap = task(peer), sphere_cap(8, 2.0)
    shared = np.concatenate([peers.directions(each, index, 8, 1) for index in range(400)])
    arrivals = np.cumsum(numbers.exponential(size=(4000, 400)), axis=1)
    laws = []
    for sign in (1, -1):
        inside = shared @ (sign * direction(8)) >= cap.edge
        weights = (np.exp(np.where(inside, *cap.log_densities)) / arrivals) ** 2
        laws.append((weights / weights.sum(axis=1, keepdims=True)).mean(axis=0))
    ratios = np.log(laws[0] / laws[1])
    assert 2.0 < np.abs(ratios).max() <= 8.0  # more than PrivUnit's own ε
    drawn = [peer.index(direction(8), each, seeded_rng(seed)) for seed in range(2000)]
    counts = np.bincount(np.minimum(drawn, 11), minlength=12)[1:]
    expected = np.append(laws[0][:10], 1 - laws[0][:10].sum()) * 2000
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize(
    ("epsilon", "bits", "published", "half_width"), [(2, 2, 924.9, 67), (4, 4, 245.9, 11), (8, 8, 71.8, 3.8)]
)
def test_simplex_coding_has_the_published_error(epsilon, bits, published, half_width):
    """5,000 MSE at d = 500 in the authors' data (BerivanIsik/rrsc 13e6a58, ten runs of 5,000 users)."""
    law = peers.RRSC(dim=500, epsilon=epsilon, bits=bits).nmse
    assert abs(law - published) < half_width
    assert abs(sphere_cap(500, epsilon).error / law - 1) < 0.2  # and is near the optimum, as they say


def test_rows_are_measured_or_have_a_reason(monkeypatch):
    monkeypatch.setattr(peers, "MOST_NUMBERS", 1e6)
    inputs = {seed: np.stack([direction(256, seed), direction(256, seed + 9)]) for seed in (1, 2, 3)}
    for epsilon in (2.0, 40.0):
        found = {}
        for name, peer in peers.rows(256, epsilon):
            figures = {"reason": peer} if isinstance(peer, str) else peers.measure(peer, inputs, 1.0, 0.0)
            found[name] = peers.line(name, figures, found.setdefault("first", figures))
            assert "reason" in figures or figures["reports"] == 6
        assert ("not feasible" in found.get("MMRC", "")) == (epsilon == 40)
