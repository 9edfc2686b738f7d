"""A Flower app that trains a vector. Nothing in it is private; it is quick, because it loads no torch.

As an app of a user's own would, it names no folder for its results, and does not know that it is resumed.
"""

from app_runs import PLAIN, write_app

SERVER = """\
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp

from sqsgd.flower import SqsgdStrategy

app = ServerApp()
SAME = ("scheme", "epsilon", "bytes", "seed")


@app.main()
def main(grid, context):
    config = context.run_config
    options = {key: config[key] for key in SAME}
    strategy = SqsgdStrategy(min_available_nodes=config["min-nodes"], **options)
    strategy.start(
        grid,
        ArrayRecord({"weights": Array(np.zeros(20000, np.float32))}),
        num_rounds=config["num-server-rounds"],
        timeout=config["round-timeout"],
        evaluate_fn=lambda *_: MetricRecord({"accuracy": 0.5}),
    )
"""
CONFIG = """
[tool.flwr.app.config]
scheme = ""
epsilon = 1.0
bytes = 1
seed = 0
min-nodes = 1
num-server-rounds = 1
round-timeout = 1.0
"""


def small_app(folder, more=""):
    """Its folder; ``more`` is run by whoever loads the app's client."""
    write_app(folder, PLAIN + more)
    (folder / "plain/server.py").write_text(SERVER)
    with (folder / "pyproject.toml").open("a") as file:
        file.write(CONFIG)
    return folder
