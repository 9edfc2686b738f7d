"""The server's side: requests down, private reports up, one step of the model per round."""

from __future__ import annotations

import contextlib
import inspect
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from sqsgd import checks, training
from sqsgd.core import Scheme
from sqsgd.files.json_numbers import worded
from sqsgd.flower import wire
from sqsgd.flower.answers import Answer, Round, sort_answers
from sqsgd.flower.cohort import SilentNodes, draw
from sqsgd.flower.defaults import chosen_scheme, default_bound, default_rate, given_rate
from sqsgd.flower.evaluating import NodeEvaluations
from sqsgd.flower.flower_options import check_combination, least_nodes
from sqsgd.flower.gathering import exchange, wait_for_nodes
from sqsgd.flower.node_order import NodeOrder
from sqsgd.flower.other_strategies import translate
from sqsgd.flower.outlook import outlook, untrained
from sqsgd.flower.resuming import check_same
from sqsgd.flower.round_tally import Tally
from sqsgd.node.downlink import Update, smallest_update
from sqsgd.node.reasons import LEDGER, SPENT
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure, digest
from sqsgd.schemes import check_name, make_scheme
from sqsgd.training import Record, RunConfig, Settings, State
from sqsgd.training.algorithm import enough_answers, server_step, task_for
from sqsgd.training.run_folder import RunFolder
from sqsgd.training.state import make_record
from sqsgd.training.summary import about_once, summarise

