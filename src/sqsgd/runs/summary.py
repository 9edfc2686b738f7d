"""What a finished run reached, promised, sent and took."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqsgd.files.json_numbers import worded
from sqsgd.numerics.epsilon_sums import total

if TYPE_CHECKING:
    from sqsgd.experiments.runner import Run


def summarise(run: Run) -> dict[str, Any]:
    """What a finished run reached, promised, sent and took; from its metrics."""
    with (run.folder / "metrics.jsonl").open() as file:
        lines = [json.loads(line) for line in file]
    measured = [line for line in lines if "accuracy" in line]
    seconds = sum(line["seconds"] for line in lines)
    last, float32 = lines[-1], 4 * run.problem.dim
    bytes_up, bytes_down = (max(line[name] for line in lines) for name in ("bytes_up", "bytes_down"))
    return {
        "scheme": run.config.scheme,
        "dataset": run.config.dataset,
        "held_out": run.problem.dataset.held_out,
        "model": run.config.model,
        "features": run.config.features,
        "participation": run.config.participation,
        "dim": run.problem.dim,
        "rounds": len(lines),
        "clients": run.config.clients,
        "accuracy": measured[-1]["accuracy"],
        "best_accuracy": max(line["accuracy"] for line in measured),
        "test_loss": measured[-1]["test_loss"],
        "notion": run.scheme.privacy.notion,
        "epsilon": last["epsilon"],
        "delta": run.scheme.privacy.delta,
        "epsilon_total": last["epsilon_total"],
        "epsilon_all_rounds": worded(total(run.scheme.privacy.epsilon, 1 if run.config.once else len(lines))),
        "refused": sum(line.get("refused", 0) for line in lines),
        "noise": "secure" if run.config.secure else "seeded: an experiment, protects nobody",
        "bytes_up": bytes_up,
        "bytes_up_ratio": float32 / bytes_up,
        "bytes_down": bytes_down,
        "lr": run.settings.optimizer.rate,
        "seconds": seconds,
        "share_gradient": sum(line["seconds_gradient"] for line in lines) / seconds,
        "share_encode": sum(line["seconds_encode"] for line in lines) / seconds,
        "share_aggregate": sum(line["seconds_aggregate"] for line in lines) / seconds,
        "finished": len(lines) == run.config.rounds,
    }
