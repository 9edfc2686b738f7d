"""The law of the matches, also where float32 leaves a code in doubt."""

import itertools
import math

import numpy as np
import pytest
from subjects import subject

from sqsgd.audit._statistics import g_test
from sqsgd.audit.goodness_of_fit import match_probabilities, with_doubt
from sqsgd.audit.known_codes import certain_vectors
from sqsgd.mechanisms.privquant import PrivQuant


def test_the_law_of_the_matches_adds_up():
    law = match_probabilities(subject("sqsgd-paper").scheme.mechanism.quantizer)
    assert law.sum() == pytest.approx(1.0, abs=1e-9)


def test_the_law_of_the_matches_where_one_code_may_be_another():
    """Every output of a quantiser of 4 codes of 3 levels, when the first one is 1 in place of 0."""
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


def test_one_match_less_than_can_be_is_no_alarm_where_a_code_may_be_another():
    """It was: once in some hundred audits of schemes with more than two levels."""
    case = subject("sqsgd-paper")
    quantizer = case.scheme.mechanism.quantizer
    law, doubt = match_probabilities(quantizer), max(vector.doubt for vector in certain_vectors(case))
    assert 1e-6 < doubt < 0.02
    seen = np.random.default_rng(0).multinomial(199, law / law.sum())
    seen[quantizer.threshold - 1] += 1
    assert g_test(seen, 200 * law)[0] < 1e-6
    assert g_test(seen, 200 * with_doubt(law, quantizer.levels, doubt))[0] > 1e-6
