"""Clients' data, batches, evaluation and reproducibility of a learning problem."""

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning.datasets import Dataset
from sqsgd.learning.gradients import loss_gradient
from sqsgd.learning.problem import ModelFailed, draws_randomness, find_device, make_problem


def dataset(count=60):
    """Input i is (i, 1); the test set is at -1, where no training input is."""
    inputs = torch.stack([torch.arange(count), torch.ones(count)], dim=1).float()
    test = {"test_inputs": torch.full((10, 2), -1.0), "test_labels": torch.zeros(10, dtype=torch.int64)}
    labels = torch.arange(count) % 2
    return Dataset(
        name="numbers", train_inputs=inputs, train_labels=labels, **test, classes=2, held_out="ten at -1"
    )


class Spy(nn.Module):
    """Linear; remembers which inputs it saw, with ``count`` in a buffer."""

    def __init__(self, count=False):
        super().__init__()
        self.linear, self.seen, self.count = nn.Linear(2, 2), [], count
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x):
        self.seen.append(x[:, 0].tolist())
        if self.count:
            self.total += x.sum()
        return self.linear(x)


def problem(model=None, data=None, **changes):
    chosen = {"clients": 6, "partition_scheme": "iid", "batch": 4, "participants": None} | changes
    return make_problem(data or dataset(), model or nn.Linear(2, 2), **({"seed": 3, "workers": 1} | chosen))


def seen_in(rounds, **changes):
    """The inputs of each client's gradient, in each round."""
    spy = Spy()
    made = problem(spy, **changes)
    result = []
    for round in rounds:
        spy.seen.clear()
        list(made._one_by_one(round, made.cohort(round)))
        result.append([sorted(inputs) for inputs in spy.seen])
    return made, result


@pytest.mark.parametrize(("participants", "minibatch"), [(None, False), (2, False), (2, True)])
def test_each_round_takes_its_clients_with_all_or_a_batch_of_their_data(participants, minibatch):
    made, rounds = seen_in(range(8), participants=participants, minibatch=minibatch)
    cohorts = [made.cohort(round) for round in range(8)]
    assert len({tuple(cohort) for cohort in cohorts}) > 2 or participants is None
    batches = minibatch or participants is None
    for cohort, clients in zip(cohorts, rounds, strict=True):
        assert len(set(cohort)) == (participants or 6)
        for client, inputs in zip(cohort, clients, strict=True):
            assert len(inputs) == (4 if batches else len(made.parts[client]))
            assert set(inputs) <= {float(i) for i in made.parts[client]}
    assert len({str(clients) for clients in rounds}) >= (8 if batches else 3)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("options", [{}, {"participants": 5}, {"participants": 5, "minibatch": True}])
