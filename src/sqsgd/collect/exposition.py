"""Numbers about a study for machines (Prometheus) and for people (``sqsgd collect status``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqsgd.collect.database import Database
from sqsgd.collect.slots import ENDED, clock, stage
from sqsgd.collect.study import OPEN, Study
from sqsgd.files.prometheus_text import Metric, exposition
from sqsgd.training.summary import about_once


def progress(database: Database, study: Study) -> dict[str, Any]:
    """What anybody may know: nothing of it depends on who reported."""
    at, now = stage(database), database.now()
    reports = database.read("SELECT count(*) FROM slots WHERE round = ? AND report IS NOT NULL", at.round)[0][
        0
    ]
    ended = at.state == ENDED
    return {
        "round": at.round,
        "state": at.state,
        "model": model_path(study, at.round),
        "reports": 0 if ended else reports,
        "slots": study.slots,
        "seconds_left": 0.0 if ended else max(0.0, round(at.deadline - now, 1)),
    }


def full_status(database: Database, study: Study) -> dict[str, Any]:
    """What the operator sees: progress, refusals, and the central guarantee so far."""
    at, now = stage(database), database.now()
    lines = rounds_done(database)
    known = progress(database, study)
    (taken,) = database.read(
        "SELECT count(*) FROM slots WHERE round = ? AND report IS NULL AND expires IS NOT NULL", at.round
    )[0]
    return {
        "study": study.id,
        "name": study.name,
        **known,
        "rounds": study.rounds,
        "all_reports": sum(line["clients"] for line in lines) + known["reports"],
        "tickets_out": taken,
        "admission": admission(study),
        "invitations_used": database.read("SELECT count(*) FROM invitations")[0][0],
        "refusals": refusals(database),
        "unscrubbed": at.unscrubbed,
        "clock": clock(study, at.seen, now),
        "epsilon": study.made_scheme.privacy.epsilon,
        "message_bytes": study.made_scheme.bits // 8,
        **guarantee(study, lines),
    }


def model_path(study: Study, round: int) -> str:
    """Where the weights before a round are. They are cached for good, so the path names the study."""
    return f"/model/{study.id}/{round}"


def guarantee(study: Study, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Users, order and central guarantee of the rounds that are over; none where one person may be all users.

    Guarantees
    ----------
    * An open study has no central figure:
      tests/collect/test_exposition.py::test_an_open_study_has_no_central_guarantee.
    """
    found = about_once(study.made_scheme, "round", lines, seeded=False, slots=len(lines) * study.slots)
    if study.admission != OPEN:
        return found
    return {
        **{name: value for name, value in found.items() if not name.startswith("central_")},
        "central_epsilon": None,
        "central_note": f"none: local {study.made_scheme.privacy.epsilon:g} against everyone; in an open "
        "study one person may have made all the other reports",
    }


def admission(study: Study) -> str:
    """Who may report, in words."""
    if study.admission == OPEN:
        return f"open to anybody, {study.joins_per_minute:,} devices a minute: one person can report often"
    return "by signed invitation, one report each"


def refusals(database: Database) -> dict[str, int]:
    """How many requests were refused, by reason, over all workers."""
    found = database.read("SELECT code, count FROM refusals WHERE count > 0 ORDER BY code")
    return {code: int(count) for code, count in found}


def rounds_done(database: Database) -> list[dict[str, Any]]:
    """The records of the rounds that are over."""
    found = database.read("SELECT record FROM rounds WHERE record IS NOT NULL ORDER BY round")
    return [json.loads(record) for (record,) in found]


def prometheus(known: Mapping[str, Any], refused: Mapping[str, int], worker: Mapping[str, float]) -> str:
    """The text that Prometheus reads; ``worker``: counters of this process."""
    gauges = {
        "round": ("The current round.", known["round"]),
        "round_reports": ("Reports of the current round.", known["reports"]),
        "round_slots": ("Slots of a round.", known["slots"]),
        "round_seconds_left": ("Time until the round may end.", known["seconds_left"]),
        "ended": ("1 if the study has ended.", int(known["state"] == ENDED)),
    }
    return exposition(
        [
            *(
                Metric(name=f"sqsgd_{name}", kind="gauge", about=about, values=[({}, value)])
                for name, (about, value) in gauges.items()
            ),
            Metric(
                name="sqsgd_refused_total",
                kind="counter",
                about="Refused requests of all workers, by reason.",
                values=[({"reason": code}, count) for code, count in sorted(refused.items())],
            ),
            *(
                Metric(
                    name=f"sqsgd_worker_{name}",
                    kind="counter",
                    about=f"{name.replace('_', ' ').capitalize()}, of this worker.",
                    values=[({}, value)],
                )
                for name, value in sorted(worker.items())
            ),
        ]
    )
