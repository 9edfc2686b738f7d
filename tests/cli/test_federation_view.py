"""What a server's operator and a node's owner are shown, once and again."""

import json
import shutil

import pytest
from small_federation import small_federation
from typed import typed

from sqsgd.cli import _federation_view


@pytest.fixture
def node(tmp_path):
    folder = small_federation(tmp_path) / "nodes/node-0"
    refusals = [{"reason": f"epsilon = {number}", "told": "not allowed"} for number in range(3)]
    (folder / "state/refusals.jsonl").write_text("".join(json.dumps(each) + "\n" for each in refusals))
    return shutil.move(folder, tmp_path / "node-0")


def test_a_nodes_folder_and_a_servers(node, tmp_path):
    text = typed(["sqsgd", "deploy", "status", node]).out
    for words in ("1,600", "3 x not allowed\n", "last answer none yet\n", "certificate valid until 20"):
        assert words in text
    text = typed(["sqsgd", "deploy", "status", tmp_path / "federation/server"]).out
    assert "nodes       node-0, node-1\n" in text
    assert "training    none yet\n" in text
    assert "sqsgd_node_epsilon_left" in typed(["sqsgd", "deploy", "metrics", node]).out


def test_the_view_is_refreshed_until_ctrl_c(node, monkeypatch, capsys):
    shown = []

    def wait(_):
        shown.append(capsys.readouterr().out)
        if len(shown) == 2:
            raise KeyboardInterrupt
        with (node / "state/refusals.jsonl").open("a") as file:
            file.write(json.dumps({"reason": "r", "told": "not allowed"}) + "\n")

    monkeypatch.setattr(_federation_view.time, "sleep", wait)
    _federation_view.follow(node)
    assert ["3 x" in shown[0], "4 x" in shown[1]] == [True, True]
