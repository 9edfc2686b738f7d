"""Runs of a few seconds on the data of ``tiny``: prepared, finished, or cut off on the way."""

from sqsgd.training.settings import make_config

from sqsgd.experiments import runner

TINY = {
    "dataset": "tiny:data", "model": "tiny:model", "clients": 4, "batch": 16, "epsilon": 60.0, "bytes": 2,
    "rounds": 12, "evaluate_every": 5, "checkpoint_every": 4, "workers": 1,
}  # fmt: skip

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


def prepared(folder, **changes):
    return runner.prepare(make_config({**TINY, **changes}), folder)


def finished(folder, **changes):
    run = prepared(folder, **changes)
    return list(runner.train(run, runner.start(run)))


def cut_off(run, rounds):
    """The run after some rounds, as if the process had been killed: only the last checkpoint is left."""
    steps = runner.train(run, runner.start(run))
    for _ in range(rounds):
        next(steps)
    steps.close()
    return run


def stopped(folder):
    """A run that was cut off after five rounds: its last checkpoint is of round 4."""
    return cut_off(prepared(folder), 5)
