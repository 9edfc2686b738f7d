"""`sqsgd data list`."""

import json

from typed import typed


def test_data_list():
    rows = {row["name"]: row for row in json.loads(typed("sqsgd data list --json").out)}
    assert rows["mnist5k"]["available"]
    assert "sqsgd data fetch emnist" in rows["emnist"]["how"]
