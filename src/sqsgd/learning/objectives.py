"""What is minimised and what is measured on held-out data: built in, or ``package.module:name``.

An objective has ``loss(model, batch)``, the mean loss of a batch (inputs, labels) as a scalar tensor, and
may have ``metrics(outputs, labels)``, numbers by name, computed from the model's outputs on all held-out
examples at once. The first metric is the headline. Those that ``lower_is_better`` names fall as the model
improves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from sqsgd import checks
from sqsgd.learning.datasets import IGNORED
from sqsgd.learning.factories import call_factory, find_named, is_factory_name

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Sums: TypeAlias = dict[str, float]

DEFAULT = "cross-entropy"


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The loss and the metrics on held-out data, the headline first."""

    loss: float
    metrics: Mapping[str, float]
    lower_is_better: frozenset[str] = frozenset()

    @property
    def headline(self) -> str:
        """The name of the first metric; ``loss`` if there is none."""
        return next(iter(self.metrics), "loss")

    @property
    def value(self) -> float:
        """The headline's value."""
        return self.metrics.get(self.headline, self.loss)

    def recorded(self) -> dict[str, Any]:
        """The fields of a round's record; plain accuracy alone has a field of its own."""
        fields: dict[str, Any] = {"accuracy": self.metrics.get("accuracy"), "test_loss": self.loss}
        if tuple(self.metrics) == ("accuracy",):
            return fields
        lower = self.headline == "loss" or self.headline in self.lower_is_better
        better = "lower" if lower else "higher"
        return fields | {"metric": self.headline, "better": better, "metrics": dict(self.metrics)}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A named loss, and how a model is evaluated."""

    name: str
    mean_loss: Callable[[Any, Batch], Any]
    metrics: Callable[[torch.Tensor, torch.Tensor], Any] | None = None
    lower_is_better: frozenset[str] = frozenset()

    @property
    def is_default(self) -> bool:
        """Whether this is the built-in cross entropy, for which there are faster ways."""
        return self.name == DEFAULT

    def check_labels(self, labels: torch.Tensor, inputs: torch.Tensor) -> None:
        """ValueError if a built-in loss does not fit the kind of labels."""
        numbers = labels.is_floating_point()
        if self.name == DEFAULT and numbers:
            single = "; of one-hot rows take labels.argmax(1)" if _one_hot(labels) else ""
            raise ValueError(
                f"the labels are {labels.dtype}, and loss = {self.name!r} needs classes (whole numbers); for "
                f"numbers to predict write loss = 'squared-error', for sets of labels 'multi-label'{single}"
            )
        tokens = inputs.shape[:2] == labels.shape and (inputs.ndim > 2 or not inputs.is_floating_point())
        if self.name == DEFAULT and not tokens and (_one_hot(labels) or labels.shape[1:] == (1,)):
            remedy = "squeeze(1)" if labels.shape[1] == 1 else "argmax(1)"
            raise ValueError(
                f"the labels have shape {tuple(labels.shape)}, and loss = {self.name!r} needs one class per "
                f"example: write labels.{remedy}"
            )
        if self.name in OBJECTIVES and self.name != DEFAULT and not numbers:
            raise ValueError(
                f"the labels are classes (whole numbers), and loss = {self.name!r} needs floats; for classes "
                f"write loss = {DEFAULT!r}"
            )
        if self.name == "multi-label" and (
            labels.ndim < 2 or not bool(((labels == 0) | (labels == 1)).all())
        ):
            raise ValueError(
                f"loss = 'multi-label' needs a row of zeros and ones for each example, not labels of shape "
                f"{tuple(labels.shape)} from {labels.min().item():g} to {labels.max().item():g}"
            )

    def check_names(self, metrics: Iterable[str]) -> None:
        """ValueError if ``lower_is_better`` names something that is not measured."""
        unknown = sorted(self.lower_is_better - {*metrics, "loss"})
        if unknown:
            raise ValueError(
                f"loss {self.name!r}: lower_is_better names {', '.join(unknown)}, and the metrics are "
                f"{', '.join(metrics)}"
            )

    def loss(self, model: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of a batch, after checking that it is one real number."""
        value = self.mean_loss(model, batch)
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"loss {self.name!r} returned a {type(value).__name__}; expected a scalar tensor"
            )
        if value.ndim or not value.is_floating_point():
            raise ValueError(
                f"loss {self.name!r} returned {value.dtype} of shape {tuple(value.shape)}; expected one real "
                "number, the mean over the batch"
            )
        return value

    def evaluate(
        self,
        model: nn.Module,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *,
        size: int = 100,
        workers: int = 1,
    ) -> Evaluation:
        """The mean loss over all examples and the metrics, in evaluation mode; the mode is restored."""
        for name, value in (("inputs", len(inputs)), ("size", size), ("workers", workers)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")

        def part(start: int) -> tuple[float, torch.Tensor | None, Sums]:
            batch = inputs[start : start + size], labels[start : start + size]
            with torch.inference_mode():  # per thread, not per process
                if self.is_default:
                    return 0.0, None, _scores(model, batch)
                outputs = None if self.metrics is None else self._outputs(model, batch[0])
                return self.loss(model, batch).item() * len(batch[0]), outputs, {}

        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with ThreadPoolExecutor(workers) as pool:
                parts = list(pool.map(part, range(0, len(inputs), size)))
        finally:
            for module, training in modes:
                module.training = training
        if self.is_default:
            sums = {name: sum(scores[name] for _, _, scores in parts) for name in ("count", "loss", "right")}
            return Evaluation(
                loss=sums["loss"] / sums["count"], metrics={"accuracy": sums["right"] / sums["count"]}
            )
        outputs = [found for _, found, _ in parts if found is not None]
        return Evaluation(
            loss=sum(loss for loss, _, _ in parts) / len(inputs),
            metrics=self._measured(torch.cat(outputs), labels.cpu()) if outputs else {},
            lower_is_better=self.lower_is_better,
        )

    def _outputs(self, model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        found = model(inputs)
        if not isinstance(found, torch.Tensor):
            raise ValueError(
                f"the metrics of loss {self.name!r} need a tensor, and the model returned a "
                f"{type(found).__name__}; leave the metrics out, or return a tensor"
            )
        return found.cpu()

    def _measured(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        try:
            found = self.metrics(outputs, labels) if self.metrics is not None else {}
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"the metrics of loss {self.name!r} failed: {reason}") from error
        if not isinstance(found, Mapping) or not found:
            raise ValueError(
                f"the metrics of loss {self.name!r} are a {type(found).__name__}; expected a dictionary of "
                "numbers by name, such as {'RMSE': 0.1}"
            )
        return {str(name): self._number(str(name), value) for name, value in found.items()}

    def _number(self, name: str, value: Any) -> float:
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"metric {name!r} of loss {self.name!r} is a {type(value).__name__}; expected one number"
            ) from None


def _one_hot(labels: torch.Tensor) -> bool:
    """Whether each label is a row of zeros and a single one."""
    binary = labels.ndim == 2 and labels.shape[1] > 1 and bool(((labels == 0) | (labels == 1)).all())
    return binary and bool((labels.sum(dim=1) == 1).all())


def class_scores(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The model's scores with the classes last, one row per label."""
    scores = model(inputs)
    expected = tuple(labels.shape)
    if (
        not isinstance(scores, torch.Tensor)
        or scores.ndim != labels.ndim + 1
        or scores.shape[:-1] != expected
    ):
        found = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
        wanted = ", ".join([*map(str, expected), "classes"])
        kind = "example" if labels.ndim == 1 else "token"
        raise ValueError(f"the model must return a row of class scores per {kind}: ({wanted}), not {found}")
    return scores


def _cross_entropy(model: Any, batch: Batch) -> torch.Tensor:
    inputs, labels = batch
    scores = class_scores(model, inputs, labels)
    if labels.ndim > 1:
        scores, labels = scores.flatten(0, -2), labels.flatten()
    return cross_entropy(scores, labels)


def _scores(model: nn.Module, batch: Batch) -> Sums:
    """Sums over a batch: the labels that count, their cross entropy, and those that are right."""
    inputs, labels = batch
    scores, labels = class_scores(model, inputs, labels).flatten(0, -2), labels.flatten()
    loss = cross_entropy(scores, labels, reduction="sum").item()
    right = int((scores.argmax(dim=1) == labels).sum())
    return {"count": int((labels != IGNORED).sum()), "loss": loss, "right": right}


def _matching(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The outputs in the labels' shape: a last dimension of one is not needed."""
    if outputs.shape != labels.shape and outputs.shape == (*labels.shape, 1):
        outputs = outputs.squeeze(-1)
    if outputs.shape != labels.shape:
        raise ValueError(
            f"the model returned {tuple(outputs.shape)} for labels of shape {tuple(labels.shape)}; expected "
            "one output for each"
        )
    return outputs


def _squared_error(model: Any, batch: Batch) -> torch.Tensor:
    inputs, labels = batch
    return mse_loss(_matching(model(inputs), labels), labels)


def _regression(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    error = (_matching(outputs, labels) - labels).double().square().mean().item()
    spread = (labels.double() - labels.double().mean(dim=0)).square().mean().item()
    return {"RMSE": math.sqrt(error), "R2": 1 - error / spread if spread else math.nan}


def _multi_label(model: Any, batch: Batch) -> torch.Tensor:
    inputs, labels = batch
    return binary_cross_entropy_with_logits(_matching(model(inputs), labels), labels)


def _set_scores(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    chosen, right = _matching(outputs, labels) > 0, labels > 0.5
    found, both = int(chosen.sum()) + int(right.sum()), int((chosen & right).sum())
    return {
        "F1": 2 * both / found if found else 1.0,
        "exact match": (chosen == right).all(-1).float().mean().item(),
    }


OBJECTIVES: Mapping[str, Objective] = {
    each.name: each
    for each in (
        Objective(name=DEFAULT, mean_loss=_cross_entropy),
        Objective(
            name="squared-error",
            mean_loss=_squared_error,
            metrics=_regression,
            lower_is_better=frozenset({"RMSE"}),
        ),
        Objective(name="multi-label", mean_loss=_multi_label, metrics=_set_scores),
    )
}
"""Cross entropy of classes, one per example or one per token; regression; sets of labels (0 and 1)."""


def find_objective(name: str) -> Objective:
    """The built-in objective of this name, or the one that ``package.module:name`` stands for."""
    if is_factory_name(name):
        return make_objective(name, find_named(name, "loss"))
    if name not in OBJECTIVES:
        raise ValueError(
            f"loss {name!r} is unknown{checks.meant(name, OBJECTIVES)} "
            f"(choose {', '.join(OBJECTIVES)} or package.module:name)"
        )
    return OBJECTIVES[name]


def make_objective(name: str, value: Any) -> Objective:
    """An objective from a function ``loss(model, batch)``, or from an object or class that has one."""
    if isinstance(value, type):
        value = call_factory(name, "loss", value)
    loss, metrics = getattr(value, "loss", value), getattr(value, "metrics", None)
    if not callable(loss) or isinstance(value, nn.Module):
        raise ValueError(
            f"loss {name!r} is a {type(value).__name__}; expected a function of (model, batch), or an object "
            "with such a function called loss"
        )
    if str(getattr(loss, "__module__", "")).startswith("torch."):
        raise ValueError(
            f"loss {name!r} is torch's {getattr(loss, '__name__', 'function')}, of outputs and labels; "
            "expected a function of (model, batch), such as "
            "lambda model, batch: mse_loss(model(batch[0]), batch[1])"
        )
    if metrics is not None and not callable(metrics):
        raise ValueError(
            f"loss {name!r}: metrics is a {type(metrics).__name__}; expected a function of (outputs, labels)"
        )
    lower = getattr(value, "lower_is_better", ())
    if isinstance(lower, str) or not isinstance(lower, Iterable):
        raise ValueError(f"loss {name!r}: lower_is_better = {lower!r}; expected names of metrics, in a tuple")
    return Objective(name=name, mean_loss=loss, metrics=metrics, lower_is_better=frozenset(map(str, lower)))
