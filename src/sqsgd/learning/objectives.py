"""The loss to minimise and the metrics on held-out data: built in, or ``package.module:name``.

An objective has ``loss(model, batch)``, the mean loss as a scalar tensor, and may have ``metrics(outputs,
labels)``, numbers by name on all held-out examples, the headline first, and names in ``lower_is_better``.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from sqsgd.learning.datasets import IGNORED
from sqsgd.learning.factories import call_factory, find_named, is_factory_name, one_line, unknown_name

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Metrics: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Any]

DEFAULT = "cross-entropy"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss and the metrics on held-out data, the headline first."""

    loss: float
    metrics: Mapping[str, float]
    lower_is_better: frozenset[str] = frozenset()

    @property
    def headline(self) -> str:
        return next(iter(self.metrics), "loss")

    @property
    def value(self) -> float:
        return self.metrics.get(self.headline, self.loss)

    def recorded(self) -> dict[str, Any]:
        """Return the fields of a round's record. If accuracy is the only metric, it is not named again."""
        fields: dict[str, Any] = {"accuracy": self.metrics.get("accuracy"), "test_loss": self.loss}
        if tuple(self.metrics) == ("accuracy",):
            return fields
        better = "lower" if self.headline in self.lower_is_better | {"loss"} else "higher"
        return fields | {"metric": self.headline, "better": better, "metrics": dict(self.metrics)}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A named loss, and how a model is evaluated."""

    name: str
    mean_loss: Callable[[Any, Batch], Any]
    metrics: Metrics | None = None
    lower_is_better: frozenset[str] = frozenset()

    @property
    def is_default(self) -> bool:
        return self.name == DEFAULT

    def check_labels(self, labels: torch.Tensor, inputs: torch.Tensor) -> None:
        """Raise ValueError if a built-in loss does not fit the kind of labels."""
        numbers, binary = labels.is_floating_point(), bool(((labels == 0) | (labels == 1)).all())
        needs, fits = {
            DEFAULT: ("classes as whole numbers (of one-hot rows labels.argmax(1))", not numbers),
            "squared-error": ("numbers to predict as floats", numbers),
            "multi-label": ("a row of zeros and ones as floats", numbers and labels.ndim > 1 and binary),
        }.get(self.name, ("", True))
        one_hot = self.is_default and labels.ndim == 2 and inputs.is_floating_point() and inputs.ndim == 2
        if not fits or one_hot:
            raise ValueError(
                f"loss = {self.name!r} needs {needs}, one for each example; the labels are {labels.dtype} of "
                f"shape {tuple(labels.shape)} from {labels.min().item():g} to {labels.max().item():g}; "
                f"write one of loss = {', '.join(map(repr, OBJECTIVES))}, or a loss of your own"
            )

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """Return the mean loss of a batch. Raises ValueError unless it is one real number."""
        value = self.mean_loss(model, batch)
        if not isinstance(value, torch.Tensor) or value.ndim or not value.is_floating_point():
            tensor = isinstance(value, torch.Tensor)
            found = f"{value.dtype} of shape {tuple(value.shape)}" if tensor else f"a {type(value).__name__}"
            wanted = "expected a scalar tensor, the mean over the batch"
            raise ValueError(f"loss {self.name!r} returned {found}; {wanted}")
        return value

    def evaluate(
        self, model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor, size: int = 100, workers: int = 1
    ) -> Evaluation:
        """The mean loss and the metrics, in evaluation mode, ``size`` examples at once on each thread."""

        def part(batch: Batch) -> tuple[float, float, Any]:
            with torch.inference_mode():  # per thread, not per process
                if self.is_default:
                    return _scored(model, batch)
                outputs = None if self.metrics is None else model(batch[0]).cpu()
                return len(batch[0]), self.loss(model, batch).item() * len(batch[0]), outputs

        with evaluating(model), ThreadPoolExecutor(workers) as pool:
            batches = zip(torch.split(inputs, size), torch.split(labels, size), strict=True)
            counts, losses, found = zip(*pool.map(part, batches), strict=True)
        metrics: Mapping[str, float] = {}
        if self.is_default:
            metrics = {"accuracy": sum(found) / sum(counts)}
        elif self.metrics is not None:
            metrics = self._measured(self.metrics, torch.cat(found), labels.cpu())
        loss = sum(losses) / sum(counts)
        return Evaluation(loss=loss, metrics=metrics, lower_is_better=self.lower_is_better)

    def _measured(self, metrics: Metrics, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        try:
            measured = {str(name): float(value) for name, value in metrics(outputs, labels).items()}
        except Exception as error:
            expected = "expected a dictionary of numbers by name, such as {'RMSE': 0.1}"
            failed = f"the metrics of loss {self.name!r} failed: {one_line(error)}"
            raise ValueError(f"{failed}; {expected}") from error
        if unknown := sorted(self.lower_is_better - {*measured, "loss"}):
            names = f"names {', '.join(unknown)}, and the metrics are {', '.join(measured) or 'none'}"
            raise ValueError(f"loss {self.name!r}: lower_is_better {names}")
        return measured


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode. Each of its layers then gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def class_scores(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the model's scores, one row per label, with the classes last. Raises ValueError otherwise."""
    scores = model(inputs)
    found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
    if len(found) != labels.ndim + 1 or found[:-1] != tuple(labels.shape):
        wanted = ", ".join([*map(str, labels.shape), "classes"])
        kind = "example" if labels.ndim == 1 else "token"
        raise ValueError(f"the model must return a row of class scores per {kind}: ({wanted}), not {found}")
    return scores  # type: ignore[no-any-return]


