"""`sqsgd schemes`."""

import json

from typed import typed


def test_schemes():
    rows = json.loads(typed("sqsgd schemes --json").out)
    by_name = {row["name"]: row for row in rows}
    assert by_name["sqsgd"]["message_bytes"] == 102
    assert by_name["sqsgd"]["epsilon"] == 400.0
    assert by_name["fedsgd"]["epsilon"] == "infinity"
    small = json.loads(typed("sqsgd schemes --dim 1 --epsilon 1 --json").out)
    assert next(row for row in small if row["name"] == "sqsgd-paper")["notion"] == "impossible here"
    table = typed("sqsgd schemes --dim 1000 --epsilon 50 --bytes 32").out
    assert "sqsgd-stateless" in table
    assert "``" not in table
    assert max(map(len, table.splitlines())) <= 80
