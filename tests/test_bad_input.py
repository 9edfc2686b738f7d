"""Wrong arguments end in a ValueError that names the argument and its value."""

import math
from fractions import Fraction

import numpy as np
import pytest

from sqsgd import Aggregate, PrivQuant, Task, make_scheme, seeded_rng
from sqsgd.codec import Column

Q = PrivQuant(8, 4, 5.0)
X = np.zeros(8, np.float32)
CODES = np.zeros(8, np.uint8)


def refuse(match, call):
    with pytest.raises(ValueError, match=match):
        call()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"dim": 0}, "dim = 0"),
        ({"dim": 2**24 + 1}, "dim = 16777217"),
        ({"dim": 8.0}, r"dim = 8\.0"),
        ({"dim": True}, "dim = True"),
        ({"levels": 1}, "levels = 1"),
        ({"levels": 257}, "levels = 257"),
        ({"epsilon": 0.0}, "epsilon = 0"),
        ({"epsilon": -1.0}, "epsilon = -1"),
        ({"epsilon": math.nan}, "epsilon = nan"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"epsilon": "400"}, "epsilon = '400'"),
        ({"epsilon": None}, "epsilon = None"),
        ({"threshold": 0}, "threshold = 0"),
        ({"threshold": 9}, "threshold = 9"),
        ({"keep": 0.0}, r"keep = 0\.0"),
        ({"keep": 1.0}, r"keep = 1\.0"),
        ({"keep": math.nan}, "keep = nan"),
        ({"rule": "best"}, "rule = 'best'"),
        ({"rule": "paper", "keep": 0.5}, "rule = 'paper'"),
    ],
)
def test_privquant_arguments(changes, match):
    refuse(match, lambda: PrivQuant(**{"dim": 8, "levels": 4, "epsilon": 5.0, **changes}))


BAD_VECTORS = [
    (np.zeros(7, np.float32), r"x has shape \(7,\)"),
    (np.zeros((8, 1), np.float32), r"x has shape \(8, 1\)"),
    (np.zeros(8, np.int64), "x has dtype int64"),
    (np.zeros(8, complex), "x has dtype complex128"),
    (np.array(["a"] * 8), "x has dtype"),
    (None, "x has dtype object"),
    ([[1.0], [1.0, 2.0]], "x is no vector"),
    (np.array([0, 0, np.nan, 0, 0, 0, 0, 0]), r"x\[2\] = nan"),
    (np.array([0, 0, 0, np.inf, 0, 0, 0, 0]), r"x\[3\] = inf"),
    (np.array([1e300, 0, 0, 0, 0, 0, 0, 0]), r"x\[0\] = 1e\+300"),
    (np.full(8, 1e30), r"x\[0\] = 1e\+30 must be finite and within"),
]


@pytest.mark.parametrize(("x", "match"), BAD_VECTORS)
def test_vectors(x, match):
    rng = seeded_rng(1)
    refuse(match, lambda: Q.quantize(x, 1.0, rng))
    refuse(match, lambda: Q.variance(x, 1.0))
    scheme = make_scheme("sqsgd", dim=8, epsilon=9.0, bits=8)
    refuse(match, lambda: scheme.encode(x, Task(round=0, client=0, seed=0, dim=8, bound=1.0), rng))
    assert rng.word() == seeded_rng(1).word()  # nothing was drawn


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan, math.inf, "1", None])
def test_bounds(bound):
    refuse("bound = ", lambda: Q.quantize(X, bound, seeded_rng(1)))
    refuse("bound = ", lambda: Q.estimate(CODES, bound))
    refuse("bound = ", lambda: Q.variance(X, bound))
    refuse("bound = ", lambda: Task(round=0, client=0, seed=0, dim=8, bound=bound))


@pytest.mark.parametrize(
    ("codes", "match"),
    [
        (np.full(8, 4), "holds 4"),
        (np.full(8, -1), "holds -1"),
        (np.zeros(8), "dtype float64"),
        (np.zeros(9, int), r"shape \(9,\)"),
    ],
)
def test_codes(codes, match):
    refuse(match, lambda: Q.privatize(codes, seeded_rng(1)))
    refuse(match, lambda: Q.estimate(codes, 1.0))
    refuse(match, lambda: Q.log_density(codes, CODES))
    refuse(match, lambda: Q.log_density(CODES, codes))


