"""A scheme of one's own, a fraction of the clients, and local epochs, from Python, files and the command."""

import numpy as np
import pytest
import torch
from test_python_api import numbers
from torch import nn

import sqsgd
from sqsgd.learning.datasets import given_dataset
from sqsgd.learning.partition import epoch_batches
from sqsgd.learning.problem import make_problem
from sqsgd.training.settings import RunConfig, make_config

SMALL = {"clients": 4, "rounds": 4, "batch": 8, "evaluate_every": 2, "workers": 1, "report": False}
DIM = 3


REGRESSION = {"dataset": numbers(), "model": nn.Linear(3, 1, bias=False), "loss": "squared-error", **SMALL}


def halved(dim, epsilon, levels=4):
    """A user's function: any scheme, here with half of the budget."""
    return sqsgd.make_scheme("sqsgd-paper", dim=dim, epsilon=epsilon / 2, bytes=4 * dim, levels=levels)


MINE = f"{__name__}:halved"


@pytest.mark.parametrize("scheme", [halved, MINE])
def test_a_function_makes_the_scheme(scheme, tmp_path):
    run = sqsgd.train(**REGRESSION, scheme=scheme, epsilon=40.0, options={"levels": 8}, out=tmp_path / "run")
    assert run.config.scheme == MINE  # known by its name, so that it can be resumed
    assert (run.summary["scheme"], run.config.options) == ("sqsgd-paper", {"levels": 8})
    assert 10 < run.summary["epsilon"] <= 20
    with pytest.raises(ValueError, match="the factory failed: TypeError"):
        sqsgd.train(**REGRESSION, scheme=scheme, epsilon=40.0, options={"depth": 8}, out=tmp_path / "other")


def test_a_scheme_is_an_object(tmp_path):
    run = sqsgd.train(**REGRESSION, scheme=MADE, out=tmp_path / "run")
    assert (run.config.scheme, run.config.epsilon, run.summary["scheme"]) == ("in-memory", 7.0, "privunit")
    settings = {"resume": True, "report": False, "out": tmp_path / "run"}
    parts = {"dataset": numbers(), "model": REGRESSION["model"]}
    with pytest.raises(ValueError, match="scheme = 'in-memory': this run was started from Python"):
        sqsgd.train(**parts, **settings)
    other = sqsgd.make_scheme("privunit", dim=DIM, epsilon=6.0)
    with pytest.raises(ValueError, match="is another than this run was begun with"):
        sqsgd.train(**parts, **settings, scheme=other)
    assert sqsgd.train(**parts, **settings, scheme=MADE).summary["rounds"] == 4


MADE = sqsgd.make_scheme("privunit", dim=DIM, epsilon=7.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": sqsgd.make_scheme("privunit", dim=5, epsilon=7.0)}, "for 5 weights; the model has 3"),
        ({"scheme": MADE, "epsilon": 4.0}, "spends 7; epsilon = 4"),
        ({"scheme": MADE, "options": {"a": 1}}, "made already"),
        ({"scheme": "math:pi", "epsilon": 4.0}, "is a float, not a function that makes it"),
        ({"scheme": halved, "epsilon": 4.0, "engine": "flower"}, "takes names of sqsgd.SCHEMES only"),
        (
            {"scheme": sqsgd.make_scheme("fedsel", dim=DIM, epsilon=40.0, bytes=4), "participation": "once"},
            "keeps a residual",
        ),
    ],
)
def test_schemes_that_do_not_fit_are_named(settings, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        sqsgd.train(**{**REGRESSION, **settings}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("asked", "count"), [("0.1", 10), (0.25, 25), ("1.0", 100), (1.0, 100), ("0.001", 1), (7, 7)]
)
def test_a_fraction_of_the_clients(asked, count):
    for config in (
        RunConfig(epsilon=8.0, clients=100, participation=asked),
        make_config({"clients": 100, "participation": asked}),
    ):
        assert (config.participants, config.asked) == (count, count)
    assert RunConfig(epsilon=8.0, participation=asked).on(np.arange(100), 100).asked == count


# ---------------------------------------------------------------- local epochs


def problem(**chosen):
    data = given_dataset("mine", numbers())
    about = {"clients": 3, "partition_scheme": "iid", "seed": 5, "batch": 8, "participants": None, **chosen}
    torch.manual_seed(0)
    return make_problem(data, nn.Sequential(nn.Linear(3, 1), nn.Dropout(about.pop("dropout", 0.0))), **about)


def test_a_local_gradient_is_the_clients_own_change():
    """The model that the client reaches by plain SGD in torch is the global one minus rate × steps × it."""
    from sqsgd.learning.objectives import OBJECTIVES

    about = {"objective": OBJECTIVES["squared-error"], "local_epochs": 2, "local_lr": 0.05}
    made = problem(**about)
    weights = made.initial()
    found = list(made.gradients(weights, 7, [0, 2]))
    rows = made.gradient_rows(weights, 7, np.array([0, 2]))
    for (loss, gradient), also_loss, row, client in zip(found, *rows, [0, 2], strict=True):
        model = nn.Linear(3, 1)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(weights[:3].reshape(1, 3)))
            model.bias.copy_(torch.from_numpy(weights[3:]))
        sgd, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
        for places in epoch_batches(made.parts[client], 8, 2, 7, client, 5):
            inputs, labels = made.dataset.train_inputs[places], made.dataset.train_labels[places]
            sgd.zero_grad()
            losses.append(nn.functional.mse_loss(model(inputs)[:, 0], labels))
            losses[-1].backward()
            sgd.step()
        after = torch.cat([model.weight[0], model.bias]).detach().numpy()
        np.testing.assert_allclose(weights - 0.05 * len(losses) * gradient, after, atol=2e-6)
        assert loss == also_loss == pytest.approx(sum(losses).item() / len(losses), rel=1e-5)
        assert row.tobytes() == gradient.tobytes()
    assert made.initial().tobytes() == weights.tobytes()


def test_every_example_is_in_every_epoch_once():
    mine = np.arange(100, 121)
    batches = list(epoch_batches(mine, 8, 3, 1, 2, 3))
    assert [len(batch) for batch in batches] == 3 * [8, 8, 5]
    epochs = [np.concatenate(batches[start : start + 3]) for start in (0, 3, 6)]
    assert all(sorted(epoch.tolist()) == mine.tolist() for epoch in epochs)
    assert len({epoch.tobytes() for epoch in epochs}) == 3
    assert not np.array_equal(np.concatenate(list(epoch_batches(mine, 8, 1, 2, 2, 3))), epochs[0])


def test_local_epochs_learn_more_in_a_round(tmp_path):
    about = {**REGRESSION, "model": "linear", "epsilon": 400.0, "scheme": "fedsgd", "local_lr": 0.1}
    runs = [sqsgd.train(**about, local_epochs=epochs, out=tmp_path / str(epochs)) for epochs in (0, 3)]
    assert [run.summary["lr"] for run in runs] == [0.3, pytest.approx(0.1 * 3 * 3)]  # the steps of a client
    assert runs[1].summary["test_loss"] < runs[0].summary["test_loss"]
    with pytest.raises(ValueError, match="minibatch = true and local_epochs exclude each other"):
        RunConfig(epsilon=8.0, clients=9, participation=3, minibatch=True, local_epochs=1)
