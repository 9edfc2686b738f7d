"""The number that a run is judged by: accuracy, unless its loss has metrics of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqsgd.files.json_numbers import NUMBERS


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The name of a metric, and which values of it are better.

    >>> error = Headline(name="RMSE", better="lower")
    >>> error.best([0.5, 0.25]), error.shown(0.25), Headline().shown(0.925)
    (0.25, '0.25', '92.50%')
    """

    name: str = "accuracy"
    better: str = "higher"

    @property
    def is_share(self) -> bool:
        """Whether it is shown in percent."""
        return self.name == "accuracy"

    @property
    def title(self) -> str:
        """The name at the beginning of a sentence."""
        return self.name[:1].upper() + self.name[1:]

    def best(self, values: Iterable[float]) -> float | None:
        """The best of the values; None if there is none."""
        return (min if self.better == "lower" else max)(values, default=None)

    def rank(self, value: float) -> float:
        """A number that is lower for better values."""
        return value if self.better == "lower" else -value

    def shown(self, value: float) -> str:
        """A value as text."""
        return f"{value:.2%}" if self.is_share else f"{value:.4g}"


ACCURACY = Headline()


def read_headline(line: Mapping[str, Any]) -> tuple[Headline, Any] | None:
    """The headline of a round's record or of a summary, and its value; None if nothing was measured."""
    name, metrics = line.get("metric"), line.get("metrics")
    if isinstance(name, str) and isinstance(metrics, Mapping):
        better = "lower" if line.get("better") == "lower" else "higher"
        value = metrics.get(name, line.get("test_loss"))
        return Headline(name=name, better=better), NUMBERS.get(value, value) if isinstance(
            value, str
        ) else value
    return None if line.get("accuracy") is None else (ACCURACY, line["accuracy"])
