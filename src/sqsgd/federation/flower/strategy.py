"""The server's side: requests down, private reports up, one step of the model per round."""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sqsgd import training
from sqsgd._internal import checks
from sqsgd._internal.exact import total
from sqsgd._internal.files import worded
from sqsgd.core import Scheme
from sqsgd.federation.flower import wire
from sqsgd.federation.flower.answers import Answer, Round, exchange, wait_for_nodes
from sqsgd.federation.flower.cohort import NodeOrder, SilentNodes, draw
from sqsgd.federation.node.policy import LEDGER, SPENT
from sqsgd.federation.node.request import Request, Update, fields_size, make_update
from sqsgd.federation.node.server import FederationSettings, NoAnswers, nothing_trained
from sqsgd.federation.node.structure import Structure, digest, untrained
from sqsgd.privacy.planner import outlook
from sqsgd.training import Record, RunConfig, Settings, State
from sqsgd.training.algorithm import enough_answers, server_step, task_for
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.state import make_record
from sqsgd.training.summary import about_once, summarise

_LOG = logging.getLogger("flwr")
MOST_EMPTY_ROUNDS = 10
"""Rounds in a row without enough answers that end a training."""
Numbering = Callable[[int, Sequence[int]], Mapping[int, int]]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_SETTINGS = tuple(field.name for field in fields(FederationSettings))
_IGNORED = {
    "fraction_evaluate": "what nodes measure never leaves them; measure with evaluate_fn",
    "min_evaluate_nodes": "what nodes measure never leaves them; measure with evaluate_fn",
    "weighted_by_key": "all reports weigh the same: numbers of examples never leave a node",
    "train_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
    "evaluate_metrics_aggr_fn": "nodes' metrics never leave them; measure with evaluate_fn",
}
_FIXED = {"arrayrecord_key": wire.MODEL, "configrecord_key": wire.CONFIG}


