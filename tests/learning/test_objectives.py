"""Losses and metrics: the built-in ones against their definitions, one's own, and what is wrong with some."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from sqsgd.learning.datasets import given_dataset
from sqsgd.learning.gradients import loss_gradient, set_flat
from sqsgd.learning.objectives import OBJECTIVES, find_objective, make_objective
from sqsgd.learning.problem import draws_randomness, make_problem


def noise(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_tokens_are_scored_one_by_one_and_padding_does_not_count():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))
    tokens, labels = torch.tensor([[0, 1, 2], [3, 4, 0]]), torch.tensor([[1, 2, -100], [4, -100, -100]])
    rows = [(0, 0), (0, 1), (1, 0)]
    scores = torch.stack([model(tokens)[place] for place in rows])
    truth = torch.tensor([labels[place] for place in rows])
    wanted = nn.functional.cross_entropy(scores, truth)
    loss, _ = loss_gradient(model, tokens, labels)
    assert loss == pytest.approx(wanted.item(), rel=1e-6)
    found = OBJECTIVES["cross-entropy"].evaluate(model, tokens, labels, size=1)
    assert found.loss == pytest.approx(loss, rel=1e-6)
    assert found.metrics == {"accuracy": pytest.approx((scores.argmax(1) == truth).double().mean().item())}


def test_regression_measures_the_error_and_the_share_that_is_explained():
    model, inputs, labels = nn.Linear(3, 1), noise(50, 3), noise(50, seed=2)
    found = find_objective("squared-error").evaluate(model, inputs, labels, size=7, workers=2)
    error = (model(inputs).squeeze(1) - labels).detach().numpy().astype(float)
    assert found.loss == pytest.approx((error**2).mean(), rel=1e-5)
    assert found.metrics["RMSE"] == pytest.approx(math.sqrt((error**2).mean()), rel=1e-5)
    assert found.metrics["R2"] == pytest.approx(1 - (error**2).mean() / np.var(labels.numpy()), rel=1e-4)
    recorded = found.recorded()
    assert (recorded["metric"], recorded["better"], recorded["accuracy"]) == ("RMSE", "lower", None)
    assert math.isnan(find_objective("squared-error").evaluate(model, inputs, torch.ones(50)).metrics["R2"])


def test_sets_of_labels_are_scored_by_f1_and_as_a_whole():
    model = nn.Linear(2, 2, bias=False)
    set_flat(model, np.array([1, 0, 0, 1], np.float32))  # the outputs are the inputs
    inputs = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    found = OBJECTIVES["multi-label"].evaluate(model, inputs, labels)
    assert found.metrics == {"F1": pytest.approx(2 * 3 / (4 + 4)), "exact match": pytest.approx(0.5)}
    wanted = nn.functional.binary_cross_entropy_with_logits(inputs, labels)
    assert found.loss == pytest.approx(wanted.item())


def absolute(model, batch):
    return (model(batch[0]).squeeze(1) - batch[1]).abs().mean()


class Median:
    """A loss with a metric that no mean over batches gives."""

    lower_is_better = ("median error",)

    def loss(self, model, batch):
        return absolute(model, batch)

    def metrics(self, outputs, labels):
        return {"median error": (outputs.squeeze(1) - labels).abs().median(), "count": len(labels)}


def test_a_function_is_a_loss_and_the_loss_is_then_the_headline():
    model, inputs, labels = nn.Linear(3, 1), noise(20, 3), noise(20, seed=2)
    found = make_objective("my:absolute", absolute).evaluate(model, inputs, labels, size=8)
    whole = absolute(model, (inputs, labels)).item()
    assert (found.headline, found.value) == ("loss", pytest.approx(whole, rel=1e-6))
    assert found.recorded() == {
        "accuracy": None, "test_loss": found.loss, "metric": "loss", "better": "lower", "metrics": {},
    }  # fmt: skip


@pytest.mark.parametrize("value", [Median, Median()], ids=["class", "object"])
def test_metrics_are_computed_from_all_outputs_at_once(value):
    model, inputs, labels = nn.Linear(3, 1), noise(21, 3), noise(21, seed=2)
    found = make_objective("my:median", value).evaluate(model, inputs, labels, size=4)
    errors = (model(inputs).squeeze(1) - labels).abs()
    assert found.metrics == {"median error": pytest.approx(errors.median().item()), "count": 21}
    assert found.recorded()["better"] == "lower"


def two_outputs(loss):
    return lambda model, batch: loss.mean_loss(lambda inputs: model(inputs).expand(-1, 2), batch)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda m, b: (m(b[0]).squeeze(1) - b[1]).abs(), r"shape \(4,\); expected a scalar tensor, the mean"),
        (lambda m, b: absolute(m, b) * math.nan, "loss of the first examples is nan"),
        (lambda m, b: torch.tensor(1.0), "does not depend on the model's trainable weights"),
        (lambda outputs, labels: outputs - labels, r"TypeError.*'my:loss' gets \(model, batch\)"),
        (two_outputs(OBJECTIVES["squared-error"]), r"returned \(4, 2\) for labels of shape \(4,\)"),
    ],
)  # fmt: skip
def test_a_wrong_loss_is_told_before_training(loss, words):
    with pytest.raises(ValueError, match=words):
        draws_randomness(nn.Linear(3, 1), noise(4, 3), noise(4, seed=2), make_objective("my:loss", loss))


@pytest.mark.parametrize(
    ("name", "labels", "words"),
    [
        ("cross-entropy", torch.ones(3), "needs classes .* 'squared-error', 'multi-label'"),
        ("cross-entropy", torch.eye(3).long(), r"labels.argmax\(1\)"),
        ("squared-error", torch.ones(3).long(), "as floats.* write one of loss = 'cross-entropy'"),
        ("multi-label", torch.full((3, 2), 0.5), "from 0.5 to 0.5"),
    ],
)
def test_labels_of_the_wrong_kind_name_the_right_loss(name, labels, words):
    with pytest.raises(ValueError, match=words):
        OBJECTIVES[name].check_labels(labels, torch.ones(3, 4))
    if labels.ndim == 2 and labels.dtype == torch.int64:  # a class for each token may look like this
        OBJECTIVES[name].check_labels(labels, torch.ones(*labels.shape).long())


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (lambda *_: 0.5, "AttributeError.*expected a dictionary of numbers by name"),
        (lambda outputs, _: {"a": outputs[:, 7].mean()}, "failed: IndexError: index 7"),
        (lambda *_: {"rmse": 0.5}, "lower_is_better names a, and the metrics are rmse"),
    ],
)
def test_what_is_not_a_metric_is_refused(metrics, words):
    """Before training: a mistake must not show after many rounds."""
    members = {"loss": staticmethod(absolute), "metrics": staticmethod(metrics), "lower_is_better": ("a",)}
    data = given_dataset("mine", (noise(10, 3), noise(10)))
    chosen = {"clients": 2, "partition_scheme": "iid", "batch": 4, "participants": None, "seed": 1}
    objective = make_objective("my:thing", type("A", (), members))
    with pytest.raises(ValueError, match=f"loss 'my:thing'.*{words}"):
        make_problem(data, nn.Linear(3, 1), **chosen, workers=1, objective=objective)


def test_evaluation_counts_over_all_batches_and_restores_the_mode():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.9), nn.Linear(784, 10))
    model[1].eval()
    inputs, labels = noise(101, 784), torch.arange(101) % 10
    logits = model(inputs)
    model[1].train()
    model[2].eval()
    whole = nn.functional.cross_entropy(logits, labels).item()
    right = (logits.argmax(dim=1) == labels).double().mean().item()
    for size, workers in ((101, 1), (7, 2)):
        found = OBJECTIVES["cross-entropy"].evaluate(model, inputs, labels, size=size, workers=workers)
        assert found.recorded() == {"accuracy": right, "test_loss": pytest.approx(whole, rel=1e-5)}
    assert [module.training for module in model] == [True, True, False]
