"""Units and compose files, checked by systemd and Docker where these exist."""

import os
import shutil
import subprocess

import pytest

from sqsgd.deploy.services import write_services


def test_units_start_what_the_instructions_do(federation):
    names = {path.name for path in write_services(federation / "server")}
    assert names == {f"sqsgd-{name}.service" for name in ("superlink", "superexec", "gate")} | {
        "compose.yaml"
    }
    unit = (federation / "server/services/sqsgd-gate.service").read_text()
    assert f'ExecStart="{federation}/server/gate.sh"\n' in unit
    assert "After=network-online.target sqsgd-superlink.service\n" in unit
    unit, compose = write_services(federation / "nodes/node-1")
    assert unit.name == "sqsgd-node-1.service"
    assert '    command: ["/federation/run.sh"]\n' in compose.read_text()
    with pytest.raises(ValueError, match="neither a server's nor a node's folder"):
        write_services(federation)


def test_systemd_accepts_the_units(federation, tmp_path):
    """In a folder whose name has what units must quote."""
    if (systemd := shutil.which("systemd-analyze")) is None:
        pytest.skip("needs systemd")
    place = shutil.move(federation, tmp_path / "100% of it")
    units = [*write_services(place / "server"), *write_services(place / "nodes/node-0")]
    units = [unit for unit in units if unit.suffix == ".service"]
    done = subprocess.run([systemd, "verify", *units], capture_output=True, text=True)
    said = [
        line for line in done.stderr.splitlines() if "sqsgd-" in line
    ]  # not about the machine's own units
    assert (done.returncode, said) == (0, [])


def test_docker_accepts_the_compose_files(federation):
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True).returncode:
        pytest.skip("needs docker compose")
    for folder in (federation / "server", federation / "nodes/node-0"):
        *_, compose = write_services(folder)
        done = subprocess.run(
            [docker, "compose", "--file", compose, "config", "--quiet"],
            capture_output=True,
            text=True,
            env={**os.environ, "SQSGD_IMAGE": "sqsgd"},
        )
        assert (done.returncode, done.stderr) == (0, "")
