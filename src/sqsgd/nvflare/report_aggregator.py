"""The server's side: an aggregator for NVFlare's ``ScatterAndGather``."""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from sqsgd import checks, training
from sqsgd.codec import Columns, MalformedReport
from sqsgd.core import Scheme
from sqsgd.node.reasons import REASONS
from sqsgd.node.request import Request
from sqsgd.node.structure import Structure, digest, flatten
from sqsgd.nvflare import shareables
from sqsgd.schemes import check_name, make_scheme
from sqsgd.training import Settings, State
from sqsgd.training.algorithm import enough_answers, server_step, task_for
from sqsgd.training.rates import change_rate, learning_rate


class NoAnswers(RuntimeError):
    """A round had too few valid reports."""


class SqsgdAggregator(Aggregator):
    """Asks for private reports and averages them, under ``ScatterAndGather`` with a full-model generator.

    ``epsilon`` and ``bytes`` are the budgets of one report; ``scheme`` and ``options`` as in
    ``sqsgd.make_scheme``. ``lr``: the server's learning rate for the changes that executors made to the
    model; None: a rate for this scheme and number of clients. A round with fewer than ``min_answers`` valid
    reports (0: half of the clients that answered or refused) stops the job, with the most frequent reason.

    Guarantees
    ----------
    * Each answer is checked by itself; an invalid one is rejected, and none counts twice:
      tests/nvflare/test_report_aggregator.py::test_an_invalid_answer_is_rejected.
    * A round without answers, or with few of many, stops the job:
      tests/nvflare/test_report_aggregator.py::test_a_round_without_answers_stops_the_job,
      ::test_one_report_of_many_does_not_move_the_model.
    """

    def __init__(
        self,
        epsilon: float = 400.0,
        bytes: int = 256,
        scheme: str = "sqsgd",
        options: Mapping[str, Any] | None = None,
        lr: float | None = None,
        optimizer: str = "sgd",
        bound: float | None = None,
        clip: float | None = None,
        min_answers: int = 0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_name("scheme", scheme)
        # NVFlare writes a job's configuration from attributes that bear the arguments' names.
        self.epsilon = checks.real("epsilon", epsilon, 0.01, 1e5)
        self.bytes = checks.integer("bytes", bytes, 1, 2**37)
        self.scheme, self.options = scheme, dict(options or {})
        self.lr = None if lr is None else checks.positive("lr", lr)
        self.optimizer, self.bound, self.clip, self.seed = optimizer, bound, clip, seed
        self.min_answers = checks.integer("min_answers", min_answers, 0, 2**31)
        self._lock = threading.Lock()
        self._state: State | None = None
        self._reports: dict[int, Columns] = {}
        self._heard: set[int] = set()
        self._reasons: Counter[str] = Counter()

    # ------------------------------------------------------------ down

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Put the request into the data of a training task, before its first copy is sent."""
        if event_type != AppEventType.BEFORE_TRAIN_TASK:
            return
        task_data = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
        try:
            with self._lock:
                if not shareables.request_fields(task_data):
                    shareables.write_request(task_data, self._request(task_data, fl_ctx))
        except Exception as error:
            # NVFlare would log it and send the task without a request, which every client refuses.
            self.system_panic(f"sqsgd: {error}", fl_ctx)

    def _request(self, task_data: Shareable, fl_ctx: FLContext) -> Request:
        if self._state is None:
            clients = len(fl_ctx.get_engine().get_clients())
            self._prepare(*flatten(shareables.model_of(task_data)), clients, fl_ctx.get_job_id())
        state = self._begun
        return Request(
            name=self._name,
            scheme=self.scheme,
            epsilon=self.epsilon,
            bits=8 * self.bytes,
            options=self.options,
            fingerprint=self._scheme.fingerprint,
            task=task_for(0, self._settings, state),  # each client puts its own number in place of 0
            model=digest(state.weights),
            types=self._structure.types,
        )

    def _prepare(self, structure: Structure, weights: checks.Vector, clients: int, job: str) -> None:
        self._structure: Structure = structure
        self._scheme: Scheme = make_scheme(
            self.scheme, dim=structure.dim, epsilon=self.epsilon, bits=8 * self.bytes, **self.options
        )
        bound = self.bound or self._scheme.first_bound
        if self._scheme.follows_norms:
            rate = change_rate(self._scheme, clients, self.optimizer)
        else:  # a rate that does not fall is half as large
            rate = 0.5 * learning_rate(self._scheme, clients, self.optimizer, bound=bound)
        self._scheme.check_clip(self.clip)
        self._settings: Settings = Settings(
            scheme=self.scheme,
            epsilon=self.epsilon,
            bytes=self.bytes,
            options=self.options,
            seed=secrets.randbits(64) if self.seed is None else self.seed,
            lr=self.lr or rate,
            optimizer=self.optimizer,
            decay="none",
            bound=bound,
            clip_norm=self.clip or 0.0,
            secure=True,
        )
        # Every run of NVFlare's simulator has the same job id.
        self._name = f"{self.scheme} {job} {self._settings.seed:016x}"
        self._state = training.initial_state(weights, self._settings)

    @property
    def _begun(self) -> State:
        if self._state is None:
            raise NoAnswers("no training task was sent: SqsgdAggregator needs the workflow ScatterAndGather")
        return self._state

    # ------------------------------------------------------------ up

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Whether an answer is a valid report of this round; whatever it holds, the round continues."""
        name = fl_ctx.get_peer_context().get_identity_name()
        with self._lock:
            try:
                client = shareables.client_number(name)
                self._heard.add(client)
                if client in self._reports:
                    raise MalformedReport("twice", "has answered this round already")
                task = task_for(client, self._settings, self._begun)
                self._reports[client] = self._scheme.open(self._payload(shareable), task)
            except Exception as error:
                known = isinstance(error, MalformedReport)
                reason = str(error) if known else f"unreadable ({type(error).__name__})"
                self._reasons[reason] += 1
                self.log_warning(fl_ctx, f"sqsgd: rejected {name}: {reason}")
                return False
        return True

    def _payload(self, answer: Shareable) -> bytes:
        reason = answer.get(shareables.REASON)
        if reason is not None:
            raise MalformedReport("error", reason if reason in REASONS else "an unknown reason")
        payload, size = answer.get(shareables.REPORT), self._scheme.bits // 8
        if payload is None:
            raise MalformedReport("records", "the answer is not a report; does the client use SqsgdFilter?")
        if not isinstance(payload, bytes) or len(payload) != size:
            raise MalformedReport("length", f"the report must be {size} bytes")
        return payload

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Average the round's reports and move the model; raises NoAnswers, which stops the job."""
        with self._lock:
            state, count = self._begun, len(self._reports)
            reasons = "".join(f" ({times}: {reason})" for reason, times in self._reasons.most_common(1))
            least = enough_answers(self.min_answers, len(self._heard))
            if count < least:
                raise NoAnswers(
                    f"round {state.round} had {count} valid reports, fewer than min_answers = "
                    f"{least}{reasons}: see refusals.jsonl in the clients' state_dir"
                )
            # sums of floats depend on the order, arrival does not decide it
            opened = [
                (task_for(client, self._settings, state), columns, 1.0)
                for client, columns in sorted(self._reports.items())
            ]
            self._state, record = server_step(self._scheme, self._settings, state, opened)
            self.log_info(
                fl_ctx,
                f"sqsgd: round {state.round}: {count} reports of {self._scheme.bits // 8} bytes{reasons}; "
                f"epsilon {record.epsilon_total:g} so far at the client with the most reports",
            )
            self._reports, self._heard, self._reasons = {}, set(), Counter()
            return shareables.model_shareable(self._structure, self._state.weights)
