"""Algorithm 2: against its straight-line transcription, and what each step must do."""

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
    scheme = make_scheme("sqsgd", dim=40, epsilon=epsilon, bytes=2, code="signs", norm_epsilon=1.5)
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
    scheme = make_scheme("sqsgd", dim=40, epsilon=200.0, bytes=2, code="signs")
    _, state = after(150, scheme, settings())
    target = Quadratic().points.mean(axis=0)
    assert np.linalg.norm(state.weights - target) < 0.5 * np.linalg.norm(target)


def test_the_residual_keeps_what_was_not_sent():
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs")
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
    records, state = after(3, make_scheme("sqsgd-stateless", dim=40, epsilon=50.0, bytes=2), settings())
    assert state.residuals == {}
    assert [record.round for record in records] == [0, 1, 2]


def test_the_bound_stays_above_its_floor():
    scheme, chosen = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs"), settings(bound=4.0)
    state = federated.initial_state(np.zeros(40, np.float32), chosen)
    for round in range(40):
        task = Task(round=round, client=0, seed=5, dim=40, bound=state.bound)
        report = scheme.encode(np.zeros(40, np.float32), task, seeded_rng(round))
        state, _ = federated.server_step(scheme, chosen, state, [(task, report, 1.0)])
    assert 4e-4 <= state.bound < 1e-2


def test_a_fixed_bound_stays():
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs")
    assert after(5, scheme, settings(track=False))[1].bound == 2.0
    assert after(5, make_scheme("sqsgd-paper", dim=40, epsilon=90.0, bytes=8), settings())[1].bound == 2.0


def test_relative_error_predicts_what_is_measured():
    scheme = make_scheme("sqsgd", dim=64, epsilon=40.0, bytes=8, code="signs")
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
