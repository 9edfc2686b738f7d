"""The server's estimates: unbiased, as far off as predicted, and aggregated as a stream."""

import numpy as np
import pytest
from cases import CASES, task, unit_vector

from sqsgd import Aggregate, Task, make_scheme, seeded_rng


@pytest.mark.parametrize("case", CASES, ids=str)
def test_mean_is_recovered(case):
    """Over clients and rounds the mean of the estimates is x."""
    dim, reports = 64, 1000
    scheme, x, rng = case.make(dim=dim, bytes=case.mean_bytes), unit_vector(64), seeded_rng(3)
    assert scheme.keeps_state == case.waits
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


PREDICTED = [  # name, options, dim, epsilon, bytes, |x| / bound, and by how much the model may be off
    ("qsgd", {}, 300, None, 64, 1.0, 0.002),
    ("qsgd", {}, 300, None, None, 1.0, 0.002),
    ("qsgd", {"levels": 2}, 7, None, 8, 1.0, 0.002),
    ("terngrad", {}, 300, None, 16, 1.0, 0.002),
    ("dgc", {}, 300, None, 64, 1.0, 0.01),
    ("piecewise", {}, 512, 100.0, 32, 1.0, 0.01),
    ("piecewise", {"coordinates": 40}, 512, 100.0, 32, 0.5, 0.01),
    ("ldp-fed", {"levels": 16}, 512, 100.0, 32, 1.0, 0.01),
    ("ldp-fl", {}, 512, 100.0, 32, 0.5, 0.01),
    ("privunit", {}, 200, 20.0, None, 0.7, 0.0),
    ("privunit", {}, 1000, 60.0, 32, 0.7, 0.02),
    ("privunit-g", {}, 200, 20.0, None, 0.7, 0.0),
    ("privunit-g", {}, 1000, 60.0, 188, 0.7, 0.02),
    ("privunit-index", {}, 512, 6.0, None, 0.4, 0.003),
    ("privunit-inf", {}, 1000, 60.0, 32, 0.7, 0.02),
    ("sqkr", {}, 1000, 60.0, 32, 0.7, 0.02),
    ("vqsgd", {}, 500, 60.0, 13, 0.7, 0.0),
    ("cpsgd", {}, 300, 120.0, 64, 0.5, 0.003),
    ("cpsgd", {"levels": 8, "clients": 100}, 1000, 10.0, 512, 0.5, 0.003),
    ("sqsgd-stateless", {"code": "sparse"}, 1024, 94.0, 32, 0.6, 0.01),
    ("sqsgd-stateless", {"code": "sparse", "norm_epsilon": 6.0}, 512, 106.0, 64, 0.6, 0.01),
    ("sqsgd-stateless", {"code": "signs", "norm_epsilon": 25.0}, 1024, 65.0, 16, 0.5, 0.02),
]


@pytest.mark.parametrize(("name", "options", "dim", "epsilon", "size", "share", "model"), PREDICTED)
def test_the_error_is_the_predicted_one(name, options, dim, epsilon, size, share, model):
    """For vectors of uniform direction, whose rotated coordinates are nearly Gaussian."""
    scheme, rng, errors = (
        make_scheme(name, dim=dim, epsilon=epsilon, bytes=size, **options),
        seeded_rng(6),
        [],
    )
    predicted = scheme.mechanism.relative_error(share)
    for i, transform in reversed(list(enumerate(scheme.transforms))):
        predicted = transform.error_before(predicted, scheme._dims[i])
    for client in range(1000):
        x = unit_vector(dim, seed=client % 500)
        t = Task(round=client, client=client, seed=5, dim=dim, bound=1 / share)
        errors.append(np.sum((scheme.decode(scheme.encode(x, t, rng), t) - x) ** 2))
    assert abs(np.mean(errors) - predicted) < model * predicted + 3 * np.std(errors) / len(errors) ** 0.5
