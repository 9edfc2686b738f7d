"""Which requests count, and why the others are refused; many requests in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sqsgd.core.codec import MalformedReport
from sqsgd.core.task import Task
from sqsgd.federation.collect.database import Database
from sqsgd.federation.collect.study import DRAWN, OPEN, Study

CODES: dict[str, tuple[int, str]] = {
    # Status, and what the device should do, which is never to make a second report.
    "bad-request": (400, "send what docs/collect-protocol.md describes"),
    "malformed": (400, "do not encode again, which would be a second report; check the encoder"),
    "invitation-invalid": (403, "ask the operator for an invitation to this study"),
    "invitation-used": (409, "repeat the request with the first blinded messages, or ask for an invitation"),
    "token-invalid": (403, "ask the operator: the token was not signed for this study"),
    "token-spent": (409, "nothing: the report that came first with this token counts"),
    "wrong-study": (404, "read /study, and ask its owner before taking part in another study"),
    "not-found": (404, "send what docs/collect-protocol.md describes"),
    "round-over": (410, "nothing: this report comes too late, and a second one is not wanted"),
    "closed": (410, "nothing: the study has ended"),
    "wrong-method": (405, "send what docs/collect-protocol.md describes"),
    "too-slow": (408, "repeat the same request over a better connection"),
    "too-long": (413, "send what docs/collect-protocol.md describes"),
    "too-many": (429, "repeat the same request later"),
    "internal": (500, "repeat the same request later"),
    "round-not-open": (503, "repeat the same request later"),
    "busy": (503, "repeat the same request later"),
    "storage": (503, "repeat the same request later; nothing was counted that was not confirmed"),
}


class Rejection(Exception):
    """A request is refused; ``seconds``: when to repeat it, if that helps."""

    def __init__(self, code: str, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.code, self.reason, self.seconds = code, reason, seconds
        self.status, self.what_to_do = CODES[code]


WAITING, OPENED, CLOSING, ENDED = "waiting", "open", "closing", "ended"
"""A round has not begun, takes reports, or is being averaged; the study has ended."""


class Stage(NamedTuple):
    """The row of the study: where it is, and until when."""

    round: int
    state: str
    deadline: float


def stage(database: Database) -> Stage:
    (row,) = database.read("SELECT round, state, deadline FROM study")
    return Stage(*row)


def phase(study: Study, at: Stage, now: float) -> str:
    """What devices are told: by the schedule, also before a worker acts on it."""
    if at.state != OPENED:
        return at.state
    drawn = study.visits == DRAWN
    if now < (study.opens(at.round) if drawn else study.begins):
        return WAITING
    return CLOSING if drawn and now >= at.deadline else OPENED


def task_of(study: Study, round: int) -> Task:
    """Return the task of every device of a round."""
    return Task(round=round, client=0, seed=study.seed, dim=study.dim, bound=study.bound)


class Report(NamedTuple):
    """A symbol with the nonce of a valid token; it belongs to nobody."""

    token: str
    round: int
    codes: tuple[int, ...]


class Issue(NamedTuple):
    """An invitation asks for the signatures of blinded messages, of which this is the digest."""

    invitation: str
    request: str


class Probe(NamedTuple):
    """A transaction without a request: is the database there, and is there room on the disk?"""


Asked = Report | Issue | Probe
Answer = Rejection | None
"""None: yes."""


def read_report(study: Study, token: str, round: int, message: bytes) -> Report:
    """Return a report that is valid for the round, as codes. Raises a Rejection if it is not."""
    try:
        (codes,) = study.made_scheme.open(message, task_of(study, round))
    except MalformedReport as error:
        raise Rejection("malformed", str(error)) from None
    return Report(token, round, tuple(codes.tolist()))


def answer(
    database: Database, study: Study, requests: Sequence[Asked], refused: Counter[str]
) -> list[Answer]:
    """The answers to many requests, in their order, after one transaction that is on the disk.

    ``refused`` counts the requests that were rejected since the last transaction, by code.

    Guarantees
    ----------
    * A token is spent once, and its symbol is counted once, however often and at however many workers it is
      sent: tests/collect/test_intake.py::test_connections_race_to_spend_one_token,
      tests/collect/test_killed_workers.py::test_nothing_is_lost_and_nothing_counts_twice.
    * An invitation signs one set of blinded messages:
      tests/collect/test_intake.py::test_connections_race_for_one_invitation.
    * The database does not hold reports, only how often each code came:
      tests/collect/test_intake.py::test_no_row_holds_a_report.
    """
    with database.transaction():
        now, at = database.now(), stage(database)
        reports = {each.token: each for each in requests if isinstance(each, Report)}
        # Rows are locked in the order of their keys, so that crossing requests do not deadlock.
        issues = dict(sorted((each.invitation, each.request) for each in requests if isinstance(each, Issue)))
        spent = _spend(database, study, reports, at, now) if reports else {}
        issued = _issue(database, study, issues, at, now) if issues else {}
        if refused or not (reports or issues):  # a probe writes, to see whether it can
            _add(database, "refusals", "code", sorted({"none": 0, **refused}.items()))
    answers = list[Answer]()
    for each in requests:
        if isinstance(each, Report):  # of two with one token the second is refused
            answers.append(spent[each.token])
            spent[each.token] = spent[each.token] or _taken()
        elif isinstance(each, Issue):
            same = issues[each.invitation] == each.request
            answers.append(issued[each.invitation] or (None if same else _used()))
        else:
            answers.append(None)
    return answers


def _taken() -> Rejection:
    return Rejection("token-spent", "a report with this token was accepted before")


def _used() -> Rejection:
    return Rejection("invitation-used", "the invitation was used with other blinded messages")


def _add(database: Database, table: str, key: str, rows: Sequence[tuple[object, ...]]) -> None:
    """Add to the counts of rows that end with one."""
    if rows:
        values = ", ".join("?" * len(rows[0]))
        counted = f"ON CONFLICT ({key}) DO UPDATE SET count = {table}.count + excluded.count"
        database.write_many(f"INSERT INTO {table} VALUES ({values}) {counted}", rows)  # noqa: S608


def _spend(
    database: Database, study: Study, reports: dict[str, Report], at: Stage, now: float
) -> dict[str, Answer]:
    """Per token: yes, if its round is open and it was not spent."""
    state = phase(study, at, now)
    counted = sorted(t for t, each in reports.items() if state == OPENED and each.round == at.round)
    spending = "INSERT INTO spent {each} ON CONFLICT (token) DO NOTHING RETURNING token"
    new = {token for (token,) in database.read_among(spending, counted)} if counted else set[str]()
    codes = Counter(code for token in new for code in reports[token].codes)
    _add(database, "counts", "round, code", [(at.round, *row) for row in sorted(codes.items())])
    others = [token for token in reports if token not in new]
    found = database.read_among("SELECT token FROM spent WHERE token IN ({each})", others) if others else []
    late = {token: _not_now(study, at, state, each, now) for token, each in reports.items()}
    return {**late, **dict.fromkeys(new), **{token: _taken() for (token,) in found}}


def _not_now(study: Study, at: Stage, state: str, report: Report, now: float) -> Rejection:
    if state == ENDED:
        return Rejection("closed", "the study has ended")
    if report.round < at.round or (report.round == at.round and state == CLOSING):
        return Rejection("round-over", f"round {report.round} is over")
    wait = min(3600.0, max(1.0, study.opens(report.round) - now))
    return Rejection("round-not-open", f"round {report.round} has not begun", wait)


def _issue(
    database: Database, study: Study, issues: dict[str, str], at: Stage, now: float
) -> dict[str, Answer]:
    """Per invitation: yes, if it asks for the first time, or for the same as before.

    Devices that draw their rounds join before the first one: a later one could not come in all of them, and
    its round would be known better. tests/collect/test_intake.py::test_nobody_joins_when_rounds_have_begun.
    """
    if at.state == ENDED:
        return dict.fromkeys(issues, Rejection("closed", "the study has ended"))
    late = Rejection("closed", "the first round has begun: the study takes no more devices")
    answers: dict[str, Answer] = dict.fromkeys(issues, late)
    asked = list(issues)
    if study.admission == OPEN:
        minute = int(now // 60)
        database.write("DELETE FROM minutes WHERE minute < ?", minute - 1)
        _add(database, "minutes", "minute", [(minute, len(issues))])
        ((count,),) = database.read("SELECT count FROM minutes WHERE minute = ?", minute)
        allowed = max(0, len(issues) - max(0, count - study.tokens_per_minute))
        reason = f"{study.tokens_per_minute} devices may ask for tokens in a minute"
        answers |= dict.fromkeys(asked[allowed:], Rejection("too-many", reason, 60 - now % 60))
        asked = asked[:allowed]
    if study.visits != DRAWN or now < study.begins:
        new = [(number, issues[number]) for number in asked]
        database.write_many("INSERT INTO invitations VALUES (?, ?) ON CONFLICT (number) DO NOTHING", new)
    stored = database.read_among("SELECT number, request FROM invitations WHERE number IN ({each})", asked)
    return answers | {number: None if request == issues[number] else _used() for number, request in stored}


def counts(database: Database, study: Study, round: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """How often each code came in a round."""
    found = np.zeros(study.made_scheme.symbols, np.int64)
    for code, count in database.read("SELECT code, count FROM counts WHERE round = ?", round):
        found[code] = count
    return found


def received(database: Database, study: Study, round: int) -> int:
    """Return the reports of a round so far."""
    (total,) = database.read("SELECT coalesce(sum(count), 0) FROM counts WHERE round = ?", round)[0]
    return int(total) // study.made_scheme.mechanism.layout[0].count
