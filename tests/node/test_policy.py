"""What a node's owner decides, what a server is told instead of a report, and what the owner can read."""

import json
import logging
from fractions import Fraction
from pathlib import Path

import pytest
from asking import ask, lines, request

from sqsgd import Ledger, make_scheme
from sqsgd.core import Privacy
from sqsgd.federation.node import policy as node_policy
from sqsgd.federation.node.policy import Policy, Refused, RoundAnswered
from sqsgd.federation.node.request import MalformedRequest, NotAsked
from sqsgd.privacy.ledger import AlreadyAnswered, BudgetSpent, LedgerDamaged

OWNER = {"state-dir": "/nowhere", "max-epsilon": 1000, "max-epsilon-per-report": 250.0}


def policy(**changes) -> Policy:
    return Policy.of({**OWNER, **{k.replace("_", "-"): v for k, v in changes.items()}}, simulation=False)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": 250.1}, "max-epsilon-per-report"),
        ({"scheme": "sqsgd-paper"}, "not among"),
        ({"scheme": "fedsgd", "fingerprint": 0}, "not among"),
        ({"scheme": "nonsense", "fingerprint": 0}, "not among"),
        ({"options": {"levels": 1}, "fingerprint": 0}, "cannot be made"),
        ({"options": {"rng": 7}, "fingerprint": 0}, "no such option"),
        ({"options": {"norm_epsilon": 1e9}, "fingerprint": 0}, "cannot be made"),
        ({"fingerprint": 1}, "fingerprint"),
        ({"bytes": -5, "fingerprint": 1}, "cannot be made"),
        ({"epsilon": float("nan"), "fingerprint": 1}, "max-epsilon-per-report"),
    ],
)
def test_what_the_owner_did_not_allow_is_refused(changes, word):
    with pytest.raises(Refused, match=word):
        policy().scheme(request(**changes))


@pytest.mark.parametrize(
    ("scheme", "options", "notion"),
    [("fedsgd", {}, "none"), ("cpsgd", {}, "central")],
)
def test_other_notions_are_refused_even_where_the_owner_lists_the_scheme(scheme, options, notion):
    allowing = policy(schemes=f"sqsgd, {scheme}")
    with pytest.raises(Refused, match=notion):
        allowing.scheme(request(scheme=scheme, options=options))


def test_a_guarantee_in_real_arithmetic_is_not_enough():
    with pytest.raises(Refused, match="real arithmetic"):
        policy(schemes="privunit").scheme(request(scheme="privunit", bytes=1 << 17))


def test_the_nodes_own_scheme_decides(monkeypatch):
    """A scheme that spends more than the request states is refused, by its own epsilon."""
    honest = make_scheme("sqsgd", dim=300, epsilon=240.0, bytes=32)
    with pytest.raises(Refused, match="more than the stated"):
        policy().check(honest, request(epsilon=200.0, fingerprint=honest.fingerprint))
    approximate = Privacy(epsilon=1.0, notion="local", delta=1e-9)
    monkeypatch.setattr(type(honest.mechanism), "privacy", approximate)
    leaky = make_scheme("sqsgd", dim=300, epsilon=200.0, bytes=32)
    with pytest.raises(Refused, match="delta"):
        policy().check(leaky, request())


@pytest.mark.parametrize("missing", ["state-dir", "max-epsilon"])
def test_without_a_folder_or_a_cap_nothing_is_answered(missing):
    config = {key: value for key, value in OWNER.items() if key != missing}
    with pytest.raises(Refused, match=f"{missing} is not set"):
        Policy.of(config, simulation=False)
    assert Policy.of(config, simulation=True)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"state_dir": "relative/folder"}, "absolute"),
        ({"max_epsilon": float("inf")}, "max-epsilon"),
        ({"max_epsilon_per_report": 0.0}, "max-epsilon-per-report"),
        ({"max_bytes": 2.5}, "max-bytes"),
        ({"min_batch": "8"}, "min-batch"),
        ({"schemes": "sqsgd,sqsdg"}, "did you mean"),
        ({"require_ledger": "yes"}, "require-ledger = 'yes' must be true or false"),
        ({"witness": "tip"}, "witness = 'tip' must be an absolute path"),
        ({"witness": "/nowhere/ledger.tip"}, "is in state-dir: name a file on another disk"),
    ],
)
def test_a_wrong_configuration_answers_nothing(changes, word):
    with pytest.raises(Refused, match=word):
        policy(**changes)


