"""The summary of a run: accuracy or another metric, guarantee, bytes and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqsgd.core import Scheme
from sqsgd.files.json_numbers import worded
from sqsgd.numerics.epsilon_sums import total
from sqsgd.runs.headline import ACCURACY, read_headline


def summarise(
    lines: Sequence[Mapping[str, Any]],
    scheme: Scheme,
    *,
    lr: float,
    rounds: int,
    once: bool,
    **about: Any,
) -> dict[str, Any]:
    """The summary of the metrics of a run of ``rounds`` rounds; ``about``: further keys and their values."""
    measured = [(line, *found) for line in lines if (found := read_headline(line))]
    last, headline, value = measured[-1] if measured else ({}, ACCURACY, None)
    best = headline.best(value for _, _, value in measured)
    accuracies = [line["accuracy"] for line, _, _ in measured if "accuracy" in line]
    seconds = sum(line["seconds"] for line in lines)
    bytes_up = max((line["bytes_up"] for line in lines), default=0)
    values = {
        "scheme": scheme.name,
        **about,
        "dim": scheme.dim,
        "rounds": len(lines),
        "accuracy": last.get("accuracy"),
        "best_accuracy": max(accuracies, default=None),
        "test_loss": last.get("test_loss"),
        "metric": headline.name,
        "better": headline.better,
        "metrics": last.get("metrics", {} if value is None else {headline.name: value}),
        "best": worded(best),
        "notion": scheme.privacy.notion,
        "epsilon": worded(scheme.privacy.epsilon),
        "delta": scheme.privacy.delta,
        "epsilon_total": lines[-1]["epsilon_total"] if lines else 0.0,
        "epsilon_all_rounds": worded(total(scheme.privacy.epsilon, 1 if once else len(lines))),
        "refused": sum(line.get("refused", 0) for line in lines),
        "bytes_up": bytes_up,
        "bytes_up_ratio": 4 * scheme.dim / bytes_up if bytes_up else None,
        "lr": lr,
        "seconds": seconds,
        "finished": len(lines) >= rounds,
    }
    for name in ("bytes_down", "bytes_up_serialised", "bytes_down_serialised"):
        # The model goes down to everyone who is asked, whether an answer comes or not.
        counts = [line.get("asked", line["clients"]) if "down" in name else line["clients"] for line in lines]
        sizes = [(line[name], count) for line, count in zip(lines, counts, strict=True) if name in line]
        if sizes or name == "bytes_down":
            messages = sum(count for _, count in sizes)
            values[name] = round(sum(size * count for size, count in sizes) / max(messages, 1))
    for part in ("gradient", "encode", "aggregate"):
        taken = [line[f"seconds_{part}"] for line in lines if f"seconds_{part}" in line]
        if taken:
            values[f"share_{part}"] = sum(taken) / seconds
    return values
