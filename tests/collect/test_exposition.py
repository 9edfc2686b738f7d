"""Numbers about a study."""

import pytest
from test_intake import Asking
from test_stepping import fill

from sqsgd.federation.collect.intake import clock
from sqsgd.federation.collect.rounds import admission, full_status, guarantee, progress, prometheus, tick


@pytest.fixture
def asking(tmp_path):
    made = Asking(tmp_path / "study", users=60, rounds=2)
    yield made
    made.database.close()


def test_progress_and_status(asking):
    fill(asking)
    tick(asking.database, asking.study)
    fill(asking, 3)
    asking.join()
    asking.join(invitation="f" * 32)
    asking.join(invitation="f" * 32)
    known = progress(asking.database, asking.study)
    assert (known["round"], known["state"], known["reports"], known["slots"]) == (1, "open", 3, 30)
    found = full_status(asking.database, asking.study)
    assert (found["all_reports"], found["tickets_out"], found["invitations_used"]) == (33, 2, 35)
    assert found["refusals"] == {"invitation-used": 1}
    assert (found["users"], found["order"], found["clock"]) == (30, "round", "")


def test_who_may_report_is_said(asking, tmp_path):
    assert admission(asking.study) == "by signed invitation, one report each"
    other = Asking(tmp_path / "open", admission="open", joins_per_minute=7)
    assert "one person can report often" in admission(other.study)
    other.database.close()


def test_an_open_study_has_no_central_guarantee(tmp_path):
    """One person may have made all the other reports."""
    lines = [{"clients": 3000, "round": 0}]
    for kind, certified in (("invited", True), ("open", False)):
        asking = Asking(tmp_path / kind, users=6000, rounds=2, epsilon=2.0, admission=kind)
        found = guarantee(asking.study, lines)
        assert (found["central_epsilon"] is not None) == certified
        assert ("one person may have made all" in found["central_note"]) != certified
        assert ("central_users" in found) == certified
        asking.database.close()


def test_the_clock(asking):
    assert clock(asking.study, 100.0, 101.0) == ""
    assert "went back by 50 s" in clock(asking.study, 150.0, 100.0)
    assert "forward, for 86,401 s" in clock(asking.study, 0.0, 86401.0)
    assert clock(asking.study, 0.0, 86399.0) == ""


def test_prometheus_reads_it():
    known = {"round": 3, "reports": 5, "slots": 9, "seconds_left": 2.5, "state": "open"}
    lines = prometheus(known, {"malformed": 4}, {"reports_total": 7}).splitlines()
    assert 'sqsgd_refused_total{reason="malformed"} 4' in lines
    assert "sqsgd_worker_reports_total 7" in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert names == {line.split("{")[0].split()[0] for line in lines if not line.startswith("#")}
