"""The record of a round: its totals, and its form in a metrics file."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from sqsgd.training.state import State, make_record

from sqsgd import make_scheme

STATE = State(round=4, weights=np.zeros(40, np.float32), bound=2.0, optimizer={})


def record(scheme="sqsgd-stateless", epsilon=8.0, **measured):
    made = make_scheme(scheme, dim=40, epsilon=epsilon, bytes=2)
    return make_record(made, STATE, **{"most_reports": 5, **measured})


def test_totals_are_never_below_the_exact_product():
    """The naive product is, for many numbers of reports."""
    epsilon = make_scheme("sqsgd-stateless", dim=40, epsilon=1.1, bytes=2).privacy.epsilon
    naive = 0
    for reports in range(1, 200):
        found = record(epsilon=1.1, most_reports=reports).epsilon_total
        assert Fraction(found) >= Fraction(epsilon) * reports
        assert Fraction(math.nextafter(found, 0)) < Fraction(epsilon) * reports
        naive += Fraction(epsilon * reports) < Fraction(epsilon) * reports
    assert naive > 20


def test_it_describes_the_round_that_began_with_the_state():
    made = record(magnitudes=[0.5, 1.96, 2.0, 2.4], clients=4)
    assert (made.round, made.bound, made.clients, made.clip_rate) == (4, 2.0, 4, 0.75)
    assert (made.epsilon, made.epsilon_total) == (8.0, 40.0)
    assert math.isnan(made.loss)


@pytest.mark.parametrize(("scheme", "written"), [("sqsgd-stateless", 8.0), ("fedsgd", "infinity")])
def test_json_holds_every_number(scheme, written):
    line = json.loads(json.dumps(record(scheme).to_dict(), allow_nan=False))
    assert (line["loss"], line["epsilon"], line["clip_rate"]) == ("nan", written, None)


def test_what_is_unknown_has_no_key():
    names = {"seconds_gradient", "seconds_encode", "bytes_up_serialised", "bytes_down_serialised"}
    assert not names & record(seconds_gradient=None, seconds_encode=None).to_dict().keys()
    assert names <= record(bytes_up_serialised=30, bytes_down_serialised=200).to_dict().keys()
