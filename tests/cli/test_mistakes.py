"""What newcomers get wrong, by command: each ends in a message that says what to do, and writes nothing."""

import pytest
from folders import write_run
from typed import typed

MODELS = """
import torch
def number(): return 3
def narrow(): return torch.nn.Linear(5, 10)
"""

MISTAKES = [
    # train
    ("train --epsilon 0", "epsilon = 0.0 must be a number from 0.01 to 100000"),
    ("train --round 3", "--rounds"),
    ("train --scheme sqsdg", "did you mean 'sqsgd'?"),
    ("train --dataset cifar100", "choose mnist5k, mnist, fashion-mnist, emnist"),
    ("train --dataset mnist --data-dir /nowhere", "run sqsgd data fetch mnist --data-dir /nowhere"),
    ("train --model my_models.py:number", "write my_models:number, without .py"),
    ("train --model my_models:number", "returned a int, not a torch.nn.Module"),
    ("train --model my_models:other", "its public callables are: narrow, number"),
    ("train --participation 20", "at most clients = 10"),
    ("train --config nothing.toml", "nothing.toml"),
    ("train --config once-mnits", "did you mean 'once-mnist'?"),
    ("train --config figure5-mnist", "compares several runs: sqsgd compare --config "),
    ("train --config sweep.toml", "sqsgd compare --config sweep.toml"),
    ("train --out notes.txt --rounds 1", "notes.txt is a file; name a folder"),
    ("train --out /proc/nowhere --rounds 1", "/proc/nowhere"),
    ("train --resume", "--resume needs --out"),
    ("train --resume --out folder", "nothing to resume"),
    ("train --resume --out folder --lr 1", "leave out lr"),
    ("train --epsilon", "Option '--epsilon' requires an argument"),
    ("train --eps 4", "No such option '--eps'. (Did you mean one of: '--epsilon'"),
    ("train --option levels=8 --option levels=4", "option levels is given twice"),
    ("train --ledgers notes.txt --rounds 1", "ledgers = 'notes.txt' is a file; name a folder"),
    # compare and ablate
    ("compare --schemes sqsgd,nothing", "'nothing' is not a known scheme"),
    ("compare --rates a,b", "comma-separated numbers"),
    ("compare --small", "--small needs --config"),
    ("compare --config text.toml", "sqsgd train --config text.toml"),
    ("compare --out run", "run holds a training run: choose another --out"),
    ('compare --schemes ""', "schemes is empty: give one or more, separated by commas"),
    ("compare --lr 0.1 --rates 0.1,0.2", "lr and rates exclude each other"),
    ("compare --config figure7", "figure7 does not exist; did you mean 'figure"),
    ("compare --seeds 1000", "seeds: 1000 is reserved for the tuning runs; use other seeds, or one rate"),
    ("ablate 3", "tradeoff (figure3)"),
    # plan, audit
    ("plan --dim 0", "dim = 0 must be a whole number from 1"),
    ("plan --local 16", "local = 16.0 needs --central"),
    ("plan --central 0.5 --epsilon 4", "--central chooses it"),
    ("plan --once --users 100", "--once needs --epsilon (local) or --central"),
    ("plan --once --epsilon 4 --rounds 3", "rounds = 3 has no meaning with --once"),
    ("audit --trials 1", "trials = 1 must be a whole number from 1000"),
    ("audit --option name=fedsgd", "use --scheme"),
    ("audit --out notes.txt", "notes.txt is a file; name a folder"),
    # report, schemes, data, doctor
    ("report --out x.html", "Missing argument 'RUNS...'."),
    ("report folder", "holds no run"),
    ("report run --csv notes.txt --out new.html", "csv = 'notes.txt' is a file; name a folder"),
    ("data fetch cifar", "choose mnist, fashion-mnist, emnist"),
    # ledger, deploy
    ("deploy init notes.txt", "notes.txt is a file; name a new folder"),
    ("deploy up folder", "create it with `sqsgd deploy init folder`"),
    ("deploy allow nothing my_app", "name a node's folder, such as federation/nodes/node-0"),
    ("tran", "No such command 'tran'. Did you mean 'train'?"),
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
    if words.startswith(("No such ", "unexpected ", "Missing ")):  # click says how it is used instead
        assert "Usage: " in done.error
        assert "-h' for help." in done.error
    assert done.error.lower().count("did you mean") <= 1
    assert "Traceback" not in done.error
    assert "[Errno" not in done.error or "/proc" in line or "nothing.toml" in line
    assert sorted(folder.rglob("*.[!p]*")) == before
    assert not (folder / "runs").exists()
