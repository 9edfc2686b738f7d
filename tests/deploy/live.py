"""A real federation for tests: `sqsgd deploy` as a person types it."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from sqsgd.deploy import processes
from sqsgd.deploy.live_state import read_state

BIN = Path(sys.executable).parent
SMALL = ("--model", "mlp", "--epsilon", "20000", "--bytes", "25000", "--lr", "0.3", "--round-timeout", "100")
"""A budget at which three rounds are enough to learn something."""


def environment():
    """As after `. .venv/bin/activate`, and polling as often as Flower allows."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05"}


def sqsgd(*arguments, check=True, folder=None):
    done = subprocess.run(
        [BIN / "sqsgd", *map(str, arguments)], capture_output=True, text=True, env=environment(), cwd=folder
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def documented(heading):
    """The commands of a section of docs/deploy.md, as a person would type them."""
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def typed(line, folder, check=True):
    """A documented command, run as it is written."""
    done = subprocess.run(
        shlex.split(line), capture_output=True, text=True, env=environment(), cwd=folder, timeout=600
    )
    assert not check or done.returncode == 0, (line, done.stdout + done.stderr)
    return done.stdout


def status(folder):
    return json.loads(sqsgd("deploy", "status", folder, "--json").stdout)


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def metrics(folder, run="run-1"):
    path = Path(folder) / f"server/runs/{run}/metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def finished(folder, seconds=900):
    """The status once the training is over."""
    job = Path(folder) / "server/runs/run-1.json"
    wait_until(lambda: "finished" in job.read_text(), seconds, f"{job}: {job.read_text()}")
    return status(folder)


def logs(folder):
    """The end of every log, for a test that fails."""
    return "\n".join(f"== {log}\n{log.read_text()[-1500:]}" for log in Path(folder).glob("live/logs/*.log"))


def warm_and_apps(folder, node):
    """The process number of a node's warm process, None if there is none, and those of its apps at work."""
    state, parents, apps = read_state(folder), {}, []
    for pid in processes.marked(state["mark"]):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if os.getpgid(pid) != state["parts"][node]["pid"]:
                continue
            if b"sqsgd.flower.guard" in command:
                apps.append(pid)
            elif b"sqsgd.flower.warm_process" in command:
                parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    apps += [pid for pid, parent in parents.items() if parent in parents]
    return next((pid for pid in parents if pid not in apps), None), apps
