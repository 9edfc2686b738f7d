"""The state of a run on disk, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from sqsgd.files.durable import write_atomically
from sqsgd.training import State

NAME = "checkpoint.safetensors"


def save_state(folder: Path, state: State, config: dict[str, Any]) -> None:
    """Write a checkpoint, with the configuration of its run."""
    arrays: dict[str, Any] = {"weights": state.weights}
    arrays |= {f"optimizer.{name}": np.asarray(value) for name, value in state.optimizer.items()}
    arrays |= {f"residual.{client}": residual for client, residual in state.residuals.items()}
    numbers = {
        "round": state.round,
        "bound": state.bound.hex(),
        "config": config,
        "spent": {str(client): count for client, count in state.spent.items()},
    }
    write_atomically(folder / NAME, save(arrays, {"sqsgd": json.dumps(numbers)}))


def load_state(folder: Path) -> tuple[State, dict[str, Any]]:
    """The last checkpoint, and the configuration of its run."""
    path = folder / NAME
    if not path.exists():
        raise ValueError(f"{folder} holds no {NAME}: there is nothing to resume")
    try:
        with safe_open(path, framework="np") as file:
            numbers = json.loads(file.metadata()["sqsgd"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        state = State(
            round=numbers["round"],
            weights=arrays["weights"],
            bound=float.fromhex(numbers["bound"]),
            optimizer=_named(arrays, "optimizer."),
            residuals={int(client): value for client, value in _named(arrays, "residual.").items()},
            spent={int(client): count for client, count in numbers["spent"].items()},
        )
        return state, numbers["config"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error}): start again with another --out") from None


def load_about(folder: Path) -> dict[str, Any]:
    """The configuration in the last checkpoint, without reading the state."""
    path = folder / NAME
    try:
        with safe_open(path, framework="np") as file:
            about: dict[str, Any] = dict(json.loads(file.metadata()["sqsgd"])["config"])
        return about
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged ({error})") from None


def _named(arrays: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}
