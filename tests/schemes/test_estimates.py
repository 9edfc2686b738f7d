"""What the server makes of reports: unbiased, streamed, with the error that was predicted."""

import numpy as np
import pytest
from cases import CASES, task, unit_vector

from sqsgd import seeded_rng


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
