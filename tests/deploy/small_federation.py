"""A federation of two nodes that never ran, and runs as if it had."""

import json

from sqsgd.federation.deploy.federation import Federation
from sqsgd.federation.deploy.folders import write_federation
from sqsgd.federation.deploy.training import Job

SMALL = Federation(nodes=2, rounds=4)


def small_federation(place):
    return write_federation(place / "federation", SMALL, 30)


def job(server, status="running", lines=()):
    """A run with these rounds."""
    run = Job(name="run-1", run_id="7", status=status, attempts=2)
    (server / "runs/run-1").mkdir()
    (server / "runs/run-1/metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    run.write(server)
    return run


def line(round, **more):
    sizes = {"bytes_up": 273, "bytes_up_total": 546, "bytes_down_total": 2000}
    return json.dumps({"round": round, "clients": 2, "asked": 3, "rejected": [], **sizes, **more})
