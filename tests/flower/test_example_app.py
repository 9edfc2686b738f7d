"""Two imports and an epsilon make a plain Flower app private: examples/flower_app has the documented diff."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from sqsgd.federation.deploy.node import free_port

pytest.importorskip("ray", reason="needs ray: pip install 'sqsgd[flower]'")
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PAGE = (ROOT / "docs/flower.md").read_text()
DIFF = re.search(r"```diff\n(.*?)```", PAGE, re.DOTALL)[1]
EXPORT, RUN = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].splitlines()
ROUNDS = 2  # instead of the app's twenty


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """The environment of a person who has typed the documented export, with a SuperLink of the tests' own."""
    home, port = tmp_path_factory.mktemp("home"), free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "sim"\n[superlink.sim]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    word, _, setting = EXPORT.partition("  #")[0].partition(" ")
    assert word == "export"
    found = {
        **os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "180", "RAY_worker_niceness": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05", "OMP_NUM_THREADS": "1",
        **dict([setting.strip().split("=")]),
    }  # fmt: skip
    with (home / "superlink.log").open("w") as log:
        link = subprocess.Popen(
            [BIN / "flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1",
             "--port", str(port)],
            env=found, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until_healthy(port, link)
        yield found
    finally:
        link.terminate()
        link.wait(30)


def typed(folder: Path, variables: dict) -> str:
    """What the documented command prints, run where the example is; the run must be completed."""
    done = subprocess.run(
        [*shlex.split(RUN), "--run-config", f"num-server-rounds={ROUNDS}"],
        env=variables, cwd=folder, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    text = done.stdout + done.stderr
    run = re.search(r"Successfully started run (\d+)", text)[1]
    listed = subprocess.run(
        [BIN / "flwr", "list", "--run-id", run, "--format", "json"],
        env=variables, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert json.loads(listed.stdout)["runs"][0]["status"] == "finished:completed", text
    return text


def test_the_documented_diff_makes_a_plain_app_private(tmp_path, variables):
    added = [line[1:] for line in DIFF.splitlines() if re.match(r"\+(?!\+\+)", line)]
    code = "".join(path.read_text() for path in (ROOT / "examples/flower_app").rglob("*.py"))
    assert len(added) == 3
    assert all(line in code for line in added)
    app = tmp_path / "examples/flower_app"
    shutil.copytree(ROOT / "examples/flower_app", app, ignore=shutil.ignore_patterns("__pycache__"))
    text = typed(tmp_path, variables)
    rounds = re.findall(rf"round (\d+) of {ROUNDS}: (\d) answers, (\d) rejected, accuracy", text)
    assert [(answers, rejected) for _, answers, rejected in rounds] == [("4", "0")] * ROUNDS, text
    assert "train_loss" not in text


def wait_until_healthy(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, "the SuperLink did not start"  # noqa: PT018
            time.sleep(0.2)
