"""The local engine: one client after the other or many at once; records, timers, totals, lost rounds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from quadratic import Quadratic, Rows, after, settings

from sqsgd import make_scheme, training
from sqsgd.privacy.ledger import Ledgers
from sqsgd.training import engine
from sqsgd.training.engine import Engine, noise_seed
from sqsgd.training.order import seeded_order

SIGNS = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs")


def test_the_total_is_that_of_the_client_that_took_part_most():
    class Sometimes(Quadratic):
        def cohort(self, round):
            return [0] if round % 2 else [0, 1]

    records, state = after(4, SIGNS, settings(), Sometimes())
    assert state.spent == {0: 4, 1: 2}
    assert records[-1].epsilon_total == 200.0


def test_a_lost_round_counts_as_spent_and_leaves_the_model():
    state = replace(training.initial_state(np.ones(40, np.float32), settings()), lost=0)
    record, state = Engine(problem=Quadratic(), scheme=SIGNS, settings=settings()).one_round(state)
    assert (record.epsilon_total, record.clients, record.bytes_up) == (50.0, 0, 0)
    assert np.isnan(record.loss)
    assert (state.round, state.spent) == (1, {0: 1, 1: 1, 2: 1})
    assert np.array_equal(state.weights, np.ones(40, np.float32))


class Many(Quadratic):
    clients = 60


class ManyRows(Many):
    gradient_rows = Quadratic.rows


ORDER = seeded_order(60, 20, 1)

SCHEMES = [
    ("privunit-index", {"epsilon": 6.0}),
    ("fedsgd", {}),
    ("sqsgd-stateless", {"epsilon": 40.0, "bytes": 8}),
    ("vqsgd", {"epsilon": 6.0, "bytes": 8}),
]


@pytest.mark.parametrize(("name", "options"), SCHEMES, ids=str)
@pytest.mark.parametrize("parts", [{}, {"order": ORDER, "workers": 2}], ids=str)
def test_many_clients_at_once_do_what_single_ones_do(name, options, parts, monkeypatch):
    """The same records, and the same model where there is no noise: the law of the noise is the scheme's."""
    scheme = make_scheme(name, dim=40, **options)
    monkeypatch.setattr(engine, "_FLOATS", 40 * 7)  # pieces of seven clients
    monkeypatch.setattr(engine, "_FEW", 0)
    many, many_state = after(3, scheme, settings(), ManyRows(), **parts)
    alone, state = after(3, scheme, settings(), Many(), **parts)
    assert many_state.spent == state.spent
    for one, other in zip(many, alone, strict=True):
        varying = {name: 0.0 for name in vars(one) if name.startswith("seconds") or name == "bound"}
        assert replace(one, **varying, clip_rate=0) == replace(other, **varying, clip_rate=0)
    if name == "fedsgd":
        assert np.allclose(many_state.weights, state.weights, atol=1e-6)


def test_clients_with_a_residual_or_a_ledger_are_taken_one_by_one(monkeypatch, tmp_path):
    monkeypatch.setattr(engine._Clients, "reports", None)
    monkeypatch.setattr(engine, "_FEW", 0)
    after(2, SIGNS, settings(), Rows())
    scheme = make_scheme("sqsgd-stateless", dim=40, epsilon=8.0, bytes=2)
    after(1, scheme, settings(), Rows(), ledgers=Ledgers(folder=tmp_path, max_epsilon=8.0))
    with pytest.raises(TypeError):
        after(1, scheme, settings(), Rows())


@pytest.mark.parametrize("problem", [Quadratic, Rows])
def test_a_gradient_that_is_not_finite_is_named(problem):
    class Diverging(problem):
        def gradient(self, weights, round, client):
            return np.full(self.dim, np.nan if (round, client) == (2, 1) else 0.1, np.float32)

    with pytest.raises(ValueError, match=r"round 2, client 1: x\[0\] = nan .* a learning rate below 0\.1"):
        after(4, make_scheme("privunit-index", dim=40, epsilon=6.0), settings(), Diverging())


@pytest.mark.parametrize("problem", [Quadratic, Rows])
def test_secure_noise_differs_between_runs(problem):
    scheme = make_scheme("privunit-index", dim=40, epsilon=5.0)
    runs = [after(3, scheme, settings(secure=True), problem())[1].weights for _ in range(2)]
    assert not np.array_equal(*runs)


def test_every_report_has_its_own_seed():
    edges = (0, 1, 2**32, 2**64 - 1)
    seeds = {noise_seed(seed, round, client) for seed, round, client in itertools.product(edges, repeat=3)}
    assert len(seeds) == 4**3
    assert max(seeds) < 2**256
    assert noise_seed(5, 6, 0) % 2**64 == 0  # as seeded_rngs needs it
