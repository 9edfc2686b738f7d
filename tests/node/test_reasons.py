"""What a server is told in place of a report, and what stays with the owner."""

import json
import logging
from fractions import Fraction
from pathlib import Path

import pytest

from sqsgd.node import reasons
from sqsgd.node.answer import RoundAnswered
from sqsgd.node.downlink import ModelMissing
from sqsgd.node.policy import Misfit, Refused
from sqsgd.node.request import MalformedRequest
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, LedgerDamaged

SPENT = BudgetSpent(path=Path("ledger"), asked=Fraction(2), spent=Fraction(1), cap=Fraction(2))
ERRORS = [
    (ModelMissing("Eve"), reasons.NEEDS_MODEL),
    (MalformedRequest("Eve"), reasons.MALFORMED),
    (RoundAnswered("Eve", 1, 2), reasons.ANSWERED),
    (AlreadyAnswered(path=Path("Eve"), task="a", round=1), reasons.ANSWERED),
    (SPENT, reasons.SPENT),
    (LedgerDamaged("Eve"), reasons.LEDGER),
    (Refused("Eve"), reasons.NOT_ALLOWED),
    (Misfit("Eve"), reasons.MISFIT),
    (ValueError("Eve"), reasons.FAILED),
    (SystemExit("Eve"), reasons.FAILED),
]


@pytest.mark.parametrize(("error", "reason"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_has_a_fixed_reason(tmp_path, caplog, error, reason):
    asked, owner = {"name": "test", "round": 7}, {"state-dir": str(tmp_path)}
    with caplog.at_level("INFO"):
        assert reasons.explain(error, asked, owner, logging.getLogger("node")) == reason
    assert str(error) in caplog.text
    noted = tmp_path / "refusals.jsonl"
    assert noted.exists() == (reason not in (reasons.FAILED, reasons.NEEDS_MODEL))
    if noted.exists():
        line = json.loads(noted.read_text())
        assert (line["task"], line["round"], line["reason"]) == ("test", 7, str(error))


def test_every_reason_is_listed():
    assert {reason for _, reason in ERRORS} == set(reasons.REASONS)
    assert set(reasons.UNPAID) == set(reasons.REASONS) - {reasons.FAILED, reasons.ANSWERED}
