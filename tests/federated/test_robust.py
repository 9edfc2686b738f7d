"""Robust aggregates against plain twins, and what few liars can and cannot do to them."""

import numpy as np
import pytest
import quadratic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quadratic import Quadratic
from sqsgd.training import Settings

from sqsgd import Aggregate, make_scheme, secure_rngs, seeded_rng
from sqsgd.codec import MalformedReport
from sqsgd.federated import Optimizer
from sqsgd.federated.robust import (
    AGGREGATES,
    MEDIAN,
    TRIMMED,
    RobustAggregate,
    all_but_the_middle,
    check_aggregate,
    groups_of,
    make_aggregate,
    middle,
    three_tenths,
)
from sqsgd.task import Task, Tasks

DIM = 96
WHOLE = make_scheme("sqsgd-stateless", dim=DIM, epsilon=50.0, bytes=32)
BLOCKS = make_scheme("sqsgd", dim=DIM, epsilon=50.0, bytes=32, code="signs", coordinates=64)
PLAIN = make_scheme("fedsgd", dim=DIM)
numbers = st.floats(-1e6, 1e6)


def task(client, dim=DIM):
    return Task(round=3, client=client, seed=5, dim=dim, bound=2.0)


def messages(scheme, vectors, seed=0):
    """(task, message) of each vector."""
    tasks = [task(client, scheme.dim) for client in range(len(vectors))]
    return [
        (t, scheme.encode(x, t, seeded_rng(seed + t.client))) for t, x in zip(tasks, vectors, strict=True)
    ]


def located(scheme, kind, reports):
    total = RobustAggregate(scheme, kind, len(reports))
    for each, message in reports:
        total.add_columns(each, scheme.open(message, each))
    assert total.count == len(reports)
    return total.mean()


def twin(scheme, kind, reports):
    """The same in plain loops: sums and numbers of reports of each group, weight by weight."""
    groups = len(reports) if kind == TRIMMED else groups_of(len(reports))
    found = []
    decoded = [scheme.decode(message, each) for each, message in reports]
    about = [set(scheme.sent_coordinates(scheme.open(m, each), each).tolist()) for each, m in reports]
    for weight in range(scheme.dim):
        values, heard = [], 0
        for group in range(groups):
            mine = [i for i in range(group, len(reports), groups) if weight in about[i]]
            heard += len(mine)
            if mine:
                values.append(sum(decoded[i][weight] for i in mine) / len(mine))
        values.sort()
        if not values:
            found.append(0.0)
        elif kind == MEDIAN:
            found.append(np.median(values) * heard / len(reports))
        else:
            cut = 3 * len(values) // 10
            found.append(np.mean(values[cut : len(values) - cut]) * heard / len(reports))
    return np.array(found)


@pytest.mark.parametrize("kind", AGGREGATES[1:])
@pytest.mark.parametrize("scheme", [WHOLE, BLOCKS, PLAIN], ids=lambda scheme: scheme.name)
@pytest.mark.parametrize("count", [1, 2, 9, 10, 60])
def test_it_is_its_plain_twin(scheme, kind, count):
    vectors = np.random.default_rng(count).normal(size=(count, DIM)).astype(np.float32) / 10
    reports = messages(scheme, vectors)
    expected = twin(scheme, kind, reports)
    np.testing.assert_allclose(located(scheme, kind, reports), expected, rtol=1e-4, atol=1e-6)
    assert scheme.sends_block == (scheme is BLOCKS)


@pytest.mark.parametrize("kind", AGGREGATES[1:])
@pytest.mark.parametrize("scheme", [WHOLE, BLOCKS], ids=lambda scheme: scheme.name)
def test_many_reports_are_added_as_single_ones(scheme, kind):
    rows = np.random.default_rng(1).normal(size=(40, DIM)).astype(np.float32) / 10
    tasks = Tasks(task(0), np.arange(40))
    made = scheme.encode_many(rows, tasks, secure_rngs(40))
    one = located(scheme, kind, [(tasks[i], made[i].tobytes()) for i in range(40)])
    total = RobustAggregate(scheme, kind, 40)
    for piece in (slice(0, 13), slice(13, 40)):
        columns = total.add_many(tasks[piece], made[piece])
        expected = scheme.open_many(made[piece], tasks[piece])
        assert all(np.array_equal(a, b) for a, b in zip(columns, expected, strict=True))
    np.testing.assert_allclose(total.mean(), one, rtol=1e-5, atol=1e-7)


