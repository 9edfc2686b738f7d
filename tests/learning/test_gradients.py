"""Flat parameters and gradients: order, values, and reproducibility."""

import hashlib
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning.gradients import (
    get_flat,
    loss_gradient,
    loss_gradients,
    parameter_count,
    prepare_torch,
    set_flat,
    threads_restored,
)
from sqsgd.learning.models import make_model
from sqsgd.learning.objectives import OBJECTIVES


def batch(size: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 28, 28, generator=generator)
    return images, torch.randint(0, 10, (size,), generator=generator)


def test_flat_order_is_that_of_the_parameters_row_by_row() -> None:
    layer = nn.Linear(2, 3)
    set_flat(layer, np.arange(9, dtype=np.float32))
    assert layer.weight.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert layer.bias.tolist() == [6, 7, 8]
    assert get_flat(layer).tolist() == list(range(9))


def test_frozen_parameters_are_not_in_the_vector() -> None:
    model = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 2))
    before = model[0].weight.clone()
    assert parameter_count(model) == 8
    set_flat(model, np.ones(8, np.float32))
    assert torch.equal(model[0].weight, before)
    assert loss_gradient(model, torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))[1].shape == (8,)


def test_the_number_of_threads_can_be_restored() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threads_restored():
            prepare_torch()
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_get_flat_is_a_copy() -> None:
    model = make_model("mlp")
    vector = get_flat(model)
    vector += 1
    assert not np.array_equal(vector, get_flat(model))
    vector.flags.writeable = False
    set_flat(model, vector)  # a vector straight from a file or the wire may be read-only


def test_the_gradient_agrees_with_finite_differences() -> None:
    model = make_model("lenet5-classic", seed=1)
    inputs, labels = batch(8)
    weights = get_flat(model)
    _, gradient = loss_gradient(model, inputs, labels)
    direction = np.random.Generator(np.random.PCG64(0)).standard_normal(len(weights))
    # Along the gradient plus a random direction, so that no block of parameters can hide.
    direction = direction / np.linalg.norm(direction) + gradient / np.linalg.norm(gradient)
    wide = model.double()
    losses = []
    for step in (-1e-4, 1e-4):
        moved, start = weights.astype(np.float64) + step * direction, 0
        with torch.no_grad():
            for parameter in wide.parameters():
                stop = start + parameter.numel()
                parameter.copy_(torch.from_numpy(moved[start:stop]).view(parameter.shape))
                start = stop
            losses.append(nn.functional.cross_entropy(wide(inputs.double()), labels).item())
    assert gradient @ direction == pytest.approx((losses[1] - losses[0]) / 2e-4, rel=1e-4)


def test_the_gradient_is_torchs_own_and_leaves_no_trace() -> None:
    model = make_model("lenet5")
    inputs, labels = batch(32)
    loss, gradient = loss_gradient(model, inputs, labels)
    assert all(parameter.grad is None for parameter in model.parameters())
    expected = nn.functional.cross_entropy(model(inputs), labels)
    expected.backward()
    assert loss == expected.item()
    flat = torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])
    assert np.allclose(gradient, flat.numpy(), atol=1e-7)


def test_a_parameter_that_the_loss_does_not_reach_has_gradient_zero() -> None:
    model = nn.Linear(2, 2)
    model.unused = nn.Parameter(torch.ones(3))
    _, gradient = loss_gradient(model, torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))
    # The module's own parameters come first in torch's order: weight, bias, unused.
    assert gradient[-3:].tolist() == [0, 0, 0]
    assert np.abs(gradient[:-3]).min() > 0


FINGERPRINT = """
import hashlib, sys, torch
from sqsgd.learning.gradients import loss_gradient, prepare_torch
from sqsgd.learning.models import make_model
prepare_torch()
generator = torch.Generator().manual_seed(0)
images = torch.randn(32, 1, 28, 28, generator=generator)
labels = torch.randint(0, 10, (32,), generator=generator)
print(hashlib.sha256(loss_gradient(make_model("lenet5"), images, labels)[1].tobytes()).hexdigest())
"""


def test_another_process_computes_the_same_bits() -> None:
    here = loss_gradient(make_model("lenet5"), *batch(32))[1]
    there = subprocess.run([sys.executable, "-c", FINGERPRINT], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == hashlib.sha256(here.tobytes()).hexdigest()


def test_many_clients_at_a_time_give_the_same_bits_in_the_same_order() -> None:
    model = make_model("lenet5")
    batches = [batch(size, seed) for seed, size in enumerate((32, 1, 7, 32, 5, 16))]
    expected = [loss_gradient(model, *one) for one in batches]
    for workers in (1, 2, 3):
        found = list(loss_gradients(model, batches, workers=workers))
        assert [loss for loss, _ in found] == [loss for loss, _ in expected]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(found, expected, strict=True))


def test_gradients_are_made_only_a_little_ahead_of_the_reader() -> None:
    model, taken = nn.Linear(1, 2), []

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(100):
            taken.append(number)
            yield torch.ones(1, 1), torch.zeros(1, dtype=torch.int64)

    threads = threading.active_count()
    reader = loss_gradients(model, batches(), workers=2)
    for _ in range(5):
        next(reader)
    assert len(taken) <= 5 + 2
    reader.close()
    assert threading.active_count() == threads


def test_a_clients_error_reaches_the_reader() -> None:
    bad = torch.ones(1, 1), torch.tensor([5])
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        list(loss_gradients(nn.Linear(1, 2), [bad] * 4, workers=2))


def test_dropout_repeats_itself_under_a_seed() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10))
    state = torch.random.get_rng_state()
    first, again, other = (loss_gradient(model, *batch(4), seed=seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_evaluation_counts_over_all_batches_and_restores_the_mode() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(784, 10))
    model[1].eval()
    inputs, labels = batch(101)
    logits = model(inputs)
    model[1].train()
    model[2].eval()
    whole = nn.functional.cross_entropy(logits, labels).item()
    right = (logits.argmax(dim=1) == labels).double().mean().item()
    for size, workers in ((101, 1), (10, 1), (7, 2), (1000, 2)):
        found = OBJECTIVES["cross-entropy"].evaluate(model, inputs, labels, size=size, workers=workers)
        assert found.metrics == {"accuracy": pytest.approx(right, abs=1e-12)}
        assert found.loss == pytest.approx(whole, rel=1e-5)
    assert [module.training for module in model] == [True, True, False]


def test_wrong_arguments_are_named() -> None:
    layer, one = nn.Linear(1, 2), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"vector must be .* length 4, not float32 \(5,\)"):
        set_flat(layer, np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="not float64"):
        set_flat(layer, np.zeros(4))
    with pytest.raises(ValueError, match="at least one example"):
        loss_gradient(layer, torch.ones(0, 1), one[:0])
    with pytest.raises(ValueError, match=r"\(1, classes\), not \(1, 3, 2\)"):
        loss_gradient(layer, torch.ones(1, 3, 1), one)
    with pytest.raises(ValueError, match="size must be at least 1, not 0"):
        OBJECTIVES["cross-entropy"].evaluate(layer, torch.ones(1, 1), one, size=0)
    with pytest.raises(ValueError, match="workers must be at least 1, not 0"):
        next(loss_gradients(layer, [], workers=0))
