"""What JSON cannot hold comes back as it was."""

import json
import math

import pytest

from sqsgd._internal.files import NUMBERS, known, worded


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_word_is_read_back_as_its_number(number):
    word = json.loads(json.dumps(worded(number), allow_nan=False))
    assert repr(NUMBERS[word]) == repr(number)


@pytest.mark.parametrize("value", [0.0, -1.5, 3, "text", None, True])
def test_all_else_stays_as_it_is(value):
    assert worded(value) is value
    assert known(value) is value


def test_what_is_not_known_is_left_empty():
    assert [known(number) for number in (math.inf, -math.inf, math.nan)] == ["infinity", None, None]