@given(
    arrays(np.float64, st.tuples(st.integers(1, 25), st.integers(1, 6)), elements=numbers | st.just(np.nan))
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_middle_of_what_is_there(rows):
    for cut in (three_tenths, all_but_the_middle):
        found = middle(rows, cut)
        for column, value in zip(rows.T, found, strict=True):
            left = np.sort(column[~np.isnan(column)])
            ends = max(0, int(cut(np.int64(left.size))))
            expected = left[ends : left.size - ends].mean() if left.size else 0.0
            np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-6)


@given(
    st.integers(3, 30).flatmap(
        lambda count: st.tuples(
            arrays(np.float64, (count, 4), elements=numbers), st.integers(0, three_tenths(np.int64(count)))
        )
    ),
    st.sampled_from([1e9, -1e9, 3.0]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_few_liars_stay_within_what_honest_reports_say(case, lie):
    rows, liars = case
    honest = rows[liars:]
    for cut in (three_tenths, all_but_the_middle):
        lied = rows.copy()
        lied[:liars] = lie
        found = middle(lied, cut)
        assert (found >= honest.min(axis=0) - 1e-6).all()
        assert (found <= honest.max(axis=0) + 1e-6).all()


def test_one_more_liar_than_that_decides():
    """Fails where more is promised than holds: seven honest values of zero, and three or four of a liar."""
    for liars, moved in ((3, False), (4, True)):
        rows = np.zeros((10, 1))
        rows[:liars] = 1e6
        assert bool(middle(rows, three_tenths)[0] > 1) == moved
    assert middle(np.array([[0.0]] * 3 + [[1e6]] * 4), all_but_the_middle)[0] == 1e6


@pytest.mark.parametrize("kind", AGGREGATES[1:])
def test_reports_without_noise_keep_liars_out(kind):
    honest = np.random.default_rng(2).normal(size=(10, DIM)).astype(np.float32)
    lied = honest.copy()
    lied[[1, 4, 8]] = 1000.0
    found = located(PLAIN, kind, messages(PLAIN, lied))
    truth = np.delete(honest, [1, 4, 8], axis=0)
    assert (found <= truth.max(axis=0) + 1e-5).all()
    mean = PLAIN.aggregate(messages(PLAIN, lied))
    assert mean.min() > 290


def test_skewed_noise_makes_both_biased():
    """Exponential noise around its mean of 1: the median is ln 2, and trimming lies between."""
    noise = np.random.default_rng(3).exponential(size=(1001, 200))
    median, trimmed = (middle(noise, cut).mean() for cut in (all_but_the_middle, three_tenths))
    assert median == pytest.approx(np.log(2), abs=0.02)
    assert 0.7 < trimmed < 0.85
    groups = noise[:1000].reshape(10, 100, 200).mean(axis=1)  # of means of a hundred it is nearly gone
    assert middle(groups, all_but_the_middle).mean() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("kind", AGGREGATES[1:])
def test_a_malformed_report_is_named(kind):
    rows = np.zeros((5, DIM), np.float32)
    tasks = Tasks(task(0), np.arange(5))
    made = WHOLE.encode_many(rows, tasks, secure_rngs(5))
    made[3, -1] ^= 1
    total = RobustAggregate(WHOLE, kind, 5)
    with pytest.raises(MalformedReport):
        total.add_many(tasks, made)
    assert total.count == 0
    with pytest.raises(ValueError, match="no reports"):
        total.mean()


def test_all_reports_weigh_the_same():
    total, (each, message) = RobustAggregate(WHOLE, TRIMMED, 1), messages(WHOLE, np.zeros((1, DIM)))[0]
    with pytest.raises(ValueError, match="equal weights"):
        total.add_columns(each, WHOLE.open(message, each), 2.0)
    with pytest.raises(ValueError, match="a liar would choose its weight"):
        Settings(
            seed=1,
            optimizer=Optimizer(kind="sgd", rate=0.1),
            secure=False,
            weigh_by_size=True,
            aggregate=TRIMMED,
        )


@given(st.integers(1, 10**6))
@settings(deadline=None)
def test_groups_are_odd_and_no_more_than_reports(reports):
    groups = groups_of(reports)
    assert groups % 2 == 1
    assert 1 <= groups <= reports
    assert groups >= min(7, reports - 1)


@pytest.mark.parametrize(
    ("name", "options", "reports", "kinds", "reason"),
    [
        (
            "sqsgd",
            {"dim": 61706, "epsilon": 400.0, "bytes": 256},
            10,
            AGGREGATES[1:],
            "reports 0.7 are about",
        ),
        (
            "vqsgd",
            {"dim": 1000, "epsilon": 8.0, "bytes": 50},
            1500,
            AGGREGATES[1:],
            "are about the same weight",
        ),
        ("dgc", {"dim": 1000, "bytes": 256}, 1000, AGGREGATES[1:], "a liar chooses one about which"),
        ("fedsel", {"dim": 1000, "epsilon": 8.0, "bytes": 50}, 1000, AGGREGATES[1:], "a liar chooses one"),
        ("terngrad", {"dim": 1000, "bytes": 500}, 100, (TRIMMED,), "multiply their mean by a constant"),
        ("privunit-index", {"dim": 3920, "epsilon": 8.0}, 10**6, (TRIMMED,), "kept in memory"),
        ("privunit-index", {"dim": 3920, "epsilon": 8.0}, 1500, (), ""),
        ("sqsgd", {"dim": 3920, "epsilon": 400.0, "bytes": 256}, 10, (), ""),
        ("sqsgd", {"dim": 61706, "epsilon": 20000.0, "bytes": 25000}, 10, (), ""),
    ],
)
def test_what_means_nothing_is_refused(name, options, reports, kinds, reason):
    scheme = make_scheme(name, **options)
    check_aggregate("mean", scheme, reports)
    for kind in AGGREGATES[1:]:
        if kind in kinds:
            with pytest.raises(ValueError, match=reason):
                check_aggregate(kind, scheme, reports)
        else:
            check_aggregate(kind, scheme, reports)


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match=r"aggregate = 'average' must be one of 'mean', 'trimmed'"):
        check_aggregate("average", WHOLE, 10)
    assert type(make_aggregate("mean", WHOLE, 10)) is Aggregate


class Ten(Quadratic):
    """Ten clients, the first three of which pull far to the other side."""

    clients = 10

    def gradient(self, weights, round, client):
        return super().gradient(weights, round, client) * np.float32(-10.0 if client < 3 else 1.0)


class TenRows(Ten):
    gradient_rows = Ten.rows


@pytest.mark.parametrize("kind", AGGREGATES)
@pytest.mark.parametrize("code", ["fedsgd", "sqsgd-stateless"])
def test_a_training_goes_on_beside_liars(kind, code):
    """Without noise liars are trimmed away. Single clients and many at once take the same steps."""
    options = {} if code == "fedsgd" else {"epsilon": 400.0, "bytes": 256}
    scheme = make_scheme(code, dim=Ten.dim, **options)
    chosen = quadratic.settings(aggregate=kind)
    _, single = quadratic.after(20, scheme, chosen, Ten())
    _, many = quadratic.after(20, scheme, chosen, TenRows())
    np.testing.assert_allclose(single.weights, many.weights, rtol=1e-4, atol=1e-5)
    if code == "fedsgd":
        optimum = Ten().points[3:].mean(axis=0)
        assert (np.abs(single.weights - optimum).max() < 2) == (kind != "mean")
