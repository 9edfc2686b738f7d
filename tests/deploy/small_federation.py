"""A federation of two nodes that never ran, and runs as if it had."""

import json

from sqsgd.deploy.federation import Federation
from sqsgd.deploy.folders import write_federation
from sqsgd.deploy.submission import Job

SMALL = Federation(nodes=2, rounds=4)
EVALUATION = {
    "metric": "accuracy", "epsilon": 1.0, "asked": 3, "answers": 3, "mean": 0.9, "low": 0.6, "high": 1.0,
}  # fmt: skip


def small_federation(place):
    return write_federation(place / "federation", SMALL, 30)


def job(server, status, follower):
    run = Job(
        folder=server / "runs/run-1", rounds=4, run_id="7", status=status, attempts=2, follower=follower
    )
    run.folder.mkdir()
    run.write()
    return run


def line(round, **more):
    sizes = dict.fromkeys(("bytes_up_serialised", "bytes_down", "bytes_down_serialised"), 1000)
    return json.dumps(
        {"round": round, "clients": 2, "asked": 3, "rejected": [], "bytes_up": 273, **sizes, **more}
    )
