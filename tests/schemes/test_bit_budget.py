"""The number of codes that fit into a budget of bits is exact."""

import pytest
from refusing import refuse

from sqsgd.codec import Column
from sqsgd.mechanisms.privquant import MOST_DIM
from sqsgd.schemes._bit_budget import affordable, block_size, codes_that_fit, rescaled_sample
from sqsgd.transforms import Subsample


@pytest.mark.parametrize("alphabet", [2, 3, 5, 7, 16, 100, 256, 1000, 2**20])
def test_one_code_more_would_not_fit(alphabet):
    for bits in (*range(1, 70), 2016, 57344):
        count = codes_that_fit(bits, alphabet)
        assert count == 0 or Column(count, alphabet).bits <= bits
        assert Column(count + 1, alphabet).bits > bits


def test_the_ends_of_the_range_of_bits():
    assert codes_that_fit(0, 2) == codes_that_fit(-5, 2) == 0
    assert codes_that_fit(2**40, 2) == 2**32 - 1


def test_affordable_codes_do_not_exceed_the_padded_length():
    """A rotation pads the vector."""
    assert affordable(64, 2, 100) == 64
    assert affordable(2048, 2, 100) == 128
    assert affordable(2048, 16, 119850) == 512
    refuse("bits = 3 cannot hold one code of levels = 16", lambda: affordable(3, 16, 100))
    refuse("bits = None", lambda: affordable(None, 2, 100))


def test_too_many_coordinates_are_refused_with_the_largest_budget():
    most = Column(MOST_DIM, 4).bits
    refuse(f"use at most {most} bits", lambda: affordable(most + 2, 4, 2**30))
    assert affordable(most, 4, 2**30) == MOST_DIM


@pytest.mark.parametrize(
    ("dim", "codes", "size"),
    [(100, 128, 100), (100, 127, 64), (128, 128, 128), (1, 1, 1), (9, 15, 8), (9, 16, 9)],
)
def test_a_block_is_all_or_a_power_of_two(dim, codes, size):
    assert block_size(dim, codes) == size


def test_a_sample_is_drawn_only_where_not_all_fit():
    assert rescaled_sample(300, 300) == ()
    assert rescaled_sample(300, 200) == (Subsample(size=200, rescale=True),)
