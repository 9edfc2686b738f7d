"""The text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric: its name, what it counts, and a value for each set of labels."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    values: Iterable[tuple[Mapping[str, str], float]]


def exposition(metrics: Iterable[Metric]) -> str:
    r"""The metrics as text.

    >>> left = Metric(name="left", kind="gauge", about="Epsilon left.", values=[({"node": 'a"b'}, 400.0)])
    >>> print(exposition([left]), end="")
    # HELP left Epsilon left.
    # TYPE left gauge
    left{node="a\"b"} 400.0
    """
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.about}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{_braces(labels)} {value}" for labels, value in metric.values]
    return "\n".join(lines) + "\n"


def _braces(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
    return f"{{{pairs}}}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
