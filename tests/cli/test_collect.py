"""``sqsgd collect`` on the command line."""

import json

import numpy as np
import pytest
from devices import Reporter, ask, persist, served
from safetensors.numpy import save_file
from typed import typed

from sqsgd.federation.collect.study import load_study


@pytest.fixture
def folder(tmp_path):
    command = (
        f"sqsgd collect init {tmp_path}/study --users 8 --rounds 2 --dim 16 --bytes 8 --name digits "
        "--visits once --json"
    )
    made = json.loads(typed(command).out)
    assert (made["name"], made["visits"], made["scheme"]) == ("digits", "once", "privunit-index")
    return tmp_path / "study"


def test_from_nothing_to_a_run(folder, tmp_path):
    study = load_study(folder)
    invitations = typed(f"sqsgd collect invite {folder} 5").out.split()
    assert len(set(invitations)) == 5
    with served(folder) as url:
        for round in (0, 0, 0, 0, 1):
            device = Reporter(folder, study)
            assert persist(lambda device=device, at=round: device.send(url, at))[0] == 200
    found = json.loads(typed(f"sqsgd collect status {folder} --json").out)
    assert (found["round"], found["reports"], found["all_reports"]) == (1, 1, 5)
    text = typed(f"sqsgd collect status {folder}").out
    assert "round      1 of 2: 1 of about 4 reports" in text
    assert "central    none: local 8 against everyone; for 4 users of a round" in text
    closed = json.loads(typed(f"sqsgd collect close {folder} --out {tmp_path}/run --json").out)
    assert (closed["users"], closed["left_out"], closed["finished"]) == (4, 1, False)
    assert typed(f"sqsgd report {tmp_path}/run --out {tmp_path}/page.html").code == 0
    again = typed(f"sqsgd collect close {folder} --out {tmp_path}/run")
    assert "1 reports of an unfinished round were left out" in again.out
    assert "ended" in typed(f"sqsgd collect status {folder}").out


def test_a_model_to_start_with(tmp_path):
    save_file({"weight": np.ones((2, 8), np.float32)}, tmp_path / "model.safetensors")
    command = f"sqsgd collect init {tmp_path}/study --users 8 --rounds 2 --bytes 8"
    done = typed(f"{command} --initial {tmp_path}/model.safetensors")
    assert done.code == 0, done.error
    assert load_study(tmp_path / "study").dim == 16
    with served(tmp_path / "study") as url:
        path = ask(url, "GET", "/round")[1]["model"]
        assert np.frombuffer(ask(url, "GET", path)[1], "<f4").tolist() == [1.0] * 16


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("init {}/new --users 8", "either --dim"),
        ("init {}/new --users 8 --initial {}/study/study.toml", "not a safetensors file"),
        ("init {}/study --users 8 --dim 4 --rounds 2", "holds a study already"),
        ("init {}/new --users 8 --dim 4 --rounds 2 --database sqlite://x", "must be a URL such as"),
        ("invite {}/study 3 --key {}/none", "only the holder of"),
    ],
)
def test_what_is_wrong_is_said(folder, tmp_path, command, words):
    done = typed("sqsgd collect " + command.replace("{}", str(tmp_path)))
    assert done.code == 2
    assert words in done.error
    assert "Traceback" not in done.error
