"""Privacy, from the density of reports, and that reports have that density."""

import itertools

import numpy as np
import pytest
import reference
from cases import PRIVATE
from reference import g_test

from sqsgd import ScalarDP, make_scheme, seeded_rng
from sqsgd.mechanisms.channels import TopSet
from sqsgd.schemes.privunit_index import NearestVertices

LISTED = [case for case in PRIVATE if case.tiny is not None]
DISTINCT = list({case.make_tiny(epsilon=5.0).mechanism.identity: case for case in LISTED}.values())
"""One case of each mechanism: several schemes have the same at this size."""
TRIALS, FEW_TRIALS = 6_000, 600
ALARM = 1e-6


def joint_outputs(mechanism):
    """Every tuple of columns that a small mechanism can send."""
    columns = [list(column.every()) for column in mechanism.layout]
    return list(itertools.product(*columns))


def inputs_of(dim, bound):
    """Corners of the cube, ends of the axes, random vectors, zero."""
    corners = bound * (2.0 * reference.all_codes(min(dim, 8), 2)[:16] - 1.0)
    corners = np.tile(corners, -(-dim // 8))[:, :dim]
    axes = bound * np.concatenate([np.eye(dim), -np.eye(dim)])
    spread = np.random.default_rng(1).standard_normal((20, dim))
    return [x.astype(np.float32) for x in (*corners, *axes, *spread, np.zeros(dim))]


def likelihoods(mechanism, inputs, bound):
    """ln P(output | input), one row per output."""
    outputs = joint_outputs(mechanism)
    return np.array([[mechanism.log_density(columns, x, bound) for x in inputs] for columns in outputs])


@pytest.mark.parametrize("case", LISTED, ids=str)
def test_exact_privacy(case):
    """All outputs of a small mechanism: densities sum to one, and differ by at most ε between inputs."""
    scheme = case.make_tiny(epsilon=12.0)
    table = likelihoods(scheme.mechanism, inputs_of(scheme.mechanism.dim, 0.8), 0.8)
    assert np.allclose(np.exp(table).sum(axis=0), 1.0, rtol=1e-9)
    worst = (table.max(axis=1) - table.min(axis=1)).max()
    assert worst <= scheme.privacy.epsilon + 1e-9
    assert worst >= 0.9 * scheme.privacy.epsilon


def special_inputs(dim, bound):
    """Zero, tiny, ties, one coordinate, opposite ends, beyond the bound, and norms in between.

    The branches of the code lie there: zero counts as no direction, ties have an order, what is longer than
    the bound is clamped.
    """
    step = np.linspace(-0.5, 0.4, dim)
    first, equal, turns = np.eye(dim)[0], np.ones(dim), (-1.0) ** np.arange(dim)
    vectors = [
        np.zeros(dim), np.full(dim, -0.0), 1e-30 * step, 2e-6 * bound * first,
        bound * first, -bound * first, bound * equal, bound * turns, 1e12 * turns,
        *(share * bound * first for share in (0.25, 0.65, 0.999)),
    ]  # fmt: skip
    return [x.astype(np.float32) for x in vectors]


def p_values(mechanism, bound, seed=9):
    """``randomize`` against ``log_density``, all columns jointly, at a usual and at the special inputs."""
    outputs = joint_outputs(mechanism)
    numbers = {tuple(np.concatenate(columns).tolist()): i for i, columns in enumerate(outputs)}
    usual, rng = np.linspace(-0.5, 0.4, mechanism.dim).astype(np.float32), seeded_rng(seed)
    for x in (usual, *special_inputs(mechanism.dim, bound)):
        trials = TRIALS if x is usual else FEW_TRIALS
        counts = np.zeros(len(outputs))
        for _ in range(trials):
            counts[numbers[tuple(np.concatenate(mechanism.randomize(x, bound, rng)).tolist())]] += 1
        expected = np.exp([mechanism.log_density(columns, x, bound) for columns in outputs])
        yield g_test(counts, trials * expected)


def fits_its_density(mechanism):
    return all(p > ALARM for p in p_values(mechanism, 0.8))


@pytest.mark.parametrize("case", DISTINCT, ids=str)
def test_what_is_sent_has_the_density_that_privacy_is_proved_of(case):
    """test_exact_privacy relies on it. Seeded; another seed fails with probability 2e-5 for each case."""
    assert fits_its_density(case.make_tiny(epsilon=5.0).mechanism)


def always_in_clear(self, value, rng):
    return round(self.levels * min(value, 1.0))


def in_clear_between(self, value, rng):
    """Between 0.6 and 0.7 of the bound only."""
    return always_in_clear(self, value, rng) if 0.6 < value < 0.7 else PRIVATIZE(self, value, rng)


def zero_is_never_perturbed(self, value, rng):
    return 0 if value == 0 else PRIVATIZE(self, value, rng)


PRIVATIZE = ScalarDP.privatize


@pytest.mark.parametrize("broken", [always_in_clear, in_clear_between, zero_is_never_perturbed])
def test_a_norm_sent_without_randomised_response_is_caught(broken, monkeypatch):
    mechanism = make_scheme("sqsgd", dim=1, epsilon=5.0, bytes=2, norm_epsilon=1.0).mechanism
    monkeypatch.setattr(ScalarDP, "privatize", broken)
    assert not fits_its_density(mechanism)


def test_a_zero_vector_that_always_sends_a_near_vertex_is_caught(monkeypatch):
    mechanism, correct = NearestVertices(dim=4, epsilon=5.0, nearest=2), NearestVertices.randomize

    def randomize(self, x, bound, rng):
        if x.any():
            return correct(self, x, bound, rng)
        return (self._near(x, bound)[0][rng.below(self.nearest)][None].astype(np.uint32),)

    monkeypatch.setattr(NearestVertices, "randomize", randomize)
    assert not fits_its_density(mechanism)


def test_a_value_sent_without_a_private_choice_is_caught(monkeypatch):
    """The joint law of coordinate and value then differs from the density."""
    mechanism = make_scheme("fedsel", dim=3, epsilon=5.0, bytes=1, levels=4, picks=1).mechanism
    monkeypatch.setattr(TopSet, "choose", lambda _, magnitudes, picks, rng: np.argsort(-magnitudes)[:picks])
    assert not fits_its_density(mechanism)
