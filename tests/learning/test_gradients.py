"""Flat parameters and gradients: order, values and reproducibility, one client at a time and many at once."""

import threading

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning import gradients
from sqsgd.learning.datasets import Dataset
from sqsgd.learning.gradients import (
    batchable,
    batched_gradients,
    get_flat,
    in_threads,
    loss_gradient,
    parameter_count,
    set_flat,
)
from sqsgd.learning.models import MODELS, make_model
from sqsgd.learning.objectives import OBJECTIVES, make_objective

CLASSES = OBJECTIVES["cross-entropy"]


def batch(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 28, 28, generator=generator)
    return images, torch.randint(0, 10, (size,), generator=generator)


def test_flat_order_is_that_of_the_trainable_parameters_row_by_row():
    model = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(2, 3))
    vector = np.arange(9, dtype=np.float32)
    vector.flags.writeable = False  # a vector straight from a file or the wire may be read-only
    set_flat(model, vector)
    assert (model[1].weight.tolist(), model[1].bias.tolist()) == ([[0, 1], [2, 3], [4, 5]], [6, 7, 8])
    assert (get_flat(model).tolist(), parameter_count(model)) == (list(range(9)), 9)
    copy = get_flat(model)
    copy += 1
    assert not np.array_equal(copy, get_flat(model))


def test_the_gradient_is_torchs_own_and_leaves_no_trace():
    model = make_model("lenet5")
    model.unused = nn.Parameter(torch.ones(3))  # what the loss does not reach has gradient zero
    inputs, labels = batch(32)
    loss, gradient = loss_gradient(model, inputs, labels)
    assert all(parameter.grad is None for parameter in model.parameters())
    expected = nn.functional.cross_entropy(model(inputs), labels)
    expected.backward()
    assert loss == expected.item()
    flat = [torch.zeros(3) if p.grad is None else p.grad.reshape(-1) for p in model.parameters()]
    assert np.allclose(gradient, torch.cat(flat).numpy(), atol=1e-7)


@pytest.mark.parametrize("workers", [1, 3])
def test_many_clients_at_a_time_give_the_same_bits_in_the_same_order(workers):
    model, taken = make_model("tanh-cnn"), []

    def batches():
        for number in range(14):
            taken.append(batch(1 + number % 3, number))
            yield taken[-1]

    threads = threading.active_count()
    reader = in_threads(lambda one: loss_gradient(model, *one), batches(), workers)
    found = [next(reader)]
    assert len(taken) == min(4 * workers, 14)  # not all of them are in memory
    for (loss, gradient), one in zip([*found, *reader], taken, strict=True):
        wanted = loss_gradient(model, *one)
        assert (loss, gradient.tobytes()) == (wanted[0], wanted[1].tobytes())
    assert threading.active_count() == threads


# ---------------------------------------------------------------- many clients at once


def dataset(count=40, shape=(1, 8, 8), classes=3):
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, *shape, generator=draw)
    labels = torch.randint(0, classes, (count,), generator=draw)
    about = {"test_inputs": inputs[:4], "test_labels": labels[:4], "classes": classes, "held_out": "four"}
    return Dataset(name="noise", train_inputs=inputs, train_labels=labels, **about)


def softmax(bias=True):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3, bias=bias))


def compare(losses, rows, model, data, chosen, objective=CLASSES):
    """Losses and rows are torch's own, client by client."""
    assert len(losses) == len(rows) == len(chosen)
    for loss, row, mine in zip(losses, rows, chosen, strict=True):
        inputs, labels = data.train_inputs[mine], data.train_labels[mine]
        wanted, gradient = loss_gradient(model, inputs, labels, objective=objective)
        assert loss == pytest.approx(wanted, rel=1e-4, abs=1e-6)
        assert np.abs(row - gradient).max() < 1e-5


def penalised(model, batch):
    size = sum(parameter.square().sum() for parameter in model.parameters())
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) + 0.1 * size


@pytest.mark.parametrize("objective", [CLASSES, make_objective("penalised", penalised)])
@pytest.mark.parametrize("name", ["mlp", "tanh-cnn", "partly frozen"])
def test_other_models_are_computed_in_batches(name, objective, monkeypatch):
    data = dataset(shape=(1, 16, 16))
    model = make_model(name if name in MODELS else "mlp", 3, data.in_shape, seed=1)
    if name not in MODELS:
        next(model.parameters()).requires_grad = False
    assert batchable(model, data, objective)
    monkeypatch.setattr(gradients, "_FLOATS", 3 * 10**5)  # several parts
    chosen = np.arange(20).reshape(10, 2)
    compare(*batched_gradients(model, data, chosen, objective), model, data, chosen, objective)


class Branching(nn.Module):
    """What vmap cannot do: a branch that depends on the data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        x = x.flatten(1)
        return self.layer(x if x.sum() > 0 else -x)


def stale(model, batch):
    """Keeps weights of another time: vmap computes it without complaint, and without one of its parts."""
    if not hasattr(model, "kept"):
        object.__setattr__(model, "kept", list(model.parameters()))
    return nn.functional.cross_entropy(model(batch[0]), batch[1]) + model.kept[0].square().sum()


def test_what_vmap_cannot_compute_is_left_to_torch():
    data, model = dataset(), softmax()
    assert batchable(model, data, CLASSES)
    assert not batchable(Branching(), data, CLASSES)
    stale(model, (data.train_inputs[:1], data.train_labels[:1]))
    assert not batchable(model, data, make_objective("stale", stale))
