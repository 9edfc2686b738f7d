"""Algorithm 2: against its straight-line transcription, and what each step must do."""

import time

import numpy as np
import pytest
import transcription
from quadratic import Quadratic, after, settings

from sqsgd import PrivQuant, Task, federated, make_scheme, seeded_rng


@pytest.mark.parametrize(
    ("epsilon", "more"),
    [
        (3.0, {}),
        (20.0, {}),
        (60.0, {}),
        (60.0, {"clip": 1.5}),
        (60.0, {"alpha": 0.5, "beta": 2.0}),
    ],
)
def test_the_run_is_the_transcription(epsilon, more, monkeypatch):
    scheme = make_scheme("sqsgd", dim=40, epsilon=epsilon, bits=16, norm_epsilon=1.5)
    messages = []
    seal = type(scheme).seal

    def spying(self, columns, task):
        message = seal(self, columns, task)
        codes, symbol = self.open(message, task)
        messages.append((codes.tolist(), int(symbol[0])))
        return message

    monkeypatch.setattr(type(scheme), "seal", spying)
    _, state = after(12, scheme, settings(**more))
    q, norm = scheme.mechanism.quantizer, scheme.mechanism.norm
    assert norm.levels == 2
    weights, bound, sent = transcription.train(
        Quadratic().gradient, np.zeros(40, np.float32), clients=3, rounds=12, size=16, threshold=q.threshold,
        eps1=q.epsilon, eps2=norm.epsilon, levels=norm.levels, rate=0.1, bound=2.0, seed=5,
        **more,
    )  # fmt: skip
    assert messages == sent
    assert np.allclose(state.weights, weights, atol=1e-4)
    assert np.isclose(state.bound, bound, rtol=1e-9)


def test_learning_happens_and_a_wrong_sign_would_show():
    scheme = make_scheme("sqsgd", dim=40, epsilon=200.0, bits=16)
    _, state = after(150, scheme, settings())
    target = Quadratic().points.mean(axis=0)
    assert np.linalg.norm(state.weights - target) < 0.5 * np.linalg.norm(target)


def test_the_residual_keeps_what_was_not_sent():
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16)
    task = Task(round=0, client=1, seed=5, dim=40, bound=1.0)
    gradient, before = np.arange(40, dtype=np.float32), np.ones(40, np.float32)
    for alpha, beta in ((1.0, 1.0), (0.5, 2.0)):
        message, residual = federated.client_step(
            scheme, task, gradient, before, seeded_rng(1), alpha=alpha, beta=beta
        )
        sent = federated.sent_coordinates(scheme, task, message)
        assert sent.size == 16
        expected = before + np.float32(alpha) * gradient
        expected[sent] = 0
        assert np.array_equal(residual, expected)
    assert np.array_equal(before, np.ones(40, np.float32))  # a value in, a value out


def test_schemes_without_residual_keep_nothing():
    records, state = after(3, make_scheme("sqsgd-stateless", dim=40, epsilon=50.0, bits=16), settings())
    assert state.residuals == {}
    assert [record.round for record in records] == [0, 1, 2]


def test_records_say_what_was_spent_and_sent():
    records, state = after(4, make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16), settings())
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

    records, state = after(4, make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16), settings(), Sometimes())
    assert state.spent == {0: 4, 1: 2}
    assert records[-1].epsilon_total == 200.0


def test_the_clip_rate_counts_reports_near_the_bound():
    scheme = make_scheme("sqsgd", dim=40, epsilon=200.0, bits=16, norm_epsilon=100.0)
    rates = [after(1, scheme, settings(bound=bound))[0][0].clip_rate for bound in (0.01, 1e4)]
    assert rates == [1.0, 0.0]
    assert after(1, make_scheme("fedsgd", dim=40), settings())[0][0].clip_rate is None


def test_time_is_booked_where_it_was_spent(monkeypatch):
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16)
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


def test_a_gradient_that_is_not_finite_is_said_to_be_so():
    class Diverging(Quadratic):
        def gradient(self, weights, round, client):
            return np.full(self.dim, np.nan if (round, client) == (2, 1) else 0.1, np.float32)

    with pytest.raises(ValueError, match=r"round 2, client 1: x\[0\] = nan .* a learning rate below 0\.1"):
        after(4, make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16), settings(), Diverging())


def test_a_run_goes_on_from_any_state_to_the_same_bits():
    scheme, chosen, problem = make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16), settings(), Quadratic()
    state = federated.initial_state(np.zeros(40, np.float32), chosen)
    states = [after for _, after in federated.run(problem, scheme, chosen, state, 8)]
    *_, (_, again) = federated.run(problem, scheme, chosen, states[3], 8)
    assert np.array_equal(again.weights, states[-1].weights)
    assert again.bound == states[-1].bound


def test_secure_noise_differs_between_runs():
    scheme = make_scheme("sqsgd", dim=40, epsilon=5.0, bits=16)
    runs = [after(3, scheme, settings(secure=True))[1].weights for _ in range(2)]
    assert not np.array_equal(*runs)


def test_weights_by_size():
    scheme = make_scheme("fedsgd", dim=40)
    problem, start = Quadratic(), np.zeros(40, np.float32)
    gradients = np.array([problem.gradient(start, 0, client) for client in range(3)])
    for by_size, shares in ((False, [1, 1, 1]), (True, [1, 2, 3])):
        _, state = after(1, scheme, settings(weigh_by_size=by_size))
        assert np.allclose(state.weights, -0.1 * np.average(gradients, axis=0, weights=shares), atol=1e-6)


def test_the_bound_stays_above_its_floor():
    scheme, chosen = make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16), settings(bound=4.0)
    state = federated.initial_state(np.zeros(40, np.float32), chosen)
    for round in range(40):
        task = Task(round=round, client=0, seed=5, dim=40, bound=state.bound)
        report = scheme.encode(np.zeros(40, np.float32), task, seeded_rng(round))
        state, _ = federated.server_step(scheme, chosen, state, [(task, report, 1.0)])
    assert 4e-4 <= state.bound < 1e-2


def test_a_fixed_bound_stays():
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bits=16)
    assert after(5, scheme, settings(track=False))[1].bound == 2.0
    assert after(5, make_scheme("sqsgd-paper", dim=40, epsilon=90.0, bits=64), settings())[1].bound == 2.0


def test_relative_error_predicts_what_is_measured():
    scheme = make_scheme("sqsgd", dim=64, epsilon=40.0, bits=64)
    x = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    x *= np.float32(0.5 / np.linalg.norm(x))
    rng, errors = seeded_rng(2), []
    for client in range(4000):
        task = Task(round=0, client=client, seed=1, dim=64, bound=1.0)
        errors.append(np.sum((scheme.decode(scheme.encode(x, task, rng), task) - x) ** 2) / 0.25)
    assert abs(np.mean(errors) / scheme.mechanism.relative_error(0.5) - 1) < 0.05
    assert PrivQuant(64, 2, 36.0).scale == scheme.mechanism.quantizer.scale


def test_a_rate_that_decays_takes_the_steps_of_a_falling_line():
    scheme = make_scheme("fedsgd", dim=40)
    problem, chosen = Quadratic(), settings(decay_rounds=4)
    _, state = after(4, scheme, chosen)
    weights = np.zeros(40, np.float32)
    for round in range(4):
        mean = np.mean([problem.gradient(weights, round, client) for client in range(3)], axis=0)
        weights = (weights - 0.1 * (1 - round / 4) * mean).astype(np.float32)
    np.testing.assert_allclose(state.weights, weights, rtol=1e-5)
