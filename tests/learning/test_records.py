"""Gradients of single records: equal to a loop's, one by one limited, and refused where records mix."""

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd import RecordSum, Task, make_scheme, record_sum, secure_rng, seeded_rng
from sqsgd.learning import records
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.models import make_model
from sqsgd.learning.objectives import OBJECTIVES
from sqsgd.learning.records import correct_predictions, in_turn, record_gradients, sampled

ENTROPY = OBJECTIVES["cross-entropy"]


def images(count, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 28, 28, generator=made), torch.randint(0, 10, (count,), generator=made)


def by_a_loop(model, batch, clip):
    total = RecordSum(sum(p.numel() for p in model.parameters() if p.requires_grad), clip)
    for x, y in zip(*batch, strict=True):
        total.add(loss_gradient(model, x[None], y[None])[1][None])
    return total


@pytest.mark.parametrize("name", ["linear", "tanh-cnn", "mlp"])
def test_a_sum_is_that_of_a_loop(name):
    model, batch = make_model(name, seed=1), images(70)
    found, expected = record_sum(model, "cross-entropy", batch, 0.5), by_a_loop(model, batch, 0.5)
    assert found.mean_of(70) == pytest.approx(expected.mean_of(70), abs=1e-6)
    assert (found.dropped, found.dim) == (0, expected.dim)


def test_a_records_gradient_does_not_depend_on_the_others():
    """To the last bit: parts have one size, so a record among other ones is computed in the same way."""
    model, (x, y) = make_model("tanh-cnn", seed=1), images(100)
    (_, first), (_, second) = record_gradients(model, ENTROPY, (x, y))
    ((_, alone),) = record_gradients(model, ENTROPY, (x[5:6], y[5:6]))
    ((_, others),) = record_gradients(model, ENTROPY, (x[3:20], y[3:20]))
    assert first[5].tobytes() == alone[0].tobytes() == others[2].tobytes()
    assert len(second) == 36


def test_what_vmap_does_not_support_is_computed_one_by_one():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(784, 10)

        def forward(self, x):
            scores = self.layer(x.flatten(1))
            return scores if scores.sum() > 0 else 2 * scores

    torch.manual_seed(0)  # with others, two records together may take another branch
    model, batch = Branching(), images(9)
    found = record_sum(model, "cross-entropy", batch, 0.5)
    assert found.mean_of(9) == pytest.approx(by_a_loop(model, batch, 0.5).mean_of(9), abs=1e-6)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(records, "_FLOATS", 60_000)
    model, batch = make_model("tanh-cnn", seed=1), images(5)
    sizes = [len(rows) for _, rows in record_gradients(model, ENTROPY, batch)]
    assert sizes == [2, 2, 1]


def test_a_record_with_nan_is_left_out():
    model, (x, y) = make_model("linear", seed=1), images(6)
    x[4, 0, 3, 3] = torch.nan
    found = record_sum(model, "cross-entropy", (x, y), 0.5)
    kept = [0, 1, 2, 3, 5]
    assert found.dropped == 1
    assert found.mean_of(6) == pytest.approx(by_a_loop(model, (x[kept], y[kept]), 0.5).mean_of(6), abs=1e-7)


def test_no_record_at_all_is_a_report_too():
    scheme, model = make_scheme("sqsgd-record", dim=7850, epsilon=1.0), make_model("linear")
    task = Task(round=0, client=0, seed=1, dim=7850, bound=0.5)
    total = record_sum(model, "cross-entropy", images(0), 0.5, scheme=scheme, task=task)
    assert not total.total.any()
    assert 8 * len(scheme.encode(total, task, secure_rng())) == scheme.bits


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False)])
def test_batch_norm_is_refused(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.LazyLinear(10))
    model(images(2)[0])
    with pytest.raises(ValueError, match=r"layer '1' \(BatchNorm2d\) mixes the records .* use GroupNorm"):
        record_sum(model, "cross-entropy", images(4), 1.0)


def spread(model, batch):
    return model(batch[0]).std()


def centred(model, batch):
    scores = model(batch[0])
    return ((scores - scores.mean(dim=0)) ** 2).mean()


@pytest.mark.parametrize("loss", [spread, centred])
def test_a_loss_that_mixes_records_is_refused(loss):
    with pytest.raises(ValueError, match="mixes records: two together give"):
        record_sum(make_model("mlp"), loss, images(4), 1.0)


