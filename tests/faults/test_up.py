"""What docs/deploy.md has people type: one command in the foreground, with Ctrl-C in between."""

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from live import environment, marked, metrics, status, wait_until

from sqsgd import Ledger

pytestmark = pytest.mark.faults


def documented(heading):
    """The commands of a section of docs/deploy.md."""
    page = (Path(__file__).parents[2] / "docs/deploy.md").read_text()
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [
        line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()
    ]


def test_one_machine_with_ctrl_c_and_resume(tmp_path):
    """Nothing of a federation is left running, and a stopped training is resumed."""
    init, up, *others = documented("On one machine")
    init += " --nodes 2 --rounds 2"  # one less of each than documented
    env, folder = environment(SQSGD_TEST=tmp_path.name), tmp_path / "federation"
    options = {"cwd": tmp_path, "env": env, "text": True}
    subprocess.run(shlex.split(init), check=True, **options)
    with (tmp_path / "log").open("w") as log:
        child = subprocess.Popen(shlex.split(up), stdout=log, start_new_session=True, **options)
    try:
        wait_until(lambda: len(metrics(folder)) >= 1, 1800, "a round")
    finally:
        child.send_signal(signal.SIGTERM)
        code = child.wait(300)
    assert code != 0
    wait_until(lambda: not marked(tmp_path.name), 300, f"everything has ended: {marked(tmp_path.name)}")
    done = subprocess.run([*shlex.split(up), "--resume"], capture_output=True, timeout=3000, **options)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert not marked(tmp_path.name)
    rounds = [line["round"] for line in metrics(folder)]
    assert rounds == list(range(len(rounds)))
    found = status(folder)["run"]
    assert (found["status"], found["attempts"], found["round"]) == ("finished:completed", 2, len(rounds))
    paid = set()
    for index in range(2):  # the round that was cut off is paid once; a node that came back late may miss one
        ledger = Ledger(folder / f"nodes/node-{index}/state/ledger")
        each = [entry.round for entry in ledger.entries]
        assert each == sorted(set(each))
        paid |= set(each)
    assert paid == set(rounds)
    for command in others:
        subprocess.run(shlex.split(command), check=True, capture_output=True, **options)
