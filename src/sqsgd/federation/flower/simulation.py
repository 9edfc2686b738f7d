"""``sqsgd train --engine flower``: the rounds of a run over Flower's simulation on Ray.

Every client is a virtual node with its state in ``clients/`` of the run's folder. With the same seeds the
model is the local engine's, bit for bit. With over 100 clients without state a round, it has the same law.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from sqsgd.core import Scheme
from sqsgd.learning.problem import LearningProblem
from sqsgd.training import Record, Settings, State
from sqsgd.training.order import Order, Users
from sqsgd.training.settings import RunConfig, cores, make_config

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid

    from sqsgd.federation.flower.strategy import SqsgdStrategy

ROUND_SECONDS = 3600.0
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "180",  # the default of 30 s is too short on a busy machine
    "RAY_worker_niceness": "0",  # with the default of 15, other programs leave the clients 3 % of a core
}


def simulated_rounds(
    problem: LearningProblem,
    scheme: Scheme,
    settings: Settings,
    state: State,
    *,
    config: RunConfig,
    order: Order | None,
    folder: Path,
    load_problem: Callable[[RunConfig], LearningProblem],
) -> Iterator[tuple[Record, State]]:
    """A record and the new state of each round, as ``training.run``; ``load_problem`` is for Ray's processes.

    Flower's runtime works in a thread, and waits until the caller asks for the next round.
    """
    os.environ.update({**_QUIET, **os.environ})
    from flwr.app import Array, ArrayRecord, ConfigRecord
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from sqsgd.federation.flower import wire
    from sqsgd.federation.flower.answers import exchange, wait_for_nodes
    from sqsgd.federation.flower.strategy import SqsgdStrategy

    cohort = problem.cohort if order is None else order.cohort

    class Simulated(SqsgdStrategy):
        def cohort(self, grid: Grid) -> dict[int, int]:
            """Any node can play any client: data and state belong to the number that it is given."""
            nodes = wait_for_nodes(grid, config.clients, self.wait_timeout)
            users = [int(user) for user in cohort(self.state.round)]
            return {nodes[user]: user if order is None else slot for slot, user in enumerate(users)}

    done: Queue[tuple[Record, State] | BaseException | None] = Queue()
    more: Queue[bool] = Queue()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Simulated(epsilon=config.epsilon, min_answers=len(cohort(0)))
        strategy.structure, _ = wire.flatten_record(ArrayRecord({"weights": Array(state.weights)}))
        strategy.name, strategy.scheme, strategy.settings = "simulation", scheme, settings
        strategy.state, strategy.by_slot = state, order is not None
        while strategy.state.round < config.rounds:
            messages = strategy.configure_train(strategy.state.round + 1, ArrayRecord(), ConfigRecord(), grid)
            answers = exchange(grid, messages, ROUND_SECONDS)
            strategy.aggregate_train(strategy.state.round + 1, answers)
            done.put((_record(strategy, folder), strategy.state))
            if not more.get():
                return

    def simulate() -> None:
        try:
            ray: dict[str, Any] = {"num_cpus": config.workers or cores(), "include_dashboard": False}
            run_simulation(
                server_app=server_app,
                client_app=virtual_clients(config, folder, load_problem, order),
                num_supernodes=problem.clients,
                backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": ray},
            )
            done.put(None)
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=simulate, daemon=True)
    thread.start()
    try:
        while (item := done.get()) is not None:
            if isinstance(item, BaseException):
                first = item
                while first.__cause__ is not None:  # Flower wraps it twice
                    first = first.__cause__
                raise OSError(f"Flower's simulation ended: {first}") from item
            yield item
            more.put(True)
    finally:
        more.put(False)
        thread.join()


def _record(strategy: SqsgdStrategy, folder: Path) -> Record:
    """Return the round's record, with the losses that the clients left on disk."""
    last = strategy.current
    for entry in last.rejected:
        client = last.tasks[int(entry["node"])].client
        raise RuntimeError(f"round {last.state.round}: client {client}: {entry['reason']}")
    assert last.record is not None  # noqa: S101
    losses = [np.empty(0)]
    for task, _, _ in last.reports:
        note = json.loads(_note_file(folder / "clients", task.client).read_text())
        if note["round"] != task.round:
            raise RuntimeError(f"client {task.client} left a note of round {note['round']}, not {task.round}")
        losses.append(note["losses"])
    return dataclasses.replace(last.record, loss=float(np.mean(np.concatenate(losses))))


def virtual_clients(
    config: RunConfig,
    folder: Path,
    load_problem: Callable[[RunConfig], LearningProblem],
    order: Order | None = None,
) -> ClientApp:
    """Return the clients of a run, in Ray's processes, which find their data by their number or slot."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    from sqsgd.federation.flower import wire
    from sqsgd.federation.flower.mod import SqsgdMod
    from sqsgd.federation.node.answer import Simulation
    from sqsgd.federation.node.records import sum_records

    home, text = (folder / "clients").resolve(), json.dumps(dataclasses.asdict(config))
    mod = SqsgdMod(simulation=Simulation(seed=None if config.secure else config.seed, folder=home))
    app = ClientApp(mods=[mod])

    def train(msg: Message, context: Context) -> Message:
        task = wire.read_request(msg.content[wire.REQUEST]).task
        weights = msg.content.array_records[wire.MODEL]["weights"].numpy()
        user = task.client if order is None else int(_cohort(order, task.round)[task.client])
        problem, sent = _problem(text, load_problem), RecordDict()
        if config.per_record:
            examples = problem.taker(user)(np.arange(len(problem.parts[user])))
            losses = sum_records(problem.model, problem.objective, *examples, random=problem.random).tolist()
        else:
            loss, gradient = next(problem.gradients(weights, task.round, [user]))
            losses, sent[wire.GRADIENT] = [loss], ArrayRecord({"weights": Array(gradient)})
        _note_file(home, task.client).write_text(json.dumps({"round": task.round, "losses": losses}))
        return Message(sent, reply_to=msg)

    app.train()(train)
    return app


@lru_cache(maxsize=1)
def _cohort(order: Order, round: int) -> Users:
    return order.cohort(round)


@lru_cache(maxsize=1)
def _problem(text: str, load_problem: Callable[[RunConfig], LearningProblem]) -> LearningProblem:
    return load_problem(dataclasses.replace(make_config(json.loads(text)), workers=1))


def _note_file(home: Path, client: int) -> Path:
    """The losses of a client's examples, on the experimenter's disk; it is not part of a report."""
    return home / str(client) / "last.json"
