"""``--engine flower``: Flower's own simulation on Ray gives the local engine's model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

pytest.importorskip("ray", reason="needs ray: pip install 'sqsgd[flower]'")
from sqsgd.federation.flower.simulation import _QUIET

SMALL = ["--dataset", "tiny:data", "--model", "tiny:model", "--bytes", "8", "--epsilon", "30", "--seed", "3"]
TESTS = Path(__file__).parents[1]
RUNS = """
import contextlib, json, sys
from pathlib import Path
import ray
import flwr.simulation
from federation import Nodes, node_context
from sqsgd.cli import main

def without_ray(server_app, client_app, num_supernodes, backend_config):
    contexts = [node_context(number, None) for number in range(num_supernodes)]
    server_app(Nodes(client_app, contexts), contexts[0])

ray.init(num_cpus=2, include_dashboard=False)  # Flower would start and stop it for each run
ray.shutdown = lambda: None
over_ray = flwr.simulation.run_simulation
for name, *arguments in json.load(sys.stdin):
    flwr.simulation.run_simulation = without_ray if name == "without Ray" else over_ray
    if "--resume" in arguments:
        config = Path(arguments[-1], "config.toml")
        config.write_text(config.read_text().replace("rounds = 2", "rounds = 4"))
    sys.argv = ["sqsgd", "train", "--json", *arguments]
    with contextlib.suppress(SystemExit):
        main()
"""


def train(*runs: list[str]) -> None:
    """Runs of the command line, one after the other in one process: imports and Ray take longest."""
    folders = [str(TESTS / name) for name in ("training", "flower", "node")]
    paths = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", RUNS],
        input=json.dumps(runs),
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, **_QUIET, "PYTHONPATH": paths},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for arguments in runs:
        assert (Path(arguments[-1]) / "summary.json").exists(), done.stdout + done.stderr


def written(folder: Path) -> tuple[dict, list[dict]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "summary.json").read_text()), lines


def same_model(first: Path, second: Path) -> None:
    models = [load_file(folder / "model.safetensors") for folder in (first, second)]
    assert models[0].keys() == models[1].keys()
    for name, value in models[0].items():
        np.testing.assert_array_equal(value, models[1][name])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of 5 of 40 clients, stopped after two rounds and resumed over Ray; of users who report once."""
    place = tmp_path_factory.mktemp("runs")
    some = [*SMALL, "--clients", "40", "--participation", "5", "--scheme", "sqsgd", "--decay", "none"]
    some += ["--option", "code=signs", "--option", "average=0.5"]
    once = [*SMALL, "--clients", "12", "--participation", "once", "--rounds", "2", "--scheme", "auto"]
    silos = [*SMALL, "--clients", "10", "--scheme", "sqsgd-record", "--rounds", "3", "--sampling", "0.5"]
    train(
        ["local", *some, "--rounds", "4", "--out", str(place / "local")],
        ["without Ray", *some, "--rounds", "2", "--engine", "flower", "--out", str(place / "flower")],
        ["over Ray", "--resume", "--out", str(place / "flower")],
        ["local", *once, "--out", str(place / "local once")],
        ["over Ray", *once, "--engine", "flower", "--out", str(place / "flower once")],
        ["local", *silos, "--out", str(place / "local silos")],
        ["over Ray", *silos, "--engine", "flower", "--out", str(place / "flower silos")],
    )
    return place


def test_flower_gives_the_local_engines_model(runs):
    local, flower = runs / "local", runs / "flower"
    same_model(local, flower)
    (summary, lines), (expected, alone) = written(flower), written(local)
    for key in ("accuracy", "test_loss", "epsilon_total", "bytes_up", "rounds", "clients"):
        assert summary[key] == expected[key], key
    assert [line["loss"] for line in lines] == [line["loss"] for line in alone]
    made = {path.name for path in flower.iterdir()}
    assert made == {path.name for path in local.iterdir()} | {"clients"}


def test_users_who_report_once_fill_the_same_slots(runs):
    same_model(runs / "local once", runs / "flower once")
    summary, expected = (written(runs / f"{engine} once")[0] for engine in ("flower", "local"))
    for key in ("users", "order", "order_seeded", "bytes_up", "central_epsilon", "central_note"):
        assert summary[key] == expected[key], key


def test_ten_silos_per_record_give_the_same_model(runs):
    same_model(runs / "local silos", runs / "flower silos")
    (summary, lines), (expected, alone) = (written(runs / f"{name} silos") for name in ("flower", "local"))
    for key in ("accuracy", "notion", "delta", "epsilon_total", "epsilon_all_rounds", "bytes_up"):
        assert summary[key] == expected[key], key
    assert summary["epsilon_total"] == 30.0
    for key in ("loss", "epsilon", "epsilon_total"):
        assert [line[key] for line in lines] == [line[key] for line in alone]
