"""Two lines make a plain Flower app private: the documented diff is applied and run, in real processes."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs ray: pip install 'sqsgd[flower]'")
HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def documented_diff() -> str:
    page = (HERE.parents[1] / "docs/flower.md").read_text()
    return re.search(r"```diff\n(.*?)```", page, re.DOTALL)[1]


def patched(folder: Path) -> Path:
    """A copy of the plain app with the documented diff applied, to the letter."""
    app = folder / "stock_app"
    shutil.copytree(HERE / "stock_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [shutil.which("git"), "apply", "-"], input=documented_diff(), text=True, cwd=app, capture_output=True,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return app


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_diff_adds_two_lines():
    added = [line for line in documented_diff().splitlines() if re.match(r"\+(?!\+\+)", line)]
    assert len(added) == 2


def test_the_documented_diff_makes_a_plain_app_private(tmp_path):
    app, port, home = patched(tmp_path), free_port(), tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    variables = {
        **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with (tmp_path / "superlink.log").open("w") as log:
        link = subprocess.Popen(
            [BIN / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1",
             "--port", str(port), "--disable-runtime-dependency-installation"],
            env=variables, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until_healthy(port, link)
        done = subprocess.run(
            [BIN / "flwr", "run", str(app), "sim", "--stream",
             "--federation-config", "num-supernodes=4 client-resources-num-cpus=1",
             "--run-config", "num-server-rounds=20"],
            env=variables, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        text = done.stdout + done.stderr
        run = re.search(r"Successfully started run (\d+)", text)[1]
        listed = subprocess.run(
            [BIN / "flwr", "list", "sim", "--run-id", run, "--format", "json"],
            env=variables, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    finally:
        link.terminate()
        link.wait(30)
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:completed", text
    rounds = re.findall(r"round (\d+) of 20: (\d) answers, (\d) rejected, accuracy ([\d.]+)", text)
    assert [(answers, rejected) for _, answers, rejected, _ in rounds] == [("4", "0")] * 20, text
    assert max(float(accuracy) for *_, accuracy in rounds[-3:]) > 0.25  # chance is a tenth


def wait_until_healthy(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the SuperLink did not start"  # noqa: PT018
            time.sleep(0.2)
