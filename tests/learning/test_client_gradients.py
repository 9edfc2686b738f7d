"""Gradients of many clients at once are torch's own, client by client."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning import client_gradients
from sqsgd.learning.client_gradients import (
    batchable,
    batched_gradients,
    head_gradients,
    linear_head,
)
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.models import make_model
from sqsgd.learning.objectives import OBJECTIVES, make_objective
from sqsgd.learning.problem import make_problem

CLASSES = OBJECTIVES["cross-entropy"]


def dataset(count=40, shape=(1, 8, 8), classes=3):
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=draw)
    labels = torch.randint(0, classes, (count,), generator=draw)
    return Dataset(
        name="noise", train_inputs=inputs, train_labels=labels, test_inputs=inputs[:4],
        test_labels=labels[:4], classes=classes, held_out="four",
    )  # fmt: skip


def expected(model, data, chosen, bounds):
    for start, stop in itertools.pairwise(bounds):
        mine = chosen[start:stop]
        yield loss_gradient(model, data.train_inputs[mine], data.train_labels[mine])


def close(found, model, data, chosen, bounds):
    losses, rows = found
    for loss, row, (one, gradient) in zip(losses, rows, expected(model, data, chosen, bounds), strict=True):
        assert loss == pytest.approx(one, rel=1e-4, abs=1e-6)
        assert np.abs(row - gradient).max() < 1e-5


def linear(bias=True):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=bias))


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_model_has_torchs_gradients(bias):
    model, data = linear(bias), dataset()
    chosen, bounds = np.arange(30) % 11, np.array([0, 1, 2, 10, 11, 30])
    close(head_gradients(linear_head(model), data, chosen, bounds), model, data, chosen, bounds)


def test_a_row_depends_on_its_client_alone(monkeypatch):
    """Whatever the other clients, the threads and the parts: simulations on other engines rely on it."""
    head, data = linear_head(linear()), dataset()
    monkeypatch.setattr(client_gradients, "_CLIENTS", 3)
    losses, rows = head_gradients(head, data, np.arange(20), np.arange(21), workers=2)
    for i in range(20):
        loss, row = head_gradients(head, data, np.array([i]), np.array([0, 1]))
        assert (loss[0], row.tobytes()) == (losses[i], rows[i].tobytes())


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (nn.Linear(4, 2), True),
        (nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(4, 2, bias=False)), True),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU()), False),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), False),
        (nn.Sequential(nn.Dropout(), nn.Linear(4, 2)), False),
        (nn.Sequential(), False),
        (nn.Embedding(4, 2), False),
    ],
)
def test_only_a_plain_softmax_is_taken_for_one(model, found):
    assert (linear_head(model) is not None) == found


def test_frozen_or_watched_layers_are_left_to_torch():
    frozen = nn.Linear(4, 2)
    frozen.bias.requires_grad = False
    assert linear_head(frozen) is None
    watched = nn.Linear(4, 2)
    watched.register_forward_hook(lambda *_: None)
    assert linear_head(watched) is None


class Branching(nn.Module):
    """What vmap cannot do: a branch that depends on the data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x if x.sum() > 0 else -x)


@pytest.mark.parametrize("name", ["mlp", "lenet5-classic"])
def test_other_models_are_computed_in_batches(name, monkeypatch):
    data = dataset(shape=(1, 16, 16))
    model = make_model(name, 3, data.in_shape, seed=1)
    chosen, bounds = np.arange(20), np.arange(0, 21, 2)
    assert batchable(model, data, CLASSES)
    monkeypatch.setattr(client_gradients, "_FLOATS", 3 * 10**5)  # several parts
    close(batched_gradients(model, data, chosen, bounds, CLASSES), model, data, chosen, bounds)


def test_clients_of_different_sizes_are_computed_in_groups_and_each_row_is_its_clients():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
    made = make_problem(
        dataset(count=60), model, clients=8, partition_scheme="dirichlet:1", batch=3, participants=5, seed=1,
        workers=1,
    )  # fmt: skip
    sizes = [made.size(client) for client in range(8)]
    assert len(set(sizes)) > 3
    assert max(sizes) > 8
    losses, rows = made.gradient_rows(made.initial(), 4, np.arange(8))
    for client in range(8):
        mine = made.parts[client]
        loss, alone = loss_gradient(model, made.dataset.train_inputs[mine], made.dataset.train_labels[mine])
        assert losses[client] == pytest.approx(loss, rel=1e-5)
        np.testing.assert_allclose(rows[client], alone, rtol=1e-3, atol=1e-6)


