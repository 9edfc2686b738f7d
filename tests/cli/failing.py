"""Commands that must fail, with --json."""

import json

from sqsgd.cli import app
from sqsgd.cli._failures import run


def failed(capsys, *arguments):
    """The status, and the reason, which must be the same as text and as JSON."""
    status = run(app, [*arguments, "--json"])
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [*told] == ["error"]
    assert err == f"sqsgd: {told['error']}\n"
    return status, told["error"]
