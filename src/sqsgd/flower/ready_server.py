"""The ready ServerApp: trains a named model with ``SqsgdStrategy`` and evaluates it on held-out data."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from sqsgd.flower.ready_problem import problem_of
from sqsgd.flower.strategy import SqsgdStrategy

OPTIONS = (
    "scheme", "epsilon", "bytes", "seed", "clients-per-round", "once", "min-nodes", "min-answers",
    "wait-timeout", "downlink", "evaluate-every", "evaluate-epsilon", "resume",
)  # fmt: skip
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run's configuration says."""
    config: dict[str, Any] = dict(context.run_config)
    problem = problem_of(config, 1)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy, loss = problem.evaluate(arrays["weights"].numpy())
        return MetricRecord({"accuracy": accuracy, "test_loss": loss})

    options = {key.replace("-", "_"): config[key] for key in OPTIONS}
    strategy = SqsgdStrategy(sends="gradient", lr=config["lr"] or None, out=config["out"] or None, **options)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"weights": Array(problem.initial())}),
        num_rounds=config["num-server-rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=evaluate,
    )
