"""The order of a run's users, kept apart from the run's folder until the run is finished."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sqsgd.federated.order import Order
from sqsgd.files.secret_files import FOLDER, forget_secret, new_secret, read_secret, secret_folder

SEEDED = "seeded"
"""In place of the name of a file: the order follows from the configuration."""


def keep_order(order: Order, out: Path) -> str:
    """Write a secret order where results do not go; returns the name of its file, which says nothing."""
    content = {"users": order.users, "per_round": order.per_round, "key": order.key.hex()}
    return new_secret(json.dumps(content).encode(), apart_from=out)


def kept_order(name: str) -> Order:
    """The order of a run that continues; ValueError if it is not on this machine."""
    try:
        content: dict[str, Any] = json.loads(read_secret(name))
        return Order(
            users=content["users"],
            per_round=content["per_round"],
            key=bytes.fromhex(content["key"]),
            seeded=False,
        )
    except FileNotFoundError:
        raise ValueError(
            f"the secret order of this run's users, {name}, is not in {secret_folder()}: without it users "
            f"could be asked twice. Resume where the run was begun, or set {FOLDER} to where the file is"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{secret_folder() / name} is damaged: {error}") from None


def forget_order(name: str) -> None:
    """Delete the order of a finished run: nobody needs to know it any more."""
    if name and name != SEEDED:
        forget_secret(name)