def test_cohorts_draw_few_of_a_clients_examples_and_others_each_round():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
    made = make_problem(
        dataset(count=60), model, clients=3, partition_scheme="iid", batch=4, participants=2, minibatch=True,
        seed=1, workers=1,
    )  # fmt: skip
    (first, bounds), (second, _) = (made._chosen(round, np.array([0, 2])) for round in (0, 1))
    assert bounds.tolist() == [0, 4, 8]
    assert set(first[:4]) <= set(made.parts[0])
    assert set(first[4:]) <= set(made.parts[2])
    assert first.tolist() != second.tolist()
    losses, rows = made.gradient_rows(made.initial(), 0, np.array([0, 2]))
    again = list(made.gradients(made.initial(), 0, [0, 2]))
    assert [loss for loss, _ in again] == losses.tolist()
    assert [row.tobytes() for _, row in again] == [row.tobytes() for row in rows]


def test_odd_models_are_not_computed_in_batches():
    data, model = dataset(), nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.ReLU(), nn.Linear(5, 3))
    assert batchable(model, data, CLASSES)
    assert not batchable(Branching(), data, CLASSES)
    assert not batchable(Recurrent(), data, CLASSES)


class Recurrent(nn.Module):
    """Layers of torch that vmap does not support."""

    def __init__(self):
        super().__init__()
        self.cells, self.layer = nn.GRU(8, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.cells(x.flatten(1).unflatten(1, (8, 8)))[0][:, -1])


def penalised(model, batch):
    """Reads the weights besides calling the model."""
    inputs, labels = batch
    size = sum(parameter.square().sum() for parameter in model.parameters())
    return nn.functional.cross_entropy(model(inputs), labels) + 0.1 * size


def stale(model, batch):
    """Keeps weights of another time, so that a copy with a client's own would be ignored."""
    inputs, labels = batch
    if not hasattr(model, "kept"):
        object.__setattr__(model, "kept", list(model.parameters()))
    return nn.functional.cross_entropy(model(inputs), labels) + model.kept[0].square().sum()


def test_a_loss_of_ones_own_is_computed_in_batches_with_the_gradient_of_all_its_parts():
    data, model = dataset(), nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
    objective = make_objective("penalised", penalised)
    assert batchable(model, data, objective)
    _, rows = batched_gradients(model, data, np.arange(6), np.arange(0, 7, 2), objective)
    for client in range(3):
        part = slice(2 * client, 2 * client + 2)
        _, alone = loss_gradient(model, data.train_inputs[part], data.train_labels[part], objective=objective)
        np.testing.assert_allclose(rows[client], alone, rtol=1e-4, atol=1e-6)


def test_a_loss_whose_batched_gradient_would_be_wrong_is_computed_client_by_client():
    """vmap computes it without complaint, and without one of its parts."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))
    stale(model, (dataset().train_inputs[:1], dataset().train_labels[:1]))
    objective = make_objective("stale", stale)
    rows = batched_gradients(model, dataset(), np.arange(2), np.arange(3), objective)[1]
    assert np.isfinite(rows).all()
    assert not batchable(model, dataset(), objective)


@pytest.mark.parametrize("model", [linear(), Branching()], ids=["linear", "branching"])
@pytest.mark.parametrize("participants", [None, 5])
def test_a_problem_gives_the_same_rows_as_one_by_one(model, participants):
    made = make_problem(
        dataset(), model, clients=8, partition_scheme="iid", batch=3, participants=participants, seed=1,
        workers=2,
    )  # fmt: skip
    weights, cohort = made.initial(), np.array([1, 6, 0])
    losses, rows = made.gradient_rows(weights, 4, cohort)
    alone = list(made.gradients(weights, 4, cohort.tolist()))
    assert [loss for loss, _ in alone] == losses.tolist()
    assert [row.tobytes() for _, row in alone] == [row.tobytes() for row in rows]