_LOG = logging.getLogger("flwr")
Numbering = Callable[[int, Sequence[int]], Mapping[int, int]]
Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class SqsgdStrategy(Strategy):
    """Averages private reports. Replaces ``FedAvg``; nodes need ``SqsgdMod``.

    ``epsilon`` and ``bytes`` are the budgets of one report, ``scheme`` and ``options`` as in
    ``sqsgd.make_scheme``. ``sends`` says what the apps compute: ``"delta"``, a trained model as in Flower's
    own apps, or ``"gradient"``; the default scheme, bound and rate depend on it (flower/defaults.py).
    ``decay``: whether the rate falls to zero over ``num_rounds``; ``auto``: unless reports hold norms.
    ``once``: no node is asked in two rounds, and requests do not name nodes, which fill slots in a secret
    order. ``min_answers``: a round with fewer leaves the model unchanged; 0: half of those asked.
    With ``evaluate_epsilon``, each node is asked for its app's ``evaluate_metric``, as one private number of
    at most ``evaluate_maximum``. With ``out``, an absolute path, metrics, checkpoints, model and summary are
    written, and ``resume`` continues from the checkpoint.
    """

    def __init__(
        self,
        *,
        epsilon: float = 400.0,
        bytes: int = 256,
        scheme: str | None = None,
        options: Mapping[str, Any] | None = None,
        lr: float | None = None,
        optimizer: str = "sgd",
        sends: Literal["delta", "gradient"] = "delta",
        decay: Literal["auto", "none", "linear"] = "auto",
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
        min_answers: int = 0,
        wait_timeout: float = 600.0,
        seed: int | None = None,
        downlink: Literal["full", "delta"] = "full",
        evaluate_every: int = 1,
        evaluate_epsilon: float = 0.0,
        evaluate_metric: str = "accuracy",
        evaluate_maximum: float = 1.0,
        out: Path | str | None = None,
        resume: bool = False,
        numbering: Numbering | None = None,
        **flowers: Any,
    ) -> None:
        """``flowers``: options of Flower's ``FedAvg`` and, where they have a meaning, of its relatives."""
        if scheme is not None:
            check_name("scheme", scheme)
        self.flowers = translate(flowers, optimizer, lr)
        optimizer, lr = self.flowers.optimizer, self.flowers.lr
        if self.flowers.terms:
            raise ValueError(f"{', '.join(self.flowers.terms)}: the optimizers' constants cannot be changed")
        ours = inspect.signature(type(self)).parameters
        connected, self.min_train_nodes = least_nodes(self.flowers.rest, ours)
        if resume and out is None:
            raise ValueError("resume = true needs out: the folder of the training to resume")
        if out is not None and not Path(out).is_absolute():
            raise ValueError(f"out = {str(out)!r} must be an absolute path")
        self.epsilon = checks.real("epsilon", epsilon, 0.01, 1e5)
        self.bits = 8 * checks.integer("bytes", bytes, 1, 2**37)
        self.scheme_name, self.options = scheme or "", dict(options or {})
        self.lr = None if lr is None else checks.positive("lr", lr)
        self.optimizer, self.sends, self.decay = optimizer, sends, decay
        self.bound, self.track, self.clip, self.alpha, self.beta = bound, track, clip, alpha, beta
        self.clients_per_round = checks.integer("clients-per-round", clients_per_round, 0, 2**31)
        self.once = self.by_slot = once
        self.fraction_train = checks.real("fraction_train", fraction_train, 0.0, 1.0)
        self.min_nodes = checks.integer("min-nodes", max(min_nodes, clients_per_round, connected), 1, 2**31)
        self.min_answers = checks.integer("min-answers", min_answers, 0, 2**31)
        self.wait_timeout = checks.positive("wait-timeout", wait_timeout)
        self.seed = secrets.randbits(64) if seed is None else checks.integer("seed", seed, 0, 2**64 - 1)
        self.downlink = downlink
        self.evaluate_every = checks.integer("evaluate-every", evaluate_every, 1, 2**31)
        self.folder = None if out is None else RunFolder(Path(out))
        self.resume, self.numbering = resume, numbering
        check_combination(
            optimizer=optimizer, sends=sends, decay=decay, downlink=downlink, once=once,
            clients_per_round=clients_per_round, min_answers=min_answers,
        )  # fmt: skip
        self.name = ""
        self.rounds = 0
        self.holders: dict[int, int] = {}  # node: the round whose model it holds
        self._round: Round | None = None
        self._update: Update | None = None
        asked = evaluate_epsilon, evaluate_metric, evaluate_maximum
        self.evaluation = NodeEvaluations(*asked, fraction=fraction_evaluate, every=evaluate_every, once=once)
        self.tally = Tally()
        self.silent = SilentNodes()
        self.order = NodeOrder(self.clients_per_round) if once else None

    # ------------------------------------------------------------ set up

    def prepare(self, grid: Grid, arrays: ArrayRecord, expected: int) -> None:
        """Make the scheme for this model, and the state: a new one, or the checkpoint's."""
        self.expected = expected
        self.structure: Structure
        self.structure, weights = wire.flatten_record(arrays)
        checks.vector("the model's weights", weights, self.structure.dim)
        for note in untrained(self.structure):
            _LOG.warning("sqsgd: %s", note)
        make = partial(make_scheme, dim=self.structure.dim, epsilon=self.epsilon, bits=self.bits)
        if self.resume and self.folder is not None and self.folder.begun:
            self.scheme_name = self.scheme_name or self.folder.load()[1]["scheme"]
        self.scheme: Scheme = chosen_scheme(make, self.scheme_name, self.options, self.sends, once=self.once)
        self.scheme_name = self.scheme.name
        bound = self.bound or default_bound(self.scheme, self.sends)
        linear = self.decay == "linear" or (self.decay == "auto" and not self.scheme.follows_norms)
        falls = linear and bool(self.rounds)
        rate = self._given_rate(bound) or self.flowers.multiple * default_rate(
            self.scheme, sends=self.sends, optimizer=self.optimizer, clients=expected, rounds=self.rounds,
            momentum=self.flowers.terms.get("momentum"), falls=falls, bound=bound,
        )  # fmt: skip
        self.scheme.check_clip(self.clip)
        self.settings = Settings(
            scheme=self.scheme_name,
            epsilon=self.epsilon,
            bytes=self.bits // 8,
            options=self.options,
            seed=self.seed,
            rounds=self.rounds,
            lr=rate,
            optimizer=self.optimizer,
            decay="linear" if falls else "none",
            bound=bound,
            track=self.track,
            clip_norm=self.clip or 0.0,
            alpha=self.alpha,
            beta=self.beta,
            secure=True,
        )
        self.name = f"{self.scheme_name} {grid.run.run_id}"
        self.state: State = training.initial_state(weights, self.settings)
        if self.folder is None:
            return
        if not self.folder.begun:
            if self.order is not None:
                self.order.keep(self.folder.path)
            self.folder.begin(self.state, self._about(), self._config())
        elif self.resume:
            self.state, known = self.folder.load()
            self._resume(known)
            self.folder.write_config(self._config())
        else:
            raise ValueError(
                f"out = {str(self.folder.path)!r} holds a training: set resume = true to resume it, "
                "or choose another folder"
            )

    def _given_rate(self, bound: float) -> float | None:
        """The rate that was asked for, under the bound of the first round."""
        return None if self.lr is None else given_rate(self.lr, self.scheme, self.sends, bound, self.bound)

    def _about(self) -> dict[str, Any]:
        """The checkpoint besides the state."""
        return {
            "name": self.name,
            "seed": self.settings.seed,
            "fingerprint": self.scheme.fingerprint,
            "scheme": self.scheme_name,
            "rate": self.settings.lr,
            "bound": self.settings.bound,
            "decay_rounds": self.settings.rounds if self.settings.decay == "linear" else 0,
            "optimizer": self.optimizer,
            "once": self.once,
            **({"silence": self.silent.to_dict()} if self.order is None else {"order": self.order.name}),
        }

    def _config(self) -> str:
        """The config.toml of the training: its settings by name; data and model are those of the nodes."""
        rounds = max(1, self.rounds, self.state.round)
        return RunConfig(
            **{**asdict(self.settings), "rounds": rounds},
            dataset="data of the nodes",
            model="model of the app",
            clients=max(1, self.clients_per_round) * rounds if self.once else max(1, self.expected),
            participation="once" if self.once else "all",
            evaluate_every=self.evaluate_every,
            engine="nodes",
        ).to_toml()

    def _resume(self, known: Mapping[str, Any]) -> None:
        """Restore the checkpoint's options; raises ValueError if the options differ from then."""
        check_same(known, self._about(), self.rounds)
        self.name, self.seed = known["name"], known["seed"]
        if self.order is not None:
            self.order.resume(known["order"], self.state.round)
        self.silent = SilentNodes(known.get("silence"))
        self.settings = replace(
            self.settings,
            seed=self.seed,
            rounds=known["decay_rounds"] or self.settings.rounds,
            decay="linear" if known["decay_rounds"] else "none",
            bound=known["bound"],
            lr=self._given_rate(known["bound"]) or known["rate"],
        )

    # ------------------------------------------------------------ one round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each node of the round: the request, and the model or what changed."""
        if not self.name:
            self.prepare(grid, arrays, self.clients_per_round or self.min_nodes)
        numbers = self._cohort(grid)
        config.update({"server-round": server_round, **self.flowers.config})
        self._round = last = Round(state=self.state, started=time.perf_counter())
        model = wire.sent_record(self.structure, self.state.weights)
        model_digest = digest(self.state.weights)
        messages = []
        for node, number in numbers.items():
            task = task_for(number, self.settings, self.state)
            held = self._update is not None and self.holders.get(node) == self.state.round - 1
            request = Request(
                name=self.name,
                scheme=self.scheme_name,
                epsilon=self.epsilon,
                bits=self.bits,
                options=self.options,
                fingerprint=self.scheme.fingerprint,
                task=task,
                alpha=self.settings.alpha,
                beta=self.settings.beta,
                model=model_digest,
                base=self.state.round - 1 if held else -1,
                keep=self.downlink == "delta",
                by_slot=self.by_slot,
                types=self.structure.types,
            )
            content = RecordDict({wire.REQUEST: ConfigRecord(dict(request.to_fields())), wire.CONFIG: config})
            if held and self._update is not None:
                content[wire.UPDATE] = ConfigRecord(dict(self._update))
            else:
                content[wire.MODEL] = model
            # Flower does not check who sends a reply: whoever can guess a message's id, a hash, may answer.
            secret = secrets.token_hex(16)
            message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=secret)
            last.asked(node, task, message)
            messages.append(message)
        return messages

    @property
    def current(self) -> Round:
        """The round that was configured last."""
        if self._round is None:
            raise RuntimeError("no round was configured: call configure_train first")
        return self._round

    def _cohort(self, grid: Grid) -> Mapping[int, int]:
        """The round's nodes, each with its number: its identity, its slot, or as ``numbering`` says."""
        if self.order is not None:
            only = self.order.candidates(self.state.round)
            least = self.min_nodes
            if only is not None:
                least = min(enough_answers(self.min_answers, len(only)), len(only))
            nodes = wait_for_nodes(grid, least, self.wait_timeout, but=self.order.asked, only=only)
            return self.order.slots(self.state.round, nodes, self.rounds)
        nodes = wait_for_nodes(grid, self.min_nodes, self.wait_timeout)
        if self.numbering is not None:
            return self.numbering(self.state.round, nodes)
        least = enough_answers(self.min_answers, len(nodes))
        nodes = self.silent.removed_from(nodes, self.state.round, least)
        share = int(self.fraction_train * len(nodes))
        size = self.clients_per_round or max(1, share, self.min_train_nodes)
        return {node: node for node in draw(nodes, size, self.settings.seed, self.state.round)}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message | Answer]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Check each reply by itself, reject what is not a valid report, average the rest, and step."""
        last = self.current
        sort_answers(last, self.scheme, replies)
        before, paid = self.state, () if self.by_slot else last.may_have_paid
        if self.order is None:
            self.silent.update(last.state.round, last.tasks, [*last.silent, *last.invalid])
        else:
            self.order.done()
            last.name_slots()
        for entry in last.rejected:
            who = f"node {entry['node']}" if "node" in entry else f"slot {entry['slot']}"
            _LOG.warning("sqsgd: rejected %s: %s", who, entry["reason"])
        least = enough_answers(self.min_answers, len(last.tasks))
        enough = len(last.reports) >= least
        self.tally.add(enough, last.rejected)
        if not self.tally.stepped:
            last.check_private()
        if enough:
            after, last.record = server_step(self.scheme, self.settings, before, last.opened, paid=paid)
        else:
            after = before.after(paid)
            last.record = make_record(self.scheme, before, after)
            _LOG.warning(
                "sqsgd: round %s had %s answers, and needs %s: the model is unchanged",
                before.round, len(last.reports), least,
            )  # fmt: skip
        self.state = after
        if self.downlink == "delta":
            reports = last.reports if enough else []
            rate = self.settings.rate_at(before.round)
            self._update = smallest_update(rate, reports, before.weights, after.weights)
            self.holders = dict.fromkeys(last.accepted, before.round)
        answers = MetricRecord({"answers": len(last.reports)})
        return wire.model_record(self.structure, self.state.weights), answers

    def record(self, **measured: Any) -> Record:
        """The record of the last round; sizes are the means over its messages."""
        last = self.current
        # A serialised message names its node: where slots hide nodes, sizes would tell some of them apart.
        named = not self.by_slot
        if last.record is None:
            raise RuntimeError("no answers were averaged: call aggregate_train first")
        return replace(
            last.record,
            clients=len(last.reports),
            refused=sum(entry["reason"] in (SPENT, LEDGER) for entry in last.rejected),
            **last.sizes(named),
            seconds=time.perf_counter() - last.started,
            **{"seconds_gradient": None, "seconds_encode": None, **measured},
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """One message for each node that is asked for one private number; none by default."""
        return self.evaluation.messages(self, server_round, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message | Answer]
    ) -> MetricRecord | None:
        """The mean of the private numbers, with an interval."""
        return self.evaluation.mean(replies)

    def summary(self) -> None:
        """Log what a report holds and costs, and warn if rounds cannot suffice, once the model is known."""
        plan = self.rounds, self.evaluation.planned(self.rounds)
        for level, text in outlook(self.scheme, self.expected, *plan) if self.name else ():
            _LOG.log(level, "sqsgd: %s", text)

    # ------------------------------------------------------------ all rounds

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
        """
        self.rounds = checks.integer("num_rounds", num_rounds, 0, 2**31)
        timeout = checks.real("timeout", timeout, 0.0, 1e9)
        result = Result()
        with contextlib.ExitStack() as stack:
            if self.folder is not None:
                stack.enter_context(self.folder.held())
            nodes = wait_for_nodes(grid, self.min_nodes, self.wait_timeout)
            self.prepare(grid, initial_arrays, self.clients_per_round or len(nodes))
            if self.folder is not None:
                self.folder.keep_rounds(self.state.round)
                self.tally = Tally.of(self.folder.lines)
                self.evaluation.resume(self.folder.lines)
            self.evaluation.config = evaluate_config or ConfigRecord()
            self.summary()
            result.arrays = wire.model_record(self.structure, self.state.weights)
            if evaluate_fn is not None and self.state.round == 0:
                measured = evaluate_fn(0, result.arrays)
                if measured is not None:
                    result.evaluate_metrics_serverapp[0] = measured
            while self.state.round < self.rounds:
                self._one_round(grid, timeout, train_config or ConfigRecord(), evaluate_fn, result)
                self.tally.check(self.current.counted)
            self.tally.check_trained()  # before anything is written that would pass for a trained model
            if self.folder is not None:
                arrays = {name: array.numpy() for name, array in result.arrays.items()}
                self.folder.finish(arrays, self._summarise(self.folder.lines))
            if self.order is not None:
                self.order.finish()
        return result

    def _one_round(
        self,
        grid: Grid,
        timeout: float,
        config: ConfigRecord,
        evaluate: Evaluate | None,
        result: Result,
    ) -> None:
        """Ask, gather, step, measure, save."""
        number = self.state.round + 1  # Flower counts from one
        messages = self.configure_train(number, result.arrays, config, grid)
        last = self.current
        last.timeout = timeout
        answers = exchange(grid, messages, timeout, self.scheme.bits // 8)
        result.arrays, result.train_metrics_clientapp[number] = self.aggregate_train(number, answers)
        line = self.record().to_dict()
        line |= {"asked": len(last.tasks), "rejected": last.rejected, "models_sent": last.whole}
        line |= {"stepped": self.tally.empty == 0, **last.totals}
        if evaluate is not None and (number == self.rounds or number % self.evaluate_every == 0):
            measured = evaluate(number, result.arrays)
            if measured is not None:
                result.evaluate_metrics_serverapp[number] = measured
                line |= {key: value for key, value in measured.items() if isinstance(value, int | float)}
        _LOG.info(
            "sqsgd: round %s of %s: %s answers, %s rejected%s, %.1f s",
            number, self.rounds, len(last.reports), len(last.rejected),
            f", accuracy {line['accuracy']:.4f}" if "accuracy" in line else "", line["seconds"],
        )  # fmt: skip
        self.evaluation.ask(self, grid, number, timeout, result, line)
        if self.folder is not None:
            self.folder.write({name: worded(value) for name, value in line.items()})
            self.folder.save(self.state, self._about())

    def _summarise(self, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        once: dict[str, Any] = {}
        if self.order is not None:
            slots = self.rounds * self.clients_per_round
            once = about_once(self.scheme, self.order.scope or "round", lines, seeded=False, slots=slots)
            _LOG.info("sqsgd: %s", once["central_note"])
        return summarise(
            lines,
            self.scheme,
            replace(self.settings, rounds=self.rounds),
            once=self.once,
            task=self.name,
            downlink=self.downlink,
            **self.tally.totals(lines),
            **self.evaluation.summary,
            **once,
        )
