"""What is found in a federation's folder, and how it is ended without its supervisor."""

import json
import os
import secrets
import subprocess

import pytest
from live import wait_until

from sqsgd.deploy import live_state, processes
from sqsgd.deploy.folders import node_folders
from sqsgd.deploy.live_state import exit_reason, in_stages, json_lines, tail
from sqsgd.deploy.processes import Process


def test_a_line_that_was_cut_off_hides_no_other(tmp_path):
    """A full disk cut one, and the next was written on to it: neither can be read, all others can."""
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2, "re{"a": 3}\n\n[4]\n{"a": "\\u2028"}\n{"a": 6}\n{"a": 7')
    assert [line["a"] for line in json_lines(path)] == [1, "\u2028", 6]


def test_nodes_come_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2, 0):
        (tmp_path / f"nodes/node-{number}").mkdir(parents=True)
    assert [node.name for node in node_folders(tmp_path)] == ["node-0", "node-2", "node-10"]


def test_the_end_of_a_log_is_one_line(tmp_path):
    assert tail(tmp_path / "none") == "no log"
    (tmp_path / "log").write_bytes(b"first\n" + 600 * b"x" + b"\n\xff  the\n  end\n")
    assert tail(tmp_path / "log", 12) == "xx \ufffd the end"


def test_the_reason_is_the_message_not_the_help_page_and_has_no_colours(tmp_path):
    log = tmp_path / "log"
    log.write_text(
        "\x1b[92mINFO \x1b[0m:      Starting\n\x1b[91mERROR \x1b[0m:     Exit Code: 305\n"
        "Failed to initialize the connection to the SuperLink.\n[code: 3] Failed to activate SuperNode\n"
        "The SuperNode could not establish a connection to the SuperLink.\n\n"
        "For more information, visit: <https://flower.ai/docs/305.html>\n"
    )
    assert exit_reason(log) == (
        "Exit Code: 305 Failed to initialize the connection to the SuperLink. "
        "[code: 3] Failed to activate SuperNode "
        "The SuperNode could not establish a connection to the SuperLink."
    )
    with log.open("a") as file:
        size = file.tell()
        file.write("this node cannot work: its key is revoked\n")
    assert exit_reason(log, start=size) == "this node cannot work: its key is revoked"  # in its next life
    with log.open("a") as file:
        file.write(100 * "INFO: a line\n" + "the end\n")
    assert exit_reason(log, 20) == "INFO: a line the end"  # the exit was an app's, long ago
    log.write_text("\x1b[91mERROR \x1b[0m: no disk\n")
    assert exit_reason(log) == tail(log) == "ERROR : no disk"


def test_nodes_are_ended_before_the_server(tmp_path):
    parts = {name: Process(pid=1, started=name) for name in ("superlink", "node-0", "gate", "node-1")}
    stages = [[process.started for process in stage] for stage in in_stages(parts.items())]
    assert stages == [["node-0", "node-1"], ["superlink", "gate"]]


@pytest.fixture
def orphan(tmp_path):
    """A part of a federation that still runs, though its supervisor is gone."""
    if not os.path.exists("/proc/self/environ"):  # noqa: PTH110
        pytest.skip("needs /proc")
    mark = secrets.token_hex(16)  # another run of the tests has another
    child = processes.start(["/bin/sleep", "300"], tmp_path / "log", os.environ, mark)
    wait_until(lambda: processes.marked(mark), 60, "the environment of a new process can be read")
    part = {"pid": child.pid, "started": processes.start_time(child.pid)}
    stopped = {"pid": None, "started": None}
    state = {
        "mark": mark,
        "supervisor": {"pid": os.getpid(), "started": "long ago"},  # its number is another's by now
        "parts": {"superlink": part, "gate": stopped},
    }
    (tmp_path / "live").mkdir()
    (tmp_path / "live/state.json").write_text(json.dumps(state))
    yield child
    child.kill()
    child.wait()


def test_what_a_killed_supervisor_left_is_refused_and_can_be_ended(orphan, tmp_path):
    assert live_state.running_supervisor(tmp_path) is None
    with pytest.raises(ValueError, match=r"processes of an earlier `up` still run \(1 of them\)"):
        live_state.refuse_leftovers(tmp_path)
    assert live_state.down(tmp_path) == 1
    live_state.refuse_leftovers(tmp_path)
    assert live_state.down(tmp_path) == 0


def test_a_supervisor_that_runs_is_found_and_asked_to_end(tmp_path):
    """And then the parts that it wrote down, also where the system does not tell whose they are."""
    both = [subprocess.Popen(["/bin/sleep", "300"], start_new_session=True) for _ in range(2)]
    try:
        supervisor, part = ({"pid": child.pid, "started": processes.start_time(child.pid)} for child in both)
        state = {"mark": "test-nobody", "supervisor": supervisor, "parts": {"gate": part}}
        (tmp_path / "live").mkdir()
        (tmp_path / "live/state.json").write_text(json.dumps(state))
        assert live_state.running_supervisor(tmp_path) == both[0].pid
        assert live_state.down(tmp_path) == 2
        for child in both:
            child.wait(timeout=60)
        assert not any(processes.start_time(child.pid) for child in both)
    finally:
        for child in both:
            child.kill()
            child.wait()


def test_before_the_first_there_is_nothing(tmp_path):
    assert live_state.read_state(tmp_path) is None
    assert live_state.running_supervisor(tmp_path) is None
    assert live_state.down(tmp_path) == 0
    live_state.refuse_leftovers(tmp_path)
    assert json_lines(tmp_path / "live/events.jsonl") == []
