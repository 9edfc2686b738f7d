"""The server's side: requests down, private reports up, one step of the model a round."""

from __future__ import annotations

import inspect
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sqsgd import checks, federated
from sqsgd.core import Scheme
from sqsgd.federated import Settings, State
from sqsgd.federated.bounds import first_bound
from sqsgd.federated.optimizers import Optimizer
from sqsgd.federated.rates import learning_rate
from sqsgd.flower import resuming, wire
from sqsgd.flower.answers import Answer, Round, sort_answers
from sqsgd.flower.contradictions import check_needs_no_residual, check_together
from sqsgd.flower.flower_options import least_nodes
from sqsgd.flower.gathering import drawn, wait_for_nodes
from sqsgd.flower.silence import Silence
from sqsgd.node.downlink import Update, smallest_update
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure, digest
from sqsgd.runs.federation_folder import RunFolder
from sqsgd.schemes import check_name, make_scheme
from sqsgd.task import Task

_LOG = logging.getLogger("flwr")
Numbering = Callable[[int, Sequence[int]], Mapping[int, int]]


def _size(bytes: int) -> int:
    return checks.integer("bytes", bytes, 1, 2**37)


class SqsgdStrategy(Strategy):
    """Averages private reports. Takes the place of ``FedAvg``; nodes need ``SqsgdMod``.

    ``epsilon`` and ``bytes`` are the budgets of one report, ``scheme`` and ``options`` as in
    ``sqsgd.make_scheme``. ``sends`` says what the apps compute: ``"delta"``, a trained model as in Flower's
    own apps, or ``"gradient"``; the default learning rate ``lr`` depends on it. ``once``: no node is asked in
    two rounds. With ``out``, an absolute path, metrics, checkpoints, model and summary are written, and
    ``resume`` goes on from the checkpoint.
    """

    def __init__(
        self,
        *,
        epsilon: float = 400.0,
        bytes: int = 256,
        scheme: str = "sqsgd",
        options: Mapping[str, Any] | None = None,
        lr: float | None = None,
        optimizer: Literal["sgd", "momentum", "adam"] = "sgd",
        sends: Literal["delta", "gradient"] = "delta",
        bound: float | None = None,
        track: bool = True,
        clip: float | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        clients_per_round: int = 0,
        once: bool = False,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_nodes: int = 2,
        min_answers: int = 1,
        wait_timeout: float = 600.0,
        seed: int | None = None,
        downlink: Literal["full", "delta"] = "full",
        evaluate_every: int = 1,
        out: Path | str | None = None,
        resume: bool = False,
        numbering: Numbering | None = None,
        **flowers: Any,
    ) -> None:
        """``flowers``: options of Flower's ``FedAvg`` as they stand in an app."""
        check_name("scheme", scheme)
        connected, self.min_train_nodes = least_nodes(flowers, inspect.signature(type(self)).parameters)
        if fraction_evaluate:
            _LOG.warning("sqsgd: fraction_evaluate is ignored: what nodes measure never leaves them")
        check_together(
            sends=sends,
            downlink=downlink,
            optimizer=optimizer,
            once=once,
            clients_per_round=clients_per_round,
            min_answers=min_answers,
        )
        if resume and out is None:
            raise ValueError("resume = true needs out: the folder of the training to go on with")
        self.epsilon, self.bits = checks.real("epsilon", epsilon, 0.01, 1e5), 8 * _size(bytes)
        self.scheme_name, self.options = scheme, dict(options or {})
        self.lr = None if lr is None else checks.positive("lr", lr)
        self.optimizer, self.sends = optimizer, sends
        self.bound = bound or first_bound(scheme)
        self.track, self.clip, self.alpha, self.beta = track, clip, alpha, beta
        self.clients_per_round = checks.integer("clients-per-round", clients_per_round, 0, 2**31)
        self.once = once
        self.fraction_train = checks.real("fraction_train", fraction_train, 0.0, 1.0)
        self.min_nodes = checks.integer("min-nodes", max(min_nodes, clients_per_round, connected), 1, 2**31)
        self.min_answers = checks.integer("min-answers", min_answers, 1, 2**31)
        self.wait_timeout = checks.positive("wait-timeout", wait_timeout)
        self.seed = secrets.randbits(64) if seed is None else checks.integer("seed", seed, 0, 2**64 - 1)
        self.downlink = downlink
        self.evaluate_every = checks.integer("evaluate-every", evaluate_every, 1, 2**31)
        self.folder = None if out is None else RunFolder(Path(out))
        self.resume, self.numbering = resume, numbering
        self.name = ""
        self.holders: dict[int, int] = {}  # node: the round whose model it holds
        self._round: Round | None = None
        self._update: Update | None = None
        self.empty = 0  # rounds in a row without enough answers
        self.silence = Silence()
        self.asking: frozenset[int] = frozenset()
        """With ``once``: the clients that a round under way asks; written down before they are asked."""

    # ------------------------------------------------------------ set up

    def prepare(self, grid: Grid, arrays: ArrayRecord, expected: int) -> None:
        """Make the scheme for this model, and take up the state: a new one, or the checkpoint's."""
        self.structure: Structure
        self.structure, weights = wire.flatten_record(arrays)
        checks.vector("the model's weights", weights, self.structure.dim)
        self.scheme: Scheme = make_scheme(
            self.scheme_name, dim=self.structure.dim, epsilon=self.epsilon, bits=self.bits, **self.options
        )
        if self.once:
            check_needs_no_residual(self.scheme)
        rate = self.lr or learning_rate(self.scheme, expected, self.optimizer) * (
            4.0 if self.sends == "delta" else 1.0  # a delta has been through a small rate (docs/flower.md)
        )
        self.settings = Settings(
            seed=self.seed,
            optimizer=Optimizer(kind=self.optimizer, rate=rate),
            bound=self.bound,
            track=self.track,
            clip=self.clip,
            alpha=self.alpha,
            beta=self.beta,
        )
        self.name = f"{self.scheme_name} {grid.run.run_id}"
        self.state: State = federated.initial_state(weights, self.settings)
        if self.folder is None:
            return
        if not (self.resume and self.folder.begun):
            self.folder.begin(self.state, resuming.about(self))
            return
        self.state, known = self.folder.resume()
        resuming.take_up(self, known)

    # ------------------------------------------------------------ one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """A message for each node of the round: the request, and the model or what changed."""
        if not self.name:
            self.prepare(grid, arrays, self.clients_per_round or self.min_nodes)
        asked_before = self.state.spent if self.once else ()
        nodes = wait_for_nodes(grid, self.min_nodes, self.wait_timeout, but=asked_before)
        numbers = self._cohort(nodes)
        config["server-round"] = server_round
        self._round = last = Round(state=self.state, started=time.perf_counter())
        model = wire.model_record(self.structure, self.state.weights)
        model_digest = digest(self.state.weights)
        messages = []
        for node, number in numbers.items():
            task = Task(
                round=self.state.round,
                client=number,
                seed=self.settings.seed,
                dim=self.structure.dim,
                bound=self.state.bound,
                clip=self.settings.clip,
            )
            held = self._update is not None and self.holders.get(node) == self.state.round - 1
            request = Request(
                name=self.name,
                scheme=self.scheme_name,
                epsilon=self.epsilon,
                bits=self.bits,
                options=self.options,
                fingerprint=self.scheme.fingerprint,
                task=task,
                alpha=self.alpha,
                beta=self.beta,
                model=model_digest,
                base=self.state.round - 1 if held else -1,
                keep=self.downlink == "delta",
            )
            content = RecordDict({wire.REQUEST: wire.request_record(request), wire.CONFIG: config})
            if held and self._update is not None:
                content[wire.UPDATE] = ConfigRecord(dict(self._update))
            else:
                content[wire.MODEL] = model
            # Flower does not check who sends a reply: who can tell a message's name, a hash, may answer it.
            secret = secrets.token_hex(16)
            message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=secret)
            last.asked(node, task, message)
            messages.append(message)
        return messages

    @property
    def current(self) -> Round:
        """The round that was configured last."""
        if self._round is None:
            raise RuntimeError("no round was configured: configure_train comes first")
        return self._round

    def _cohort(self, nodes: Sequence[int]) -> Mapping[int, int]:
        """The round's nodes, and each one's client number: its own identity, unless told otherwise."""
        if self.numbering is not None:
            return self.numbering(self.state.round, nodes)
        if self.asking:  # the server died in this round: those that were asked then, and nobody else
            return {node: node for node in nodes if node in self.asking}
        nodes = self.silence.without(self.state.round, nodes, self.min_answers)
        share = int(self.fraction_train * len(nodes))
        size = self.clients_per_round or max(1, share, self.min_train_nodes)
        return {node: node for node in drawn(nodes, size, self.settings.seed, self.state.round)}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message | Answer]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Take each reply by itself, reject what is no report, average the rest, and step."""
        last = self.current
        sort_answers(last, self.scheme, replies)
        self.silence.heard(last.state.round, last.tasks, last.silent)
        for entry in last.rejected:
            _LOG.warning("sqsgd: rejected node %s: %s", entry["node"], entry["reason"])
        before, spent = self.state, dict(self.state.spent)
        asked = {task.client for task in last.tasks.values()} | self.asking
        for client in asked if self.once else last.may_have_paid:
            spent[client] = spent.get(client, 0) + 1
        self.asking = frozenset()
        enough = len(last.reports) >= self.min_answers
        aggregate_started = time.perf_counter()
        if enough:
            after, last.magnitudes = federated.server_step(
                self.scheme, self.settings, self.state, last.reports
            )
            self.empty = 0
        else:
            after = replace(self.state, round=self.state.round + 1)
            self.empty += 1
            _LOG.warning(
                "sqsgd: round %s had %s answers of at least %s: the model stays",
                before.round, len(last.reports), self.min_answers,
            )  # fmt: skip
        last.seconds_aggregate = time.perf_counter() - aggregate_started
        self.state = replace(after, spent=spent)
        if self.downlink == "delta":
            reports = last.reports if enough else []
            rate = self.settings.optimizer.rate
            self._update = smallest_update(rate, reports, before.weights, after.weights)
            self.holders = dict.fromkeys(last.accepted, before.round)
        return wire.model_record(self.structure, self.state.weights), MetricRecord(
            {"answers": len(last.reports)}
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Nothing: what nodes measure on their data would leave them in clear."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> None:
        """Nothing came."""

    def summary(self) -> None:
        """Log what is promised."""
        _LOG.info(
            "sqsgd: scheme %s, epsilon %s a report, %s bytes of codes, downlink %s",
            self.scheme_name, self.epsilon, self.bits // 8, self.downlink,
        )  # fmt: skip

    # ------------------------------------------------------------ all rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """All rounds, as Flower's own ``start``; ``evaluate_fn`` measures on the server's data."""
        from sqsgd.flower.training import train

        return train(self, grid, initial_arrays, num_rounds, timeout, train_config, evaluate_fn)
