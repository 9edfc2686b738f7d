"""The fixed sentences that a node sends in place of a report."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from sqsgd.node.answer import RoundAnswered
from sqsgd.node.downlink import ModelMissing
from sqsgd.node.notes import note, shortened
from sqsgd.node.policy import Misfit, Refused
from sqsgd.node.request import MalformedRequest
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, ReportRefused

FAILED = "the node failed; its own log says why"
NEEDS_MODEL = "the node needs the whole model"
NOT_ALLOWED = "the node refused: its owner does not allow this"
MALFORMED = "the node refused: the request is malformed"
ANSWERED = "the node refused: the round was answered before"
SPENT = "the node refused: its privacy budget is spent"
LEDGER = "the node refused: its ledger does not allow it"
MISFIT = "the node refused: without data, the app's reply does not fit the model"
REASONS = (FAILED, NEEDS_MODEL, NOT_ALLOWED, MALFORMED, ANSWERED, SPENT, LEDGER, MISFIT)
"""All that a node ever says in place of a report: none depends on data, the details are in its own log."""
UNPAID = (NEEDS_MODEL, NOT_ALLOWED, MALFORMED, SPENT, LEDGER, MISFIT)
"""After these a node has spent nothing on the round."""

_REASONS_OF: tuple[tuple[type[BaseException], str], ...] = (
    (ModelMissing, NEEDS_MODEL),
    (MalformedRequest, MALFORMED),
    (RoundAnswered, ANSWERED),
    (AlreadyAnswered, ANSWERED),
    (BudgetSpent, SPENT),
    (ReportRefused, LEDGER),
    (Misfit, MISFIT),
    (Refused, NOT_ALLOWED),
)


def explain(
    error: BaseException, asked: Mapping[str, object], node_config: Mapping[str, object], log: logging.Logger
) -> str:
    """The reason for the server; the details go to the owner's log and, for a refusal, to its folder.

    ``asked`` has the fields of the request as they arrived, malformed or not.
    """
    reason = next((reason for kind, reason in _REASONS_OF if isinstance(error, kind)), FAILED)
    if reason == FAILED:  # the text may hold data: it stays here
        log.error("sqsgd: the round failed at this node; the server is told only that it did", exc_info=error)
    elif reason == NEEDS_MODEL:
        log.info("sqsgd: %s", error)
    else:
        log.warning("sqsgd: refused: %s", shortened(str(error)))
        about = {"task": asked.get("name"), "round": asked.get("round")}
        entry = {**about, "reason": str(error), "told": reason}
        folder = node_config.get("state-dir")
        if isinstance(folder, str) and Path(folder).is_absolute():
            try:
                note(Path(folder), "refusals", entry)
            except (OSError, TypeError, ValueError):
                log.exception("sqsgd: the refusal could not be written to %s", folder)
    return reason
