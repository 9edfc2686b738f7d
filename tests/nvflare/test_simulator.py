"""A real run of NVFlare's simulator: the example's job, a server and two clients, each in its own process."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare.apis", reason="nvflare is not installed")

from asking import lines

from sqsgd.privacy.ledger import Ledger

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples/nvflare_job"
PAGE = (ROOT / "docs/nvflare.md").read_text()

TALK = """

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.shareable import Shareable


class Talker(RegressionExecutor):
    \"\"\"Sends an event to the server before its first task, and one in each task.\"\"\"

    def handle_event(self, event_type, fl_ctx):
        if event_type == "_before_pull_task" and not hasattr(self, "began"):
            self.began = True
            self.fire_fed_event("test.before", Shareable(), fl_ctx)

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        self.fire_fed_event("test.loss", Shareable({"loss": 0.25}), fl_ctx)
        return super().execute(task_name, shareable, fl_ctx, abort_signal)


class Listener(FLComponent):
    \"\"\"Writes the events that arrive at the server to a file.\"\"\"

    def __init__(self, path):
        super().__init__()
        self.path = path

    def handle_event(self, event_type, fl_ctx):
        if event_type.startswith("test."):
            with open(self.path, "a") as file:
                file.write(event_type + " ")
"""


RECORDS = """

import torch

from sqsgd.nvflare import sum_records


class Linear(torch.nn.Linear):
    def __init__(self):
        super().__init__(DIM, 1, bias=False)

    def forward(self, x):
        return super().forward(x)[:, 0]


class Talker(Talker):
    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        rows = np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float32)
        return sum_records(Linear(), "squared-error", rows, rows @ TRUTH)
"""


def run(folder, *, rounds, tasks, owner, custom="", asked=None):
    """The job with these changes; the exit status, the server's log, the server's folder."""
    job = shutil.copytree(JOB, folder / "job")
    server, client = (job / f"app/config/config_fed_{side}.json" for side in ("server", "client"))
    text = re.sub(r'"num_rounds": \d+', f'"num_rounds": {rounds}', server.read_text())
    server.write_text(text.replace('"train_timeout": 60', '"train_timeout": 600'))  # on a busy machine
    config = json.loads(client.read_text())
    config["task_data_filters"][0]["tasks"] = tasks
    config["task_data_filters"][0]["filters"][0]["args"] = {
        "state_dir": "{WORKSPACE}/sqsgd/{SITE_NAME}",
        **owner,
    }
    config["executors"][0]["executor"]["path"] = "regression.Talker"
    client.write_text(json.dumps(config))
    config = json.loads(server.read_text())
    listener = {"id": "listener", "path": "regression.Listener", "args": {"path": str(folder / "heard")}}
    config["components"].append(listener)
    config["components"][0]["args"] = asked or config["components"][0]["args"]
    server.write_text(json.dumps(config))
    module = job / "app/custom/regression.py"
    module.write_text(module.read_text() + TALK + custom)
    code = "from nvflare.cli import main; main()"
    places = {"examples/nvflare_job": str(job), "/tmp/nvflare_run": str(folder / "run")}  # noqa: S108
    setting, value, line = re.search(r"^(\w+)=(\w+) nvflare (simulator .*)$", PAGE, re.MULTILINE).groups()
    words = shlex.split(line)
    command = [sys.executable, "-c", code, *(places.get(word, word) for word in words)]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", setting: value}
    done = subprocess.run(
        command, env=environment, cwd=folder, timeout=600, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr, folder / "run"


def test_two_clients(tmp_path):
    """Two rounds; the budget of the clients suffices for the first.

    The filter is listed for ``*``, which NVFlare takes for the name of a task. The executor sends events:
    those of its tasks do not arrive.
    """
    status, log, folder = run(tmp_path, rounds=2, tasks=["*"], owner={"max_epsilon": 400})
    assert status != 0, log
    assert "(2: the node refused: its privacy budget is spent)" in log
    assert set((tmp_path / "heard").read_text().split()) == {"test.before"}
    for site in ("site-1", "site-2"):
        state = folder / site / "sqsgd" / site
        assert float(Ledger(state / "ledger").spent) == 400.0
        assert [entry["round"] for entry in lines(state / "answers.jsonl")] == [0]
        assert [entry["round"] for entry in lines(state / "refusals.jsonl")] == [1]
    model = np.load(folder / "server/simulate_job/models/server.npy")
    truth = np.sin(np.arange(model.size))
    cosine = model @ truth / np.linalg.norm(model) / np.linalg.norm(truth)
    assert cosine > 0.3, cosine  # 5 standard deviations of chance are 0.16


def test_two_clients_per_record(tmp_path):
    """NVFlare itself says how many rounds share the budget."""
    pytest.importorskip("torch", reason="needs torch: pip install 'sqsgd[train]'")
    owner = {"max_epsilon_per_record": 2.0, "delta": 1e-5}
    asked = {"epsilon": 2.0, "delta": 1e-5, "unit": "record", "records": 4000}
    status, log, folder = run(tmp_path, rounds=3, tasks=["train"], owner=owner, custom=RECORDS, asked=asked)
    assert status == 0, log
    assert "epsilon 2 so far at the client with the most reports" in log
    for site in ("site-1", "site-2"):
        state = folder / site / "sqsgd" / site
        assert 1.99 < float(Ledger(state / "ledger").spent) <= 2.0
        assert [entry.get("zero") for entry in lines(state / "answers.jsonl")] == [None] * 3