@pytest.mark.parametrize(
    ("key", "meant"),
    [("min_batch", "min-batch"), ("max_bytes", "max-bytes"), ("Max-Bytes", "max-bytes"),
     ("max-epsilon-per-raport", "max-epsilon-per-report"), ("scheme", "schemes"),
     ("require_ledger", "require-ledger"), ("batch-min", "min-batch"), ("min-batch-size", "min-batch"),
     ("max-epsilon-report", "max-epsilon-per-report"), ("epsilon-per-report", "max-epsilon-per-report"),
     ("max-eps-per-report", "max-epsilon-per-report"), ("witnes", "witness"), ("statedir", "state-dir")],
)  # fmt: skip
def test_a_misspelt_limit_answers_nothing(key, meant):
    with pytest.raises(Refused, match=f"{key} is unknown; did you mean {meant}"):
        Policy.of({**OWNER, key: 32}, simulation=False)


def test_keys_of_apps_are_left_to_them():
    keys = ("partition-id", "num-partitions", "dataset", "model", "data-path", "batch", "max-steps", "state")
    for key in keys:
        assert Policy.of({**OWNER, key: 1}, simulation=False) == policy()


def test_the_owner_decides_how_much_is_asked():
    owner = policy(max_bytes=32, min_batch=16)
    assert owner.scheme(request(bytes=32)).privacy.epsilon <= 200.0
    with pytest.raises(Refused, match=r"bytes = 33 is above this node's max-bytes = 32"):
        owner.scheme(request(bytes=33))
    for allowed in (None, 16, 17):
        owner.check_batch(allowed)
    for few in (15, 1, 0, -1):
        with pytest.raises(Refused, match=f"batch = {few} is below this node's min-batch = 16"):
            owner.check_batch(few)
    for any_batch in (1, 0, -1):  # without a limit of its owner's
        policy().check_batch(any_batch)


SPENT = BudgetSpent(Path("ledger"), Fraction(2), Fraction(1), Fraction(2), "epsilon")
ERRORS = [
    (MalformedRequest("Eve"), node_policy.MALFORMED),
    (NotAsked("Eve"), node_policy.NOT_ASKED),
    (RoundAnswered("Eve"), node_policy.ANSWERED),
    (AlreadyAnswered("round 1 of the task a"), node_policy.ANSWERED),
    (SPENT, node_policy.SPENT),
    (LedgerDamaged("Eve"), node_policy.LEDGER),
    (Refused("Eve"), node_policy.NOT_ALLOWED),
    (ValueError("Eve"), node_policy.FAILED),
    (SystemExit("Eve"), node_policy.FAILED),
]


@pytest.mark.parametrize(("error", "reason"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_error_has_a_fixed_reason(tmp_path, caplog, error, reason):
    asked, owner = {"name": "test", "round": 7}, {"state-dir": str(tmp_path)}
    with caplog.at_level("INFO"):
        assert node_policy.explain(error, asked, owner, logging.getLogger("node")) == reason
    assert str(error) in caplog.text
    noted = tmp_path / "refusals.jsonl"
    assert noted.exists() == (reason != node_policy.FAILED)
    if noted.exists():
        line = json.loads(noted.read_text())
        assert (line["task"], line["round"], line["reason"]) == ("test", 7, str(error))


def test_every_reason_is_listed():
    assert {reason for _, reason in ERRORS} == set(node_policy.REASONS)
    assert set(node_policy.UNPAID) == set(node_policy.REASONS) - {node_policy.FAILED, node_policy.ANSWERED}


def test_refusals_end_at_a_size_and_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr(node_policy, "MAX_BYTES", 3000)
    for number in range(60):
        assert isinstance(ask(tmp_path, request(round=number), schemes="privunit-index"), str)
    assert 3000 <= (tmp_path / "refusals.jsonl").stat().st_size < 4000
    noted = lines(tmp_path / "refusals.jsonl")
    assert ["full" in line for line in noted] == [False] * (len(noted) - 1) + [True]


def test_repeats_end_at_a_size_and_paid_answers_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(node_policy, "MAX_BYTES", 1500)
    for _ in range(40):
        assert isinstance(ask(tmp_path, request()), bytes)
    full = (tmp_path / "answers.jsonl").stat().st_size
    assert 1500 <= full < 2200
    for number in range(1, 4):
        assert isinstance(ask(tmp_path, request(round=number)), bytes)
    noted = lines(tmp_path / "answers.jsonl")
    assert [line["round"] for line in noted if not line.get("again")] == [0, 1, 2, 3]
    assert sum(line["epsilon"] for line in noted) == Ledger(tmp_path / "ledger").spent
