"""All rounds of a training at the server, with what is written down after each."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from sqsgd import checks
from sqsgd.files.json_numbers import worded
from sqsgd.flower import wire
from sqsgd.flower.answers import Round
from sqsgd.flower.gathering import exchange, wait_for_nodes
from sqsgd.flower.resuming import about
from sqsgd.numerics.epsilon_sums import total

if TYPE_CHECKING:
    from sqsgd.flower.strategy import SqsgdStrategy

_LOG = logging.getLogger("flwr")
MOST_EMPTY_ROUNDS = 10
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class NoAnswers(RuntimeError):
    """Too many rounds in a row without enough answers."""


def train(
    strategy: SqsgdStrategy,
    grid: Grid,
    arrays: ArrayRecord,
    rounds: int,
    timeout: float,
    config: ConfigRecord | None,
    evaluate: Evaluate | None,
) -> Result:
    """Rounds until ``rounds`` are done, counted from the training's beginning where it is resumed."""
    rounds = checks.integer("num_rounds", rounds, 0, 2**31)
    timeout = checks.real("timeout", timeout, 0.0, 1e9)
    result = Result()
    with contextlib.ExitStack() as stack:
        if strategy.folder is not None:
            stack.enter_context(strategy.folder.held())
        nodes = wait_for_nodes(grid, strategy.min_nodes, strategy.wait_timeout)
        strategy.prepare(grid, arrays, strategy.clients_per_round or len(nodes))
        strategy.summary()
        result.arrays = wire.model_record(strategy.structure, strategy.state.weights)
        if evaluate is not None and strategy.state.round == 0:
            measured = evaluate(0, result.arrays)
            if measured is not None:
                result.evaluate_metrics_serverapp[0] = measured
        while strategy.state.round < rounds:
            one_round(strategy, grid, rounds, timeout, config or ConfigRecord(), evaluate, result)
            if strategy.empty >= MOST_EMPTY_ROUNDS:
                raise NoAnswers(
                    f"{strategy.empty} rounds in a row had fewer than min-answers = {strategy.min_answers} "
                    f"answers, the last one {_counted(strategy.current)}: look at the nodes' refusals.jsonl; "
                    "their budgets may be spent"
                )
        if strategy.folder is not None:
            strategy.folder.finish(result.arrays, summarise(strategy, rounds))
    return result


def _counted(last: Round) -> str:
    """How many answered, and what was said most often of those that did not."""
    reasons = Counter(entry["reason"] for entry in last.rejected)
    most = "".join(f" ({count}: {reason})" for reason, count in reasons.most_common(1))
    return f"{len(last.reports)} of {len(last.tasks)} that were asked{most}"


def one_round(
    strategy: SqsgdStrategy,
    grid: Grid,
    rounds: int,
    timeout: float,
    config: ConfigRecord,
    evaluate: Evaluate | None,
    result: Result,
) -> None:
    """Ask, gather, step, measure, write down, keep."""
    number = strategy.state.round + 1  # Flower counts from one
    messages = strategy.configure_train(number, result.arrays, config, grid)
    last = strategy.current
    last.timeout = timeout
    if strategy.once and strategy.folder is not None:  # on the disk before anyone is asked
        strategy.asking |= {task.client for task in last.tasks.values()}
        strategy.folder.save(strategy.state, about(strategy))
    answers = exchange(grid, messages, timeout, strategy.scheme.bits // 8)
    result.arrays, metrics = strategy.aggregate_train(number, answers)
    line = metrics_line(strategy, last)
    if evaluate is not None and (number == rounds or number % strategy.evaluate_every == 0):
        measured = evaluate(number, result.arrays)
        if measured is not None:
            result.evaluate_metrics_serverapp[number] = measured
            line |= {key: value for key, value in measured.items() if isinstance(value, int | float)}
    result.train_metrics_clientapp[number] = metrics
    _LOG.info(
        "sqsgd: round %s of %s: %s answers, %s rejected%s, %.1f s",
        number, rounds, len(last.reports), len(last.rejected),
        f", accuracy {line['accuracy']:.4f}" if "accuracy" in line else "", line["seconds"],
    )  # fmt: skip
    if strategy.folder is not None:
        strategy.folder.write({name: worded(value) for name, value in line.items()})
        strategy.folder.save(strategy.state, about(strategy))


def metrics_line(strategy: SqsgdStrategy, last: Round) -> dict[str, Any]:
    """What one round did. Sizes are of one client: the mean over the round's messages."""
    epsilon = strategy.scheme.privacy.epsilon
    return {
        "round": last.state.round,
        "epsilon": epsilon,
        "epsilon_total": total(epsilon, max(strategy.state.spent.values(), default=0)),
        "clients": len(last.reports),
        "asked": len(last.tasks),
        "rejected": last.rejected,
        "bytes_up": _mean(payload for payload, _ in last.up),
        "bytes_up_serialised": _mean(size for _, size in last.up),
        "bytes_down": _mean(payload for payload, _ in last.down),
        "bytes_down_serialised": _mean(size for _, size in last.down),
        "models_sent": last.whole,
        "clip_rate": last.clip_rate,
        "bound": last.state.bound,
        "seconds": time.perf_counter() - last.started,
        "seconds_aggregate": last.seconds_aggregate,
    }


def _mean(values: Any) -> int:
    numbers = list(values)
    return round(sum(numbers) / len(numbers)) if numbers else 0


def summarise(strategy: SqsgdStrategy, rounds: int) -> dict[str, Any]:
    """What a finished training reached, promised, sent and took."""
    lines = strategy.folder.lines() if strategy.folder is not None else []
    measured = [line["accuracy"] for line in lines if "accuracy" in line]
    return {
        "scheme": strategy.scheme_name,
        "task": strategy.name,
        "dim": strategy.structure.dim,
        "rounds": len(lines),
        "accuracy": measured[-1] if measured else None,
        "best_accuracy": max(measured, default=None),
        "notion": strategy.scheme.privacy.notion,
        "epsilon": worded(strategy.scheme.privacy.epsilon),
        "epsilon_total": lines[-1]["epsilon_total"] if lines else 0.0,
        "lr": strategy.settings.optimizer.rate,
        "downlink": strategy.downlink,
        "answers": sum(line["clients"] for line in lines),
        "rejected": sum(len(line["rejected"]) for line in lines),
        **{
            name: _mean(line[name] for line in lines if line["clients"])
            for name in ("bytes_up", "bytes_up_serialised", "bytes_down", "bytes_down_serialised")
        },
        "seconds": sum(line["seconds"] for line in lines),
        "finished": len(lines) >= rounds,
    }
