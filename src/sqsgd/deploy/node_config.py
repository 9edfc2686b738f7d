"""A node's settings in node.conf, and the ledger that they name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from sqsgd import checks
from sqsgd.files import durable
from sqsgd.ledger.account import Ledger
from sqsgd.ledger.tips import tip_path

NAME = "node.conf"


def read_node_config(node: Path) -> dict[str, Any]:
    """A node's settings as its run.sh passes them to Flower; ValueError if they cannot be read."""
    path = node / NAME
    if not path.is_file():
        raise ValueError(f"{node} has no {NAME}; name a node's folder, such as federation/nodes/node-0")
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    pairs = re.findall(r"""(\S+?)=('[^']*'|"[^"]*"|\S+)""", " ".join(lines))  # Flower's own pattern
    try:
        settings = tomllib.loads("\n".join(f"{key} = {value}" for key, value in pairs))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    return {"state-dir": str(node.absolute() / "state"), **settings}


def create_ledger(node: Path) -> Ledger:
    """Create a node's ledger where its settings say or, if it exists, the witness that it lacks.

    Refuses if there is nothing to create, and where a tip shows that the ledger was lost.
    """
    settings = read_node_config(node)
    path, witness = Path(settings["state-dir"]) / "ledger", settings.get("witness")
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        cap = checks.positive("max-epsilon", settings.get("max-epsilon"))
        return Ledger.create(path, max_epsilon=cap, witness=witness)
    if witness is None or Path(witness).exists():
        raise ValueError(f"{path} exists{' and has its witness' if witness else ''}: nothing was created")
    Ledger(path)  # refuses if it is damaged: its own tip is what a new witness records
    durable.put(durable.prepared(Path(witness), tip_path(path).read_bytes()), Path(witness))
    return Ledger(path, witness=witness)
