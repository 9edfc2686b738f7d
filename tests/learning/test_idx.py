"""The IDX reader: correct arrays, and a reason for every wrong file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_data import encode_idx

from sqsgd.learning._idx import parse_idx


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6)))
def test_reads_back_what_was_written(array: np.ndarray) -> None:
    assert np.array_equal(parse_idx(encode_idx(array), array.ndim, "file"), array)


@given(st.integers(0, 27))
def test_every_truncation_is_refused(length: int) -> None:
    whole = encode_idx(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    assert len(whole) == 28
    with pytest.raises(ValueError, match="the file"):
        parse_idx(whole[:length], 3, "the file")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>no such page</html>", "is not an IDX file"),
        (bytes([0, 0, 9, 1, 0, 0, 0, 0]), "type 0x09"),
        (encode_idx(np.zeros((2, 2), np.uint8)), "in 2 dimensions"),
        (encode_idx(np.zeros(3, np.uint8)) + b"more", "implies 11"),
        (bytes([0, 0, 8, 1, 255, 255, 255, 255, 1]), "implies 4,294,967,303"),
    ],
)
def test_wrong_files_are_named_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=f"labels.*{message}"):
        parse_idx(data, 1, "labels")
