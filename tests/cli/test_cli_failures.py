"""Every command fails with one line and, with --json, with JSON; the exit status says why."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from failing import failed

from sqsgd.cli import _failures as failures
from sqsgd.cli import app
from sqsgd.cli._failures import Ended, explained, run
from sqsgd.privacy.ledger import LedgerDamaged

PLAN = [
    (("--dim", "0"), "dim = 0 must be"),
    (("--dim", "1e9"), "'1e9' is not a valid integer"),
    (("--dim", "5000000000"), "dim = 5000000000"),
    (("--epsilon", "0"), "epsilon = 0.0 must be a number from 0.01"),
    (("--epsilon", "inf"), "epsilon = inf"),
    (("--epsilon", "nan"), "epsilon = nan"),
    (("--bits", "2048"), "No such option"),
    (("--bytes", "0"), "bytes = 0 must be"),
    (("--bytes", "99999999", "--dim", "1000000000"), "use at most 2097152 bytes"),
    (("--clients", "0"), "clients = 0"),
    (("--rounds", "-3"), "rounds = -3"),
    (("--probability", "0"), "probability = 0.0 must be above 0"),
    (("--probability", "1"), "choose a small probability"),
    (("--prior", "-1"), "prior = -1.0"),
    (("119850",), "unexpected extra argument"),
]
AUDIT = [
    (("--scheme", "sqsdg"), "did you mean 'sqsgd'"),
    (("--trials", "1"), "trials = 1 must be a whole number from 1000"),
    (("--trials", "0"), "trials = 0"),
    (("--trials", "999999999999"), "to 100000000"),
    (("--trials", "many"), "'many' is not a valid integer"),
    (("--epsilon", "0"), "epsilon = 0.0"),
    (("--dim", "0"), "dim = 0"),
    (("--bytes", "-1"), "bytes = -1"),
    (("--option", "levels"), "must look like name=value"),
    (("--option", "levels=1"), "levels = 1 must be"),
    (("--option", "levels=4", "--option", "levels=8"), "levels is given twice"),
    (("--option", "epsilon=5"), "use --epsilon"),
    (("--option", "dim=5"), "use --dim"),
    (("--option", "name=fedsgd"), "use --scheme"),
    (("--seed", "-1"), "seed = -1"),
    (("--out", "/proc/nowhere"), "/proc/nowhere: No such file"),
    (("--out", __file__), "is a file; name a folder"),
    (("sqsgd",), "unexpected extra argument"),
]
OTHERS = [
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((("plan", *arguments), words) for arguments, words in PLAN),
        *((("audit", *arguments), words) for arguments, words in AUDIT),
        *OTHERS,
    ],
)
def test_wrong_usage_is_reported_as_json_too(capsys, arguments, words):
    status, reason = failed(capsys, *arguments)
    assert status == 2
    assert words in reason


def test_every_command_has_a_case_above():
    tried = {arguments[0] for arguments, _ in OTHERS if arguments} | {"plan", "audit", "ledger"}
    names = {command.name or command.callback.__name__ for command in app.registered_commands}
    names |= {group.name for group in app.registered_groups}
    assert names <= tried, "add the new command to OTHERS"


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


def test_an_internal_error_has_its_own_status():
    """1 is for broken promises: a crash must not look like one, nor like success."""
    assert explained(RuntimeError("?"))[1] not in (0, 1, 2)


def test_success(capsys):
    assert run(app, ["schemes", "--dim", "10", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


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
