"""Everything that docs/collect.md shows runs: commands, device and unit; nginx: test_relay.py."""

import configparser
import json
import shlex
import subprocess
import sys

from devices import worker
from snippets import blocks, read
from typed import typed

PAGE = "docs/collect.md"


def commands():
    """The command lines of the page, in order."""
    shown = [block for block in blocks(PAGE) if block.language == "sh" and block.directive != "not run"]
    return [line for block in shown for line in block.text.splitlines()]


def test_the_page_from_nothing_to_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, *rest = [line for line in commands() if line.startswith("sqsgd")]
    assert typed(first).code == 0
    serve = shlex.split(rest[0])
    assert serve[:4] == ["sqsgd", "collect", "serve", "digits"]
    read(serve[1:])
    line, _, target = rest[1].partition(" > ")
    (tmp_path / target).write_text(typed(line).out)
    invitations = (tmp_path / target).read_text().split()
    (device,) = (block for block in blocks(PAGE) if block.value == "device.py")
    (tmp_path / "device.py").write_text(device.text)
    with worker(tmp_path / "digits") as running:
        command = [sys.executable, "device.py", running.url, invitations[0], "mine"]
        kept = []
        for _ in range(2):  # it joins; then it waits for the round that it drew
            done = subprocess.run(command, capture_output=True, text=True)
            assert "'accepted': 0, 'waiting': 1, 'missed': 0" in done.stdout, done.stderr
            kept.append((tmp_path / "mine/reports.json").read_text())
        assert kept[0] == kept[1]
        for line in rest[2:]:
            assert typed(line).code == 0, line
    summary = json.loads((tmp_path / "digits/run/summary.json").read_text())
    assert (summary["rounds"], summary["finished"]) == (0, False)


def test_the_unit_starts_a_command_that_exists():
    files = {block.value: block.text for block in blocks(PAGE) if block.directive == "file"}
    assert set(files) == {"front.conf", "relay.conf", "device.py", "sqsgd-collect.service"}
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(files["sqsgd-collect.service"])
    served = shlex.split(unit["Service"]["ExecStart"])[1:]
    read(served)
    assert unit["Service"]["ReadWritePaths"] == served[2]
