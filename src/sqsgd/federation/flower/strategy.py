"""The server's side: requests down, private reports up, one step of the model per round."""

import contextlib
import inspect
import json
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from sqsgd import training
from sqsgd._internal import checks
from sqsgd._internal.exact import total
from sqsgd._internal.files import worded
from sqsgd.core import Scheme
from sqsgd.core.task import Task
from sqsgd.federation.flower import wire
from sqsgd.federation.flower.answers import Answer, Round, exchange, until_present, wait_for_nodes
from sqsgd.federation.flower.cohort import NodeOrder, SilentNodes, check_begun, draw
from sqsgd.federation.node import server
from sqsgd.federation.node.policy import LEDGER, SPENT
from sqsgd.federation.node.request import EVALUATION
from sqsgd.federation.node.server import Evaluation, FederationSettings, NoAnswers
from sqsgd.federation.node.structure import untrained
from sqsgd.mechanisms.gaussian_account import spent
from sqsgd.privacy.planner import outlook
from sqsgd.privacy.record_plan import record_warnings
from sqsgd.training import RunConfig, Settings
from sqsgd.training.algorithm import enough_answers, server_step, task_for
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.settings import MOST_REPORTS, USUAL_ROUNDS
from sqsgd.training.state import make_record
from sqsgd.training.summary import about_once, certificate, summarise

_LOG = logging.getLogger("flwr")
RUN = "SQSGD_RUN"  # a variable that `sqsgd deploy` sets: a file with the folder of the run under way
MOST_EMPTY_ROUNDS = 10  # in a row without enough answers end a training
MOST_REPEATED = 3  # times that a round begins whose nodes have all left, as after a restart of the federation
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]
_SETTINGS = tuple(field.name for field in fields(FederationSettings))
_FIXED = {"arrayrecord_key": wire.MODEL, "configrecord_key": wire.CONFIG}


