"""A study that has ended is an ordinary run."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_intake import Asking
from test_stepping import fill
from typed import typed

from sqsgd.federation.collect.rounds import end_study, flat, named, read_state, tick, write_outcome
from sqsgd.training.reading import read_run


@pytest.fixture
def ended(tmp_path):
    asking = Asking(tmp_path / "study", users=30)
    for _ in range(3):
        fill(asking)
        tick(asking.database, asking.study)
    yield asking
    asking.database.close()


def test_the_run_is_read_and_shown_like_any_other(ended, tmp_path):
    summary = write_outcome(tmp_path / "run", ended.database, ended.study)
    run = read_run(tmp_path / "run")
    assert run.state == "finished"
    assert run.config.once
    assert (run.config.dataset, run.config.model) == ("data of the devices", "test")
    assert run.rounds == 3
    assert summary == json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["users"], summary["fewest_users"], summary["order"]) == (30, 10, "round")
    assert summary["epsilon_total"] <= 8
    assert "invitation" in summary["admission"]
    weights = load_file(tmp_path / "run/model.safetensors")["weights"]
    assert weights.tobytes() == read_state(ended.database, 3).weights.tobytes()
    done = typed(["sqsgd", "report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")])
    assert done.code == 0, done.error
    assert "data of the devices" in (tmp_path / "page.html").read_text()


def test_it_is_written_once_and_again_after_a_crash(ended, tmp_path):
    write_outcome(tmp_path / "run", ended.database, ended.study)
    first = (tmp_path / "run/summary.json").stat()
    write_outcome(tmp_path / "run", ended.database, ended.study)
    assert (tmp_path / "run/summary.json").stat().st_mtime_ns == first.st_mtime_ns
    (tmp_path / "run/summary.json").unlink()  # killed before the last file
    write_outcome(tmp_path / "run", ended.database, ended.study)
    assert read_run(tmp_path / "run").state == "finished"


def test_a_study_that_ended_early_is_a_shorter_run(tmp_path):
    asking = Asking(tmp_path / "study", users=30)
    fill(asking)
    tick(asking.database, asking.study)
    end_study(asking.database, asking.study)
    summary = write_outcome(tmp_path / "run", asking.database, asking.study)
    assert (summary["rounds"], summary["finished"]) == (1, False)
    assert read_run(tmp_path / "run").rounds == 1
    asking.database.close()


def test_a_study_that_has_not_ended(tmp_path):
    asking = Asking(tmp_path / "study")
    with pytest.raises(ValueError, match="has not ended"):
        write_outcome(tmp_path / "run", asking.database, asking.study)
    asking.database.close()


def test_a_model_keeps_its_names_and_shapes():
    arrays = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones(2, np.float32)}
    weights, names = flat(arrays)
    assert weights.tolist() == [1, 1, 0, 1, 2, 3, 4, 5]
    back = named(weights, names)
    assert {name: array.tolist() for name, array in back.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }
    with pytest.raises(ValueError, match="a must be finite"):
        flat({"a": np.array([np.inf], np.float32)})
    with pytest.raises(ValueError, match="it is float64"):
        flat({"a": np.zeros(2)})
