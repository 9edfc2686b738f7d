"""What newcomers get wrong, by command: each ends in a message that says what to do, and writes nothing."""

import pytest
from folders import write_run
from typed import typed

MODELS = """
import torch
nn = torch.nn
def statistics(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.BatchNorm1d(10))
def number(): return 3
def narrow(): return torch.nn.Linear(5, 10)
"""

MISTAKES = [
    # train
    ("train --epsilon 0", "epsilon = 0.0 must be a number from 0.01 to 100000"),
    ("train --epsilon 1,5", "'1,5' is not a valid float"),
    ("train --bytes 0", "bytes = 0"),
    ("train --bytes 1000000", "at most 479400"),
    ("train --round 3", "--rounds"),
    ("train --rounds 0", "rounds = 0"),
    ("train --scheme sqsdg", "did you mean 'sqsgd'?"),
    ("train --scheme SQSGD", "did you mean 'sqsgd'?"),
    ("train --dataset MNIST", "did you mean 'mnist'?"),
    (
        "train --dataset cifar100",
        "choose mnist5k, mnist, fashion-mnist, emnist, cifar10, shakespeare or package.module:factory",
    ),
    ("train --dataset mnist --data-dir /nowhere", "run sqsgd data fetch mnist --data-dir /nowhere"),
    ("train --model resnet", "did you mean 'resnet20'?"),
    ("train --model my_models.py:number", "write my_models:number, without .py"),
    ("train --model my_models:statistics", "use GroupNorm"),
    ("train --model my_models:number", "returned a int, not a torch.nn.Module"),
    ("train --model my_models:narrow", "the model does not fit the data (inputs of shape (1, 28, 28)"),
    ("train --model my_models:other", "its public callables are: narrow, number, statistics"),
    ("train --engine ray", "engine = 'ray' must be one of local"),
    ("train --partition dirichlet", "for example dirichlet:0.5"),
    ("train --partition shards:x", "for example shards:2"),
    ("train --clients 5000", "clients = 5000 is more than the 4000"),
    ("train --participation most", "participation = 'most' must be"),
    ("train --participation 20", "at most clients = 10"),
    ("train --optimizer adamw", "must be one of sgd, momentum, adam"),
    ("train --lr -1", "lr = -1.0 must be a number from 0"),
    ("train --option levels", "must look like name=value"),
    ("train --option colour=red", "options: code, levels, coordinates, reach, norm_epsilon"),
    ("train --scheme sqsgd-paper --epsilon 5 --option adaptive=true", "norm_epsilon = 10"),
    ("train --config nothing.toml", "nothing.toml"),
    ("train --config once-mnits", "did you mean 'once-mnist'?"),
    ("train --config figure5-mnist", "compares several runs: sqsgd compare --config "),
    ("train --config folder", "config = 'folder' is a folder; name a TOML file"),
    ("train --config broken.toml", "broken.toml is not valid TOML"),
    ("train --config misspelt.toml", "did you mean 'rounds'?"),
    ("train --config text.toml", "rounds = '3' must be of type int"),
    ("train --config sweep.toml", "sqsgd compare --config sweep.toml"),
    ("train --out notes.txt --rounds 1", "notes.txt is a file; name a folder"),
    ("train --out notes.txt/run --rounds 1", "notes.txt is a file; name a folder"),
    ("train --out /proc/nowhere --rounds 1", "/proc/nowhere"),
    ("train --resume", "--resume needs --out"),
    ("train --resume --out folder", "nothing to resume"),
    ("train --resume --out folder --lr 1", "leave out lr"),
    ("train mnist", "unexpected extra argument (mnist)"),
    ("train --resume runs/first", "unexpected extra argument (runs/first)"),
    ("train --epsilon", "Option '--epsilon' requires an argument"),
    ("train --epsilon inf", "epsilon = inf must be a number from 0.01"),
    ("train --eps 4", "No such option '--eps'. (Did you mean one of: '--bytes', '--epsilon'"),
    ("train --learning-rate 0.1", "No such option '--learning-rate'."),
    ("train --workers 4", "workers is a key of the --config file"),
    ("train --checkpoint-every 5", "checkpoint_every is a key of the --config file"),
    ("train --gpu", "No such option '--gpu'."),
    ("train --data_dir x", "(Did you mean one of: '--data-dir'"),
    ("train --participation 0.5", "must be 'all', 'once' or a number of clients per round"),
    ("train --participation once", "rounds = 600 is more than clients = 10"),
    ("train --features hogg", "features 'hogg' are unknown; did you mean 'hog'?"),
    ("train --features hog --model lenet5 --rounds 1", "for features or other vectors use linear or mlp"),
    ("train --option levels=eight", "levels = 'eight' must be a whole number from 2 to 256"),
    ("train --option levels=8 --option levels=4", "option levels is given twice"),
    ("train --ledgers notes.txt --rounds 1", "ledgers = 'notes.txt' is a file; name a folder"),
    ("train --config notes.txt", "notes.txt is not valid TOML"),
    ("train --json --rounds", "Option '--rounds' requires an argument"),
    # compare and ablate
    ("compare --schemes sqsgd,nothing", "'nothing' is not a known scheme"),
    ("compare --schemes sqsgd,sqsgd", "list each once"),
    ("compare --scheme sqsgd", "--schemes"),
    ("compare --rates a,b", "comma-separated numbers"),
    ("compare --seeds 0", "seeds = 0 must be a whole number from 1"),
    ("compare --small", "--small needs --config"),
    ("compare --config misspelt.toml", "unknown key 'round'"),
    ("compare --config text.toml", "sqsgd train --config text.toml"),
    ("compare --config nothing.toml", "nothing.toml does not exist"),
    ("compare --jobs -1 --rounds 1", "jobs = -1"),
    ("compare --model lenet --rounds 1", "did you mean 'lenet5'?"),
    ("compare --dataset mnist --data-dir /nowhere", "run sqsgd data fetch mnist"),
    ("compare --option foo=1", "arm 'sqsgd': "),
    ("compare --arm 'A: sqsgd' --arm 'B: sqsgd levels=1000'", "arm 'B': levels = 1000"),
    ("compare --panel 'P: foo=1' --schemes sqsgd", "arm 'sqsgd', panel 'P': "),
    ("compare --features hogg --model linear", "did you mean 'hog'?"),
    ("compare --partition foo", "partition"),
    ("compare --loss foo", "loss"),
    ("compare --dataset mnst", "did you mean 'mnist'?"),
    ("compare --clients 100000", "clients = 100000 is more than the 4000"),
    ("compare --out run", "run holds a training run: choose another --out"),
    ("ablate tradeoff --dataset mnist5k --partition foo", "partition"),
    ("compare --resume --out folder", "there is nothing to resume"),
    ("compare sqsgd piecewise", "unexpected extra arguments (sqsgd piecewise)"),
    ('compare --schemes "sqsgd piecewise"', "'sqsgd piecewise' is not a known scheme"),
    ('compare --schemes ""', "schemes is empty: give one or more, separated by commas"),
    ("compare --config folder", "config = 'folder' is a folder; name a TOML file"),
    ("compare --lr 0.1 --rates 0.1,0.2", "lr and rates exclude each other"),
    ("compare --arm sqsgd --schemes fedsgd", "schemes and arm exclude each other"),
    ("compare --arm 'Ours: levels=8'", "must look like 'NAME: SCHEME key=value ...'"),
    ("compare --arm 'sqsgd lr=0.1'", "lr = 0.1: all arms and panels share rates"),
    ("compare --arm 'A: sqsgd' --arm 'A: fedsgd'", "are the same: A; list each once"),
    ("compare --arm '..: sqsgd'", "name = '..' must hold a letter or a digit"),
    ("compare --panel 'Few: clients'", "panel = 'Few: clients' must look like 'NAME: key=value ...'"),
    ("compare --panel 'P:'", "panel = 'P:' must look like 'NAME: key=value ...'"),
    ("compare --arm 'A: sqsgd levels'", "arm = 'A: sqsgd levels' must look like"),
    ('compare --arm "A: sqsgd \'x"', "has a quotation mark that is not closed"),
    ("compare --config figure7", "figure7 does not exist; did you mean 'figure"),
    ("compare --config figur9/figure1.toml", "figure1.toml does not exist"),
    ("compare --evaluate-every 5", "evaluate_every is a key of the --config file"),
    ("ablate tradeoff --evaluate-every 5", "evaluate_every is a key of a file for sqsgd compare --config"),
    ("compare --seeds -1", "seeds = -1 must be a whole number from 1"),
    ("compare --seeds 1000", "seeds: 1000 is reserved for the tuning runs; use other seeds, or one rate"),
    ("compare --seeds 1,2,3", "'1,2,3' is not a valid integer"),
    ("ablate", "Missing argument 'FIGURE'."),
    ("ablate 3", "tradeoff (figure3)"),
    ("ablate tradeoff privacy", "unexpected extra argument (privacy)"),
    ("ablate tradeoff --resume --out folder", "there is nothing to resume"),
    # plan, audit
    ("plan 119850 400 256", "unexpected extra arguments (119850 400 256)"),
    ("plan --dim 0", "dim = 0 must be a whole number from 1"),
    ("plan --dim 119,850", "'119,850' is not a valid integer"),
    ("plan --bits 2048", "No such option '--bits'. (Did you mean one of: '--bytes'"),
    ("plan --model lenet5", "No such option '--model'."),
    ("plan --clients 0", "clients = 0 must be"),
    ("plan --prior -1", "prior = -1.0 must be a number from 0"),
    ("plan --dim 5000000000", "dim = 5000000000"),
    ("plan --epsilon inf", "epsilon = inf"),
    ("plan --epsilon nan", "epsilon = nan"),
    ("plan --bytes 0", "bytes = 0 must be"),
    ("plan --bytes 99999999 --dim 1000000000", "use at most 2097152 bytes"),
    ("plan --rounds -3", "rounds = -3"),
    ("plan --probability 0", "probability = 0.0 must be above 0"),
    ("plan --probability 1", "choose a small probability"),
    ("plan --users 100", "users = 100 needs --once"),
    ("plan --central 1", "central = 1.0 needs --once"),
    ("plan --once --users 100", "--once needs --epsilon (local) or --central"),
    ("plan --once --epsilon 4 --rounds 3", "rounds = 3 has no meaning with --once"),
    ("plan --once --epsilon 4 --central 1", "either epsilon = 4.0 or central = 1.0"),
    ("plan --once --epsilon 4 --delta 2", "delta = 2.0"),
    ("plan --once --central 0 --dim 100", "central = 0.0"),
    ("audit --trials 1", "trials = 1 must be a whole number from 1000"),
    ("audit --trials 999999999999", "to 100000000"),
    ("audit --epsilon -1", "epsilon = -1"),
    ("audit --dim 0", "dim = 0"),
    ("audit --option levels", "must look like name=value"),
    ("audit --option levels=1", "levels = 1 must be"),
    ("audit --option colour=red", "colour = 'red': 'sqsgd' has no such option"),
    ("audit --option epsilon=5", "use --epsilon"),
    ("audit --option name=fedsgd", "use --scheme"),
    ("audit --seed -1", "seed = -1"),
    ("audit --out /proc/nowhere", "/proc/nowhere: No such file"),
    ("audit sqsgd", "unexpected extra argument (sqsgd)"),
    ("audit --scheme all", "'all' is not a known scheme (known: sqsgd, "),
    ("audit --scheme foo", "scheme = 'foo' is not a known scheme"),
    ("audit --bytes 0", "bytes = 0 must be"),
    ("audit --out notes.txt", "notes.txt is a file; name a folder"),
    ("ablate figure5", "tradeoff (figure3)"),
    ("ablate communication --bytes 64 --option levels=2", "are the same"),
    ("ablate trade-off", "did you mean 'tradeoff'?"),
    ("ablate tradeoff --data-dir /nowhere", "run sqsgd data fetch mnist"),
    ("ablate tradeoff --rounds 0 --dataset mnist5k", "rounds = 0"),
    ("ablate tradeoff --resume", "--resume needs --out"),
    ("ablate tradeoff --out notes.txt --dataset mnist5k", "notes.txt is a file"),
    ("ablate tradeoff --model nothing --dataset mnist5k", "model 'nothing' is unknown"),
    # report, schemes, data, doctor
    ("report", "Missing argument 'RUNS...'."),
    ("report --out x.html", "Missing argument 'RUNS...'."),
    ("report nothing", "nothing does not exist"),
    ("report folder", "holds no run"),
    ("report notes.txt", "notes.txt is not a folder"),
    ("report folder --out page.pdf", "must end in .html"),
    ("report run --csv notes.txt --out new.html", "csv = 'notes.txt' is a file; name a folder"),
    ("schemes --epsilon -1", "epsilon = -1"),
    ("schemes --epsilon nan", "epsilon = nan"),
    ("schemes --dim 0", "dim = 0"),
    ("schemes --dim 1e6", "'1e6' is not a valid integer"),
    ("schemes --bytes 0", "bytes = 0"),
    ("schemes --bits 3", "No such option"),
    ("schemes sqsgd", "unexpected extra argument (sqsgd)"),
    ("data fetch", "Missing argument 'mnist|fashion-mnist|emnist'."),
    ("data fetch cifar", "choose mnist, fashion-mnist, emnist"),
    ("data fetch MNIST", "did you mean 'mnist'?"),
    ("data fetch mnist emnist", "unexpected extra argument (emnist)"),
    ("data list mnist", "unexpected extra argument (mnist)"),
    ("data ls", "Did you mean 'list'?"),
    ("data get mnist", "No such command 'get'."),
    ("doctor --fix", "No such option '--fix'."),
    ("doctor train", "unexpected extra argument (train)"),
    # ledger, deploy
    ("ledger show", "Missing argument 'PATH'."),
    ("ledger show nothing", "nothing does not exist; name a ledger"),
    ("ledger verify folder", "folder is a folder; name the ledger in it"),
    ("ledger reset x", "No such command 'reset'."),
    ("deploy init", "Missing argument 'FOLDER'."),
    ("deploy init notes.txt", "notes.txt is a file; name a new folder"),
    ("deploy init fed --nodes 0", "nodes = 0 must be a whole number from 1"),
    ("deploy init fed --max-epsilon 0", "max_epsilon = 0.0 must be a number from 0.01"),
    ("deploy init fed --max-epsilon 5", "max_epsilon = 5 is below epsilon = 400"),
    ("deploy init fed --host 'no host'", "host = 'no host'"),
    ("deploy init fed --port 70000", "port = 70000"),
    ("deploy init fed --scheme sqsdg", "did you mean 'sqsgd'"),
    ("deploy init fed --epsilon nan", "epsilon = nan"),
    ("deploy init fed --bytes 0", "bytes = 0"),
    ("deploy init fed --rounds 0", "rounds = 0"),
    ("deploy init fed --min-answers 4", "min_answers = 4"),
    ("deploy init fed --downlink half", "downlink = 'half'"),
    ("deploy init fed --days 0", "days = 0"),
    ("deploy init fed --model 'a b'", "model = 'a b'"),
    ("deploy up folder", "create it with `sqsgd deploy init folder`"),
    ("deploy status nothing", "has no federation.toml: create it with `sqsgd deploy init"),
    ("deploy allow nothing my_app", "name a node's folder, such as federation/nodes/node-0"),
    ("deploy stop fed", "No such command 'stop'."),
    ("tran", "No such command 'tran'. Did you mean 'train'?"),
    ("schemas", "No such command 'schemas'. Did you mean 'schemes'?"),
    ("ledger shwo", "No such command 'shwo'. Did you mean 'show'?"),
    ("help", "No such command 'help'."),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working folder with the files that the mistakes name."""
    place = tmp_path_factory.mktemp("mistakes")
    (place / "folder").mkdir()
    (place / "notes.txt").write_text("not a folder")
    write_run(place / "run")
    (place / "my_models.py").write_text(MODELS)
    (place / "broken.toml").write_text("rounds = \n")
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


@pytest.mark.parametrize("line", ["", "data", "ledger"])
def test_a_group_without_a_command_shows_its_help(line):
    done = typed(f"sqsgd {line}")
    assert "Usage" in done.out + done.error