class SqsgdStrategy(Strategy):
    """A strategy for averaging private reports, which replaces ``FedAvg`` and requires ``SqsgdMod``.

    Args:
      settings: the settings for the reports and the model update. Its fields can also be given as keyword
        arguments, for example ``epsilon`` (required), ``bytes``, ``scheme``, ``lr`` and ``sends``, and
        ``delta`` and ``records`` for ``unit = "record"``.
      clients_per_round: the number of nodes per round. By default, it is determined by ``fraction_train``.
      once: whether nodes participate at most once per pass, using secret slots instead of node numbers.
      reports: the number of passes with independent secret orders. Values above 1 imply ``once``.
      fraction_train, min_train_nodes, min_available_nodes: as in ``FedAvg``. Other options of ``FedAvg`` are
        accepted, and a message is logged if they do not have any effect.
      min_answers: the number of answers required for updating the model, by default half of the nodes.
      wait_timeout: the maximum time for waiting until enough nodes are connected, in seconds.
      evaluate_every: the number of rounds between calls of ``evaluate_fn``.
      stop_at_epsilon: end the training before a node exceeds this total (at ``delta`` for privacy per
        record). It is disabled by default.
      evaluation_epsilon: the privacy budget per record for a single evaluation on the nodes after the last
        round. It must be allowed by the owners and is disabled by default.
      evaluation_records: the public number of test records per node, by which the answers are divided.
      out: the absolute path of a folder for metrics, checkpoints, the model and the summary. The default is
        the folder of the run on a server of ``sqsgd deploy``, and None otherwise.
      resume: whether to continue from the checkpoint in ``out``, if it exists.

    Raises:
      ValueError: if an option or a combination of options is invalid.
      TypeError: if an option is unknown.
    """

    def __init__(
        self,
        settings: FederationSettings | None = None,
        *,
        clients_per_round: int = 0,
        once: bool = False,
        reports: int = 1,
        fraction_train: float = 1.0,
        min_train_nodes: int = 0,
        min_available_nodes: int = 2,
        min_answers: int = 0,
        wait_timeout: float = 600.0,
        evaluate_every: int = 1,
        stop_at_epsilon: float = 0.0,
        evaluation_epsilon: float = 0.0,
        evaluation_records: int = 0,
        out: Path | str | None = None,
        resume: bool = False,
        **keywords: Any,
    ) -> None:
        chosen = {key: keywords.pop(key) for key in _SETTINGS if key in keywords}
        _check_flowers(keywords, [*inspect.signature(SqsgdStrategy).parameters, *_SETTINGS])
        if settings is not None and chosen:
            raise TypeError(f"{', '.join(chosen)} next to settings: give settings or keywords")
        self.asked_for = settings or FederationSettings(**chosen)
        self.clients_per_round = checks.integer("clients-per-round", clients_per_round, 0, 2**31)
        self.reports = checks.integer("reports", reports, 1, MOST_REPORTS)
        self.once = self.by_slot = once = once or self.reports > 1
        self.fraction_train = checks.real("fraction_train", fraction_train, 0.0, 1.0)
        self.min_train_nodes = checks.integer("min_train_nodes", min_train_nodes, 0, 2**31)
        available = checks.integer("min_available_nodes", min_available_nodes, 1, 2**31)
        self.min_available_nodes = max(available, self.min_train_nodes, self.clients_per_round)
        self.min_answers = checks.integer("min-answers", min_answers, 0, 2**31)
        self.wait_timeout = checks.positive("wait-timeout", wait_timeout)
        self.evaluate_every = checks.integer("evaluate-every", evaluate_every, 1, 2**31)
        self.stop_at_epsilon = checks.real("stop_at_epsilon", stop_at_epsilon, 0.0, 1e12)
        self.evaluation: Evaluation | None = None
        if evaluation_epsilon or evaluation_records:
            delta, records = self.asked_for.delta, evaluation_records
            self.evaluation = Evaluation(epsilon=evaluation_epsilon, delta=delta, records=records)
        if out is None and (deployed := os.environ.get(RUN)):
            run = json.loads(Path(deployed).read_text())
            out, resume = run["out"], run["resume"]
        self.resume = resume
        if resume and out is None:
            raise ValueError("resume = true needs out: the folder of the training to resume")
        if out is not None and not Path(out).is_absolute():
            raise ValueError(f"out = {str(out)!r} must be an absolute path")
        if once and not clients_per_round:
            raise ValueError("once = true needs clients-per-round: else the first round would ask every node")
        if 0 < clients_per_round < min_answers:
            raise ValueError(f"{min_answers = } is more than {clients_per_round = }")
        self.folder = None if out is None else RunFolder(Path(out))
        self.name, self.rounds = "", 0
        self.stepped = self.empty = 0  # rounds that moved the model, and the last ones in a row that did not
        self.silent = SilentNodes()
        self.order = NodeOrder(self.clients_per_round, self.reports) if once else None
        self.current: Round  # the round that was configured last

    def prepare(self, grid: Grid, arrays: ArrayRecord, nodes: int) -> None:
        """Make the scheme and the state, new or the checkpoint's, for rounds of the connected ``nodes``."""
        expected = self._size(nodes)
        self.structure, weights = wire.flatten_record(arrays)
        checks.vector("the model's weights", weights, self.structure.dim)
        for note in untrained(self.structure, per_record=self.asked_for.unit == "record"):
            _LOG.warning("sqsgd: %s", note)
        apart = max(1.0, nodes / max(1, expected))
        often = {"visits": (self.rounds or USUAL_ROUNDS) / apart, "apart": apart}
        asked = replace(self.asked_for, rounds=self.rounds)
        self.scheme = asked.make_scheme(self.structure.dim, **often, once=self.once)
        self.settings = asked.for_rounds(self.scheme, clients=expected, rounds=self.rounds)
        if 0 < self.stop_at_epsilon < (least := spent(self.scheme.privacy, 1)):
            raise ValueError(f"stop_at_epsilon = {self.stop_at_epsilon:g}: one round costs {least:.4g}")
        self.name = f"{self.scheme.name} {grid.run.run_id}"
        self.state = training.initial_state(weights, self.settings)
        if self.folder is not None and not self.folder.begun:
            if self.order is not None:
                self.order.keep(self.folder.path)
            self.folder.begin(self.state, self._about(), self._config(expected))
        elif self.folder is not None:
            if not self.resume:
                held = f"out = {str(self.folder.path)!r} holds a training"
                raise ValueError(f"{held}: set resume = true to resume it, or choose another folder")
            self.state, known = self.folder.load()
            self._resume(known)
            self.folder.write_config(self._config(expected))
        self._forecast(expected)

    def _forecast(self, clients: int) -> None:
        scheme, reports = self.scheme, self.reports if self.once else self.rounds
        privacy = scheme.privacy
        whose = f" per record, at delta = {privacy.delta:g}" if scheme.sums_records else ""
        whole = f"; {reports} reports of a node spend {spent(privacy, reports):g}{whose}"
        text = "sqsgd: scheme %s: a report has %d bytes and epsilon %g%s"
        whole = whole if privacy.is_private and reports else ""
        _LOG.info(text, scheme.name, scheme.bits // 8, spent(privacy, 1), whole)
        if scheme.sums_records:
            each = self.settings.records
            for warning in record_warnings(each, each * privacy.share, privacy.delta) if each else ():
                _LOG.warning("sqsgd: %s", warning)
        elif self.rounds and (problem := outlook(self.scheme, clients * self.rounds, self.settings.bound)):
            _LOG.warning("sqsgd: %s", problem)

    def _about(self) -> dict[str, Any]:
        """Return the parts of the checkpoint other than the state."""
        return {
            "name": self.name,
            "settings": asdict(self.settings),
            "fingerprint": self.scheme.fingerprint,
            "once": self.once,
            **({"silence": self.silent.known} if self.order is None else {"order": self.order.name}),
        }

    def _config(self, expected: int) -> str:
        rounds = max(1, self.rounds, self.state.round)
        return RunConfig(
            **{**asdict(self.settings), "rounds": rounds},
            dataset="data of the nodes",
            model="model of the app",
            clients=self.clients_per_round * rounds // self.reports if self.once else max(1, expected),
            participation="once" if self.once else "all",
            reports=self.reports,
            evaluate_every=self.evaluate_every,
            engine="nodes",
        ).to_toml()

    def _resume(self, known: Mapping[str, Any]) -> None:
        """Restore the checkpoint's settings. Raises ValueError if the options differ from then."""
        begun, now = Settings(**known["settings"]), self.settings
        of = "fingerprint (of scheme, epsilon, bytes and model)"
        check_begun(of, known["fingerprint"], self.scheme.fingerprint)
        check_begun("optimizer", begun.optimizer, now.optimizer)
        check_begun("once", known["once"], self.once)
        if begun.decay == "linear" and self.rounds:  # over which its rate falls
            check_begun("num_rounds", begun.rounds, self.rounds)
        self.name = known["name"]
        if self.order is not None:
            self.order.resume(known["order"], self.state.round)
        self.silent = SilentNodes(known.get("silence"))
        self.settings = replace(begun, lr=now.lr if self.asked_for.lr else begun.lr)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message to each node of the round: the request and the model."""
        if not self.name:
            self.prepare(grid, arrays, self.min_available_nodes)
        numbers, slots = self.cohort(grid), {"by_slot": self.by_slot, "reports": self.reports}
        self.current = Round(state=self.state, started=time.perf_counter())
        for node, number in numbers.items():
            task = task_for(number, self.settings, self.state)
            self._ask(self.current, self.scheme, node, task, self.name, config, slots)
        return self.current.messages

    def _ask(
        self, round: Round, scheme: Scheme, node: int, task: Task, name: str, config: ConfigRecord, about: Any
    ) -> None:
        """Add the message to one node: the request and the model."""
        if not round.messages:
            weights = round.state.weights
            round.model = wire.model_record(self.structure, weights), self.structure.digest(weights)
        model, digest = round.model
        asked = server.make_request(scheme, self.settings, task, name, digest, **about)
        request = ConfigRecord(asked.to_fields())
        content = RecordDict({wire.REQUEST: request, wire.CONFIG: config, wire.MODEL: model})
        kind = MessageType.EVALUATE if asked.purpose == EVALUATION else MessageType.TRAIN
        # Flower does not check who sends a reply: who guesses a message's id may answer. The id is a hash
        # that the group's name enters.
        secret = secrets.token_hex(16)
        round.asked(node, task, Message(content, dst_node_id=node, message_type=kind, group_id=secret))

    def cohort(self, grid: Grid) -> Mapping[int, int]:
        """Return the round's nodes, each with its identity or its slot."""
        round, least = self.state.round, self.min_available_nodes
        if self.order is not None:
            only, asked = self.order.candidates(round), self.order.asked
            if only is not None:
                least = min(enough_answers(self.min_answers, len(only)), len(only))
            may_ask = lambda node: node not in asked and (only is None or node in only)  # noqa: E731
            nodes = wait_for_nodes(grid, least, self.wait_timeout, may_ask)
            return self.order.slots(round, nodes, self.rounds)
        nodes = wait_for_nodes(grid, least, self.wait_timeout)
        nodes = self.silent.removed_from(nodes, round, enough_answers(self.min_answers, len(nodes)))
        return {node: node for node in draw(nodes, self._size(len(nodes)), self.settings.seed, round)}

    def _size(self, connected: int) -> int:
        """How many of the connected nodes a round asks."""
        return self.clients_per_round or max(1, int(self.fraction_train * connected), self.min_train_nodes)

    def aggregate_train(  # type: ignore[override]
        self, server_round: int, replies: Iterable[Answer]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Check each answer by itself, reject what is not a valid report, average the rest, and step."""
        last, before = self.current, self.state
        last.judge(self.scheme, replies)
        paid = () if self.by_slot else last.may_have_paid
        if self.order is None:
            self.silent.update(before.round, last.tasks, last.invalid)
        else:
            self.order.done()
            # Logs and files name slots, not nodes: which node had a slot is a secret.
            slots = {str(node): task.client for node, task in last.tasks.items()}
            known = last.rejected
            last.rejected = [{"slot": slots[each["node"]], "reason": each["reason"]} for each in known]
        for entry in last.rejected:
            who, number = next(iter(entry.items()))
            _LOG.warning("sqsgd: rejected %s %s: %s", who, number, entry["reason"])
        least = enough_answers(self.min_answers, len(last.tasks))
        enough = len(last.reports) >= least
        self.stepped += enough
        self.empty = 0 if enough else self.empty + 1
        if not self.stepped:
            last.check_private()
        if enough:
            self.state, record = server_step(self.scheme, self.settings, before, last.reports, paid=paid)
        else:
            self.state = before.after(paid)
            record = make_record(self.scheme, before, self.state)
            text = "sqsgd: round %s had %s answers, and needs %s: the model is unchanged"
            _LOG.warning(text, before.round + 1, len(last.reports), least)
        if self.order is not None and self.order.length:
            sent = before.round // self.order.length + 1
            record = replace(record, epsilon_total=total(record.epsilon, sent))
        last.record = replace(
            record,
            clients=len(last.reports),
            refused=sum(entry["reason"] in (SPENT, LEDGER) for entry in last.rejected),
            bytes_up=self.scheme.bits // 8 if last.reports else 0,
            bytes_down=round(sum(last.down.values()) / max(1, len(last.down))),
            seconds=time.perf_counter() - last.started,
            seconds_gradient=None,
            seconds_encode=None,
        )
        found = {"epsilon": record.epsilon, "epsilon_total": record.epsilon_total}
        answers = MetricRecord({"answers": len(last.reports), **found})
        return wire.model_record(self.structure, self.state.weights), answers

    @property
    def _next_total(self) -> float:
        """What the node with the most reports will have spent after one more round."""
        reports = max(self.state.spent.values(), default=0) + 1
        if self.order is not None:
            reports = self.state.round // self.order.length + 1 if self.order.length else 1
        return spent(self.scheme.privacy, reports)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """With ``evaluation_epsilon``: a request to each connected node for a count with noise."""
        if self.evaluation is None:
            return []
        name, about = f"{self.name} evaluation", {"purpose": EVALUATION}
        self.measuring = Round(state=self.state, started=time.perf_counter())
        for node in wait_for_nodes(grid, 1, self.wait_timeout):
            task = replace(task_for(node, self.settings, self.state), dim=1, bound=1.0, clip=None)
            self._ask(self.measuring, self.evaluation.scheme, node, task, name, config, about)
        return self.measuring.messages

    def aggregate_evaluate(  # type: ignore[override]
        self, server_round: int, replies: Iterable[Answer]
    ) -> MetricRecord | None:
        """The accuracy at the nodes, and the half-width of its interval, or None without answers."""
        if self.evaluation is None:
            return None
        self.measuring.judge(self.evaluation.scheme, replies)
        for entry in self.measuring.rejected:
            _LOG.warning("sqsgd: no evaluation from node %s: %s", entry["node"], entry["reason"])
        found = self.evaluation.measured(self.measuring.reports)
        return MetricRecord({**found}) if found else None

    def summary(self) -> None:
        """Nothing: ``prepare`` logs it."""

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
        """Run all rounds of a training. ``evaluate_fn`` evaluates the model on the server's data.

        Raises:
          NoAnswers: if there were not enough answers in any round, or in ten consecutive rounds.
          TooFewNodes: if not enough nodes were connected within ``wait_timeout``.
          ClearReplies: if the apps on the nodes do not use ``SqsgdMod``.
        """
        self.rounds = checks.integer("num_rounds", num_rounds, 0, 2**31)
        if self.order is not None and self.reports > 1:
            self.order.length = self.rounds // self.reports
            if not self.rounds or self.rounds % self.reports:
                raise ValueError(f"num_rounds = {num_rounds} is no multiple of reports = {self.reports}")
        timeout = checks.real("timeout", timeout, 0.0, 1e9)
        result, lines = Result(), list[dict[str, Any]]()
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(self.folder.held())
            nodes = wait_for_nodes(grid, self.min_available_nodes, self.wait_timeout)
            self.prepare(grid, initial_arrays, len(nodes))
            if self.folder is not None:
                self.folder.keep_rounds(self.state.round)
                lines += self.folder.lines
                self.stepped = sum(line["stepped"] for line in lines)
            result.arrays = wire.model_record(self.structure, self.state.weights)
            if self.state.round == 0:
                self._measured(0, evaluate_fn, result)
            while self.state.round < self.rounds:
                if 0 < self.stop_at_epsilon < self._next_total:
                    text = "sqsgd: stopped: round %s would spend more than stop_at_epsilon = %g"
                    _LOG.info(text, self.state.round + 1, self.stop_at_epsilon)
                    break
                config = train_config or ConfigRecord()
                lines.append(self._one_round(grid, timeout, config, evaluate_fn, result))
                if self.empty >= MOST_EMPTY_ROUNDS:
                    last, reasons = self.current, Counter(each["reason"] for each in self.current.rejected)
                    most = "".join(f" ({count}: {reason})" for reason, count in reasons.most_common(1))
                    few = (
                        f"{self.empty} rounds in a row had too few answers, the last one {len(last.reports)}"
                    )
                    few += f" of {len(last.tasks)} that were asked{most}"
                    raise NoAnswers(f"{few}: see the nodes' refusals.jsonl; their budgets may be spent")
            if problem := server.nothing_trained(
                lines
            ):  # before anything is written that would pass for a model
                raise NoAnswers(problem)
            config = evaluate_config or ConfigRecord()
            if messages := self.configure_evaluate(self.state.round, result.arrays, config, grid):
                answers = exchange(grid, messages, timeout)
                if found := self.aggregate_evaluate(self.state.round, answers):
                    result.evaluate_metrics_clientapp[self.state.round] = found
                    _LOG.info("sqsgd: accuracy at the nodes %(accuracy).4f ± %(accuracy_within).4f", found)
            if self.folder is not None:
                summary = self._summarise(lines, result)
                model = wire.arrays_of(result.arrays)
                self.folder.finish(model, summary, certificate(self.scheme, summary))
            if self.order is not None:
                self.order.finish()
        return result

    def _one_round(
        self, grid: Grid, timeout: float, config: ConfigRecord, evaluate: Evaluate | None, result: Result
    ) -> dict[str, Any]:
        number = self.state.round + 1  # Flower counts from one
        for _ in range(MOST_REPEATED):
            messages = self.configure_train(number, result.arrays, config, grid)
            last = self.current
            last.late = f"no answer within {timeout:g} s"
            left, answers = until_present(exchange(grid, messages, timeout))
            # A slot is given once; other nodes repeat the report that they have paid for.
            if self.order is not None or left < len(last.tasks):
                break
            _LOG.warning("sqsgd: all nodes of round %s have left: it begins again", number)
        result.arrays, result.train_metrics_clientapp[number] = self.aggregate_train(number, answers)
        line = last.record.to_dict() if last.record else {}
        line |= {"asked": len(last.tasks), "rejected": last.rejected, "stepped": self.empty == 0}
        # A mean times a count would be rounded, and the model goes down to nodes that do not answer too.
        line["bytes_up_total"] = len(last.reports) * line["bytes_up"]
        line["bytes_down_total"] = sum(last.down.values())
        if number == self.rounds or number % self.evaluate_every == 0:
            measured = self._measured(number, evaluate, result)
            line |= {key: value for key, value in measured.items() if isinstance(value, int | float)}
        counts = f"{len(last.reports)} answers, {len(last.rejected)} rejected"
        accuracy = f", accuracy {line['accuracy']:.4f}" if "accuracy" in line else ""
        text = "sqsgd: round %s of %s: %s%s, %.1f s"
        _LOG.info(text, number, self.rounds, counts, accuracy, line["seconds"])
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

    def _summarise(self, lines: Sequence[Mapping[str, Any]], result: Result) -> dict[str, Any]:
        about: dict[str, Any] = {
            "task": self.name,
            "answers": sum(line["clients"] for line in lines),
            "rejected": sum(len(line["rejected"]) for line in lines),
            "rounds_stepped": self.stepped,
            **{name: sum(line[name] for line in lines) for name in ("bytes_up_total", "bytes_down_total")},
        }
        for found in result.evaluate_metrics_clientapp.values():
            assert self.evaluation is not None  # noqa: S101 - nobody else asks
            about["nodes_evaluation"] = {**found, "epsilon": self.evaluation.epsilon}
        if self.order is not None:
            slots = self.rounds * self.clients_per_round
            each: dict[str, Any] = {"seeded": False, "slots": slots, "reports": self.reports}
            about |= about_once(self.scheme, self.order.scope or "round", lines, **each)
            _LOG.info("sqsgd: %s", about["central_note"])
        settings = replace(self.settings, rounds=self.state.round)  # fewer at stop_at_epsilon
        return summarise(lines, self.scheme, settings, reports=self.reports if self.once else 0, **about)


def _check_flowers(given: Mapping[str, Any], ours: Sequence[str]) -> None:
    """Warn of options of ``FedAvg`` that have no effect here. Raises TypeError for unknown ones."""
    for name, value in given.items():
        if name not in inspect.signature(FedAvg).parameters:
            raise TypeError(f"SqsgdStrategy has no option {name!r}{checks.meant(name, ours)}")
        if value != _FIXED.get(name, value):
            raise ValueError(f"{name} = {value!r} must be {_FIXED[name]!r}: nodes expect that name")
        if name not in _FIXED:
            why = "all reports weigh the same, and what nodes measure stays there; measure with evaluate_fn"
            _LOG.warning("sqsgd: %s is ignored: %s", name, why)