def test_many_clients_at_once_have_the_gradients_of_each(hidden, options):
    model = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2)) if hidden else nn.Linear(2, 2)
    made = problem(model, clients=8, partition_scheme="dirichlet:1", workers=2, **options)
    assert len({len(made.parts[client]) for client in range(8)}) > 3
    weights = 0.1 * made.initial()
    cohort = np.array([1, 6, 0, 7])
    losses, rows = made.gradient_rows(weights, 4, cohort)
    alone = list(made._one_by_one(4, cohort.tolist()))
    again = list(made.gradients(weights, 4, cohort.tolist()))
    for i, client in enumerate(cohort.tolist()):
        for loss, row in ((losses[i], rows[i]), again[i]):
            assert loss == pytest.approx(alone[i][0], rel=1e-4)
            np.testing.assert_allclose(row, alone[i][1], rtol=1e-3, atol=1e-4)
        if options == {"participants": 5}:
            mine = made.parts[client]
            wanted = loss_gradient(model, made.dataset.train_inputs[mine], made.dataset.train_labels[mine])
            np.testing.assert_allclose(rows[i], wanted[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("workers", [1, 2])
def test_dropout_repeats_itself(workers):
    made = problem(nn.Sequential(nn.Linear(2, 8), nn.Dropout(), nn.Linear(8, 2)), workers=workers)
    assert made.random
    found = []
    for seed in (1, 2):  # other code may draw from it
        torch.manual_seed(seed)
        found.append([g.tobytes() for _, g in made.gradients(made.initial(), 5, made.cohort(5))])
    assert found[0] == found[1]
    assert len(set(found[0])) == 6


def test_the_saved_model_is_whole_unless_parts_are_frozen():
    linear = nn.Linear(2, 2)
    linear.register_buffer("constant", torch.tensor([1.5, 2.5], dtype=torch.bfloat16))
    saved = problem(linear).named_weights(np.zeros(6, np.float32))
    assert set(saved) == {"weight", "bias", "constant"}
    assert (saved["constant"].dtype, saved["constant"].tolist()) == (np.float32, [1.5, 2.5])
    linear.weight.requires_grad = False
    assert {k: v.tolist() for k, v in problem(linear).named_weights(np.ones(2, np.float32)).items()} == {
        "bias": [1, 1]
    }


# ---------------------------------------------------------------- the first batch

INPUTS, LABELS = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Spy(count=True), "the model's buffer 'total' changes with each batch"),
        (nn.Linear(3, 2), "does not fit the data"),
        (nn.Embedding(100, 2), "does not fit the data.*torch.float32"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_before_anything_is_written(model, message):
    with pytest.raises(ValueError, match=message):
        draws_randomness(model, INPUTS, LABELS)


def test_randomness_is_noticed_even_if_rare_and_the_model_is_left_as_it_was():
    line = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2))
    line.register_buffer("constant", torch.ones(3))
    before = {name: value.clone() for name, value in line.state_dict().items()}
    assert not draws_randomness(line, INPUTS, LABELS)
    assert all(torch.equal(value, before[name]) for name, value in line.state_dict().items())
    assert draws_randomness(nn.Sequential(*line[:2], nn.Dropout(), line[2]), INPUTS, LABELS)
    seldom = nn.Linear(2, 2)  # leaves its layer out of one batch in a thousand
    seldom.register_forward_hook(lambda _, __, scores: scores * float(torch.rand(()) > 0.001))
    assert draws_randomness(seldom, INPUTS, LABELS)


def test_mistakes_in_a_model_are_its_users():
    def failing(after):
        """Fails as its user's mistakes do, once some batches have gone through it."""
        model, left = nn.Linear(2, 2), iter(range(after))
        model.register_forward_hook(lambda *_: None if next(left, -1) >= 0 else {}["x"])
        return model

    with pytest.raises(ValueError, match=r"does not fit the data .*KeyError"):
        problem(failing(0))
    made = problem(failing(2))
    words = "model Linear with loss 'cross-entropy' failed: KeyError"
    for when, call in {
        "round 7": lambda weights: list(made.gradients(weights, 7, [0])),
        "round 7:": lambda weights: made.gradient_rows(weights, 7, np.array([0])),
        "on held-out data": made.measure,
    }.items():
        with pytest.raises(ModelFailed, match=f"{when.strip(':')}: {words}"):
            call(made.initial())


@pytest.mark.parametrize("part", ["train_inputs", "test_inputs"])
@pytest.mark.parametrize("token", [7, -1])
def test_a_token_that_the_model_does_not_know_is_found_at_the_start(part, token):
    tokens = {name: torch.zeros(20, 3, dtype=torch.int64) for name in ("train_inputs", "test_inputs")}
    labels = {name: torch.arange(20) % 2 for name in ("train_labels", "test_labels")}
    tokens[part][15, 1] = token
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2))
    data = Dataset(name="tokens", **tokens, **labels, classes=2, held_out="all")
    with pytest.raises(ValueError, match=rf"torch.int64 from .*{token}.*IndexError.*write inputs.astype"):
        problem(model, data)


@pytest.mark.parametrize("there", [(), ("cuda", "mps")])
def test_a_device_is_found_if_it_is_there(monkeypatch, there):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    assert find_device("auto") == (*there, "cpu")[0]
    for name in ({"cuda", "mps"} - set(there)) | {"gpu"}:
        with pytest.raises(ValueError, match=rf"device = '{name}' must be one of auto, .*; here there is"):
            find_device(name)
