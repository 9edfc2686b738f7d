"""Transforms: the server undoes them in reverse order, once where all clients share them."""

from dataclasses import replace

import pytest
from small_parts import TASK, Longer, Times, X, scheme, sent

from sqsgd.core import Aggregate


@pytest.mark.parametrize(
    "transforms",
    [
        (),
        (Times(2.0),),
        (Longer(),),
        (Times(2.0), Longer()),
        (Longer(), Times(2.0)),
        (Times(4.0), Times(0.5)),
    ],
)
def test_transforms_are_inverted_in_reverse_order(transforms):
    """By decode, and by an aggregate, which inverts shared transforms only once, after the sum."""
    made = scheme(*transforms)
    assert made.decode(sent(made), TASK).tolist() == X.tolist()
    total, other = Aggregate(made), replace(TASK, client=8)
    total.add(TASK, sent(made))
    total.add(other, sent(made, 3 * X, other))
    assert total.mean().tolist() == (2 * X).tolist()


def test_errors_are_carried_back_through_the_transforms():
    assert scheme().nmse == 1.0
    assert scheme(Times(2.0), Longer()).nmse == 2.0 * (1.0 + 3)
    assert scheme(Longer(), Times(2.0)).nmse == 2.0 * 1.0 + 3
