"""Scheme, bound and rate where none are given, for changes of a model and for gradients."""

from functools import partial

import numpy as np
import pytest
from federation import model, nodes_of
from flwr.app import Array, ArrayRecord

from sqsgd import Task, make_scheme, seeded_rng
from sqsgd.flower import SqsgdStrategy
from sqsgd.flower.defaults import SHORT, chosen_scheme, default_bound, default_rate, given_rate

DIM = 44426
BIG = ArrayRecord({"weights": Array(np.zeros(DIM, np.float32))})
MAKE = partial(make_scheme, dim=DIM, epsilon=400.0, bytes=256)


def prepared(tmp_path, arrays=BIG, **options) -> SqsgdStrategy:
    made = SqsgdStrategy(seed=1, **options)
    made.rounds = 20
    made.prepare(nodes_of(tmp_path), arrays, 3)
    return made


@pytest.mark.parametrize(
    ("options", "name", "bound"),
    [
        ({}, "sqsgd-stateless", SHORT),
        ({"sends": "gradient"}, "sqsgd", 1.0),
        ({"scheme": "sqsgd"}, "sqsgd", SHORT),
        ({"options": {"code": "signs"}}, "sqsgd", 1.0),  # reports with norms follow them
        ({"options": {"code": "sparse"}}, "sqsgd", SHORT),
        ({"bound": 0.5}, "sqsgd-stateless", 0.5),
    ],
)
def test_what_is_chosen(tmp_path, options, name, bound):
    made = prepared(tmp_path, **options)
    assert (made.scheme_name, made.scheme.name, made.settings.bound) == (name, name, bound)


def test_a_small_change_is_not_reported_by_the_toss_of_a_coin():
    """Cosines of single reports about a change of length .05: all of one sign with the default bound."""
    change = np.random.default_rng(1).standard_normal(DIM).astype(np.float32)
    change *= np.float32(0.05) / np.linalg.norm(change)
    scheme = MAKE("sqsgd-stateless")

    def signs(bound):
        task = Task(round=0, client=0, seed=1, dim=DIM, bound=bound)
        reports = [scheme.decode(scheme.encode(change, task, seeded_rng(i)), task) for i in range(24)]
        return [float(report @ change) > 0 for report in reports]

    assert all(signs(SHORT))
    assert 4 < sum(signs(1.0)) < 20


def test_the_first_step_is_as_long_as_it_was_under_any_bound(tmp_path):
    for options in ({}, {"bound": 1.0}, {"lr": 1.25}):
        settings = prepared(tmp_path, **options).settings
        assert settings.optimizer.rate * settings.bound == pytest.approx(1.25)


def test_a_given_rate_is_the_length_of_a_step_only_if_nobody_chose_the_bound():
    sparse, signs = MAKE("sqsgd-stateless"), MAKE("sqsgd", code="signs")
    assert given_rate(0.5, sparse, "delta", SHORT, None) == 0.5 / SHORT
    assert given_rate(0.5, sparse, "delta", 0.1, 0.1) == 0.5
    assert given_rate(0.5, sparse, "delta", 1.0, None) == 0.5  # a resumed training of an earlier version
    assert given_rate(0.5, sparse, "gradient", 1.0, None) == 0.5
    assert given_rate(0.5, signs, "delta", 1.0, None) == 0.5


def test_rates_that_do_not_fall_are_half_as_large_and_momentum_adds_up():
    terms = {
        "sends": "delta",
        "optimizer": "sgd",
        "momentum": None,
        "clients": 10,
        "rounds": 20,
        "bound": 1.0,
    }
    rate = partial(default_rate, MAKE("sqsgd-stateless"), **terms)
    assert rate(falls=False) == rate(falls=True) / 2
    assert rate(falls=True, optimizer="momentum", momentum=0.9) == pytest.approx(rate(falls=True) / 10)


def test_codes_with_norms_are_those_of_blocks():
    """Where the stateless scheme would not use sparse codes, its default rate would not suit them."""
    few = partial(make_scheme, dim=20, epsilon=400.0, bytes=256)
    assert chosen_scheme(few, "", {}, "delta", once=False).name == "sqsgd"
    assert default_bound(few("sqsgd"), "delta") == 1.0


def test_a_resumed_training_keeps_what_it_began_with(tmp_path):
    out = {"out": tmp_path / "run", "resume": True}
    prepared(tmp_path, model(), scheme="sqsgd", bound=1.0, epsilon=20.0, **out)
    made = prepared(tmp_path, model(), epsilon=20.0, **out)
    assert (made.scheme_name, made.settings.bound, made.state.bound) == ("sqsgd", 1.0, 1.0)
    assert made.settings.optimizer.rate == pytest.approx(made.folder.load()[1]["rate"])
    assert prepared(tmp_path, model(), epsilon=20.0, lr=0.4, **out).settings.optimizer.rate == 0.4
