"""What commands print, and how they fail: with one line that says what to do, with JSON too, and a status."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from folders import write_run
from typed import typed

from sqsgd.cli import app
from sqsgd.cli.output import INTERNAL_ERROR, Ended, print_table, run
from sqsgd.privacy.ledger import LedgerDamaged

# ---------------------------------------------------------------- how commands end


def test_a_training_that_diverges_has_failed(capsys, tmp_path):
    """That is not wrong usage: rounds were paid for, and they are kept."""
    rates = ["--lr", "1e9", "--decay", "none", "--scheme", "fedsgd"]
    small = ["--model", "mlp", "--clients", "2", "--rounds", "60", "--evaluate-every", "60"]
    assert run(app, ["train", *small, *rates, "--out", str(tmp_path / "run"), "--json"]) == 1
    assert "a learning rate below 1e+09 may help" in json.loads(capsys.readouterr().out)["error"]


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
        (OSError(errno.ENOSPC, "No space left", "/disk"), 1, "/disk: No space left; "),
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
    assert ("Traceback" in err) == (status == INTERNAL_ERROR)
    assert words in json.loads(out)["error"] if as_json else out == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_output_ends_with_1_and_one_line():
    code = "import sys; sys.argv[0] = 'sqsgd'; from sqsgd.cli import main; main()"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code, "data", "list", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    remedy = "free some space, or write to another disk"
    assert done.stderr == f"sqsgd: No space left on device; {remedy}\n"


# ---------------------------------------------------------------- tables


def test_cells_are_printed_verbatim_without_control_characters(capsys, monkeypatch):
    """Some quote servers: brackets are not read as markup, colons not as emoji."""
    monkeypatch.setenv("COLUMNS", "80")
    row = ["[red]node[/red]", "[1, 2] :smile: [/]", "\x1b[2Jcleared\x07"]
    print_table(("name", "reason", "more"), [row], title="of [bold]runs[/bold]")
    shown = capsys.readouterr().out
    for text in (*row[:2], "of [bold]runs[/bold]", "\ufffd[2Jcleared\ufffd"):
        assert text in shown


MODELS = """
import torch
def number(): return 3
def narrow(): return torch.nn.Linear(5, 10)
"""

MISTAKES = [
    # train
    ("train --epsilon 0", "epsilon = 0.0 must be a number from 0.01 to 100000"),
    ("train --scheme sqsdg", "did you mean 'sqsgd'?"),
    ("train --dataset mnist --data-dir /nowhere", "run sqsgd data fetch mnist --data-dir /nowhere"),
    ("train --model my_models.py:number", "write my_models:number, without .py"),
    ("train --config once-mnits", "did you mean 'once-mnist'?"),
    ("train --config figure5-mnist", "compares several runs: sqsgd compare --config "),
    ("train --out notes.txt --rounds 1", "notes.txt is a file; name a folder"),
    ("train --out /proc/nowhere --rounds 1", "/proc/nowhere"),
    ("train --resume", "--resume needs --out"),
    ("train --resume --out folder --lr 1", "leave out lr"),
    ("train --eps 4", "No such option '--eps'. (Did you mean one of: '--epsilon'"),
    ("train --ledgers notes.txt --rounds 1", "ledgers = 'notes.txt' is a file; name a folder"),
    # compare and ablate
    ("compare --small", "--small needs --config"),
    ("compare --config text.toml", "sqsgd train --config text.toml"),
    ("compare --out run", "run holds a run already: --resume it, or choose another --out"),
    ("compare --lr 0.1 --rates 0.1,0.2", "lr and rates exclude each other"),
    ("compare --seeds 1000", "seeds: 1000 is reserved for the tuning runs; use other seeds, or one rate"),
    ("ablate 3", "tradeoff, privacy, figure1"),
    # plan, audit
    ("plan --dim 0", "dim = 0 must be a whole number from 1"),
    ("plan --local 16", "local = 16.0 needs --central"),
    ("plan --central 0.5 --epsilon 4", "--central chooses it"),
    ("plan --once --epsilon 4 --rounds 3", "rounds = 3 has no meaning with --once"),
    ("audit --option name=fedsgd", "use --scheme"),
    # report, deploy
    ("report run --out run/config.toml", "must end in .html"),
    ("deploy init notes.txt", "notes.txt is a file; name a new folder"),
    ("deploy up folder", "create it with `sqsgd deploy init folder`"),
    ("deploy add-node run", "create it with"),
    ("deploy renew run", "name the folder that `sqsgd deploy init` wrote"),
    ("tran", "No such command 'tran'. Did you mean 'train'?"),
    ("conformance", "either a file of answers to check, or --export FILE"),
    ("conformance /nowhere.json", "/nowhere.json: No such file"),
    ("collect status /nowhere", "holds no study.toml: name a study's folder"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the files that the mistakes name."""
    place = tmp_path_factory.mktemp("mistakes")
    (place / "folder").mkdir()
    (place / "notes.txt").write_text("not a folder")
    write_run(place / "run")
    (place / "my_models.py").write_text(MODELS)
    (place / "misspelt.toml").write_text("round = 3\n")
    (place / "text.toml").write_text('rounds = "3"\n')
    (place / "sweep.toml").write_text('title = "x"\n[[arms]]\nscheme = "sqsgd"\n')
    return place


@pytest.mark.parametrize(("line", "words"), MISTAKES)
def test_a_mistake_says_what_to_do(line, words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("SQSGD_DATA", raising=False)
    before = sorted(folder.rglob("*.[!p]*"))
    done = typed(f"sqsgd {line}")
    assert done.code == 2, done.out + done.error
    assert words in done.error
    as_json = typed(f"sqsgd {line} --json")
    told = json.loads(as_json.out)
    assert (as_json.code, [*told], as_json.error) == (2, ["error"], f"sqsgd: {told['error']}\n")
    assert words in told["error"]
    if words.startswith(("No such ", "unexpected ", "Missing ")):  # click says how it is used instead
        assert "Usage: " in done.error
        assert "-h' for help." in done.error
    assert done.error.lower().count("did you mean") <= 1
    assert "Traceback" not in done.error
    assert "[Errno" not in done.error or "/proc" in line or "nothing.toml" in line
    assert sorted(folder.rglob("*.[!p]*")) == before
    assert not (folder / "runs").exists()
