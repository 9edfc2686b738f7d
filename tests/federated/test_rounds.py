"""The local engine: records, timers, totals, resuming."""

import time
from dataclasses import replace

import numpy as np
import pytest
from quadratic import Quadratic, after, settings

from sqsgd import federated, make_scheme


def test_records_say_what_was_spent_and_sent():
    records, state = after(4, make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"), settings())
    assert [record.epsilon_total for record in records] == [50.0, 100.0, 150.0, 200.0]
    assert {record.bytes_up for record in records} == {16 + 2 + 1}
    assert all(record.bytes_down > 4 * 40 for record in records)
    assert all(0 <= record.clip_rate <= 1 for record in records)
    parts = [(r.seconds_gradient, r.seconds_encode, r.seconds_aggregate) for r in records]
    assert all(
        min(part) > 0 and sum(part) <= r.seconds * 1.001 for part, r in zip(parts, records, strict=True)
    )
    assert state.spent == {0: 4, 1: 4, 2: 4}


def test_the_total_is_that_of_the_client_that_took_part_most():
    class Sometimes(Quadratic):
        def cohort(self, round):
            return [0] if round % 2 else [0, 1]

    records, state = after(
        4, make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"), settings(), Sometimes()
    )
    assert state.spent == {0: 4, 1: 2}
    assert records[-1].epsilon_total == 200.0


def test_the_clip_rate_counts_reports_near_the_bound():
    scheme = make_scheme("sqsgd", dim=40, epsilon=200.0, bytes=2, code="signs", norm_epsilon=100.0)
    rates = [after(1, scheme, settings(bound=bound))[0][0].clip_rate for bound in (0.01, 1e4)]
    assert rates == [1.0, 0.0]
    assert after(1, make_scheme("fedsgd", dim=40), settings())[0][0].clip_rate is None


def test_time_is_booked_where_it_was_spent(monkeypatch):
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs")
    names = {"randomize": "seconds_encode", "open": "seconds_aggregate"}
    for slow, field in names.items():
        usual = getattr(type(scheme), slow)

        def slowly(self, *arguments, usual=usual):
            time.sleep(0.02)
            return usual(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(type(scheme), slow, slowly)
            record = after(1, scheme, settings())[0][0]
        assert getattr(record, field) >= 0.06
        assert all(getattr(record, other) < 0.06 for other in names.values() if other != field)


def test_a_gradient_that_is_not_finite_is_named():
    class Diverging(Quadratic):
        def gradient(self, weights, round, client):
            return np.full(self.dim, np.nan if (round, client) == (2, 1) else 0.1, np.float32)

    with pytest.raises(ValueError, match=r"round 2, client 1: x\[0\] = nan .* a learning rate below 0\.1"):
        after(4, make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"), settings(), Diverging())


def test_a_run_goes_on_from_any_state_to_the_same_bits():
    scheme, chosen, problem = (
        make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"),
        settings(),
        Quadratic(),
    )
    state = federated.initial_state(np.zeros(40, np.float32), chosen)
    states = [after for _, after in federated.run(problem, scheme, chosen, state, 8)]
    *_, (_, again) = federated.run(problem, scheme, chosen, states[3], 8)
    assert np.array_equal(again.weights, states[-1].weights)
    assert again.bound == states[-1].bound


def test_secure_noise_differs_between_runs():
    scheme = make_scheme("sqsgd", dim=40, epsilon=5.0, bytes=2, code="signs")
    runs = [after(3, scheme, settings(secure=True))[1].weights for _ in range(2)]
    assert not np.array_equal(*runs)


def test_weights_by_size():
    scheme = make_scheme("fedsgd", dim=40)
    problem, start = Quadratic(), np.zeros(40, np.float32)
    gradients = np.array([problem.gradient(start, 0, client) for client in range(3)])
    for by_size, shares in ((False, [1, 1, 1]), (True, [1, 2, 3])):
        _, state = after(1, scheme, settings(weigh_by_size=by_size))
        assert np.allclose(state.weights, -0.1 * np.average(gradients, axis=0, weights=shares), atol=1e-6)


def test_a_lost_round_counts_as_spent_and_leaves_the_model():
    scheme, chosen, problem = (
        make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"),
        settings(),
        Quadratic(),
    )
    state = replace(federated.initial_state(np.ones(40, np.float32), chosen), lost=0)
    record, state = federated.one_round(problem, scheme, chosen, state)
    assert (record.epsilon_total, record.clients, record.bytes_up) == (50.0, 0, 0)
    assert np.isnan(record.loss)
    assert (state.round, state.spent) == (1, {0: 1, 1: 1, 2: 1})
    assert np.array_equal(state.weights, np.ones(40, np.float32))
