"""The server's side: an aggregator for NVFlare's ``ScatterAndGather``."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.aggregator import Aggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType

from sqsgd import training
from sqsgd._internal import checks
from sqsgd.core.codec import Columns, MalformedReport
from sqsgd.federation.node import server
from sqsgd.federation.node.request import Request
from sqsgd.federation.node.server import FederationSettings, NoAnswers
from sqsgd.federation.node.structure import flatten, untrained
from sqsgd.federation.nvflare import client
from sqsgd.training import State
from sqsgd.training.algorithm import enough_answers, server_step, task_for


class SqsgdAggregator(Aggregator):
    """Asks for private reports and averages them, under ``ScatterAndGather`` with a full-model generator.

    Args:
      min_answers: a round with fewer valid reports stops the job; 0: half of the clients heard of.
      epsilon, ...: as in ``sqsgd.federation.node.server.FederationSettings``.

    Guarantees
    ----------
    * Invalid answers do not count, and valid ones count once:
      tests/nvflare/test_aggregator.py::test_an_invalid_answer_is_rejected.
    * A round without answers, or with few of many, stops the job:
      tests/nvflare/test_aggregator.py::test_a_round_without_answers_stops_the_job,
      ::test_one_report_of_many_does_not_move_the_model.
    """

    def __init__(
        self,
        epsilon: float,
        bytes: int = 0,
        scheme: str = "auto",
        options: Mapping[str, Any] | None = None,
        lr: float = 0.0,
        optimizer: str = "sgd",
        bound: float = 0.0,
        clip_norm: float = 0.0,
        min_answers: int = 0,
        seed: int | None = None,
        unit: str = "client",
        delta: float = 1e-5,
        records: float = 0.0,
    ) -> None:
        super().__init__()
        self.min_answers = checks.integer("min_answers", min_answers, 0, 2**31)
        asked: dict[str, Any] = {
            "epsilon": epsilon, "bytes": bytes, "scheme": scheme, "options": dict(options or {}), "lr": lr,
            "optimizer": optimizer, "bound": bound, "clip_norm": clip_norm, "seed": seed, "unit": unit,
            "delta": delta, "records": records,
        }  # fmt: skip
        self.__dict__.update(asked)  # from which NVFlare writes a job's configuration
        self._asked_for = FederationSettings(**asked)
        self._lock = threading.Lock()
        self._state: State | None = None
        self._reports: dict[int, Columns] = {}
        self._heard: set[int] = set()
        self._reasons: Counter[str] = Counter()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Put the request into the data of a training task, before its first copy is sent."""
        if event_type != AppEventType.BEFORE_TRAIN_TASK:
            return
        task_data = fl_ctx.get_prop(AppConstants.TRAIN_SHAREABLE)
        try:
            with self._lock:
                if not client.request_fields(task_data):
                    client.write_request(task_data, self._request(task_data, fl_ctx))
        except Exception as error:
            # NVFlare would log it and send the task without a request, which every client refuses.
            self.system_panic(f"sqsgd: {error}", fl_ctx)

    def _request(self, task_data: Shareable, fl_ctx: FLContext) -> Request:
        if self._state is None:
            self._structure, weights = flatten(client.model_of(task_data))
            asked, clients = self._asked_for, len(fl_ctx.get_engine().get_clients())
            per_record = asked.unit == "record"
            if per_record:  # ε is of all rounds
                if not (rounds := task_data.get_header(AppConstants.NUM_ROUNDS)):
                    raise ValueError(
                        "unit = 'record' needs the number of rounds, which ScatterAndGather sends"
                    )
                asked = replace(asked, rounds=rounds)
            for note in untrained(self._structure, per_record=per_record):
                self.log_warning(fl_ctx, f"sqsgd: {note}")
            self._scheme = asked.make_scheme(self._structure.dim)
            self._settings = asked.for_rounds(self._scheme, clients=clients, rounds=0)
            # Every run of NVFlare's simulator has the same job id.
            self._name = f"{self._scheme.name} {fl_ctx.get_job_id()} {self._settings.seed:016x}"
            self._state = training.initial_state(weights, self._settings)
        task = task_for(0, self._settings, self._state)  # each client puts its own number in place of 0
        digest = self._structure.digest(self._state.weights)
        return server.make_request(self._scheme, self._settings, task, self._name, digest)

    @property
    def _begun(self) -> State:
        if self._state is None:
            raise NoAnswers("no training task was sent: SqsgdAggregator needs the workflow ScatterAndGather")
        return self._state

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Return whether an answer is a valid report of this round; the round continues either way."""
        name = fl_ctx.get_peer_context().get_identity_name()
        with self._lock:
            try:
                number = client.client_number(name)
                self._heard.add(number)
                if number in self._reports:
                    raise MalformedReport("twice", "has answered this round already")
                task = task_for(number, self._settings, self._begun)
                self._reports[number] = server.open_report(self._scheme, _payload(shareable), task)
            except Exception as error:
                reason = server.rejection(error)
                self._reasons[reason] += 1
                self.log_warning(fl_ctx, f"sqsgd: rejected {name}: {reason}")
                return False
        return True

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """Average the round's reports and move the model. Raises NoAnswers, which stops the job."""
        with self._lock:
            state, count = self._begun, len(self._reports)
            reasons = "".join(f" ({times}: {reason})" for reason, times in self._reasons.most_common(1))
            least = enough_answers(self.min_answers, len(self._heard))
            if count < least:
                few = f"{count} valid reports, fewer than min_answers = {least}{reasons}"
                raise NoAnswers(f"round {state.round} had {few}: see the clients' refusals.jsonl")
            ordered = sorted(self._reports.items())  # sums of floats depend on the order
            opened = [(task_for(number, self._settings, state), columns, 1.0) for number, columns in ordered]
            self._state, record = server_step(self._scheme, self._settings, state, opened)
            self.log_info(
                fl_ctx,
                f"sqsgd: round {state.round}: {count} reports of {self._scheme.bits // 8} bytes{reasons}; "
                f"epsilon {record.epsilon_total:g} so far at the client with the most reports",
            )
            self._reports, self._heard, self._reasons = {}, set(), Counter()
            return DXO(DataKind.WEIGHTS, data=self._structure.sent(self._state.weights)).to_shareable()


def _payload(answer: Shareable) -> object:
    """Return the payload of an answer. Raises MalformedReport with a client's reason, if it is one."""
    if (reason := answer.get(client.REASON)) is not None:
        raise MalformedReport("error", server.known_reason(reason, "an unknown reason"))
    if client.REPORT not in answer:
        raise MalformedReport("records", "the answer is not a report; does the client use SqsgdFilter?")
    return answer[client.REPORT]