def _cross_entropy(model: Any, batch: Batch) -> torch.Tensor:
    inputs, labels = batch
    scores = class_scores(model, inputs, labels)
    if labels.ndim > 1:
        scores, labels = scores.flatten(0, -2), labels.flatten()
    return cross_entropy(scores, labels)


def _scored(model: nn.Module, batch: Batch) -> tuple[int, float, int]:
    """Of a batch: how many labels count, the sum of their cross entropies, and how many are right."""
    inputs, labels = batch
    scores, labels = class_scores(model, inputs, labels).flatten(0, -2), labels.flatten()
    loss = cross_entropy(scores, labels, reduction="sum").item()
    return int((labels != IGNORED).sum()), loss, int((scores.argmax(dim=1) == labels).sum())


def _matching(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if outputs.shape != labels.shape and outputs.shape == (*labels.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != labels.shape:
        given, wanted = tuple(outputs.shape), tuple(labels.shape)
        raise ValueError(f"the model returned {given} for labels of shape {wanted}; expected one for each")
    return outputs


def _of_matching(loss: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[Any, Batch], Any]:
    return lambda model, batch: loss(_matching(model(batch[0]), batch[1]), batch[1])


def _regression(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    error = (_matching(outputs, labels) - labels).double().square().mean().item()
    spread = (labels.double() - labels.double().mean(dim=0)).square().mean().item()
    return {"RMSE": math.sqrt(error), "R2": 1 - error / spread if spread else math.nan}


def _set_scores(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    chosen, right = _matching(outputs, labels) > 0, labels > 0.5
    found, both = int(chosen.sum()) + int(right.sum()), int((chosen & right).sum())
    exact = (chosen == right).all(-1).float().mean().item()
    return {"F1": 2 * both / found if found else 1.0, "exact match": exact}


_RMSE = frozenset({"RMSE"})
_numbers, _sets = _of_matching(mse_loss), _of_matching(binary_cross_entropy_with_logits)
OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective(name=DEFAULT, mean_loss=_cross_entropy),
        Objective(name="squared-error", mean_loss=_numbers, metrics=_regression, lower_is_better=_RMSE),
        Objective(name="multi-label", mean_loss=_sets, metrics=_set_scores),
    )
}


def find_objective(name: str) -> Objective:
    """Return the built-in objective, or the one named ``package.module:name``. Raises ValueError if none."""
    if is_factory_name(name):
        return make_objective(name, find_named(name, "loss"))
    if name not in OBJECTIVES:
        raise unknown_name("loss", name, OBJECTIVES)
    return OBJECTIVES[name]


_PLAIN: Mapping[type, str] = {
    nn.CrossEntropyLoss: DEFAULT,
    nn.MSELoss: "squared-error",
    nn.BCEWithLogitsLoss: "multi-label",
}
_NUMBERS = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss)  # of outputs shaped as labels


def built_in(loss: Any) -> str:
    """Return the name of the built-in loss that torch's loss is, with its default arguments, or nothing."""
    name = _PLAIN.get(kind := loss if isinstance(loss, type) else type(loss), "")
    return name if name and (loss is kind or repr(vars(loss)) == repr(vars(kind()))) else ""


def _of_torch(name: str, loss: nn.Module) -> Objective:
    """Return the objective of a loss module of (outputs, labels), such as the ones in torch.nn."""
    if getattr(loss, "reduction", "mean") != "mean":
        raise ValueError(f"loss {name!r} has reduction = {vars(loss)['reduction']!r}; expected 'mean'")
    if any(True for _ in loss.parameters()):
        raise ValueError(f"loss {name!r} has weights, which nobody trains: move them to the model")
    numbers, sets = isinstance(loss, _NUMBERS), isinstance(loss, nn.BCEWithLogitsLoss)
    mean_loss = (
        _of_matching(loss) if numbers or sets else lambda model, batch: loss(model(batch[0]), batch[1])
    )

    def right(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        counted = labels != getattr(loss, "ignore_index", IGNORED)
        return {"accuracy": (outputs.argmax(dim=1) == labels)[counted].float().mean().item()}

    classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    metrics = _regression if numbers else _set_scores if sets else right if classes else None
    lower = _RMSE if numbers else frozenset[str]()
    return Objective(name=name, mean_loss=mean_loss, metrics=metrics, lower_is_better=lower)


def make_objective(name: str, value: Any) -> Objective:
    """An objective from ``loss(model, batch)``, an object or class that has one, or torch's loss modules."""
    if isinstance(value, Objective):
        return value
    if known := built_in(value):
        return OBJECTIVES[known]
    if isinstance(value, type):
        value = call_factory(name, "loss", value)
    loss, metrics = getattr(value, "loss", value), getattr(value, "metrics", None)
    if isinstance(value, nn.Module) and loss is value:
        return _of_torch(name, value)
    if not callable(loss):
        expected = "lambda model, batch: mse_loss(model(batch[0]), batch[1]), or an object with a method loss"
        raise ValueError(f"loss {name!r} is a {type(value).__name__}; expected a function such as {expected}")
    lower = getattr(value, "lower_is_better", ())
    if not (metrics is None or callable(metrics)) or not isinstance(lower, tuple | list | set | frozenset):
        wrong = f"metrics must be a function of (outputs, labels), not {metrics!r}"
        raise ValueError(f"loss {name!r}: {wrong}, and lower_is_better a tuple of names, not {lower!r}")
    return Objective(name=name, mean_loss=loss, metrics=metrics, lower_is_better=frozenset(map(str, lower)))
