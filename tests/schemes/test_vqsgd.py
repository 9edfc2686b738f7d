"""vqSGD: the response, the choice of repeats, the error."""

import math
from fractions import Fraction

import numpy as np
import pytest
from reference import g_test

from sqsgd import make_scheme, seeded_rng
from sqsgd.schemes.vqsgd import Response, best_repeats


def response_counts(response, code, trials=20_000):
    rng = seeded_rng(3)
    drawn = [response.privatize(code, rng) for _ in range(trials)]
    expected = np.exp(response.log_densities(np.eye(response.alphabet)[code])) * trials
    return np.bincount(drawn, minlength=response.alphabet), expected


@pytest.mark.parametrize(("alphabet", "epsilon"), [(2, 0.1), (6, 1.5), (9, 5.0)])
def test_the_response_is_exact(alphabet, epsilon):
    response = Response(alphabet, epsilon)
    observed, expected = response_counts(response, alphabet - 2)
    assert abs(expected.sum() / observed.sum() - 1) < 1e-12
    assert abs(math.log(expected.max() / expected.min()) - epsilon) < 1e-12
    assert g_test(observed, expected) > 1e-6


def test_a_response_that_never_changes_its_code_is_caught(monkeypatch):
    response = Response(6, 1.5)
    monkeypatch.setattr(response, "_stays", type("Always", (), {"draw": lambda self, rng: 1})())
    assert g_test(*response_counts(response, 4)) < 1e-6


@pytest.mark.parametrize(
    ("dim", "epsilon", "bits", "error"), [(119850, 400.0, 450, 5056), (1722224, 2000.0, 2354, 16952)]
)
def test_errors_agree_with_independent_computations(dim, epsilon, bits, error):
    scheme = make_scheme("vqsgd", dim=dim, epsilon=epsilon, bytes=7168)
    assert scheme.code_bits == bits
    assert abs(scheme.nmse - error) < 0.5
    assert make_scheme("vqsgd", dim=dim, epsilon=epsilon).code_bits == bits


@pytest.mark.parametrize("dim", [1, 2, 50, 10**6, 2**31])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0, 5.0, 40.0, 1000.0])
def test_the_best_repeats_are_the_best(dim, epsilon):
    repeats = np.arange(1, 2001)
    each = epsilon / repeats
    inflation = (1 + (2 * dim - 1) * np.exp(-each)) / -np.expm1(-each)
    for most in (1, 7, 2000):
        assert best_repeats(dim, epsilon, most) == repeats[np.argmin((inflation**2 / repeats)[:most])]


@pytest.mark.parametrize("epsilon", [0.1, 1 / 3, 7.7, 400.0, 99999.9])
@pytest.mark.parametrize("repeats", [1, 3, 7, 49, 1000])
def test_the_shares_never_add_up_to_more(epsilon, repeats):
    scheme = make_scheme("vqsgd", dim=10, epsilon=epsilon, repeats=repeats)
    assert repeats * Fraction(scheme.mechanism.response.epsilon) <= Fraction(epsilon)
    assert epsilon * (1 - 1e-12) <= scheme.privacy.epsilon <= epsilon
