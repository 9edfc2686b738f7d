"""What `sqsgd deploy status` prints; tests/deploy/test_status.py tests what it reads."""

import json
import os

import pytest
from small_federation import EVALUATION, job, line, small_federation
from typed import typed

from sqsgd.deploy.processes import Process, start_time

ME = Process(pid=os.getpid(), started=start_time(os.getpid()))


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Rows stay on their line."""
    monkeypatch.setenv("COLUMNS", "1000")


def shown(folder):
    done = typed(["sqsgd", "deploy", "status", folder])
    assert (done.code, done.error) == (0, "")
    return done.out


def test_a_federation_that_never_ran(tmp_path):
    text = shown(small_federation(tmp_path))
    assert text.startswith("superlink   not running\nsuperexec   not running\ngate        not running\n")
    assert "training    none yet\ncertificate valid until " in text
    assert text.count(" good") == 2  # both ledgers exist, and nothing is spent
    assert "wire" not in text


def test_a_federation_that_runs(tmp_path):
    folder = small_federation(tmp_path)
    run = job(folder / "server", "running", ME)
    rejected = [{"node": "12", "reason": "[red]no answer[/red] in time"}, {"slot": 3, "reason": "late"}]
    lines = [line(0, accuracy=0.5), line(1, rejected=rejected, evaluation=EVALUATION)]
    (run.folder / "metrics.jsonl").write_text("".join(f"{each}\n" for each in lines))
    up = {"pid": ME.pid, "started": ME.started, "restarts": 0, "last_exit": None}
    parts = {
        "superlink": up,
        "gate": {**up, "restarts": 2},
        "node-0": {**up, "pid": None, "restarts": 1, "last_exit": -9},
    }
    state = {"mark": "x", "address": "127.0.0.1:8000", "parts": parts}
    state["supervisor"] = {"pid": ME.pid, "started": ME.started}
    wire = {"bytes_up": 1234, "bytes_down": 5678, "refused": 3, "last_refused": "/a.Control/Run"}
    event = {"time": "2026-01-02", "event": "superlink was killed by signal 9"}
    (folder / "live").mkdir()
    for name, content in (("state.json", state), ("gate.json", wire), ("events.jsonl", event)):
        (folder / "live" / name).write_text(json.dumps(content) + "\n")
    (folder / "nodes/node-1/state/refusals.jsonl").write_text(json.dumps({"reason": "r" * 100}) + "\n")
    text = shown(folder)
    for words in (
        f"superlink   running ({ME.pid})\n",
        f"gate        running ({ME.pid}), restarted 2 times at 127.0.0.1:8000\n",
        "not running, restarted 1 times, last exit -9",
        "at nodes    accuracy 0.900 on the data of 3 nodes (95 %: 0.600 to 1.000), round 2\n",
        "wire        1,234 bytes up, 5,678 down; 3 requests refused, last /a.Control/Run\n",
        f" {'r' * 79}…",
        "training    running: round 2 of 4, accuracy 50.00%, attempt 2\n",
        "answers     4 accepted, 2 rejected\n",
        "            round 2: slot 3: late\n",
        "            round 2: node 12: [red]no answer[/red] in time\n",
        "bytes       up 1,092 (4,000 serialised), down 6,000 (6,000 serialised)\n",
        "            2026-01-02 superlink was killed by signal 9\n",
    ):
        assert words in text, words


def test_sizes_that_are_not_known_are_not_shown(tmp_path):
    """Where nodes fill slots: the size of a serialised message would tell the node."""
    folder = small_federation(tmp_path)
    run = job(folder / "server", "running", ME)
    sizes = {name: size for name, size in json.loads(line(0)).items() if "serialised" not in name}
    (run.folder / "metrics.jsonl").write_text(json.dumps(sizes) + "\n")
    assert "bytes       up 546, down 3,000\n" in shown(folder)
