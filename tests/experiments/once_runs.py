"""Runs of a few seconds in which each user reports once."""

from sqsgd.training.settings import make_config

from sqsgd.experiments import runner

ONCE = {
    "dataset": "mnist5k", "model": "soft-hog-linear", "clients": 4000, "participation": "once",
    "scheme": "auto", "epsilon": 8.0, "bytes": 48, "rounds": 10, "decay": "linear",
    "evaluate_every": 5, "checkpoint_every": 3, "workers": 1,
}  # fmt: skip


def prepared(folder, **changes):
    return runner.prepare(make_config({**ONCE, **changes}), folder)


def finished(folder, **changes):
    run = prepared(folder, **changes)
    return list(runner.train(run, runner.start(run)))
