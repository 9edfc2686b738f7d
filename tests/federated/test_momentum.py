"""Momentum correction and factor masking: against a straight-line transcription of DGC's Algorithm 4."""

import numpy as np
import pytest
from quadratic import Quadratic, after, settings
from sqsgd.training import State

from sqsgd import Scheme, Task, federated, make_scheme, seeded_rng

F = np.float32


def deep_gradient_compression(problem, *, count, momentum, rate, rounds, masking=True):
    """Algorithm 4 (vanilla momentum), one coordinate after the other; numbers are its lines' names."""
    dim, nodes = problem.dim, range(problem.clients)
    weights = np.zeros(dim, F)
    u = [[F(0)] * dim for _ in nodes]
    v = [[F(0)] * dim for _ in nodes]
    sent = []
    for t in range(rounds):
        total = np.zeros(dim)
        for k in nodes:
            gradient = problem.gradient(weights, t, k)
            for i in range(dim):
                u[k][i] = F(momentum) * u[k][i] + gradient[i]  # momentum correction
                v[k][i] = v[k][i] + u[k][i]
            order = sorted(range(dim), key=lambda i, v=v[k]: (-abs(v[i]), i))
            mask = set(order[:count])  # |v| above the threshold
            sent.append(sorted(mask))
            for i in mask:
                total[i] += v[k][i]
                v[k][i] = F(0)
                if masking:
                    u[k][i] = F(0)  # momentum factor masking
        weights = (weights - rate * total / problem.clients).astype(F)
    return weights, np.array(u), np.array(v), sent


def run(scheme, rounds, monkeypatch):
    """The same through ``federated.run``; also the coordinates of each message."""
    sent, original = [], Scheme.sent_coordinates

    def spying(scheme, columns, task):
        found = original(scheme, columns, task)
        sent.append(found.tolist())
        return found

    monkeypatch.setattr(Scheme, "sent_coordinates", spying)
    _, state = after(rounds, scheme, settings())
    return state, sent


@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("count", [1, 7, 39])
def test_the_memory_is_the_transcriptions(momentum, count, monkeypatch):
    scheme = make_scheme("dgc", dim=40, count=count, momentum=momentum)
    state, sent = run(scheme, 15, monkeypatch)
    weights, u, v, expected = deep_gradient_compression(
        Quadratic(), count=count, momentum=momentum, rate=0.1, rounds=15
    )
    assert sent == expected
    assert np.allclose(state.weights, weights, atol=1e-6)
    for client in range(3):
        velocity, waiting = state.residuals[client]
        assert np.allclose(velocity, u[client], atol=1e-5)
        assert np.allclose(waiting, v[client], atol=1e-5)
        assert not velocity[sent[-3 + client]].any()
        assert not waiting[sent[-3 + client]].any()


def test_without_masking_it_would_be_another_algorithm(monkeypatch):
    state, _ = run(make_scheme("dgc", dim=40, count=7), 15, monkeypatch)
    weights, *_ = deep_gradient_compression(
        Quadratic(), count=7, momentum=0.9, rate=0.1, rounds=15, masking=False
    )
    assert not np.allclose(state.weights, weights, atol=1e-3)


def test_without_momentum_it_is_the_plain_residual(monkeypatch):
    state, sent = run(make_scheme("dgc", dim=40, count=7, momentum=0.0), 10, monkeypatch)
    weights, _, v, expected = deep_gradient_compression(
        Quadratic(), count=7, momentum=0.0, rate=0.1, rounds=10
    )
    assert sent == expected
    assert np.allclose(state.weights, weights, atol=1e-6)
    assert np.allclose([state.residuals[client] for client in range(3)], v, atol=1e-5)


def test_where_all_is_sent_nothing_is_kept(monkeypatch):
    """Masking clears the whole velocity each round: Algorithm 4 is plain descent then, as the scheme is."""
    scheme = make_scheme("dgc", dim=40, count=40)
    _, state = after(10, scheme, settings())
    weights, u, v, _ = deep_gradient_compression(Quadratic(), count=40, momentum=0.9, rate=0.1, rounds=10)
    assert state.residuals == {}
    assert not u.any()
    assert not v.any()
    assert np.allclose(state.weights, weights, atol=1e-6)


def test_a_step_changes_nothing_that_it_was_given():
    scheme = make_scheme("dgc", dim=40, count=7)
    task = Task(round=0, client=1, seed=5, dim=40, bound=1.0)
    gradient, kept = np.arange(40, dtype=F), np.ones((2, 40), F)
    message, after_step = federated.client_step(scheme, task, gradient, kept, seeded_rng(1))
    assert np.array_equal(kept, np.ones((2, 40), F))
    assert np.array_equal(gradient, np.arange(40, dtype=F))
    velocity = F(0.9) * np.ones(40, F) + gradient
    waiting = 1 + velocity
    assert federated.sent_coordinates(scheme, task, message).tolist() == list(range(33, 40))
    velocity[33:] = waiting[33:] = 0
    assert np.array_equal(after_step, np.stack([velocity, waiting]))
    assert after_step.dtype == F


def test_a_run_goes_on_from_any_state_to_the_same_bits():
    scheme, chosen, problem = make_scheme("dgc", dim=40, bytes=38), settings(), Quadratic()
    state = federated.initial_state(np.zeros(40, F), chosen)
    states: list[State] = [after for _, after in federated.run(problem, scheme, chosen, state, 8)]
    *_, (_, again) = federated.run(problem, scheme, chosen, states[3], 8)
    assert np.array_equal(again.weights, states[-1].weights)
    for client in range(3):
        assert np.array_equal(again.residuals[client], states[-1].residuals[client])


def test_learning_happens():
    _, state = after(150, make_scheme("dgc", dim=40, bytes=38), settings())
    target = Quadratic().points.mean(axis=0)
    assert np.linalg.norm(state.weights - target) < 0.5 * np.linalg.norm(target)
