"""A node's settings in node.conf, and the ledger that they name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from sqsgd import checks
from sqsgd.files import durable
from sqsgd.node.policy import Policy, Refused
from sqsgd.privacy.ledger import Ledger, tip_path

NAME = "node.conf"
_PAIR = r"""(\S+?)=('[^']*'|"[^"]*"|\S+)"""  # Flower's own pattern
_LINE = re.compile(r"""\s*([^\s=#'"]+=('[^']*'|"[^"]*"|[^\s=#'"]+)\s+)*(#[^=]*)?""")


def read_node_config(node: Path) -> dict[str, Any]:
    """A node's settings as its run.sh passes them to Flower; ValueError names a line that cannot be read.

    Flower skips what is not ``key=value``: a limit with spaces around its equals sign would not be one.
    """
    path = node / NAME
    if not path.is_file():
        raise ValueError(f"{node} has no {NAME}; name a node's folder, such as federation/nodes/node-0")
    settings: dict[str, Any] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        if not _LINE.fullmatch(f"{line} "):
            raise ValueError(
                f"{path}: line {number}, {line.strip()!r}, must be key=value, without spaces around the "
                "equals sign"
            )
        for key, value in re.findall(_PAIR, line):
            try:
                found = tomllib.loads(f"{key} = {value}")
            except tomllib.TOMLDecodeError:
                raise ValueError(
                    f"{path}: line {number}: the value of {key}, {value}, must be a number, true, false, or "
                    "a text in quotes"
                ) from None
            if found.keys() & settings.keys():
                raise ValueError(f"{path}: line {number}: {key} is set twice")
            settings |= found
    return {"state-dir": str(node.absolute() / "state"), **settings}


def check_settings(node: Path) -> None:
    """Raise ValueError if a node with these settings would refuse every request, or could not start."""
    settings = read_node_config(node)
    for key in ("wrap-apps", "warm-process"):
        if not isinstance(settings.get(key, True), bool):
            raise ValueError(f"{node / NAME}: {key} = {settings[key]!r} must be true or false")
    try:
        Policy.of(settings, simulation=False)
    except Refused as error:
        raise ValueError(f"{node / NAME}: {error}") from None


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
