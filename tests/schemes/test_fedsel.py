"""FedSel: privately chosen coordinates, their values, and how it spends a budget."""

import itertools

import numpy as np
import pytest
from cases import task, unit_vector
from reference import g_test

from sqsgd import Aggregate, Task, make_scheme, seeded_rng
from sqsgd.core.codec import Column
from sqsgd.mechanisms.selection import TopSet
from sqsgd.schemes.fedsel import fedsel, pick_counts, rank_groups


def test_a_value_sent_without_a_private_choice_is_caught(monkeypatch):
    """The joint law of index and value then differs from the density."""
    mechanism = make_scheme("fedsel", dim=3, epsilon=5.0, bytes=1, levels=4, picks=1).mechanism
    x = np.array([0.3, -0.5, 0.1], np.float32)

    def p_value():
        rng, counts = seeded_rng(3), np.zeros((3, 4))
        for _ in range(10_000):
            index, value = mechanism.randomize(x, 0.8, rng)
            counts[index[0], value[0]] += 1
        pairs = itertools.product(range(3), range(4))
        law = [mechanism.log_density((np.array([i]), np.array([v])), x, 0.8) for i, v in pairs]
        return g_test(counts.ravel(), 10_000 * np.exp(law))

    assert p_value() > 1e-6
    monkeypatch.setattr(TopSet, "choose", lambda _, magnitudes, picks, rng: np.argsort(-magnitudes)[:picks])
    assert p_value() < 1e-6


@pytest.mark.parametrize("select", ["ps", "em"])
def test_picked_values_are_unbiased(select):
    """Given that a coordinate was picked, once or more often, the mean of its estimates is its value."""
    scheme, rng = fedsel(8, 40.0, 25, select=select, picks=6, levels=8, reach=2.8), seeded_rng(2)
    x, sums = unit_vector(8), [[] for _ in range(8)]
    for client in range(4000):
        t = task(scheme, client=client)
        message = scheme.encode(x, t, rng)
        estimate = scheme.decode(message, t)
        sent = scheme.mechanism.coordinates(scheme.open(message, t))
        assert set(np.flatnonzero(estimate)) <= set(sent.tolist())
        for j in sent:
            sums[j].append(estimate[j])
    for value, estimates in zip(x, sums, strict=True):
        assert len(estimates) > 100
        assert abs(np.mean(estimates) - value) < 4 * np.std(estimates) / len(estimates) ** 0.5


@pytest.mark.parametrize("options", [{}, {"select": "em"}, {"picks": 40, "top": 10}, {"reach": 1.5}])
@pytest.mark.parametrize(("dim", "epsilon"), [(300, 120.0), (3000, 60.0)])
def test_the_predicted_error_is_the_measured_one(dim, epsilon, options):
    scheme, rng, errors, overlaps, lengths = fedsel(dim, epsilon, 256, **options), seeded_rng(6), [], [], []
    for client in range(1500):
        t = Task(round=0, client=client, seed=1, dim=dim, bound=1.0)
        x = unit_vector(dim, seed=client)
        estimate = scheme.decode(scheme.encode(x, t, rng), t)
        errors.append(np.sum((estimate - x) ** 2))
        overlaps.append(estimate @ x)
        lengths.append(estimate @ estimate)
    # The largest of few Gaussians vary about their quantiles: 1 % of the change in error.
    assert (
        abs(np.mean(errors) - scheme.nmse)
        < 0.01 * abs(1 - scheme.nmse) + 3 * np.std(errors) / len(errors) ** 0.5
    )
    unbiased = np.mean(lengths) / np.mean(overlaps) ** 2 - 1
    assert scheme.mechanism.unbiased_error(1.0) == pytest.approx(unbiased, rel=0.05)


def test_one_coordinate_needs_no_choice():
    scheme = fedsel(1, 3.0, 1)
    assert (scheme.mechanism.selection, len(scheme.mechanism.layout), scheme.residual) == (None, 1, False)


def test_the_same_coordinate_twice_counts_once():
    scheme = fedsel(2, 9.0, 13, picks=30)
    t, total = task(scheme), Aggregate(scheme)
    message = scheme.encode(np.array([1.0, -0.5], np.float32), t, seeded_rng(1))
    total.add(t, message)
    decoded = scheme.decode(message, t)
    assert np.allclose(total.mean(), decoded, rtol=1e-6)
    columns = scheme.open(message, t)
    values = scheme.mechanism._half_range(t.bound) * scheme.mechanism.channel.estimate(columns[1])
    assert np.allclose(decoded, [values[columns[0] == j].mean() for j in (0, 1)])


@pytest.mark.parametrize(("dim", "cut"), [(1, 1), (150, 37), (3000, 1), (3000, 777), (10**6, 4321)])
def test_groups_cover_all_ranks_with_gaussian_magnitudes(dim, cut):
    ranks, counts, sizes = rank_groups(dim, cut)
    assert counts.sum() == dim
    assert counts @ sizes**2 == pytest.approx(dim, rel=1e-12)
    assert cut in np.cumsum(counts)
    assert (np.diff(sizes) < 0).all()
    assert np.allclose(ranks, np.cumsum(counts) - (counts + 1) / 2)
    if dim == 3000:
        drawn = np.sort(np.abs(np.random.default_rng(1).standard_normal((400, dim))), axis=1)[:, ::-1]
        expected = drawn.mean(axis=0)[np.rint(ranks).astype(int)]
        assert np.allclose(sizes[5:150], expected[5:150], rtol=0.03)


def test_no_other_top_set_predicts_less():
    best = fedsel(300, 40.0, 25).mechanism
    share = best.selection.epsilon / (best.selection.epsilon + best.channel.epsilon)
    same = {"picks": best.picks, "levels": best.channel.alphabet, "select_share": share}
    others = [fedsel(300, 40.0, 25, top=top, **same).nmse for top in range(1, 300)]
    assert 1 - best.relative_error(1.0) == pytest.approx(1 - min(others), rel=0.02)


def test_the_most_picks_that_fit_are_tried():
    """Only one pick where there is no choice; no more than leave each a quarter of a nat."""
    for alphabet in (2, 16, 64):
        counts = pick_counts(300, 1e5, 2048, alphabet, None)
        needed = [
            Column(count, alphabet).bits + Column(count, 300).bits for count in (counts[-1], counts[-1] + 1)
        ]
        assert needed[0] <= 2048 < needed[1]
    assert pick_counts(1, 40.0, 200, 4, None) == [1]
    assert pick_counts(300, 1.0, None, 4, None)[-1] == 4
    assert pick_counts(300, 40.0, 200, 2, 100) == []
