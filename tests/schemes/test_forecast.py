"""The forecast agrees with the runs that its thresholds were set by: given where they learned little."""

import pytest

from sqsgd.privacy.planner import least_rounds, once_outlook, outlook
from sqsgd.schemes import make_scheme

LINEAR, LENET, FEATURES = 7_840, 119_850, 3_920


@pytest.mark.parametrize(
    ("name", "dim", "epsilon", "clients", "rounds", "reached"),
    [
        # A linear model on the embedded digits, 64 bytes, seed 0, at the default rate.
        ("sqsgd", LINEAR, 0.1, 10, 600, 12.3),
        ("sqsgd", LINEAR, 0.5, 10, 50, 16.3),
        ("sqsgd", LINEAR, 1.0, 10, 600, 69.0),
        ("sqsgd", LINEAR, 2.0, 10, 50, 50.1),
        ("sqsgd-stateless", LINEAR, 0.1, 10, 600, 12.8),
        ("sqsgd-stateless", LINEAR, 2.0, 10, 50, 36.4),
        ("vqsgd", LINEAR, 8.0, 10, 50, 16.8),
        ("vqsgd", LINEAR, 30.0, 10, 50, 53.8),
        ("cpsgd", LINEAR, 0.5, 10, 50, 14.6),
        ("cpsgd", LINEAR, 1.0, 10, 600, 56.1),
        ("ldp-fed", LINEAR, 0.5, 10, 50, 15.0),
        ("ldp-fed", LINEAR, 2.0, 10, 50, 33.2),
        ("ldp-fed", LINEAR, 8.0, 10, 50, 47.9),
        ("privunit", LINEAR, 2.0, 10, 50, 9.5),
        ("privunit", LINEAR, 8.0, 10, 50, 65.7),
        # Means of three seeds; the thresholds were set without these.
        ("fedsel", LINEAR, 0.1, 10, 600, 14.5),
        ("fedsel", LINEAR, 1.0, 10, 50, 23.5),
        ("fedsel", LINEAR, 1.0, 10, 600, 56.1),
        ("fedsel", LINEAR, 4.0, 10, 50, 45.8),
    ],
)
def test_it_is_given_where_runs_learned_little_or_nothing(name, dim, epsilon, clients, rounds, reached):
    scheme = make_scheme(name, dim=dim, epsilon=epsilon, bytes=1 * (256 if name == "privunit" else 64))
    assert bool(outlook(scheme, clients, rounds, scheme.first_bound)) is (reached < 35)


@pytest.mark.parametrize(
    ("users", "epsilon", "reached"),
    [(1000, 1.0, 14.9), (1000, 4.0, 54.9), (4000, 0.25, 9.0), (4000, 2.0, 67.1), (60000, 1.0, 76.2)],
)
def test_users_who_report_once(users, epsilon, reached):
    """A softmax on soft-hog features of MNIST."""
    scheme = make_scheme("privunit-index", dim=FEATURES, epsilon=epsilon, bytes=48)
    assert bool(once_outlook(scheme, users)) is (reached < 20)


@pytest.mark.parametrize(("epsilon", "reached"), [(0.05, 38), (0.4, 79), (2.0, 98)])
def test_few_weights(epsilon, reached):
    """36 of them, four classes, 4 clients in 40 rounds: means of three seeds."""
    scheme = make_scheme("sqsgd-stateless", dim=36, epsilon=epsilon, bytes=16)
    assert bool(outlook(scheme, 4, 40, scheme.first_bound)) is (reached < 40)


def test_rounds_and_clients_count_alike():
    scheme = make_scheme("sqsgd-stateless", dim=LENET, epsilon=1.0, bytes=64)
    one = least_rounds(scheme, 1, 1.0)
    assert least_rounds(scheme, 10, 1.0) == pytest.approx(one / 10)
    words = outlook(scheme, 10, 1, 1.0)
    assert words.startswith("little or nothing will be learned in 1 round of 10 clients: ")
    needed = int(words.split("at least ")[1].split(" ")[0].replace(",", ""))
    assert outlook(scheme, 10, needed - 1, 1.0)
    assert outlook(scheme, 10, needed, 1.0) == ""


def test_no_number_of_rounds_helps():
    scheme = make_scheme("vqsgd", dim=LENET, epsilon=0.01, bytes=64)
    assert "no number of rounds helps" in outlook(scheme, 1, 1, 1.0)
