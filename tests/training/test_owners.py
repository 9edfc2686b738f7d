"""Data that name their owners: owners are the clients, in every engine and command, or nothing runs."""

import numpy as np
import pandas as pd
import pytest

import sqsgd
from sqsgd.cli.train import describe
from sqsgd.learning.partition import partition
from sqsgd.runs.sweep import check_runs, make_sweep
from sqsgd.training.settings import RunConfig, make_config

OWNERS, ROWS = 60, 10
ONCE = {"model": "linear", "scheme": "auto", "epsilon": 5.0, "bytes": 8, "rounds": 10}
ONCE["participation"] = "once"


def people():
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.uniform(-1, 1, (OWNERS * ROWS, 4)), columns=list("abcd"))
    return table.assign(label=(table.a > 0).astype(int), client=np.arange(OWNERS * ROWS) % OWNERS)


@pytest.mark.parametrize("settings", [{}, {"partition": "natural"}, {"clients": OWNERS}])
def test_the_total_is_the_one_report_of_an_owner(settings, tmp_path):
    run = sqsgd.train(dataset=people(), **ONCE, **settings, out=tmp_path / "run", report=False)
    assert (run.config.clients, run.config.partition) == (OWNERS, "natural")
    assert run.summary["users"] == OWNERS
    assert run.summary["central_epsilon"] > 4.9  # 480 users would have had 2.995
    assert sum(record["clients"] for record in run.records) == OWNERS
    assert "5 per report, which is the total" in describe(dict(run.summary), tmp_path)


@pytest.mark.parametrize("engine", ["local", "flower"])
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"clients": 480}, "clients = 480, but 60 owners have training examples; leave clients out"),
        ({"clients": 480, "partition": "iid"}, "several clients.*60 owners, so leave partition out"),
        ({"clients": 60, "partition": "shards:1"}, "an owner's epsilon again"),
        ({"clients": 600, "partition": "drawn"}, "an owner's epsilon again"),
        ({"partition": "dirichlet:0.5"}, "an owner's epsilon again"),
    ],
)
def test_owners_are_the_clients_or_nothing_runs(engine, settings, words, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "tests_owned.py").write_text(
        "import numpy as np\ndef people():\n    draw = np.random.default_rng(0)\n"
        "    rows = draw.uniform(-1, 1, (600, 4)).astype('float32')\n"
        "    return rows, (rows[:, 0] > 0).astype(int), np.arange(600) % 60\n"
    )
    with pytest.raises(ValueError, match=words):
        sqsgd.train(dataset="tests_owned:people", engine=engine, **ONCE, **settings, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    sweep = make_sweep(
        {"title": "x", "base": {"dataset": "tests_owned:people", **ONCE, **settings}, "arms": [{}]}, "here"
    )
    with pytest.raises(ValueError, match=words):
        check_runs(sweep)


def test_data_without_owners_keep_their_clients(tmp_path):
    few = {"model": "linear", "epsilon": 5.0, "rounds": 1, "clients": 7, "partition": "natural"}
    with pytest.warns(UserWarning, match="clients = 7: only the first of the data's 60 clients take part"):
        sqsgd.train(dataset=people(), **few, out=tmp_path / "some", report=False)
    config = RunConfig(epsilon=1.0)
    assert (config.on(None, 100).clients, config.on(None, 100).partition) == (10, "iid")
    assert make_config({"clients": 3, "partition": "drawn"}).on(None, 100).partition == "drawn"
    owners = np.array([0, 1, 2, 1])
    assert (config.on(owners, 4).clients, config.on(owners, 4).partition) == (3, "natural")
    with pytest.raises(ValueError, match="rounds = 600 is more than clients = 3"):
        make_config({"participation": "once", "rounds": 600}).on(owners, 4)
    parts = partition([0] * 4, 3, "natural", 0, owners)
    assert [part.tolist() for part in parts] == [[0], [1, 3], [2]]