class SqsgdStrategy(Strategy):
    """Averages private reports. Replaces ``FedAvg``; nodes need ``SqsgdMod``.

    Args:
      settings: what nodes are asked for and how the server steps; or its fields as keywords, such as
        ``epsilon`` (required), ``bytes``, ``scheme``, ``lr``, ``sends``.
      clients_per_round: nodes asked in a round; 0: ``fraction_train`` of the connected ones.
      once: no node is asked in two rounds, and requests name secret slots, not nodes.
      fraction_train, min_train_nodes, min_available_nodes: as in ``FedAvg``. Its other options are accepted,
        and the log names those that have no effect here.
      min_answers: a round with fewer leaves the model unchanged; 0: half of those asked.
      wait_timeout: seconds to wait for enough connected nodes.
      downlink: ``"delta"``: nodes that hold the last round's model are sent what changed.
      evaluate_every: rounds between calls of ``evaluate_fn``.
      out: absolute path of a folder for metrics, checkpoints, model and summary.
      resume: continue from the checkpoint in ``out``, if there is one.
      numbering: the nodes of a round with the clients that they play; for simulations.

    Raises:
      ValueError: an option, or a combination of options, is invalid.
      TypeError: there is no such option.
    """

    def __init__(
        self,
        settings: FederationSettings | None = None,
        *,
        clients_per_round: int = 0,
        once: bool = False,
        fraction_train: float = 1.0,
        min_train_nodes: int = 0,
        min_available_nodes: int = 2,
        min_answers: int = 0,
        wait_timeout: float = 600.0,
        downlink: Literal["full", "delta"] = "full",
        evaluate_every: int = 1,
        out: Path | str | None = None,
        resume: bool = False,
        numbering: Numbering | None = None,
        **keywords: Any,
    ) -> None:
        self._check_flowers({key: value for key, value in keywords.items() if key not in _SETTINGS})
        chosen = {key: value for key, value in keywords.items() if key in _SETTINGS}
        if settings is not None and chosen:
            raise TypeError(f"{', '.join(chosen)} beside settings: give settings or keywords")
        self.asked_for = settings or FederationSettings(**chosen)
        self.clients_per_round = checks.integer("clients-per-round", clients_per_round, 0, 2**31)
        self.once = self.by_slot = once
        self.fraction_train = checks.real("fraction_train", fraction_train, 0.0, 1.0)
        self.min_train_nodes = checks.integer("min_train_nodes", min_train_nodes, 0, 2**31)
        available = checks.integer("min_available_nodes", min_available_nodes, 1, 2**31)
        self.min_available_nodes = max(available, self.min_train_nodes, self.clients_per_round)
        self.min_answers = checks.integer("min-answers", min_answers, 0, 2**31)
        self.wait_timeout = checks.positive("wait-timeout", wait_timeout)
        self.downlink = downlink
        self.evaluate_every = checks.integer("evaluate-every", evaluate_every, 1, 2**31)
        self.resume, self.numbering = resume, numbering
        self._check_combination(out)
        self.folder = None if out is None else RunFolder(Path(out))
        self.name = ""
        self.rounds = 0
        self.stepped = self.empty = 0  # rounds that moved the model, and the last ones in a row that did not
        self.holders: dict[int, int] = {}  # node: the round whose model it holds
        self._round: Round | None = None
        self._update: Update | None = None
        self.silent = SilentNodes()
        self.order = NodeOrder(self.clients_per_round) if once else None

    def _check_flowers(self, given: Mapping[str, Any]) -> None:
        """Warn of options of ``FedAvg`` that have no effect here; raise TypeError for unknown ones."""
        ours = [*inspect.signature(type(self)).parameters, *_SETTINGS]
        for name, value in given.items():
            if name in _IGNORED:
                _LOG.warning("sqsgd: %s is ignored: %s", name, _IGNORED[name])
            elif name not in _FIXED:
                raise TypeError(f"SqsgdStrategy has no option {name!r}{checks.meant(name, ours)}")
            elif value != _FIXED[name]:
                raise ValueError(f"{name} = {value!r} must be {_FIXED[name]!r}: nodes expect that name")

    def _check_combination(self, out: Path | str | None) -> None:
        """Raise ValueError for the first invalid combination of options."""
        if self.resume and out is None:
            raise ValueError("resume = true needs out: the folder of the training to resume")
        if out is not None and not Path(out).is_absolute():
            raise ValueError(f"out = {str(out)!r} must be an absolute path")
        if self.clients_per_round and self.min_answers > self.clients_per_round:
            raise ValueError(
                f"min-answers = {self.min_answers} is more than clients-per-round = "
                f"{self.clients_per_round}: no round could have enough answers"
            )
        if self.downlink not in ("full", "delta"):
            raise ValueError(f"downlink = {self.downlink!r} must be 'full' or 'delta'")
        if self.downlink == "delta" and self.asked_for.optimizer != "sgd":
            raise ValueError(
                f"downlink = 'delta' with optimizer = {self.asked_for.optimizer!r}: nodes would need the "
                "optimizer's state; use optimizer = 'sgd' or downlink = 'full'"
            )
        if self.once and not self.clients_per_round:
            raise ValueError("once = true needs clients-per-round: else the first round would ask every node")
        if self.once and self.downlink == "delta":
            raise ValueError(
                "once = true with downlink = 'delta': no node takes part again to use what changed; "
                "use downlink = 'full'"
            )

    def prepare(self, grid: Grid, arrays: ArrayRecord, expected: int) -> None:
        """Make the scheme and the state, new or the checkpoint's; ``expected``: reports per round."""
        self.structure: Structure
        self.structure, weights = wire.flatten_record(arrays)
        checks.vector("the model's weights", weights, self.structure.dim)
        for note in untrained(self.structure):
            _LOG.warning("sqsgd: %s", note)
        self.scheme: Scheme = self.asked_for.make_scheme(self.structure.dim, once=self.once)
        self.settings: Settings = self.asked_for.for_rounds(self.scheme, clients=expected, rounds=self.rounds)
        self.name = f"{self.scheme.name} {grid.run.run_id}"
        self.state: State = training.initial_state(weights, self.settings)
        if self.folder is not None:
            self._open(self.folder, expected)
        self._forecast(expected)

    def _open(self, folder: RunFolder, expected: int) -> None:
        """Begin the folder, or resume from its checkpoint."""
        if not folder.begun:
            if self.order is not None:
                self.order.keep(folder.path)
            folder.begin(self.state, self._about(), self._config(expected))
        elif self.resume:
            self.state, known = folder.load()
            self._resume(known)
            folder.write_config(self._config(expected))
        else:
            raise ValueError(
                f"out = {str(folder.path)!r} holds a training: set resume = true to resume it, "
                "or choose another folder"
            )

    def _forecast(self, clients: int) -> None:
        """Log what a report holds and costs, and warn if the rounds cannot suffice."""
        epsilon, reports = self.scheme.privacy.epsilon, 1 if self.once else self.rounds
        spent = f"; {reports} reports of a node spend {total(epsilon, reports):g}"
        _LOG.info(
            "sqsgd: scheme %s: a report has %d bytes and epsilon %g%s",
            self.scheme.name, self.scheme.bits // 8, epsilon, spent if self.scheme.privacy.is_private else "",
        )  # fmt: skip
        problem = outlook(self.scheme, clients, self.rounds, self.settings.bound) if self.rounds else ""
        if problem:
            _LOG.warning("sqsgd: %s", problem)

    def _about(self) -> dict[str, Any]:
        """The checkpoint besides the state: what a resumed training must have in common with this one."""
        return {
            "name": self.name,
            "seed": self.settings.seed,
            "fingerprint": self.scheme.fingerprint,
            "rate": self.settings.lr,
            "bound": self.settings.bound,
            "decay_rounds": self.rounds if self.settings.decay == "linear" else 0,
            "optimizer": self.settings.optimizer,
            "once": self.once,
            **({"silence": self.silent.to_dict()} if self.order is None else {"order": self.order.name}),
        }

    def _config(self, expected: int) -> str:
        """The config.toml of the training: its settings by name; data and model are those of the nodes."""
        rounds = max(1, self.rounds, self.state.round)
        return RunConfig(
            **{**asdict(self.settings), "rounds": rounds},
            dataset="data of the nodes",
            model="model of the app",
            clients=self.clients_per_round * rounds if self.once else max(1, expected),
            participation="once" if self.once else "all",
            evaluate_every=self.evaluate_every,
            engine="nodes",
        ).to_toml()

    def _resume(self, known: Mapping[str, Any]) -> None:
        """Restore the checkpoint's options; raises ValueError if the options differ from then."""
        now = self._about()
        for key in ("fingerprint", "optimizer", "once"):
            if known[key] != now[key]:
                raise ValueError(
                    f"this training was begun with {key} = {known[key]!r}, not {now[key]!r}: restore scheme, "
                    "epsilon, bytes, model, optimizer and once, or start another with another out"
                )
        decay = known["decay_rounds"]
        if self.rounds and decay and decay != now["decay_rounds"]:
            raise ValueError(
                f"this training was begun for {decay} rounds, over which its rate falls: restore "
                f"num_rounds = {decay}, or start another with another out"
            )
        self.name = known["name"]
        if self.order is not None:
            self.order.resume(known["order"], self.state.round)
        self.silent = SilentNodes(known.get("silence"))
        self.settings = replace(
            self.settings,
            seed=known["seed"],
            bound=known["bound"],
            rounds=decay or self.settings.rounds,
            decay="linear" if decay else "none",
            lr=now["rate"] if self.asked_for.lr else known["rate"],
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each node of the round: the request, and the model or what changed."""
        if not self.name:
            self.prepare(grid, arrays, self.clients_per_round or self.min_available_nodes)
        numbers = self._cohort(grid)
        config["server-round"] = server_round
        self._round = last = Round(state=self.state, started=time.perf_counter())
        model = wire.record_of(self.structure.sent(self.state.weights))
        model_digest = digest(self.state.weights)
        for node, number in numbers.items():
            held = self._update if self.holders.get(node) == self.state.round - 1 else None
            request = Request(
                name=self.name,
                scheme=self.scheme.name,
                epsilon=self.asked_for.epsilon,
                bytes=self.asked_for.bytes,
                options=self.asked_for.options,
                fingerprint=self.scheme.fingerprint,
                task=task_for(number, self.settings, self.state),
                alpha=self.settings.alpha,
                beta=self.settings.beta,
                model=model_digest,
                base=-1 if held is None else self.state.round - 1,
                keep=self.downlink == "delta",
                by_slot=self.by_slot,
                types=self.structure.types,
            )
            content = RecordDict({wire.REQUEST: ConfigRecord(request.to_fields()), wire.CONFIG: config})
            content[wire.MODEL if held is None else wire.UPDATE] = (
                model if held is None else ConfigRecord({**held})
            )
            # Flower does not check who sends a reply: whoever can guess a message's id, a hash, may answer.
            secret = secrets.token_hex(16)
            message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=secret)
            last.asked(node, request.task, message)
        return last.messages

    @property
    def current(self) -> Round:
        """The round that was configured last."""
        if self._round is None:
            raise RuntimeError("no round was configured: call configure_train first")
        return self._round

    def _cohort(self, grid: Grid) -> Mapping[int, int]:
        """The round's nodes, each with its number: its identity, its slot, or as ``numbering`` says."""
        round, least = self.state.round, self.min_available_nodes
        if self.order is not None:
            asked, only = self.order.asked, self.order.candidates(round)
            if only is not None:
                least = min(enough_answers(self.min_answers, len(only)), len(only))
            nodes = wait_for_nodes(
                grid,
                least,
                self.wait_timeout,
                lambda node: node not in asked and (only is None or node in only),
            )
            return self.order.slots(round, nodes, self.rounds)
        nodes = wait_for_nodes(grid, least, self.wait_timeout)
        if self.numbering is not None:
            return self.numbering(round, nodes)
        nodes = self.silent.removed_from(nodes, round, enough_answers(self.min_answers, len(nodes)))
        size = self.clients_per_round or max(1, int(self.fraction_train * len(nodes)), self.min_train_nodes)
        return {node: node for node in draw(nodes, size, self.settings.seed, round)}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message | Answer]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Check each reply by itself, reject what is not a valid report, average the rest, and step."""
        last, before = self.current, self.state
        last.sort(self.scheme, replies)
        paid = () if self.by_slot else last.may_have_paid
        if self.order is None:
            self.silent.update(before.round, last.tasks, last.invalid)
        else:
            self.order.done()
            last.name_slots()
        for entry in last.rejected:
            who = f"node {entry['node']}" if "node" in entry else f"slot {entry['slot']}"
            _LOG.warning("sqsgd: rejected %s: %s", who, entry["reason"])
        least = enough_answers(self.min_answers, len(last.tasks))
        enough = len(last.reports) >= least
        self.stepped += enough
        self.empty = 0 if enough else self.empty + 1
        if not self.stepped:
            last.check_private()
        if enough:
            opened = [(task, columns, 1.0) for task, _, columns in last.reports]
            after, last.record = server_step(self.scheme, self.settings, before, opened, paid=paid)
        else:
            after = before.after(paid)
            last.record = make_record(self.scheme, before, after)
            _LOG.warning(
                "sqsgd: round %s had %s answers, and needs %s: the model is unchanged",
                before.round, len(last.reports), least,
            )  # fmt: skip
        self.state = after
        if self.downlink == "delta":
            update = make_update(self.settings.rate_at(before.round), last.reports if enough else [])
            self._update = update if fields_size(update) < after.weights.nbytes else None
            self.holders = dict.fromkeys(last.accepted, before.round)
        answers = MetricRecord({"answers": len(last.reports)})
        return wire.model_record(self.structure, self.state.weights), answers

    def record(self, **measured: Any) -> Record:
        """The record of the last round; sizes are the means over its messages."""
        last = self.current
        if last.record is None:
            raise RuntimeError("no answers were averaged: call aggregate_train first")
        # A serialised message names its node: where slots hide nodes, sizes would tell some of them apart.
        return replace(
            last.record,
            clients=len(last.reports),
            refused=sum(entry["reason"] in (SPENT, LEDGER) for entry in last.rejected),
            **last.sizes(not self.by_slot),
            seconds=time.perf_counter() - last.started,
            **{"seconds_gradient": None, "seconds_encode": None, **measured},
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """No messages: what nodes measure never leaves them."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing: no node is asked."""
        return None

    def summary(self) -> None:
        """Nothing: ``prepare`` logs it, once the model is known."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """All rounds, as Flower's own ``start``; ``evaluate_fn`` measures on the server's data.

        A resumed training counts its rounds from its beginning.

        Raises:
          NoAnswers: no round had enough answers, or ten in a row had not.
          TooFewNodes: not enough nodes were connected within ``wait_timeout``.
          ClearReplies: the nodes' apps do not use ``SqsgdMod``.
        """
        self.rounds = checks.integer("num_rounds", num_rounds, 0, 2**31)
        timeout = checks.real("timeout", timeout, 0.0, 1e9)
        result, lines = Result(), list[dict[str, Any]]()
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(self.folder.held())
            nodes = wait_for_nodes(grid, self.min_available_nodes, self.wait_timeout)
            self.prepare(grid, initial_arrays, self.clients_per_round or len(nodes))
            if self.folder is not None:
                self.folder.keep_rounds(self.state.round)
                lines += self.folder.lines
                self.stepped = sum(line["stepped"] for line in lines)
            result.arrays = wire.model_record(self.structure, self.state.weights)
            if self.state.round == 0:
                self._measured(0, evaluate_fn, result)
            while self.state.round < self.rounds:
                lines.append(self._one_round(grid, timeout, train_config, evaluate_fn, result))
                if self.empty >= MOST_EMPTY_ROUNDS:
                    raise NoAnswers(
                        f"{self.empty} rounds in a row had too few answers, the last one "
                        f"{self.current.counted}: see the nodes' refusals.jsonl; their budgets may be spent"
                    )
            if problem := nothing_trained(lines):  # before anything is written that would pass for a model
                raise NoAnswers(problem)
            if self.folder is not None:
                self.folder.finish(wire.arrays_of(result.arrays), self._summarise(lines))
            if self.order is not None:
                self.order.finish()
        return result

    def _one_round(
        self,
        grid: Grid,
        timeout: float,
        config: ConfigRecord | None,
        evaluate: Evaluate | None,
        result: Result,
    ) -> dict[str, Any]:
        """Ask, gather, step, measure, save; the line of ``metrics.jsonl``."""
        number = self.state.round + 1  # Flower counts from one
        messages = self.configure_train(number, result.arrays, config or ConfigRecord(), grid)
        last = self.current
        last.timeout = timeout
        answers = exchange(grid, messages, timeout)
        result.arrays, result.train_metrics_clientapp[number] = self.aggregate_train(number, answers)
        whole = sum(wire.MODEL in message.content for message in messages)
        line = self.record().to_dict()
        line |= {"asked": len(last.tasks), "rejected": last.rejected, "models_sent": whole}
        line |= {"stepped": self.empty == 0, **last.totals}
        if number == self.rounds or number % self.evaluate_every == 0:
            measured = self._measured(number, evaluate, result)
            line |= {key: value for key, value in measured.items() if isinstance(value, int | float)}
        _LOG.info(
            "sqsgd: round %s of %s: %s answers, %s rejected%s, %.1f s",
            number, self.rounds, len(last.reports), len(last.rejected),
            f", accuracy {line['accuracy']:.4f}" if "accuracy" in line else "", line["seconds"],
        )  # fmt: skip
        line = {name: worded(value) for name, value in line.items()}
        if self.folder is not None:
            self.folder.write(line)
            self.folder.save(self.state, self._about())
        return line

    @staticmethod
    def _measured(number: int, evaluate: Evaluate | None, result: Result) -> Mapping[str, Any]:
        measured = None if evaluate is None else evaluate(number, result.arrays)
        if measured is not None:
            result.evaluate_metrics_serverapp[number] = measured
        return measured or {}

    def _summarise(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        about: dict[str, Any] = {
            "task": self.name,
            "downlink": self.downlink,
            "answers": sum(line["clients"] for line in lines),
            "rejected": sum(len(line["rejected"]) for line in lines),
            "rounds_stepped": self.stepped,
            **{name: sum(line[name] for line in lines) for name in ("bytes_up_total", "bytes_down_total")},
        }
        if self.order is not None:
            slots = self.rounds * self.clients_per_round
            about |= about_once(self.scheme, self.order.scope or "round", lines, seeded=False, slots=slots)
            _LOG.info("sqsgd: %s", about["central_note"])
        settings = replace(self.settings, rounds=self.rounds)
        return summarise(lines, self.scheme, settings, once=self.once, **about)