def test_a_mechanism_checks_what_it_is_handed():
    q, rng = PrivQuant(40, 2, 1.0), seeded_rng(1)
    refuse(r"x has shape \(4,\)", lambda: q.randomize(np.zeros(4, np.float32), 1.0, rng))
    refuse("bound = nan", lambda: q.randomize(np.zeros(40, np.float32), math.nan, rng))
    refuse("bound = 0", lambda: q.randomize(np.zeros(40, np.float32), 0.0, rng))
    refuse("private generator", lambda: q.randomize(np.zeros(40, np.float32), 1.0, None))
    refuse("NaN or infinity", lambda: q.randomize(np.full(40, np.nan, np.float32), 1.0, rng))


def test_parameters_that_leave_nothing_of_x():
    refuse("threshold = 2000", lambda: PrivQuant(2000, 256, 0.01, threshold=2000))


def test_tasks_hold_plain_numbers():
    task = Task(
        round=np.int64(1), client=np.uint8(2), seed=np.int32(3), dim=np.int64(8), bound=np.float32(1.5)
    )
    assert [type(value) for value in (task.round, task.client, task.seed, task.dim)] == [int] * 4
    assert type(task.bound) is float
    refuse("bound = Fraction", lambda: Task(round=0, client=0, seed=0, dim=8, bound=Fraction(3, 2)))


def test_generators():
    for wrong in (None, np.random.default_rng(1), 7):
        refuse("private generator", lambda wrong=wrong: Q.quantize(X, 1.0, wrong))
        refuse("private generator", lambda wrong=wrong: Q.privatize(CODES, wrong))


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -1},
        {"round": 2**32},
        {"client": -1},
        {"client": 2**64 - 1},
        {"seed": 2**64},
        {"dim": 0},
        {"clip": 0.0},
        {"clip": math.nan},
    ],
)
def test_tasks(changes):
    name = next(iter(changes))
    refuse(
        f"{name} = ", lambda: Task(**{"round": 0, "client": 0, "seed": 0, "dim": 8, "bound": 1.0, **changes})
    )


@pytest.mark.parametrize(
    ("name", "arguments", "match"),
    [
        ("sqsdg", {}, "did you mean 'sqsgd'"),
        ("sqsgd", {"bits": 0}, "bits = 0"),
        ("sqsgd", {"bits": None}, "bits = None"),
        ("sqsgd", {"bits": 1.5}, r"bits = 1\.5"),
        ("sqsgd", {"epsilon": None}, "epsilon = None"),
        ("sqsgd", {"epsilon": 0.001}, r"epsilon = 0\.001"),
        ("sqsgd", {"epsilon": 1e6}, "epsilon = 1000000"),
        ("sqsgd", {"dim": 0}, "dim = 0"),
        ("sqsgd", {"norm_epsilon": 500.0}, "norm_epsilon = 500"),
        ("sqsgd", {"norm_epsilon": 1e-9}, "norm_epsilon = 1e-09"),
        ("sqsgd", {"dim": 2**26, "bits": 2**26}, "bits = 67108864 would send"),
        (["sqsgd"], {}, r"name = \['sqsgd'\]"),
        ("sqsgd", {"colour": "red"}, "colour = 'red' is no option of 'sqsgd'"),
        ("sqsgd", {"levels": 256, "bits": 4}, "bits = 4 do not hold one code"),
        ("sqsgd-paper", {"epsilon": 5.0, "adaptive": True}, "norm_epsilon = 10"),
        ("fedsgd", {"levels": 2}, "takes none"),
    ],
)
def test_make_scheme(name, arguments, match):
    refuse(match, lambda: make_scheme(name, **{"dim": 100, "epsilon": 100.0, "bits": 64, **arguments}))


def test_aggregates():
    scheme = make_scheme("sqsgd", dim=8, epsilon=9.0, bits=8)
    tasks = [Task(round=r, client=0, seed=0, dim=8, bound=1.0) for r in (0, 1)]
    reports = [(task, scheme.encode(X, task, seeded_rng(1))) for task in tasks]
    refuse("no reports", lambda: scheme.aggregate([]))
    refuse("round 1", lambda: scheme.aggregate(reports))
    for weight in (0.0, 1e-50, 1e40, math.nan):
        refuse("weight = ", lambda weight=weight: Aggregate(scheme).add(*reports[0], weight=weight))
    refuse("task = None", lambda: scheme.encode(X, None, seeded_rng(1)))
    refuse(
        r"task\.dim = 9",
        lambda: scheme.encode(X, Task(round=0, client=0, seed=0, dim=9, bound=1.0), seeded_rng(1)),
    )


@pytest.mark.parametrize("arguments", [(0, 2), (5, 1), (5, 2**33), (2.0, 2)])
def test_columns(arguments):
    refuse(r"count = |alphabet = ", lambda: Column(*arguments))
