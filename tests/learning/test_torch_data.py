"""What PyTorch users have: Dataset, DataLoader and the losses of torch.nn."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

import sqsgd
from sqsgd.learning.datasets import given_dataset
from sqsgd.learning.objectives import OBJECTIVES, find_objective, make_objective
from sqsgd.learning.tables import read_examples

INPUTS, LABELS = torch.arange(60.0).reshape(20, 3), torch.arange(20) % 3
PAIRS = TensorDataset(INPUTS, LABELS)


class Pictures(Dataset):
    """As in torchvision: pixels and a plain number, by position."""

    def __len__(self):
        return 20

    def __getitem__(self, place):
        return INPUTS[place].reshape(1, 1, 3), int(LABELS[place])


class Stream(IterableDataset):
    def __iter__(self):
        return zip(INPUTS, LABELS, strict=True)


def only(value):
    (part,) = read_examples("mine", value)
    return part.inputs.flatten(1), part.labels


@pytest.mark.parametrize(
    "value",
    [
        PAIRS,
        Pictures(),
        Stream(),
        DataLoader(PAIRS, batch_size=7),
        DataLoader(PAIRS, batch_size=7, shuffle=True, drop_last=True),
        DataLoader(Pictures(), batch_sampler=[[*range(12)], [*range(12, 20)]]),
        DataLoader(Stream(), batch_size=7),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_example_is_read_once_and_in_order(value):
    before = torch.random.get_rng_state()
    inputs, labels = only(value)
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(labels, LABELS)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_sampler_chooses_the_examples():
    """What a loader leaves out, such as its validation part, is not trained on."""
    assert only(DataLoader(PAIRS, sampler=SubsetRandomSampler([5, 3, 4])))[1].tolist() == [0, 1, 2]
    assert only(Subset(PAIRS, [3, 4]))[1].tolist() == [0, 1]
    drawn = RandomSampler(PAIRS, replacement=True, num_samples=9)
    assert len(only(DataLoader(PAIRS, sampler=drawn))[1]) == 9


def test_clients_and_parts():
    (part,) = read_examples("mine", TensorDataset(INPUTS, LABELS, torch.arange(20) // 5))
    assert part.owners.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    for value in (
        (PAIRS, Subset(PAIRS, [1, 2])),
        {"train": PAIRS, "test": DataLoader(Subset(PAIRS, [1, 2]))},
    ):
        train, test = read_examples("mine", value)
        assert (len(train.labels), test.labels.tolist()) == (20, [1, 2])


class Raw(Pictures):
    def __getitem__(self, place):
        return object(), 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Raw(), "default_collate.*give images a transform"),
        (TensorDataset(INPUTS), "list in place of a pair"),
        (TensorDataset(INPUTS, LABELS, torch.ones(20)), "a third value names the client"),
        (Subset(PAIRS, []), "no example"),
        (DataLoader([(torch.ones(2), 0), (torch.ones(3), 1)]), "each example must be .input, label."),
    ],
)
def test_what_cannot_be_joined_is_named(value, words):
    with pytest.raises(ValueError, match=f"dataset 'mine': .*{words}"):
        given_dataset("mine", value)


def test_plain_losses_are_the_built_in_ones_and_others_are_measured_by_their_kind():
    for loss, name in (
        (nn.CrossEntropyLoss(), "cross-entropy"), (nn.CrossEntropyLoss, "cross-entropy"),
        (nn.MSELoss(), "squared-error"), (nn.BCEWithLogitsLoss(), "multi-label"),
    ):  # fmt: skip
        assert make_objective("in-memory", loss) is OBJECTIVES[name]
    torch.manual_seed(0)
    model, labels = nn.Linear(3, 3), torch.tensor([0, 2, 1, 0])
    batch = torch.randn(4, 3), labels
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]), label_smoothing=0.1)
    objective = make_objective("in-memory", weighted)
    assert objective.loss(model, batch).item() == pytest.approx(weighted(model(batch[0]), labels).item())
    found = objective.evaluate(model, *batch)
    right = (model(batch[0]).argmax(1) == labels).float().mean().item()
    assert (found.headline, found.value) == ("accuracy", pytest.approx(right))
    numbers = torch.randn(4)
    for name in ("torch.nn:L1Loss", "torch.nn:HuberLoss"):  # a column is not spread over a row
        objective, one = find_objective(name), nn.Linear(3, 1)
        wanted = functional.l1_loss(one(batch[0])[:, 0], numbers).item()
        found = objective.loss(one, (batch[0], numbers)).item()
        assert found == pytest.approx(wanted) or "Huber" in name
        assert list(objective.evaluate(one, batch[0], numbers).metrics) == ["RMSE", "R2"]
    assert find_objective("torch.nn:PoissonNLLLoss").metrics is None


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (nn.CrossEntropyLoss(reduction="sum"), "reduction = 'sum'; expected 'mean'"),
        (nn.Linear(3, 1), "has weights, which nobody trains"),
    ],
)
def test_losses_that_would_be_wrong_are_refused(loss, words):
    with pytest.raises(ValueError, match=words):
        make_objective("mine", loss)


def test_a_loader_and_a_loss_are_all_that_a_run_needs(tmp_path):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 300)
    inputs = draw.normal(labels[:, None], 0.4, (300, 4)).astype(np.float32)
    loader = DataLoader(TensorDataset(torch.from_numpy(inputs), torch.from_numpy(labels)), shuffle=True)
    run = sqsgd.train(dataset=loader, model=nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)),
                      loss=nn.CrossEntropyLoss(), epsilon=100.0, bytes=32, rounds=60, clients=5, lr=0.3,
                      out=tmp_path / "run", report=False)  # fmt: skip
    assert run.metrics["accuracy"] > 0.7
    assert (run.config.loss, run.summary["loss"]) == ("cross-entropy",) * 2  # it can be resumed by name
