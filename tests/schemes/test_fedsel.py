"""FedSel: privately chosen coordinates, their values, and how it spends a budget."""

import numpy as np
import pytest
from cases import task, unit_vector

from sqsgd import Task, seeded_rng
from sqsgd.schemes.coordinatewise import fedsel


def test_picked_values_are_unbiased():
    """Given that a coordinate was picked, once or more often, the mean of its estimates is its value."""
    scheme, rng = fedsel(8, 40.0, 25, picks=6, levels=8, reach=2.8), seeded_rng(2)
    x, sums = unit_vector(8), [[] for _ in range(8)]
    for client in range(2500):
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


@pytest.mark.parametrize(
    ("dim", "epsilon", "options"),
    [(300, 120.0, {"picks": 40}), (300, 120.0, {"reach": 1.5}), (3000, 60.0, {})],
)
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
