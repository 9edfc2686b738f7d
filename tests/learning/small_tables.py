"""A small table of a user, and what is read from it."""

import pytest

from sqsgd.learning.own_data import read_parts

pandas = pytest.importorskip("pandas", reason="pandas comes with mlxtend")


def frame(**changes):
    columns = {"age": [20, 30, 40, 50], "height": [1.5, 1.6, 1.7, 1.8], "label": [0, 1, 1, 0]}
    return pandas.DataFrame({**columns, **changes})


def only(value):
    (part,) = read_parts("mine", value)
    return part
