"""Both forms of a statement do the same."""

import re

import pytest
from devices import make

from sqsgd.collect import statements
from sqsgd.collect.database import open_database
from sqsgd.collect.statements import Statement

PAIRS = {name: found for name, found in vars(statements).items() if isinstance(found, Statement)}


@pytest.mark.parametrize("name", PAIRS)
def test_both_forms_take_the_same_values(name):
    pair = PAIRS[name]
    assert pair.each.count("?") == pair.together.count("?") > 0
    assert re.match(r"\w+ (INTO )?\w+", pair.each)[0] == re.match(r"\w+ (INTO )?\w+", pair.together)[0]


def test_both_forms_have_the_same_effect(tmp_path, url):
    make(tmp_path / "study", url)
    database = open_database(tmp_path / "study")
    database.write_many(statements.NEW, [(7, 0, "x"), (7, 1, "y"), (7, 2, "z")])
    database.write_many(statements.GIVEN, [("t0", 5.0, 7, 0), ("t1", 6.0, 7, 1)])
    database.write_many(statements.KEPT, [(b"one", 7, 1), (b"two", 7, 2)])
    database.write_many(statements.KEPT, [(b"late", 7, 1)])  # the first report stays
    database.write_many(statements.FREED, [("w", 7, 0)])
    rows = database.read(
        "SELECT slot, draw, ticket, expires, report FROM slots WHERE round = 7 ORDER BY slot"
    )
    assert [(*row[:4], row[4] and bytes(row[4])) for row in rows] == [
        (0, "w", "t0", None, None),
        (1, None, "t1", None, b"one"),
        (2, None, None, None, b"two"),
    ]
    for _ in range(2):
        database.write_many(statements.REFUSED, [("a", 2), ("b", 0)])
    assert sorted(database.read("SELECT code, count FROM refusals")) == [("a", 4), ("b", 0)]
    database.write_many(statements.USED, [("n",)])
    assert database.read("SELECT number FROM invitations") == [("n",)]
    database.write_many(statements.USED, [])
    database.close()
