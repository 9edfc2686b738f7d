"""Files that survive a crash: locked, written atomically, and on disk before a call returns."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

_held: set[int] = set()


def _release_after_fork() -> None:
    """Close inherited locks: the child would keep those of other threads after they are released."""
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
    """Replace a file by the prepared one; after a crash it is either the old file or the new one."""
    os.replace(temporary, path)  # noqa: PTH105
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file that is not secret; after a crash it is either the old file or the complete new one."""
    temporary = prepared(path, content, 0o666)
    try:
        put(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
