"""Where a study is, and the tasks of its slots."""

from devices import make

from sqsgd.federation.collect.database import open_database
from sqsgd.federation.collect.intake import OPENED, stage, task_of


def test_a_new_study_is_open_and_all_its_slots_are_free(tmp_path):
    study = make(tmp_path / "study")
    database = open_database(tmp_path / "study")
    at = stage(database)
    assert (at.round, at.state, at.ending, at.bound) == (0, OPENED, False, study.bound)
    assert at.deadline > database.now()
    rows = database.read("SELECT slot, draw, ticket, report FROM slots WHERE round = 0 ORDER BY slot")
    assert [row[0] for row in rows] == list(range(study.slots))
    assert len({row[1] for row in rows}) == study.slots
    assert {row[2:] for row in rows} == {(None, None)}
    assert task_of(study, at, 3).binding == task_of(study, at, 3).binding
    assert (task_of(study, at, 3).client, task_of(study, at, 3).seed) == (3, study.seed)
    database.close()
