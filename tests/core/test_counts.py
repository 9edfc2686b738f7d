"""Reports that are counted instead of kept: one rotation of a round, one inverse, and the same mean."""

import numpy as np
import pytest

from sqsgd import Aggregate, Task, make_scheme, seeded_rng

SCHEMES = [
    ("privunit-index", {"rotation": "round"}, {"dim": 100, "epsilon": 6.0, "bytes": 2}),
    ("sqsgd-stateless", {"rotation": "round", "code": "sparse"}, {"dim": 300, "epsilon": 40.0, "bytes": 8}),
]


def reports(scheme, count=40):
    """Tasks of many clients, their vectors and messages."""
    tasks = scheme.tasks(round=2, clients=range(count), seed=7, bound=1.0)
    x = np.random.default_rng(3).normal(size=(count, scheme.dim)).astype(np.float32) / scheme.dim
    return tasks, x, scheme.encode_many(x, tasks, seeded_rng(1))


@pytest.mark.parametrize(("name", "options", "sizes"), SCHEMES)
def test_counts_have_the_mean_of_the_reports(name, options, sizes):
    scheme = make_scheme(name, **sizes, **options)
    tasks, _, messages = reports(scheme)
    counted, counts = Aggregate(scheme), np.zeros(scheme.symbols, np.int64)
    for task, message in zip(tasks, messages, strict=True):
        (codes,) = scheme.open(message.tobytes(), task)
        np.add.at(counts, codes, 1)
    counted.add_counts(tasks.task, counts)
    kept, many = Aggregate(scheme), Aggregate(scheme)
    for task, message in zip(tasks, messages, strict=True):
        kept.add(task, message.tobytes())
    many.add_many(tasks, messages)
    assert counted.count == kept.count == many.count == len(tasks)
    assert np.array_equal(kept.mean(), many.mean())
    assert np.allclose(counted.mean(), kept.mean(), rtol=1e-6, atol=1e-7 * np.abs(kept.mean()).max())


@pytest.mark.parametrize(("name", "options", "sizes"), SCHEMES)
def test_a_report_belongs_to_no_client(name, options, sizes):
    """With the same noise, every client of a round sends the same codes; another round has others."""
    scheme = make_scheme(name, **sizes, **options)
    own = make_scheme(name, **sizes, **{**options, "rotation": "client"})
    x = np.random.default_rng(5).normal(size=scheme.dim).astype(np.float32)

    def codes(scheme, round, client):
        task = Task(round=round, client=client, seed=7, dim=scheme.dim, bound=1.0)
        return [scheme.randomize(x, task, seeded_rng(seed))[0].tolist() for seed in range(8)]

    assert codes(scheme, 0, 1) == codes(scheme, 0, 2) != codes(scheme, 1, 1)
    assert codes(own, 0, 1) != codes(own, 0, 2)
    assert (scheme.symbols > 0, own.symbols) == (True, 0)
    assert scheme.privacy == own.privacy


def test_what_cannot_be_counted():
    for name, options in (("fedsgd", {}), ("sqsgd-stateless", {"code": "signs", "rotation": "round"})):
        sizes = {} if name == "fedsgd" else {"epsilon": 40.0, "bytes": 8}
        scheme = make_scheme(name, dim=100, **sizes, **options)
        assert scheme.symbols == 0
        task = Task(round=0, client=0, seed=7, dim=100, bound=1.0)
        with pytest.raises(ValueError, match="symbols"):
            Aggregate(scheme).add_counts(task, np.zeros(200, np.int64))
    scheme = make_scheme("sqsgd-stateless", **SCHEMES[1][2], **SCHEMES[1][1])
    task = Task(round=0, client=0, seed=7, dim=300, bound=1.0)
    one = np.zeros(scheme.symbols, np.int64)
    one[5] = 1
    for counts in (one, -one * scheme.mechanism.layout[0].count):
        with pytest.raises(ValueError, match="whole reports"):
            Aggregate(scheme).add_counts(task, counts)
    with pytest.raises(ValueError, match="rotation = 'all' must be"):
        make_scheme("privunit-index", dim=100, epsilon=4.0, rotation="all")
