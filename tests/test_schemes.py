"""The contract that every scheme keeps: one table, the same tests."""

import math
import pickle

import numpy as np
import pytest
import reference
from reference import g_test

from sqsgd import SCHEMES, Aggregate, MalformedReport, Task, make_scheme, seeded_rng
from sqsgd.codec import ENVELOPE_BYTES

# name, options: every scheme, and every option that changes what is sent
CASES = [
    ("sqsgd", {}),
    ("sqsgd", {"levels": 3, "reach": 1.5}),
    ("sqsgd", {"norm_epsilon": 3.0}),
    ("sqsgd-stateless", {}),
    ("sqsgd-stateless", {"levels": 4, "reach": 2.0}),
    ("sqsgd-paper", {}),
    ("sqsgd-paper", {"adaptive": True}),
    ("sqsgd-paper", {"levels": 5, "rule": "optimal"}),
    ("fedsgd", {}),  # the last one: not private
]
IDS = [f"{name}{options or ''}" for name, options in CASES]


def bound_for(name: str, dim: int) -> float:
    """A range that unit vectors fit: of norms, or of rotated coordinates."""
    return 5.0 / dim**0.5 if name == "sqsgd-paper" else 1.5


def task(scheme, client=0, **changes):
    bound = bound_for(scheme.name, scheme.mechanism.dim)
    return Task(**{"round": 4, "client": client, "seed": 11, "dim": scheme.dim, "bound": bound, **changes})


def unit_vector(dim, seed=0):
    x = np.random.default_rng(seed).standard_normal(dim)
    return (x / np.linalg.norm(x)).astype(np.float32)


def make(case, dim=300, epsilon=120.0, bits=512):
    name, options = case
    return make_scheme(name, dim=dim, epsilon=epsilon, bits=bits, **options)


def test_the_table_covers_every_scheme():
    assert {name for name, _ in CASES} == set(SCHEMES)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_seed_decides_the_message(case):
    scheme, x = make(case), unit_vector(300)
    messages = [scheme.encode(x, task(scheme), seeded_rng(seed)) for seed in (1, 1, 2)]
    assert messages[0] == messages[1]
    assert messages[0] != messages[2] or not math.isfinite(scheme.privacy.epsilon)


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize(("dim", "bits"), [(1, 40), (300, 512), (119850, 2048)])
def test_the_message_has_the_declared_size_and_keeps_the_budget(case, dim, bits):
    scheme = make(case, dim=dim, bits=bits)
    message = scheme.encode(unit_vector(dim), task(scheme), seeded_rng(1))
    assert 8 * len(message) == scheme.bits
    assert len(message) <= ENVELOPE_BYTES + -(-scheme.code_bits // 8) + 1
    assert scheme.code_bits <= bits or scheme.privacy.notion == "none"


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_schemes_travel_between_processes(case):
    scheme = make(case)
    again = pickle.loads(pickle.dumps(scheme))  # noqa: S301
    x = unit_vector(300)
    message = scheme.encode(x, task(scheme), seeded_rng(1))
    assert again.encode(x, task(scheme), seeded_rng(1)) == message
    assert np.array_equal(again.decode(message, task(scheme)), scheme.decode(message, task(scheme)))


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 12.0, 400.0, 1e4])
def test_epsilon_is_what_was_asked_for(case, epsilon):
    name, options = case
    adaptive = {"norm_epsilon": epsilon / 4} if options.get("adaptive") or "norm_epsilon" in options else {}
    if name == "sqsgd-paper" and options.get("rule", "paper") == "paper" and epsilon < 1:
        with pytest.raises(ValueError, match="optimal rule"):  # the paper's rule has no solution here
            make_scheme(name, dim=300, epsilon=epsilon, bits=512, **{**options, **adaptive})
        return
    scheme = make_scheme(name, dim=300, epsilon=epsilon, bits=512, **{**options, **adaptive})
    if scheme.privacy.notion == "none":
        assert scheme.privacy.epsilon == math.inf
        return
    assert scheme.privacy.notion == "local"
    assert scheme.privacy.epsilon <= epsilon
    if options.get("rule", "paper") != "paper" or name != "sqsgd-paper":
        assert scheme.privacy.epsilon >= epsilon * (1 - 1e-9)


