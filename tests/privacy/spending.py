"""Small ledgers for the tests, and helpers to spend from them."""

import os
from pathlib import Path

from sqsgd.privacy.ledger import Ledger, LedgerDamaged


def pay(ledger, round, epsilon=1.0, task="digits", **more):
    values = {"notion": "local", "scheme": "sqsgd", **more}
    return ledger.spend(epsilon, task=task, round=round, **values)


def small_ledger(folder: Path, reports: int = 3, cap: float = 1000.0, **more) -> Ledger:
    ledger = Ledger.create(folder / "ledger", max_epsilon=cap, **more)
    for round in range(reports):
        pay(ledger, round)
    return ledger


def refused(path) -> bool:
    """Neither opened nor spent from."""
    try:
        pay(Ledger(path), 999)
    except LedgerDamaged:
        return True
    return False


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def put_back(folder: Path, files: dict[str, bytes]) -> None:
    for path in folder.iterdir():
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, content in files.items():
        descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT)  # emptied first, some systems sync it
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
        os.close(descriptor)


def in_child(work) -> int:
    """Run ``work`` in a forked process; its id. The exit status is 0 if all went well."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
