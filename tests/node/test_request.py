"""A request and its model: what travels comes back, malformed fields are refused."""

import json

import numpy as np
import pytest
from asking import DIM, request

from sqsgd import seeded_rng
from sqsgd.core.task import Task
from sqsgd.federation.node.request import MalformedRequest, Request
from sqsgd.federation.node.server import Evaluation
from sqsgd.federation.node.structure import flatten, untrained

SENT = [
    {},
    {"client": 2**64 - 2, "seed": 2**63 + 5, "round": 2**31 - 1, "clip": 0.5, "bound": 1e-3},
    {"options": {"levels": 4}, "alpha": 0.25, "beta": 0.5, "by_slot": True},
]
OTHER = np.ones(DIM, np.float32)


@pytest.mark.parametrize("changes", SENT)
def test_a_request_comes_back_from_its_fields(changes):
    sent = request(**changes)
    assert Request.from_fields(json.loads(json.dumps(sent.to_fields()))) == sent


@pytest.mark.parametrize("key", request().to_fields())
def test_every_key_is_needed_and_has_one_type(key):
    values = request().to_fields()
    for wrong in ({**values, key: b"bytes"}, {name: value for name, value in values.items() if name != key}):
        with pytest.raises(MalformedRequest, match=f"{key} = .* must be of type"):
            Request.from_fields(wrong)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"}, {"scheme": "sqsgd-stateless"}, {"epsilon": 100.0}, {"bytes": 64},
        {"options": {"levels": 4}}, {"round": 1}, {"client": 6}, {"seed": 10}, {"bound": 21.0}, {"clip": 1.0},
        {"alpha": 0.5}, {"beta": 0.5}, {"weights": OTHER}, {"by_slot": True}, {"normalise": True},
        {"purpose": "evaluation"},
    ],
)  # fmt: skip
def test_whatever_a_report_depends_on_is_in_the_identity(changes):
    assert request(**changes).identity != request().identity


def test_running_statistics_are_named_and_no_variance_is_below_zero():
    """Of batch normalisation in PyTorch; its counts of batches are no weights."""
    ones, count = np.ones(3, np.float32), np.array(7)
    model = {"0.weight": ones, "1.running_mean": ones, "1.running_var": ones, "1.num_batches_tracked": count}
    structure, weights = flatten(model)
    (told,) = untrained(structure)
    assert "running statistics: 1.running_mean, 1.running_var, 1.num_batches_tracked" in told
    after = structure.sent(weights - 2)
    assert list(after) == list(model)
    assert [array.tolist() for array in after.values()] == [[-1.0] * 3, [-1.0] * 3, [0.0] * 3, 7]


@pytest.mark.parametrize(("epsilon", "points"), [(1.0, 0.118), (0.1, 0.972)])
def test_the_noise_of_an_evaluation(epsilon, points):
    """Ten silos of 1,000 records: a tenth of a point of accuracy at epsilon 1, a point at 0.1."""
    asked, rng, found = Evaluation(epsilon=epsilon, delta=1e-5, records=1000), seeded_rng(1), []
    task = Task(round=0, client=0, seed=1, dim=1, bound=1.0)
    total = asked.scheme.record_sum(task)
    total.add((np.arange(1000) < 870).astype(np.float32)[:, None])
    for _ in range(200):
        reports = [(task, asked.scheme.randomize(total, task, rng), 1.0) for _ in range(10)]
        found.append(asked.measured(reports))
    accuracies = [100 * each["accuracy"] for each in found]
    assert np.std(accuracies) == pytest.approx(points, rel=0.2)
    assert np.mean(accuracies) == pytest.approx(87.0, abs=4 * points / np.sqrt(200))
    assert 100 * found[0]["accuracy_within"] == pytest.approx(1.96 * points, rel=2e-3)
    covered = [abs(each["accuracy"] - 0.87) < each["accuracy_within"] for each in found]
    assert 0.9 < np.mean(covered) <= 0.99