@pytest.mark.parametrize("case", CASES[:-1], ids=IDS[:-1])
def test_exact_privacy(case):
    """All outputs of a small mechanism: densities sum to one, no two inputs are told apart beyond ε."""
    name, options = case
    adaptive = {"norm_epsilon": 1.0} if options.get("adaptive") else {}
    few = 2 if name == "sqsgd-paper" and "levels" not in options else 4  # 16 levels: 256 outputs
    scheme = make_scheme(name, dim=few, epsilon=12.0, bits=16, **{**options, **adaptive})
    mechanism, bound = scheme.mechanism, 0.8
    numbers, dim = np.random.default_rng(1), mechanism.dim
    corners = bound * (2 * reference.all_codes(dim, 2)[:16] - 1.0)
    inputs = [x.astype(np.float32) for x in (*corners, *numbers.standard_normal((20, dim)), np.zeros(dim))]
    symbols = range(mechanism.layout[1].alphabet) if len(mechanism.layout) > 1 else [None]
    worst, sums = 0.0, np.zeros(len(inputs))
    for codes in reference.all_codes(dim, mechanism.layout[0].alphabet):
        for symbol in symbols:
            columns = (codes,) if symbol is None else (codes, np.array([symbol], np.uint8))
            densities = np.array([mechanism.log_density(columns, x, bound) for x in inputs])
            worst = max(worst, densities.max() - densities.min())
            sums += np.exp(densities)
    assert np.allclose(sums, 1.0, rtol=1e-9)
    assert worst <= scheme.privacy.epsilon + 1e-9
    assert worst >= 0.9 * scheme.privacy.epsilon


SMALL_CASES = [
    ("sqsgd", {"norm_epsilon": 1.0}),
    ("sqsgd", {"levels": 3, "reach": 1.5, "norm_epsilon": 1.0}),
    ("sqsgd-paper", {"levels": 4, "adaptive": True, "norm_epsilon": 1.0, "rule": "optimal"}),
    ("sqsgd-paper", {"levels": 3, "rule": "optimal"}),
]


def joint_outputs(mechanism):
    """Every (codes, symbol) that a small mechanism can send, as columns."""
    symbols = range(mechanism.layout[1].alphabet) if len(mechanism.layout) > 1 else [None]
    for codes in reference.all_codes(mechanism.dim, mechanism.layout[0].alphabet):
        for symbol in symbols:
            yield (codes,) if symbol is None else (codes, np.array([symbol], np.uint8))


def sampled(mechanism, x, bound, trials):
    """How often each of the joint outputs is drawn."""
    numbers = {tuple(np.concatenate(c).tolist()): i for i, c in enumerate(joint_outputs(mechanism))}
    counts, rng = np.zeros(len(numbers)), seeded_rng(9)
    for _ in range(trials):
        counts[numbers[tuple(np.concatenate(mechanism.randomize(x, bound, rng)).tolist())]] += 1
    return counts


@pytest.mark.parametrize("case", SMALL_CASES, ids=str)
def test_what_is_sent_has_the_density_that_privacy_is_proved_of(case):
    """``randomize`` against ``log_density``, all columns jointly: test_exact_privacy stands on it."""
    name, options = case
    mechanism = make_scheme(name, dim=3, epsilon=5.0, bits=9, **options).mechanism
    x, trials = np.linspace(-0.5, 0.4, mechanism.dim).astype(np.float32), 40_000
    outputs = list(joint_outputs(mechanism))
    expected = trials * np.exp([mechanism.log_density(columns, x, 0.8) for columns in outputs])
    assert g_test(sampled(mechanism, x, 0.8, trials), expected) > 1e-6


def test_a_norm_sent_without_randomised_response_is_caught(monkeypatch):
    mechanism = make_scheme("sqsgd", dim=3, epsilon=5.0, bits=9, norm_epsilon=1.0).mechanism
    x, trials = np.linspace(-0.5, 0.4, mechanism.dim).astype(np.float32), 40_000
    expected = trials * np.exp([mechanism.log_density(c, x, 0.8) for c in joint_outputs(mechanism)])
    levels = mechanism.norm.levels
    monkeypatch.setattr(
        type(mechanism.norm), "privatize", lambda _, value, rng: round(levels * min(value, 1.0))
    )
    assert g_test(sampled(mechanism, x, 0.8, trials), expected) < 1e-6


