"""The folder of a study."""

import threading

import numpy as np
import pytest
from devices import invited, make

from sqsgd.federation.collect.rounds import create_study, flat, opened


def test_only_its_owner_can_read_what_is_secret(tmp_path):
    study = make(tmp_path / "study")
    for name in ("operator.key", "collect.db"):
        assert (tmp_path / "study" / name).stat().st_mode & 0o077 == 0
    assert (tmp_path / "study").stat().st_mode & 0o777 == 0o700
    with opened(tmp_path / "study") as (found, database):
        assert found == study
        assert len(database.read("SELECT * FROM slots")) == study.slots


def test_a_folder_that_is_in_use_is_left_alone(tmp_path):
    make(tmp_path / "study")
    before = {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    with pytest.raises(ValueError, match="holds a study already"):
        make(tmp_path / "study")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "study").iterdir()}


def test_of_two_at_once_one_creates_the_study(tmp_path):
    start, made, refused = threading.Barrier(4), [], []

    def one():
        start.wait()
        try:
            made.append(make(tmp_path / "study"))
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert all("holds a study already" in reason for reason in refused)
    assert len(invited(tmp_path / "study", made[0], 1)) == 1  # with the key of this study
    with opened(tmp_path / "study") as (found, _):
        assert found == made[0]


def test_nothing_is_written_for_settings_that_are_wrong(tmp_path):
    with pytest.raises(ValueError, match="epsilon"):
        make(tmp_path / "study", epsilon=-1.0)
    assert not (tmp_path / "study").exists()


def test_a_database_that_does_not_answer_leaves_no_study(tmp_path):
    with pytest.raises(OSError, match="PostgreSQL"):
        make(tmp_path / "study", "postgresql://nobody@127.0.0.1:1/nothing")
    assert list((tmp_path / "study").iterdir()) == []


@pytest.mark.parametrize("broken", ["begin", "shutil.copytree", "Study.write"])
def test_a_failure_half_way_leaves_nothing_behind(tmp_path, url, monkeypatch, broken):
    """So that the command can be repeated, in the same folder and with the same database."""

    def full(*_):
        raise OSError("no space left on device")

    weights, names = flat({"weights": np.zeros(3920, np.float32)})
    values = {"name": "digits", "users": 12, "rounds": 3, "softmax": True}
    with monkeypatch.context() as disk:
        disk.setattr(f"sqsgd.federation.collect.rounds.{broken}", full)
        with pytest.raises(OSError, match="no space left"):
            create_study(tmp_path / "study", weights, names, values, url, "digits")
    assert list((tmp_path / "study").iterdir()) == []
    study = create_study(tmp_path / "study", weights, names, values, url, "digits")
    with opened(tmp_path / "study") as (found, _):
        assert found == study


def test_a_page_of_the_operator_is_left_alone(tmp_path):
    (tmp_path / "study/page").mkdir(parents=True)
    weights, names = flat({"weights": np.zeros(3920, np.float32)})
    values = {"name": "digits", "users": 12, "rounds": 3, "softmax": True}
    with pytest.raises(ValueError, match="exists already"):
        create_study(tmp_path / "study", weights, names, values, page="digits")
    assert (tmp_path / "study/page").is_dir()
