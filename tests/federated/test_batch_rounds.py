"""Many clients at once: few seeded ones as one after the other, bit for bit; more of them by one stream."""

from dataclasses import replace

import numpy as np
import pytest
from quadratic import Quadratic, Rows, after, settings

from sqsgd import make_scheme
from sqsgd.federated import batch_rounds
from sqsgd.federated.order import seeded_order


class Many(Quadratic):
    clients = 60


class ManyRows(Many):
    gradient_rows = Quadratic.rows


SCHEMES = [
    ("privunit-index", {"epsilon": 6.0}),
    ("fedsgd", {}),
    ("sqsgd-stateless", {"epsilon": 40.0, "bytes": 8}),
    ("sqsgd-stateless", {"epsilon": 40.0, "bytes": 8, "code": "sparse"}),
    ("vqsgd", {"epsilon": 6.0, "bytes": 8}),
]


@pytest.mark.parametrize(("name", "options"), SCHEMES, ids=lambda value: str(value))
@pytest.mark.parametrize(
    "changes", [{}, {"weigh_by_size": True}, {"order": seeded_order(60, 20, 1), "workers": 2}], ids=str
)
def test_few_seeded_clients_draw_the_bits_of_single_ones(name, options, changes, monkeypatch):
    scheme = make_scheme(name, dim=40, **options)
    monkeypatch.setattr(batch_rounds, "_FLOATS", 40 * 7)  # pieces of seven clients
    many, many_state = after(3, scheme, settings(**changes), ManyRows())
    alone, state = after(3, scheme, settings(**changes), Many())
    assert many_state.weights.tobytes() == state.weights.tobytes()
    assert (many_state.bound, many_state.spent) == (state.bound, state.spent)
    for one, other in zip(many, alone, strict=True):
        times = {name: 0.0 for name in vars(one) if name.startswith("seconds")}
        assert replace(one, **times) == replace(other, **times)


@pytest.mark.parametrize(("name", "options"), SCHEMES[:4], ids=lambda value: str(value))
def test_many_clients_learn_as_single_ones_do(name, options, monkeypatch):
    """The noise of one stream for all of them: repeatable, and as large."""
    scheme = make_scheme(name, dim=40, **options)
    alone = np.concatenate([after(3, scheme, settings(), Many())[1].weights])
    monkeypatch.setattr(batch_rounds, "_FEW", 0)
    many, again = (after(3, scheme, settings(), ManyRows())[1].weights for _ in range(2))
    monkeypatch.setattr(batch_rounds, "_FLOATS", 40 * 7)
    pieces = after(3, scheme, settings(), ManyRows())[1].weights
    assert many.tobytes() == again.tobytes()
    for found in (many, pieces):
        assert 0.3 < np.linalg.norm(found) / np.linalg.norm(alone) < 3


def test_clients_with_a_residual_or_a_ledger_are_taken_one_by_one(monkeypatch, tmp_path):
    from sqsgd.privacy.ledger import Ledgers

    monkeypatch.setattr(batch_rounds.BatchRound, "step", None)
    after(2, make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"), settings(), Rows())
    scheme = make_scheme("sqsgd-stateless", dim=40, epsilon=8.0, bytes=2)
    after(1, scheme, settings(ledgers=Ledgers(folder=tmp_path, max_epsilon=8.0)), Rows())
    with pytest.raises(TypeError):
        after(1, scheme, settings(), Rows())


def test_time_is_booked_where_it_was_spent():
    records, _ = after(2, make_scheme("privunit-index", dim=40, epsilon=6.0), settings(), ManyRows())
    for record in records:
        parts = (record.seconds_gradient, record.seconds_encode, record.seconds_aggregate)
        assert min(parts) > 0
        assert sum(parts) <= record.seconds * 1.001


def test_a_gradient_that_is_not_finite_is_named():
    class Diverging(Rows):
        def gradient(self, weights, round, client):
            return np.full(self.dim, np.nan if (round, client) == (2, 1) else 0.1, np.float32)

    with pytest.raises(ValueError, match=r"round 2, client 1: x\[0\] = nan .* a learning rate below 0\.1"):
        after(4, make_scheme("privunit-index", dim=40, epsilon=6.0), settings(), Diverging())


def test_secure_noise_differs_between_runs():
    scheme = make_scheme("privunit-index", dim=40, epsilon=5.0)
    runs = [after(3, scheme, settings(secure=True), Rows())[1].weights for _ in range(2)]
    assert not np.array_equal(*runs)
