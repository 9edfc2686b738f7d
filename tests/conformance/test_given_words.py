"""Given words are handed out in order and once."""

import pytest

from sqsgd.conformance.given_words import GivenWords


def test_words_are_handed_out_in_order():
    rng = GivenWords([7, 0x0807060504030201, 9, 10])
    assert rng.word() == 7
    assert rng.take(8).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert rng.words(1).tolist() == [9]
    assert rng.below(3) == 10 % 3
    assert rng.used == [7, 0x0807060504030201, 9, 10]
    with pytest.raises(RuntimeError, match="all 4 given words"):
        rng.word()
