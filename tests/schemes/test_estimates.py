"""What the server makes of reports: unbiased, streamed, with the error that was predicted."""

import numpy as np
import pytest
from cases import CASES, task, unit_vector

from sqsgd import Task, make_scheme, seeded_rng


@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
def test_sparse_vectors_keep_their_length(name, entries):
    """One round of signs and Hadamard would make a single entry 25 % too long, two of them 11 % too short."""
    scheme, rng, reports = make_scheme(name, dim=256, epsilon=200.0, bits=256), seeded_rng(3), 3000
    x = np.zeros(256, np.float32)
    x[:entries] = entries**-0.5
    slopes = []
    for client in range(reports):
        t = task(scheme, client=client)
        slopes.append(scheme.decode(scheme.encode(x, t, rng), t) @ x)
    assert abs(np.mean(slopes) - 1) < 0.03 + 4 * np.std(slopes) / reports**0.5


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


def test_one_nmse_of_the_planners_table():
    """A case that was measured apart: D = 1024, n = 128, ε = 40, signs, norm known: 25.85."""
    scheme = make_scheme("sqsgd-stateless", dim=1024, epsilon=65.0, bits=128, norm_epsilon=25.0)
    assert scheme.mechanism.quantizer.epsilon == 40.0
    rng, errors = seeded_rng(6), []
    for client in range(6000):
        x = unit_vector(1024, seed=client % 50)
        t = Task(round=client % 11, client=client, seed=5, dim=1024, bound=2.0)
        estimate = scheme.decode(scheme.encode(x, t, rng), t)
        errors.append(np.sum((estimate - x) ** 2))
    # The norm of the sent block varies by 1/(2 n): it and the symbol's error add about 0.8 %.
    assert abs(np.mean(errors) - 25.85) < 0.02 * 25.85 + 4 * np.std(errors) / len(errors) ** 0.5
