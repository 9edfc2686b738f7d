"""Files: atomic writes and locks, secrets for their owner alone, infinity and NaN in JSON, TOML."""

import contextlib
import errno
import fcntl
import math
import os
import re
import secrets
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_held: set[int] = set()


def _release_after_fork() -> None:
    """Close inherited locks: the child would keep locks that other threads have released."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_release_after_fork)


@contextlib.contextmanager
def locked(path: Path, flags: int) -> Iterator[int]:
    """The file (or folder), opened and locked against every other process and thread; waits for the lock.

    It is opened each time: a lock belongs to what ``open`` returns, so this excludes threads and children of
    the same process too.
    """
    while True:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        _held.add(descriptor)
        try:
            _lock(descriptor, path)
            if os.path.samestat(os.fstat(descriptor), path.stat()):  # else it was replaced while we waited
                yield descriptor
                return
        finally:
            with contextlib.suppress(OSError):  # not locked, or no longer
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # releases copies of the descriptor too, unlike close
            _held.discard(descriptor)
            os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            # Without a lock two processes could spend the same budget.
            why = "its file system has no locks (flock); keep it on a local disk"
            raise OSError(error.errno, why, str(path)) from error
        raise


def write_at(descriptor: int, content: bytes, at: int) -> None:
    """Write the content at an offset, and wait until it is on disk."""
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], at + done)
    os.fsync(descriptor)


def cut_at(descriptor: int, length: int) -> None:
    """Truncate the file, and wait until the change is on disk."""
    os.ftruncate(descriptor, length)
    os.fsync(descriptor)


def prepared(path: Path, content: bytes, mode: int = 0o600) -> Path:
    """Write the content to a temporary file next to ``path``, synced to disk; ``put`` moves it into place."""
    temporary = path.with_name(path.name + ".part")
    try:
        # Left by a crash, or a planted link that would make us overwrite its target.
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            write_at(descriptor, content, 0)
        finally:
            os.close(descriptor)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk is reported by a descriptor
        raise
    return temporary


def put(temporary: Path, path: Path) -> None:
    """Replace a file by the prepared one. After a crash it is either the old file or the new one."""
    os.replace(temporary, path)  # noqa: PTH105
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file that is not secret. After a crash it is either the old file or the complete new one."""
    temporary = prepared(path, content, 0o666)
    try:
        put(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


NUMBERS = {"infinity": math.inf, "-infinity": -math.inf, "nan": math.nan}
"""The inverse of ``worded``."""


def worded(value: object) -> object:
    """Return the value, with infinity and NaN as strings."""
    if isinstance(value, float) and not math.isfinite(value):
        return "infinity" if value > 0 else "nan" if math.isnan(value) else "-infinity"
    return value


def known(value: object) -> object:
    """Return the value, with infinity as a string, and NaN and minus infinity (unknown values) as None."""
    word = worded(value)
    return word if word is value or word == "infinity" else None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the keys and values of a file. Raises ValueError naming the file if it is not valid TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from None


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
    """Return the bytes kept under the name. Raises FileNotFoundError without any."""
    path = _path(name)
    if path.stat().st_mode & 0o077:
        raise PermissionError(f"{path} is open to other users of this machine: it is not secret any more")
    return path.read_bytes()


def forget_secret(name: str) -> None:
    """Delete what is kept under the name."""
    _path(name).unlink(missing_ok=True)


def _path(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a secret")
    return secret_folder() / name
