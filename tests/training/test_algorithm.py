"""Algorithm 2 against its transcription; momentum correction, optimizers, the bound and the record."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import transcription
from quadratic import Quadratic, after, settings

from sqsgd import Scheme, make_scheme, seeded_rng, training
from sqsgd.core.task import Tasks
from sqsgd.schemes.sqsgd import SIGNS
from sqsgd.training import State
from sqsgd.training.algorithm import DIRECTIONS, next_bound
from sqsgd.training.state import make_record


@pytest.mark.parametrize(
    ("epsilon", "more"),
    [
        (3.0, {}),
        (20.0, {}),
        (60.0, {}),
        (60.0, {"clip_norm": 1.5}),
        (60.0, {"alpha": 0.5, "beta": 2.0}),
    ],
)
def test_the_run_is_the_transcription(epsilon, more, monkeypatch):
    options = {"code": "signs", "reach": SIGNS, "norm_epsilon": 1.5}
    scheme = make_scheme("sqsgd", dim=40, epsilon=epsilon, bytes=2, **options)
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
        **{name.removesuffix("_norm"): value for name, value in more.items()},
    )  # fmt: skip
    assert messages == sent
    assert np.allclose(state.weights, weights, rtol=1e-3, atol=1e-4)
    assert np.isclose(state.bound, bound, rtol=1e-9)


def test_a_fixed_bound_stays():
    scheme = make_scheme("sqsgd", dim=40, epsilon=50.0, bytes=2, code="signs")
    assert after(5, scheme, settings(track=False))[1].bound == 2.0
    assert after(5, make_scheme("sqsgd-paper", dim=40, epsilon=90.0, bytes=8), settings())[1].bound == 2.0


def test_the_bound_moves_both_ways_within_limits():
    assert next_bound(10.0, [10.0] * 10, floor=0.1) == 15.0  # all at the bound: it grows
    assert next_bound(10.0, [4.0] * 10, floor=0.1) == 6.0
    assert next_bound(10.0, [0.1] * 10, floor=0.1) == 5.0  # at most halved
    assert next_bound(0.11, [-3.0] * 10, floor=0.1) == 0.1
    assert next_bound(10.0, [1e9] * 10, floor=0.1) == 20.0  # at most doubled
    for others in (1, 2, 3, 4, 9, 99):  # one client cannot raise it alone
        assert next_bound(10.0, [4.0] * others + [1e9], floor=0.1) == 6.0
        assert next_bound(10.0, [4.0] * others + [-1e9], floor=0.1) in (6.0, 5.0)


F = np.float32


def deep_gradient_compression(problem, *, count, momentum, rate, rounds):
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
                v[k][i] = u[k][i] = F(0)  # momentum factor masking
        weights = (weights - rate * total / problem.clients).astype(F)
    return weights, np.array(u), np.array(v), sent


@pytest.mark.parametrize(("momentum", "count"), [(0.0, 7), (0.5, 39), (0.9, 7), (0.9, 40)])
def test_the_memory_is_the_transcriptions(momentum, count, monkeypatch):
    """Without momentum it is the plain residual; where all is sent, nothing is kept."""
    sent, original = [], Scheme.sent_coordinates

    def spying(scheme, columns, task):
        found = original(scheme, columns, task)
        sent.append(found.tolist())
        return found

    monkeypatch.setattr(Scheme, "sent_coordinates", spying)
    _, state = after(15, make_scheme("dgc", dim=40, count=count, momentum=momentum), settings())
    weights, u, v, expected = deep_gradient_compression(
        Quadratic(), count=count, momentum=momentum, rate=0.1, rounds=15
    )
    assert np.allclose(state.weights, weights, atol=1e-6)
    if count == 40:
        assert (state.residuals, u.any(), v.any()) == ({}, False, False)
        return
    assert sent == expected
    for client in range(3):
        kept = np.stack([u[client], v[client]]) if momentum else v[client]
        assert np.allclose(state.residuals[client], kept, atol=1e-5)
        assert not state.residuals[client][..., sent[-3 + client]].any()


def test_momentum_and_adam_take_the_steps_of_the_book():
    gradients = np.random.default_rng(3).standard_normal((5, 2))
    velocity, first, second = np.zeros((3, 2))
    expected = {"momentum": np.zeros(2), "adam": np.zeros(2)}
    for step, gradient in enumerate(gradients, start=1):
        velocity = 0.9 * velocity + gradient
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        expected["momentum"] -= 0.1 * velocity
        expected["adam"] -= 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    for name, wanted in expected.items():
        weights, state = np.zeros(2), {}
        for gradient in gradients:
            direction, state = DIRECTIONS[name](gradient, state)
            weights -= 0.1 * direction
        assert np.allclose(weights, wanted, atol=1e-6)


STATE = State(round=4, weights=np.zeros(40, np.float32), bound=2.0, optimizer={})


def record(scheme="sqsgd-stateless", epsilon=8.0, spent=None, **measured):
    made = make_scheme(scheme, dim=40, epsilon=epsilon, bytes=2)
    return make_record(made, STATE, replace(STATE, spent=spent or {7: 5}), **measured)


def test_totals_are_never_below_the_exact_product():
    """The naive product is, for many numbers of reports."""
    epsilon = make_scheme("sqsgd-stateless", dim=40, epsilon=1.1, bytes=2).privacy.epsilon
    naive = 0
    for reports in range(1, 200):
        found = record(epsilon=1.1, spent={7: reports, 8: 1}).epsilon_total
        assert Fraction(found) >= Fraction(epsilon) * reports
        assert Fraction(math.nextafter(found, 0)) < Fraction(epsilon) * reports
        naive += Fraction(epsilon * reports) < Fraction(epsilon) * reports
    assert naive > 20


@pytest.mark.parametrize(("scheme", "written"), [("sqsgd-stateless", 8.0), ("fedsgd", "infinity")])
def test_json_holds_every_number_and_what_is_unknown_has_no_key(scheme, written):
    line = json.loads(json.dumps(record(scheme, seconds_encode=None).to_dict(), allow_nan=False))
    assert (line["loss"], line["epsilon"], line["clip_rate"]) == ("nan", written, None)
    assert "seconds_encode" not in line


def test_messages_opened_reports_and_many_at_once_make_one_step():
    """What the local engine, Flower, NVFlare and the collector pass to the server's step."""
    scheme, chosen = make_scheme("privunit", dim=40, epsilon=20.0, bytes=32), settings()
    state = training.initial_state(np.ones(40, np.float32), chosen)
    first = training.algorithm.task_for(0, chosen, state)
    tasks = Tasks(first, np.arange(5))
    sent = [scheme.encode(np.full(40, 0.1, np.float32), task, seeded_rng(task.client)) for task in tasks]
    rows, found = np.frombuffer(b"".join(sent), np.uint8).reshape(5, -1), []
    for reports in (
        [(task, message, 1.0) for task, message in zip(tasks, sent, strict=True)],
        [(task, scheme.open(message, task), 1.0) for task, message in zip(tasks, sent, strict=True)],
        [(tasks[:2], rows[:2], None), (tasks[2:], rows[2:], np.ones(3))],
    ):
        after_it, made = training.server_step(scheme, chosen, state, reports)
        again = training.server_step(scheme, chosen, state, iter(reports), paid=())[0]
        assert np.allclose(after_it.weights, again.weights)
        assert (made.clients, made.bytes_up, made.epsilon_total) == (5, scheme.bits // 8, 20.0)
        assert (after_it.round, after_it.spent, again.spent) == (1, dict.fromkeys(range(5), 1), {})
        assert made.clip_rate is not None
        found.append((after_it.weights, after_it.bound))
    for weights, bound in found[1:]:
        assert np.allclose(weights, found[0][0], atol=1e-6)
        assert bound == found[0][1]