def total_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def test_a_sum_over_the_batch_is_as_good_as_a_mean():
    model, batch = make_model("linear"), images(4)
    found, expected = (record_sum(model, loss, batch, 1.0) for loss in (total_loss, "cross-entropy"))
    assert np.array_equal(found.total, expected.total)


def test_a_block_holds_the_coordinates_that_are_sent():
    scheme = make_scheme("sqsgd-record", dim=7850, epsilon=1.0, bytes=700)
    task = Task(round=4, client=2, seed=9, dim=7850, bound=0.5)
    model, batch = make_model("linear", seed=1), images(20)
    total = record_sum(model, "cross-entropy", batch, 0.5, scheme=scheme, task=task)
    assert total.dim == scheme.mechanism.dim < 7850
    assert np.count_nonzero(scheme.decode(scheme.encode(total, task, seeded_rng(1)), task)) == total.dim
    other = Task(round=5, client=2, seed=9, dim=7850, bound=0.5)
    with pytest.raises(ValueError, match="a sum over other coordinates"):
        scheme.encode(total, other, secure_rng())
    with pytest.raises(ValueError, match="must be the task's bound"):
        record_sum(model, "cross-entropy", batch, 0.7, scheme=scheme, task=task)
    for clip in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="clip_norm = "):
            record_sum(model, "cross-entropy", batch, clip)
    whole = make_scheme("sqsgd", dim=7850, epsilon=40.0, bytes=64)
    with pytest.raises(ValueError, match="protects clients: give it a gradient"):
        whole.encode(record_sum(model, "cross-entropy", batch, 0.5), task, secure_rng())


def test_every_record_is_drawn_with_the_same_chance():
    counts = np.bincount(np.concatenate([sampled(50, 0.3, secure_rng()) for _ in range(2000)]), minlength=50)
    assert np.abs(counts / 2000 - 0.3).max() < 0.06
    assert sampled(5, 1.0, secure_rng()).tolist() == [0, 1, 2, 3, 4]


def test_disjoint_batches_hold_each_record_once_a_turn():
    for first in (0, 5):
        batches = [in_turn(1000, 5, round, bytes(32)) for round in range(first, first + 5)]
        assert np.sort(np.concatenate(batches)).tolist() == list(range(1000))
        assert min(map(len, batches)) > 130
    assert in_turn(1000, 5, 0, bytes(32)).tolist() != in_turn(1000, 5, 5, bytes(32)).tolist()
    assert in_turn(999, 5, 2, bytes(32)).tolist() == [i for i in in_turn(1000, 5, 2, bytes(32)) if i < 999]


@pytest.mark.parametrize("mixing", [False, True])
def test_a_prediction_does_not_depend_on_the_others(mixing):
    """Also where a layer would mix them, even in evaluation mode, and where another record is not finite."""
    model, (x, y) = make_model("tanh-cnn", seed=1), images(100)
    if mixing:
        model = nn.Sequential(model, nn.BatchNorm1d(10, track_running_stats=False))
    found = correct_predictions(model, (x, y))
    alone = [correct_predictions(model, (x[i : i + 1], y[i : i + 1])) for i in range(0, 100, 9)]
    assert found[::9].tolist() == np.concatenate(alone).tolist()
    x[4], y[5] = torch.nan, 99
    others = [i for i in range(100) if i not in (4, 5)]
    assert correct_predictions(model, (x, y))[others].tolist() == found[others].tolist()
    if not mixing:
        assert 0 < found.sum() == (model(images(100)[0]).argmax(1) == images(100)[1]).sum()


def test_a_record_that_fails_is_left_out_and_changes_no_other():
    model, (x, y) = make_model("tanh-cnn", seed=1), images(100)
    y[70] = 99  # no such class
    with pytest.raises((IndexError, RuntimeError)):
        record_sum(model, "cross-entropy", (x, y), 0.5)
    kept, expected = RecordSum(26010, 0.5), RecordSum(26010, 0.5)
    records.add_records(kept, model, ENTROPY, (x, y), drops=True)
    others = [i for i in range(100) if i != 70]
    records.add_records(expected, model, ENTROPY, (x[others], y[others]))
    assert kept.dropped == 1
    assert np.array_equal(kept.total, expected.total)
