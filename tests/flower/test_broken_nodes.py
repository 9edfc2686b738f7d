"""The tests of what a node promises fail on nodes that were broken on purpose."""

import contextlib

import numpy as np
import pytest
import test_answers
import test_failing_apps
import test_mod
import test_node_state
import test_policy
import test_record_unit
from flwr.app import MetricRecord

from sqsgd import seeded_rng
from sqsgd.core.task import Task
from sqsgd.federation.flower import SqsgdMod, wire
from sqsgd.federation.node import answer
from sqsgd.federation.node import request as node_request
from sqsgd.federation.node.answer import FolderState, Node
from sqsgd.federation.node.policy import Policy
from sqsgd.learning import records


def pays_nothing(patch):
    patch.setattr(FolderState, "pay", lambda *_: None)


def forgets_the_round(patch):
    patch.setattr(Node, "_check_terms", lambda *_: None)


def draws_seeded_noise(patch):
    patch.setattr(answer, "secure_rng", lambda: seeded_rng(1))


def believes_every_scheme(patch):
    patch.setattr(Policy, "check", lambda *_: None)


def believes_every_key(patch):
    read = wire.read_request

    def lenient(record):
        for key in [key for key in record if key not in node_request._FIELDS]:
            del record[key]
        return read(record)

    patch.setattr(wire, "read_request", lenient)


def sends_the_loss_along(patch):
    report_content = wire.report_content

    def more(payload):
        content = report_content(payload)
        content["metrics"] = MetricRecord({"loss": 1.5})
        return content

    patch.setattr(wire, "report_content", more)


def pays_after_the_app(patch):
    """As one did that took the money for the report alone."""
    train, pay, due = SqsgdMod._train, FolderState.pay, []

    def trained(*arguments):
        gradient = train(*arguments)
        pay(*due.pop())
        return gradient

    patch.setattr(FolderState, "pay", lambda *arguments: due.append(arguments))
    patch.setattr(SqsgdMod, "_train", staticmethod(trained))


def lets_exceptions_out(patch):
    patch.setattr(SqsgdMod, "__call__", lambda self, msg, context, call_next: call_next(msg, context))


def raises_the_cap(patch):
    from sqsgd import Ledger

    def reopened(self, policy):
        for path in self.folder.glob("ledger*"):
            path.unlink()
        return Ledger.create(self.folder / "ledger", max_epsilon=policy.max_epsilon)

    patch.setattr(FolderState, "open_ledger", reopened)


def uses_every_record(patch):
    patch.setattr(records, "sampled", lambda count, *_: np.arange(count))


def forgets_the_turn(patch):
    turns = Node._turns
    patch.setattr(Node, "_turns", lambda *known: {k: v for k, v in turns(*known).items() if k == "key"})


def takes_the_apps_gradient(patch):
    def named(asked):
        asked.total = asked.scheme.record_sum(asked.request.task)
        asked.total.add(np.full((1, asked.total.dim), 0.05, np.float32))
        return contextlib.nullcontext()

    patch.setattr(answer, "asking", named)


def ends_with_a_failing_record(patch):
    _by_record = records._by_record
    patch.setattr(records, "_by_record", lambda *known: _by_record(*known[:-1], None))


def binds_to_no_task(patch):
    patch.setattr(Task, "binding", b"")


@pytest.mark.parametrize(
    ("broken", "test", "arguments"),
    [
        (pays_nothing, test_mod.test_the_cap_holds_over_trainings, ()),
        (forgets_the_round, test_mod.test_a_round_is_answered_once, ()),
        (forgets_the_round, test_mod.test_a_training_does_not_become_weaker, ({"epsilon": 201.0},)),
        (draws_seeded_noise, test_mod.test_no_request_gets_seeded_noise, ()),
        (
            believes_every_key,
            test_mod.test_malformed_requests_are_refused_and_noted,
            ({"simulate-seed": 3}, "unknown key"),
        ),
        (sends_the_loss_along, test_mod.test_nothing_else_leaves, ()),
        (lets_exceptions_out, test_failing_apps.test_an_exception_tells_nothing, (RuntimeError, None)),
        (pays_after_the_app, test_failing_apps.test_paid_before_the_app_runs, ()),
        (pays_after_the_app, test_failing_apps.test_nothing_is_computed_on_a_spent_budget, ()),
        (raises_the_cap, test_node_state.test_the_cap_cannot_be_raised_and_can_be_lowered, ()),
        (takes_the_apps_gradient,
         test_record_unit.test_an_app_that_sums_other_records_has_a_report_of_nothing,
         ("nothing",)),
        (forgets_the_turn, test_record_unit.test_records_that_change_within_a_turn_are_not_used,
         (lambda x: x[::-1],)),
        (ends_with_a_failing_record,
         test_record_unit.test_one_wrong_record_is_left_out_and_the_owner_alone_is_told, (None,)),
        (binds_to_no_task, test_answers.test_a_report_fits_its_own_task_only, ()),
    ],
)  # fmt: skip
def test_a_broken_node_is_found(tmp_path, monkeypatch, broken, test, arguments):
    broken(monkeypatch)
    # A ValueError is Flower's: a message without an error was asked for it, because the node had answered.
    failures = (AssertionError, KeyError, RuntimeError, ValueError, pytest.fail.Exception)
    with pytest.raises(failures, match=r"assert|error|Eve|payload|DID NOT RAISE"):
        test(tmp_path, *arguments)


def test_a_node_that_uses_all_records_at_the_price_of_a_sample_is_found(tmp_path, monkeypatch):
    uses_every_record(monkeypatch)
    with pytest.raises(AssertionError):
        test_record_unit.test_a_node_draws_its_own_batches(tmp_path, monkeypatch)


def test_a_node_that_believes_every_scheme_is_found(monkeypatch):
    believes_every_scheme(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        test_policy.test_other_notions_are_refused_even_where_the_owner_lists_the_scheme("fedsgd", {}, "none")
