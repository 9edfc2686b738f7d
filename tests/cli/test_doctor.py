"""`sqsgd doctor`: a table for people, JSON for machines, and what to type for what is missing."""

import json

from typed import typed


def test_the_command_for_people_and_for_machines():
    done = typed("sqsgd doctor --json")
    assert done.code == 0
    answer = json.loads(done.out)
    assert answer["works"] is True
    assert {"group", "name", "state", "found", "needed", "mend", "basic"} == set(answer["checks"][0])
    table = typed("sqsgd doctor")
    assert table.code == 0
    assert "The basics work." in table.out


def test_what_one_command_mends_is_said_once():
    """For every data set that is missing its own command, and for all packages of an extra the same."""
    checks = json.loads(typed("sqsgd doctor --data-dir /nowhere --json").out)["checks"]
    shown = typed("sqsgd doctor --data-dir /nowhere").out.split("To mend what is missing or broken:\n")[1]
    mends = {check["mend"] for check in checks} - {""}
    assert "sqsgd data fetch mnist --data-dir /nowhere" in str(mends)
    assert len(shown.splitlines()) == len(mends)
    for check in checks:
        if check["mend"]:
            (line,) = (each for each in shown.splitlines() if each.startswith(f"  {check['mend']}    ("))
            assert check["name"] in line
