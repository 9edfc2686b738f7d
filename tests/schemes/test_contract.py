"""The contract of every scheme: one table, the same tests."""

import math
import pickle

import numpy as np
import pytest
from cases import CASES, PRIVATE, task, unit_vector

from sqsgd import SCHEMES, Aggregate, MalformedReport, make_scheme, seeded_rng
from sqsgd.core.codec import ENVELOPE_BYTES


def test_the_table_covers_every_scheme():
    assert {case.name for case in CASES} == set(SCHEMES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_seed_decides_the_message(case):
    scheme, x = case.make(epsilon=12.0), unit_vector(300)
    messages = [scheme.encode(x, task(scheme), seeded_rng(seed)) for seed in (1, *range(1, 30))]
    assert messages[0] == messages[1]
    assert len(set(messages)) > 1 or case.notion == "none"


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("dim", "size"), [(1, 5), (300, 64), (119850, 256)])
def test_the_message_has_the_declared_size_and_keeps_the_budget(case, dim, size):
    scheme = case.make(dim=dim, bytes=size)
    message = scheme.encode(unit_vector(dim), task(scheme), seeded_rng(1))
    assert 8 * len(message) == scheme.bits
    assert len(message) <= ENVELOPE_BYTES + -(-scheme.code_bits // 8) + 1
    assert scheme.code_bits <= 8 * size or not case.keeps_budget


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schemes_travel_between_processes(case):
    scheme = case.make()
    again = pickle.loads(pickle.dumps(scheme))  # noqa: S301
    x = unit_vector(300)
    message = scheme.encode(x, task(scheme), seeded_rng(1))
    assert again.encode(x, task(scheme), seeded_rng(1)) == message
    assert np.array_equal(again.decode(message, task(scheme)), scheme.decode(message, task(scheme)))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 12.0, 400.0, 1e5])
def test_epsilon_is_what_was_asked_for(case, epsilon):
    options = dict(case.options)
    if "norm_epsilon" in options or options.get("adaptive"):
        options["norm_epsilon"] = epsilon / 4
    if epsilon < case.least_epsilon:
        with pytest.raises(ValueError, match=r"use the optimal rule|larger epsilon"):
            make_scheme(case.name, dim=300, epsilon=epsilon, bytes=64, **options)
        return
    privacy = make_scheme(case.name, dim=300, epsilon=epsilon, bytes=64, **options).privacy
    assert privacy.notion == case.notion
    if case.notion == "none":
        assert privacy.epsilon == math.inf
        return
    assert privacy.epsilon <= epsilon
    assert privacy.epsilon >= epsilon * (1 - 1e-9) or not case.whole_epsilon


@pytest.mark.parametrize("case", CASES, ids=str)
def test_malformed_messages_are_refused_and_change_nothing(case):
    scheme, rng = case.make(), seeded_rng(2)
    t = task(scheme)
    message = scheme.encode(unit_vector(300), t, rng)
    total = Aggregate(scheme)
    total.add(t, message)
    before = total.mean()
    for bad in (message[:-1], message + b"\0", message[:-1] + bytes([message[-1] ^ 128]), b"", b"hello" * 10):
        with pytest.raises(MalformedReport):
            scheme.decode(bad, t)
        with pytest.raises(MalformedReport):
            total.add(t, bad)
    assert (total.count, total.mean().tolist()) == (1, before.tolist())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_before_anything_is_drawn(case, bad):
    scheme, rng = case.make(), seeded_rng(2)
    x = unit_vector(300)
    x[17] = bad
    with pytest.raises(ValueError, match=r"x\[17\]"):
        scheme.encode(x, task(scheme), rng)
    assert rng.word() == seeded_rng(2).word()


@pytest.mark.parametrize("case", PRIVATE, ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_mechanism_refuses_them_by_itself(case, bad):
    mechanism = case.make().mechanism
    x = np.zeros(mechanism.dim, np.float32)
    x[-1] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity|must be finite"):
        mechanism.randomize(x, 1.0, seeded_rng(2))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    "x", [np.zeros(300, np.float32), np.full(300, 1e-30), np.full(300, 1e12), np.eye(300)[3]]
)
def test_extreme_vectors_travel(case, x):
    scheme = case.make()
    assert np.isfinite(scheme.decode(scheme.encode(x, task(scheme), seeded_rng(1)), task(scheme))).all()
