"""Everything that docs/collect.md shows runs: the commands, the device, the unit and the compose file."""

import configparser
import json
import re
import shlex
import subprocess
import sys

import pytest
from devices import worker
from snippets import ROOT, blocks, read, run_command
from typed import typed

from sqsgd.federation.collect.intake import CODES

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
        command = [sys.executable, "device.py", running.url, invitations[0], "mine.ledger"]
        cut = device.text.replace('urlopen(Request(f"{url}/report", message, headers))', 'sys.exit("killed")')
        assert cut != device.text
        (tmp_path / "killed.py").write_text(cut)
        killed = subprocess.run([command[0], "killed.py", *command[2:]], capture_output=True, text=True)
        assert killed.stderr == "killed\n"  # after paying and before sending: nothing is lost
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == "{'accepted': True, 'round': 0, 'again': False}\n", done.stderr
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == "{'accepted': True, 'round': 0, 'again': True}\n", done.stderr
        (tmp_path / "mine.ledger.studies").unlink()
        for _ in range(2):  # another draw is a second report, which the ledger refuses, and refuses again
            again = subprocess.run(
                [*command[:3], invitations[1], "mine.ledger"], capture_output=True, text=True
            )
            assert "AlreadyAnswered" in again.stderr
        for line in rest[2:]:
            assert typed(line).code == 0, line
    summary = json.loads((tmp_path / "digits/run/summary.json").read_text())
    assert (summary["rounds"], summary["finished"]) == (0, False)


def test_the_other_commands_exist():
    for line in commands():
        words = shlex.split(line)
        if words[0] in ("pip", "python"):
            run_command(words)
    for block in blocks(PAGE):
        if block.directive == "not run":
            read(shlex.split(block.text)[1:])


def test_the_unit_and_the_compose_file_start_commands_that_exist():
    yaml = pytest.importorskip("yaml", reason="comes with the docs extra")
    files = {block.value: block.text for block in blocks(PAGE) if block.value}
    unit = configparser.ConfigParser(interpolation=None)
    unit.read_string(files["sqsgd-collect.service"])
    services = yaml.safe_load(files["compose.yaml"])["services"]
    lines = [unit["Service"]["ExecStart"], services["worker"]["command"], services["init"]["command"]]
    served, worker_arguments, _ = commands_typed = [shlex.split(line)[1:] for line in lines]
    for arguments in commands_typed:
        read(arguments)
    assert unit["Service"]["ReadWritePaths"] == served[2]
    mounted = {volume.split(":")[1] for volume in services["worker"]["volumes"]}
    place = worker_arguments[2]
    assert mounted == {f"{place}/study.toml", f"{place}/run"}  # not the folder, with its key
    assert set(services["worker"]["depends_on"]) <= services.keys()
    for name, variable in {"worker": "PG", "init": "PG", "database": "POSTGRES_"}.items():
        assert services[name]["environment"][f"{variable}PASSWORD"] == "${PGPASSWORD:?}"


def test_the_table_of_refusals_is_complete():
    text = (ROOT / PAGE).read_text()
    section = text.partition("**Refusals**")[2].partition("`/health`")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = re.findall(r"`([a-z-]+)`", " ".join(rows))
    assert sorted(named) == sorted([*CODES, "error"])
