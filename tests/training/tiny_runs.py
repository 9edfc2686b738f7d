"""Runs of a few seconds on the data of ``tiny``: prepared, finished, or cut off on the way."""

from sqsgd.runs import train
from sqsgd.training.settings import load_config, make_config

TINY = {
    "dataset": "tiny:data", "model": "tiny:model", "clients": 4, "batch": 16, "epsilon": 60.0, "bytes": 2,
    "rounds": 12, "evaluate_every": 5, "checkpoint_every": 4, "workers": 1,
}  # fmt: skip

ONCE = {
    "dataset": "mnist5k", "model": "soft-hog-linear", "clients": 4000, "participation": "once",
    "scheme": "auto", "epsilon": 8.0, "bytes": 48, "rounds": 10, "decay": "linear",
    "evaluate_every": 5, "checkpoint_every": 3, "workers": 1,
}  # fmt: skip
SMALL_ONCE = {**ONCE, "clients": 40, "rounds": 4, "epsilon": 1.0}
"""Each user reports once."""

SIGNS = {"options": {"code": "signs"}, "decay": "none"}
"""Clients keep residuals, and no rate depends on the number of rounds, so that more may follow."""

SWEEP = {
    "title": "tiny",
    "base": {
        "dataset": "tiny:data", "model": "tiny:model", "clients": 4, "batch": 16, "rounds": 6, "bytes": 2,
        "epsilon": 60.0,
    },
    "arms": [{"scheme": "sqsgd"}, {"scheme": "fedsgd"}],
    "rates": [0.05, 0.2],
    "seeds": [1, 2],
}  # fmt: skip
"""A sweep of such runs."""


def without_times(values):
    return {name: value for name, value in values.items() if not name.startswith(("seconds", "share_"))}


def prepared(folder, base=TINY, **changes):
    return train.prepare(make_config({**base, **changes}), folder)


def loaded(folder):
    """The run in a folder, from its configuration."""
    return train.prepare(load_config(folder / "config.toml"), folder)


def started(run, **options):
    """The rounds of a new run."""
    return run.started().rounds(**options)


def resumed(run):
    """The rounds that are left."""
    return run.rounds()


def finished(folder, base=TINY, **changes):
    return list(started(prepared(folder, base, **changes)))


def cut_off(run, rounds):
    """The run after some rounds, as if the process had been killed: only the last checkpoint is left."""
    steps = started(run)
    for _ in range(rounds):
        next(steps)
    steps.close()
    return run


def stopped(folder):
    """A run that was cut off after five rounds: its last checkpoint is of round 4."""
    return cut_off(prepared(folder), 5)
