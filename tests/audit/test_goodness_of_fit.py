"""The distribution of the matches, also where float32 leaves a code uncertain."""

import itertools
import math

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit._statistics import g_test
from sqsgd.audit.goodness_of_fit import match_probabilities, with_doubt
from sqsgd.audit.known_codes import certain_vectors
from sqsgd.mechanisms.privquant import PrivQuant


def test_match_probabilities_sum_to_one():
    law = match_probabilities(subject("sqsgd-paper").scheme.mechanism.quantizer)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


def test_matches_with_an_uncertain_code():
    """Over all outputs of 4 codes with 3 levels, if the first code is 1 instead of 0."""
    quantizer = PrivQuant(4, 3, 5.0)
    seen = np.zeros(5)
    for at in range(4):
        codes = np.zeros(4, np.uint8)
        codes[at] = 1
        for out in itertools.product(range(3), repeat=4):
            matches = out.count(0)
            seen[matches] += math.exp(quantizer.log_density(np.array(out, np.uint8), codes)) / 4
    law = match_probabilities(quantizer)
    np.testing.assert_allclose(with_doubt(law, 3, 1.0), seen, rtol=1e-9)
    np.testing.assert_allclose(with_doubt(law, 3, 0.25), 0.75 * law + 0.25 * seen, rtol=1e-9)


def test_an_uncertain_code_raises_no_false_alarm():
    """A regression test: one audit in a hundred of schemes with more than two levels raised one."""
    case = subject("sqsgd-paper")
    quantizer = case.scheme.mechanism.quantizer
    law, doubt = match_probabilities(quantizer), max(vector.doubt for vector in certain_vectors(case))
    assert 1e-6 < doubt < 0.02
    seen = np.random.default_rng(0).multinomial(199, law / law.sum())
    seen[quantizer.threshold - 1] += 1
    assert g_test(seen, 200 * law)[0] < 1e-6
    assert g_test(seen, 200 * with_doubt(law, quantizer.levels, doubt))[0] > 1e-6
