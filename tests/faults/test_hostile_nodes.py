"""Nodes that lie: real SuperNodes with registered keys and a hostile app. Training goes on without them."""

import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'sqsgd[flower]'")
pytest.importorskip("torch", reason="needs pip install 'sqsgd[train]'")

from live import SMALL, Live, metrics, sqsgd, status

from sqsgd import Ledger

pytestmark = pytest.mark.faults
KINDS = ("honest", "honest", "garbage", "huge", "replay", "straggler", "enormous")
ROUNDS, TIMEOUT = 4, 150


@pytest.fixture(scope="module")
def after(tmp_path_factory):
    """The status of a federation of two honest and five hostile nodes, after its training."""
    from sqsgd.federation.flower import app_folder

    place = tmp_path_factory.mktemp("hostile")
    folder, app = place / "federation", place / "my_app"
    shutil.copytree(app_folder(), app, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(Path(__file__).with_name("hostile_client_app.py"), app / "sqsgd_app/client_app.py")
    options = [*SMALL[:-2], "--round-timeout", TIMEOUT]
    least = ("--min-nodes", 5, "--min-answers", 2)  # by default a round needs half of those asked
    sqsgd("deploy", "init", folder, "--nodes", len(KINDS), "--rounds", ROUNDS, *least, *options)
    for index, kind in enumerate(KINDS):
        node = folder / f"nodes/node-{index}"
        sqsgd("deploy", "allow", node, app)
        if kind != "honest":
            with (node / "node.conf").open("a") as file:
                file.write(f'hostile="{kind}"\nhang={TIMEOUT + 5}\n')
            conf = node / "node.conf"  # its own mod decides what leaves
            conf.write_text(conf.read_text().replace("wrap-apps=true", "wrap-apps=false"))
    live = Live(folder, len(KINDS))
    try:
        code, said = live.trained("--app", app)
        assert code == 0, said
        yield live, status(folder)
    finally:
        live.end()


def rejections(after, kind):
    """(round, reason) of each rejected answer of the node of a kind."""
    live, _ = after
    number = live.number(f"node-{KINDS.index(kind)}")
    return [
        (line["round"], each["reason"])
        for line in metrics(live.folder)
        for each in line["rejected"]
        if each["node"] == number
    ]


def test_training_is_completed_with_honest_answers_alone(after):
    _, found = after
    run = found["run"]
    assert (run["status"], run["round"], run["attempts"]) == ("finished:completed", ROUNDS, 1)
    assert run["accuracy"] > 0.125  # chance is 0.1; two to four reports a round, four rounds
    rejected = sum(len(rejections(after, kind)) for kind in KINDS[2:])
    assert run["rejected"] == rejected
    asked = sum(line["asked"] for line in metrics(after[0].folder))
    # After two rejections in a row a node sits out: the last rounds ask the other nodes.
    assert run["answers"] + rejected == asked <= 2 * len(KINDS) + 2 * 4
    # Two honest nodes and the straggler's other rounds, and the replay's first, which was no replay.
    assert 2 * ROUNDS + 1 <= run["answers"] <= 3 * ROUNDS
    for node in found["nodes"][:2]:
        assert (node["answers"], node["refusals"], node["ledger"]) == (ROUNDS, 0, "good")


NOISE, DAMAGED = "wire format", "the report is damaged, or for another"
HUGE = "the report has 100000 bytes"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("garbage", {0: NOISE, 1: DAMAGED}),
        ("huge", {0: HUGE, 1: HUGE}),
        ("replay", {1: DAMAGED, 2: DAMAGED}),
    ],
)
def test_what_lies_is_rejected_and_named(after, kind, expected):
    found = rejections(after, kind)
    assert [round for round, _ in found] == list(expected), found
    for round, reason in found:
        assert expected[round] in reason


def test_what_is_too_large_stays_outside(after):
    """nginx takes no more than a report and Flower's wrapping; the server sees a node without answer."""
    found = rejections(after, "enormous")
    asked_of_all = [line["round"] for line in metrics(after[0].folder) if line["asked"] == len(KINDS)]
    assert asked_of_all
    assert set(asked_of_all) <= {round for round, _ in found}
    assert "client intended to send too large body" in after[0].log.read_text()


def test_a_straggler_costs_its_own_answer_alone(after):
    found = rejections(after, "straggler")
    assert any(round == 1 and "no answer" in reason for round, reason in found)
    assert {round for round, _ in found} <= {1, 2}, found  # it may still be late for the next one
    waited = [line["seconds"] for line in metrics(after[0].folder)]
    assert waited[1] >= TIMEOUT
    assert max(waited) < TIMEOUT + 30  # nor does what is announced and never sent make a round longer


def test_it_is_visible(after):
    live, found = after
    text = sqsgd("deploy", "status", live.folder).stdout
    assert f"{found['run']['rejected']} rejected" in text
    assert "the report has 100000 bytes" in (live.folder / "server/runs/run-1.log").read_text()


def test_hostile_nodes_have_paid_all_the_same(after):
    """Their honest part has made the reports, whatever was sent in their place."""
    for kind, rounds in (("garbage", 2), ("huge", 2), ("replay", 3)):
        ledger = Ledger(after[0].folder / f"nodes/node-{KINDS.index(kind)}/state/ledger")
        assert [entry.round for entry in ledger.entries] == list(range(rounds))
