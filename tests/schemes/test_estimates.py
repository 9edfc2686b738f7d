"""The server's estimates: unbiased, and aggregated as a stream."""

import numpy as np
import pytest
from cases import CASES, task, unit_vector

from sqsgd import Aggregate, seeded_rng


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mean_is_recovered(case):
    """Over clients and rounds the mean of the estimates is x."""
    dim, reports = 64, 3000
    scheme, x, rng = case.make(dim=dim, bits=case.mean_bits), unit_vector(64), seeded_rng(3)
    assert scheme.residual == case.waits
    estimates = []
    for client in range(reports):
        t = task(scheme, client=client, round=client)  # the clients of a round may share their sample
        estimates.append(scheme.decode(scheme.encode(x, t, rng), t))
    error = np.mean(estimates, axis=0) - x
    noise = np.var(estimates, axis=0).sum() / reports
    assert error @ error < 2.0 * noise + case.bias + 1e-12


@pytest.mark.parametrize("case", CASES, ids=str)
def test_aggregate_streams_to_the_mean_of_the_decoded(case):
    scheme, rng = case.make(), seeded_rng(2)
    tasks = [task(scheme, client=client) for client in range(7)]
    reports = [(t, scheme.encode(unit_vector(300, seed=t.client), t, rng)) for t in tasks]
    one_by_one = np.mean([scheme.decode(message, t) for t, message in reports], axis=0)
    assert np.allclose(scheme.aggregate(iter(reports)), one_by_one, atol=1e-5)
    weighted = Aggregate(scheme)
    for t, message in reports:
        weighted.add(t, message, weight=1.0 + t.client)
    decoded = [(1 + t.client) * scheme.decode(message, t) for t, message in reports]
    assert np.allclose(weighted.mean(), np.sum(decoded, axis=0) / 28, atol=1e-5)
