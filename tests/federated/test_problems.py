"""Which problems can be taken many clients at a time."""

from quadratic import Quadratic, Rows

from sqsgd.federated.problems import RowProblem


def test_a_problem_says_whether_it_computes_many_gradients_at_once():
    assert isinstance(Rows(), RowProblem)
    assert not isinstance(Quadratic(), RowProblem)
