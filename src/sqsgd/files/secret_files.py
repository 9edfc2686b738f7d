"""Secrets of a server on its own disk: for their owner alone, and apart from any results."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from sqsgd.files.durable import prepared, put

FOLDER = "SQSGD_PRIVATE"
"""Environment variable with the folder of the secrets."""
_NAME = re.compile(r"[0-9a-f]{32}")


def secret_folder() -> Path:
    """$SQSGD_PRIVATE, else ``sqsgd/private`` in the user's state folder; created for its owner alone."""
    chosen, state = os.environ.get(FOLDER), os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path.home() / ".local" / "state"
    folder = (Path(chosen) if chosen else base / "sqsgd" / "private").absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        raise PermissionError(f"{folder} is open to other users of this machine: chmod 700 {folder}")
    return folder


def new_secret(content: bytes, apart_from: Path | None = None) -> str:
    """Keep a secret under a new, random name; ``apart_from``: a folder that others may get to see."""
    folder, name = secret_folder(), secrets.token_hex(16)
    if apart_from is not None and folder.resolve().is_relative_to(apart_from.resolve()):
        raise ValueError(
            f"{FOLDER} = {str(folder)!r} is in {apart_from}, where results go: choose a folder elsewhere"
        )
    replace_secret(name, content)
    return name


def replace_secret(name: str, content: bytes) -> None:
    """Keep other content under the name; on the disk when this returns, and only for the owner to read."""
    path = _path(name)
    put(prepared(path, content, 0o600), path)


def read_secret(name: str) -> bytes:
    """What is kept under the name; FileNotFoundError if nothing is."""
    path = _path(name)
    if path.stat().st_mode & 0o077:
        raise PermissionError(f"{path} is open to other users of this machine: it is no secret any more")
    return path.read_bytes()


def forget_secret(name: str) -> None:
    """Delete what is kept under the name."""
    _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a secret")
    return secret_folder() / name
