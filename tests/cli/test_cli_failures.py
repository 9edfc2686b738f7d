"""Every command fails with one line and, with --json, with JSON; the exit status says why."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sqsgd.cli import _failures as failures
from sqsgd.cli import app
from sqsgd.cli._failures import Ended, run
from sqsgd.privacy.ledger import LedgerDamaged

WRONG = [
    (("plan", "--dim", "0"), "dim = 0 must be"),
    (("audit", "--scheme", "sqsdg"), "did you mean 'sqsgd'"),
    (("ledger", "show", "/nowhere"), "does not exist; name a ledger"),
    (("schemes", "--dim", "0"), "dim = 0"),
    (("train", "--resume"), "--resume needs --out"),
    (("train", "--rounds", "0"), "rounds = 0"),
    (("compare", "--schemes", "nope"), "'nope' is not a known scheme"),
    (("ablate", "nope"), "unknown ablation 'nope'"),
    (("report", "/nowhere"), "/nowhere does not exist"),
    (("data", "fetch", "nope"), "choose mnist"),
    (("data", "lits"), "No such command"),
    (("conformance",), "either a file of answers to check, or --export FILE"),
    (("conformance", "/nowhere.json"), "/nowhere.json: No such file"),
    (("doctor", "now"), "unexpected extra argument"),
    (("deploy", "status", "/nowhere"), "has no federation.toml: create it with"),
    (("deploy", "init", "/nowhere", "--nodes", "0"), "nodes = 0 must be"),
    (("collect", "status", "/nowhere"), "holds no study.toml: name a study's folder"),
    (("palnt",), "No such command"),
    ((), "No such option"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_wrong_usage_is_reported_as_json_too(capsys, arguments, words):
    """The reason is the same as text and as JSON."""
    assert run(app, [*arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert [*told] == ["error"]
    assert err == f"sqsgd: {told['error']}\n"
    assert words in told["error"]


def test_every_command_has_a_case_above():
    tried = {arguments[0] for arguments, _ in WRONG if arguments}
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert names <= tried, "add the new command to WRONG"


# ---------------------------------------------------------------- how commands end


class Raising:
    """Stands in for the app: a command that raises a given exception."""

    def __init__(self, error):
        self.error = error

    def __call__(self, _arguments, *, standalone_mode):
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (ValueError("x = 1 is wrong"), 2, "x = 1 is wrong"),
        (OSError(errno.ENOENT, "No such file or directory", "/disk"), 2, "/disk: No such file"),
        (
            OSError(errno.ENOSPC, "No space left on device", "/disk"),
            1,
            "/disk: No space left on device; ",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 1, "Disk quota exceeded; free some space, or write"),
        (ModuleNotFoundError("no torch", name="torch"), 2, "pip install 'sqsgd[train]'"),
        (ModuleNotFoundError("no scipy", name="scipy"), 2, "pip install 'sqsgd[audit]'"),
        (MemoryError("Unable to allocate 32 GiB"), 2, "not enough memory: Unable to allocate"),
        (LedgerDamaged("line 7 was changed"), 1, "line 7 was changed"),
        (Ended("stopped; resume with --resume", 128 + signal.SIGINT), 130, "resume with"),
        (ZeroDivisionError("division by zero"), 70, "internal error"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_statuses(capsys, error, status, words, as_json):
    assert run(Raising(error), ["--json"] * as_json) == status
    out, err = capsys.readouterr()
    assert words in err
    assert ("Traceback" in err) == (status == failures.INTERNAL_ERROR)
    assert words in json.loads(out)["error"] if as_json else out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_standard_output_ends_with_1_and_one_line(more):
    code = "import sys; sys.argv[0] = 'sqsgd'; from sqsgd.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code, "schemes", *more]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    remedy = "free some space, or write to another disk"
    assert done.stderr == f"sqsgd: No space left on device; {remedy}\n"
