"""The ready ServerApp: trains a named model with ``SqsgdStrategy`` and evaluates it on held-out data."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from sqsgd.flower.ready_problem import problem_of
from sqsgd.flower.strategy import SqsgdStrategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the run's configuration says."""
    config: dict[str, Any] = dict(context.run_config)
    problem = problem_of(config, 1)

    def evaluate(_: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy, loss = problem.evaluate(arrays["weights"].numpy())
        return MetricRecord({"accuracy": accuracy, "test_loss": loss})

    strategy = SqsgdStrategy(
        scheme=config["scheme"],
        epsilon=config["epsilon"],
        bytes=config["bytes"],
        lr=config["lr"] or None,
        sends="gradient",
        seed=config["seed"],
        clients_per_round=config["clients-per-round"],
        once=config["once"],
        min_nodes=config["min-nodes"],
        min_answers=config["min-answers"],
        wait_timeout=config["wait-timeout"],
        downlink=config["downlink"],
        evaluate_every=config["evaluate-every"],
        out=config["out"] or None,
        resume=config["resume"],
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord({"weights": Array(problem.initial())}),
        num_rounds=config["num-server-rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=evaluate,
    )
