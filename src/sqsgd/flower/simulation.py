"""``sqsgd train --engine flower``: the rounds of a run over Flower's simulation on Ray.

Every client is a virtual node, and every report goes through ``SqsgdMod`` and ``SqsgdStrategy``. Under the
same seeds the model is the local engine's, bit for bit: torch computes with one thread in both
(``prepare_torch``), and reports are summed in the cohort's order, in whatever order they came. What a client
remembers is in ``clients/`` of the run's folder, so that a run can be resumed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import numpy as np

from sqsgd.federated import Record, State
from sqsgd.learning.problem import LearningProblem
from sqsgd.runs.config import cores, make_config

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.clientapp.typing import ClientAppCallable
    from flwr.serverapp import Grid

    from sqsgd.experiments.runner import Run
    from sqsgd.flower.strategy import SqsgdStrategy

ROUND_SECONDS = 3600.0
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "180",  # half a minute is too short on a busy machine
}


def simulated_rounds(run: Run, state: State) -> Iterator[tuple[Record, State]]:
    """Rounds ``state.round`` to the last: a record and the new state for each, as ``federated.run`` does.

    Flower's runtime works in a thread of its own, and waits while a round is being looked at.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    done: Queue[tuple[Record, State] | BaseException | None] = Queue()
    more: Queue[bool] = Queue()
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        for item in _rounds(run, state, grid):
            done.put(item)
            if not more.get():
                return

    def simulate() -> None:
        try:
            run_simulation(
                server_app=server_app,
                client_app=virtual_clients(dataclasses.asdict(run.config), run.folder),
                num_supernodes=run.problem.clients,
                backend_config={
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                    "init_args": {"num_cpus": run.config.workers or cores(), "include_dashboard": False},
                },
            )
            done.put(None)
        except BaseException as error:
            done.put(error)

    thread = threading.Thread(target=simulate, name="flower", daemon=True)
    thread.start()
    try:
        while (item := done.get()) is not None:
            if isinstance(item, BaseException):
                raise OSError(f"Flower's simulation ended: {_cause(item)}") from item
            yield item
            more.put(True)
    finally:
        more.put(False)
        thread.join()


def _cause(error: BaseException) -> BaseException:
    """What went wrong first: Flower wraps it twice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _rounds(run: Run, state: State, grid: Grid) -> Iterator[tuple[Record, State]]:
    """The server's side of all rounds."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    from sqsgd.flower.gathering import exchange
    from sqsgd.flower.strategy import SqsgdStrategy

    config = run.config
    strategy = SqsgdStrategy(
        epsilon=config.epsilon,
        bytes=config.bytes,
        scheme=config.scheme,
        options=config.options,
        optimizer=config.optimizer,
        alpha=config.alpha,
        beta=config.beta,
        min_nodes=config.clients,
        min_answers=len(run.problem.cohort(0)),
        seed=config.seed,
        numbering=_numbering(run.problem),
    )
    strategy.prepare(grid, ArrayRecord({"weights": Array(state.weights)}), config.clients)
    strategy.name, strategy.scheme, strategy.settings = "simulation", run.scheme, run.settings
    strategy.state = state
    while strategy.state.round < config.rounds:
        messages = strategy.configure_train(strategy.state.round + 1, ArrayRecord(), ConfigRecord(), grid)
        answers = exchange(grid, messages, ROUND_SECONDS, run.scheme.bits // 8)
        strategy.aggregate_train(strategy.state.round + 1, answers)
        yield _record(run, strategy), strategy.state


def _numbering(problem: LearningProblem) -> Callable[[int, Sequence[int]], Mapping[int, int]]:
    """Which node plays which client: any will do, for a client's data and state go by its number."""

    def numbers(round: int, nodes: Sequence[int]) -> Mapping[int, int]:
        return {nodes[client]: client for client in problem.cohort(round)}

    return numbers


def _record(run: Run, strategy: SqsgdStrategy) -> Record:
    """What the round did, as the local engine tells it."""
    last, state = strategy.current, strategy.state
    if last.rejected:
        entry = last.rejected[0]
        raise RuntimeError(
            f"round {last.state.round}: client {last.tasks[int(entry['node'])].client}: {entry['reason']}"
        )
    epsilon = run.scheme.privacy.epsilon
    told = [_told(run.folder, task.client, task.round) for task, _, _ in last.reports]
    processes = min(len(told), run.config.workers or cores())  # that share the clients' work
    return Record(
        round=last.state.round,
        loss=float(np.mean([entry["loss"] for entry in told])),
        epsilon=epsilon,
        epsilon_total=epsilon * max(state.spent.values()),
        bytes_up=max(payload for payload, _ in last.up),
        bytes_down=max(payload for payload, _ in last.down),
        clients=len(last.reports),
        clip_rate=last.clip_rate,
        bound=last.state.bound,
        seconds=time.perf_counter() - last.started,
        seconds_gradient=sum(entry["gradient"] for entry in told) / processes,
        seconds_encode=sum(entry["rest"] for entry in told) / processes,
        seconds_aggregate=last.seconds_aggregate,
        bytes_up_serialised=max(size for _, size in last.up),
        bytes_down_serialised=max(size for _, size in last.down),
    )


# ---------------------------------------------------------------- the virtual clients, in Ray's processes


def virtual_clients(config: Mapping[str, Any], folder: Path) -> ClientApp:
    """The clients of a run; they find their data by their number, and keep their state in its folder."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict
    from flwr.clientapp import ClientApp

    from sqsgd.flower import wire
    from sqsgd.flower.mod import SqsgdMod
    from sqsgd.node.answer import Simulation

    home, text = (folder / "clients").resolve(), json.dumps(dict(config))
    seed = None if config["secure"] else int(config["seed"])
    mod = SqsgdMod(simulation=Simulation(seed=seed, folder=home))

    def timed(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        started = time.perf_counter()
        reply = mod(msg, context, call_next)
        seconds = time.perf_counter() - started
        file = _told_file(home, wire.read_request(msg.content[wire.REQUEST]).task.client)
        told = json.loads(file.read_text())
        file.write_text(json.dumps({**told, "rest": seconds - told["gradient"]}))
        return reply

    app = ClientApp(mods=[timed])

    def train(msg: Message, context: Context) -> Message:
        started = time.perf_counter()
        task = wire.read_request(msg.content[wire.REQUEST]).task
        weights = msg.content.array_records[wire.MODEL]["weights"].numpy()
        loss, gradient = next(_problem(text).gradients(weights, task.round, [task.client]))
        entry = {"round": task.round, "loss": loss, "gradient": time.perf_counter() - started}
        _told_file(home, task.client).write_text(json.dumps(entry))
        return Message(RecordDict({wire.GRADIENT: ArrayRecord({"weights": Array(gradient)})}), reply_to=msg)

    app.train()(train)
    return app


@lru_cache(maxsize=1)
def _problem(text: str) -> LearningProblem:
    from sqsgd.experiments.runner import prepare

    config = make_config(json.loads(text))
    return prepare(dataclasses.replace(config, workers=1), Path()).problem


def _told_file(home: Path, client: int) -> Path:
    return home / str(client) / "last.json"


def _told(folder: Path, client: int, round: int) -> dict[str, float]:
    """A client's loss, and the seconds of its gradient and of the rest (encoding, and keeping its state).

    It is the experimenter's own disk: no report holds them.
    """
    entry: dict[str, float] = json.loads(_told_file(folder / "clients", client).read_text())
    if entry["round"] != round:
        raise RuntimeError(f"client {client} tells of round {entry['round']}, not of round {round}")
    return entry