@pytest.mark.parametrize("entries", [1, 2])
@pytest.mark.parametrize("name", ["sqsgd", "sqsgd-stateless"])
def test_sparse_vectors_keep_their_length(name, entries):
    """One round of signs and Hadamard would make a single entry 25 % too long, two of them 11 % too short."""
    scheme, rng, reports = make_scheme(name, dim=256, epsilon=200.0, bits=256), seeded_rng(3), 3000
    x = np.zeros(256, np.float32)
    x[:entries] = entries**-0.5
    slopes = []
    for client in range(reports):
        t = task(scheme, client=client)
        slopes.append(scheme.decode(scheme.encode(x, t, rng), t) @ x)
    assert abs(np.mean(slopes) - 1) < 0.03 + 4 * np.std(slopes) / reports**0.5


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_mean_is_recovered(case):
    """Over clients and rounds the mean of the estimates is x."""
    dim, reports = 64, 3000
    scheme, x, rng = make(case, dim=dim, bits=512), unit_vector(64), seeded_rng(3)
    assert not scheme.residual
    estimates = []
    for client in range(reports):
        t = task(scheme, client=client, round=client % 7)
        estimates.append(scheme.decode(scheme.encode(x, t, rng), t))
    error = np.mean(estimates, axis=0) - x
    noise = np.var(estimates, axis=0).sum() / reports
    # One rotation of 64 coordinates is not quite Gaussian: allow direction mode a bias of 3 %.
    bias = 0.0009 if scheme.name.startswith("sqsgd") and scheme.name != "sqsgd-paper" else 0.0
    assert error @ error < 2.0 * noise + bias + 1e-12


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_aggregate_streams_to_the_mean_of_the_decoded(case):
    scheme, rng = make(case), seeded_rng(2)
    tasks = [task(scheme, client=client) for client in range(7)]
    reports = [(t, scheme.encode(unit_vector(300, seed=t.client), t, rng)) for t in tasks]
    one_by_one = np.mean([scheme.decode(message, t) for t, message in reports], axis=0)
    assert np.allclose(scheme.aggregate(iter(reports)), one_by_one, atol=1e-5)
    weighted = Aggregate(scheme)
    for t, message in reports:
        weighted.add(t, message, weight=1.0 + t.client)
    decoded = [(1 + t.client) * scheme.decode(message, t) for t, message in reports]
    assert np.allclose(weighted.mean(), np.sum(decoded, axis=0) / 28, atol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_malformed_messages_are_refused_and_change_nothing(case):
    scheme, rng = make(case), seeded_rng(2)
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


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused_before_anything_is_drawn(case, bad):
    scheme, rng = make(case), seeded_rng(2)
    x = unit_vector(300)
    x[17] = bad
    with pytest.raises(ValueError, match=r"x\[17\]"):
        scheme.encode(x, task(scheme), rng)
    assert rng.word() == seeded_rng(2).word()


@pytest.mark.parametrize("case", CASES[:-1], ids=IDS[:-1])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_mechanism_refuses_them_by_itself(case, bad):
    mechanism = make(case).mechanism
    x = np.zeros(mechanism.dim, np.float32)
    x[-1] = bad
    with pytest.raises(ValueError, match=r"NaN or infinity|must be finite"):
        mechanism.randomize(x, 1.0, seeded_rng(2))


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize(
    "x", [np.zeros(300, np.float32), np.full(300, 1e-30), np.full(300, 1e12), np.eye(300)[3]]
)
def test_extreme_vectors_travel(case, x):
    scheme = make(case)
    assert np.isfinite(scheme.decode(scheme.encode(x, task(scheme), seeded_rng(1)), task(scheme))).all()


def test_schemes_with_other_parameters_do_not_read_each_other():
    scheme, others = (
        make(CASES[0]),
        [make(CASES[1]), make(CASES[3]), make(CASES[0], epsilon=121.0), make(CASES[0], bits=256)],
    )
    message = scheme.encode(unit_vector(300), task(scheme), seeded_rng(1))
    for other in others:
        with pytest.raises(MalformedReport) as caught:
            other.decode(message, task(scheme))
        assert caught.value.reason == "scheme"


def test_one_nmse_of_the_planners_table():
    """MATHS section 3, a measured case: D = 1024, n = 128, ε = 40, signs, norm known: 25.85."""
    scheme = make_scheme("sqsgd-stateless", dim=1024, epsilon=65.0, bits=128, norm_epsilon=25.0)
    assert scheme.mechanism.quantizer.epsilon == 40.0
    rng, errors = seeded_rng(6), []
    for client in range(6000):
        x = unit_vector(1024, seed=client % 50)
        t = Task(round=client % 11, client=client, seed=5, dim=1024, bound=2.0)
        estimate = scheme.decode(scheme.encode(x, t, rng), t)
        errors.append(np.sum((estimate - x) ** 2))
    # The norm of the sent block varies by 1/(2 n): it and the symbol's error add about 0.8 %.
    assert abs(np.mean(errors) - 25.85) < 0.02 * 25.85 + 4 * np.std(errors) / len(errors) ** 0.5
