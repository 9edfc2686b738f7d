"""`sqsgd deploy`: arguments are checked before anything is written or run."""

import json
import shutil

import pytest
from small_federation import job, line, small_federation
from typed import typed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--scheme", "fedsgd"], "every node would refuse: scheme 'fedsgd'"),
        (["--scheme", "privunit"], "real arithmetic only"),
        (["--nodes", "400"], "nodes = 400: each has 10 examples of mnist5k, and min-batch is 32"),
        (["--dataset", "mnist6k"], "dataset 'mnist6k' is unknown"),
    ],
)
def test_init_refuses_what_every_node_would(tmp_path, options, words):
    pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")
    done = typed(["sqsgd", "deploy", "init", tmp_path / "new", *options])
    assert (done.code, words in done.error) == (2, True), done.error
    assert not (tmp_path / "new").exists()


@pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's, of pathspec
def test_a_node_may_run_what_its_owner_allows(tmp_path):
    pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
    from sqsgd.federation.flower import app_folder
    from sqsgd.federation.flower.guard import app_hash

    (node := tmp_path / "node-0").mkdir()
    (mine := tmp_path / "my_app").mkdir()
    (node / "allowed-apps").write_text("installed\n")
    done = typed(["sqsgd", "deploy", "allow", node, mine])
    assert (done.code, done.error) == (2, f"sqsgd: {mine} is not a Flower app: it has no pyproject.toml\n")
    shutil.copytree(app_folder(), mine, dirs_exist_ok=True)
    found = json.loads(typed(["sqsgd", "deploy", "allow", node, mine, "--json"]).out)
    assert found["sha256"] == app_hash(mine)
    assert (node / "allowed-apps").read_text() == f"installed\n{found['sha256']} {mine}\n"


def test_nodes_come_and_go(tmp_path):
    folder = small_federation(tmp_path)
    found = json.loads(typed(["sqsgd", "deploy", "add-node", folder, "--json"]).out)
    assert found == {"node": f"{folder}/nodes/node-2", "key": f"{folder}/server/nodes/node-2.pub"}
    done = typed(["sqsgd", "deploy", "revoke", folder, "node-2"])
    assert "nginx does not run here: on the server, run `sqsgd deploy revoke . node-2`" in done.out
    found = json.loads(typed(["sqsgd", "deploy", "renew", folder, "--days", "9", "--json"]).out)
    assert found == {"renewed": [f"{folder}/server/server.pem"]}


def test_status_for_people(tmp_path):
    folder = small_federation(tmp_path)
    rejected = [{"node": "12", "reason": "no answer in time"}, {"slot": 7, "reason": "late"}]
    job(folder / "server", "finished:completed", [line(0, accuracy=0.5), line(1, rejected=rejected)])
    state = folder / "nodes/node-1/state"
    (state / "refusals.jsonl").write_text('{"round": 0, "told": "not allowed", "reason": "epsilon = 9"}\n')
    (state / "answers.jsonl").write_text('{"round": 0, "zero": "the app failed"}\n')
    text = typed(["sqsgd", "deploy", "status", folder]).out
    for words in (
        "finished:completed: round 2 of 4, accuracy 50.00%, attempt 2",
        "1 x no answer in time",
        "refused 1 x not allowed",
        "1 of its reports are zero: the app failed",
    ):
        assert words in text
