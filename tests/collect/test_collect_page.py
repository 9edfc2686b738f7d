"""Everything that docs/collect.md shows runs: the commands, the device, the unit and the compose file."""

import configparser
import json
import shlex
import subprocess
import sys

import pytest
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
        for again in (False, True):
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.stdout == f"{{'accepted': True, 'round': 0, 'again': {again}}}\n", done.stderr
        for line in rest[2:]:
            assert typed(line).code == 0, line
    summary = json.loads((tmp_path / "digits/run/summary.json").read_text())
    assert (summary["rounds"], summary["finished"]) == (0, False)


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
