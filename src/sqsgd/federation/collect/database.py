"""The database of a study: SQLite in a file, or PostgreSQL by URL; tables and statements for both."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

FILE, URL = "collect.db", "database.url"
_BUSY_SECONDS = 30

_TABLES = """
CREATE TABLE study (id TEXT PRIMARY KEY, shapes TEXT NOT NULL, round INTEGER NOT NULL, state TEXT NOT NULL,
  deadline {real} NOT NULL);
CREATE TABLE rounds (round INTEGER PRIMARY KEY, began {real} NOT NULL, content {blob} NOT NULL, record TEXT);
CREATE TABLE counts (round INTEGER, code BIGINT, count BIGINT NOT NULL, PRIMARY KEY (round, code)){packed};
CREATE TABLE spent (token TEXT PRIMARY KEY){packed};
CREATE TABLE invitations (number TEXT PRIMARY KEY, request TEXT NOT NULL){packed};
CREATE TABLE refusals (code TEXT PRIMARY KEY, count BIGINT NOT NULL){packed};
CREATE TABLE minutes (minute BIGINT PRIMARY KEY, count BIGINT NOT NULL);
CREATE TABLE gateway (number INTEGER PRIMARY KEY, private {blob} NOT NULL, made {real} NOT NULL,
  signed {blob} NOT NULL);
"""
# A token is spent by somebody whom nobody knows, so it is no secret which rows were written with it.


class DatabaseFailed(OSError):
    """The database did not do what was asked: it is gone, full, locked or not a study's."""


class Conflict(DatabaseFailed):
    """Another worker was quicker. The transaction was undone and may be repeated."""


class Database(ABC):
    """One connection, for one thread at a time. Statements have ``?`` for values."""

    _each: ClassVar[str]  # a query for each value of a list
    _mark: ClassVar[str]  # the place of a value
    _types: ClassVar[dict[str, str]]
    _error: ClassVar[type[Exception]]
    _conflicts: ClassVar[tuple[type[Exception], ...]]
    _place: str  # begins error messages
    _connection: Any

    def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with self._failing():
            return self._connection.execute(sql.replace("?", self._mark), values).fetchall()  # type: ignore[no-any-return]

    def write(self, sql: str, *values: object) -> int:
        """Execute a statement. Returns the number of rows that it changed."""
        with self._failing():
            return int(self._connection.execute(sql.replace("?", self._mark), values).rowcount)

    def write_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with self._failing():
            self._connection.cursor().executemany(sql.replace("?", self._mark), rows)

    def read_among(self, sql: str, values: Iterable[str]) -> list[tuple[Any, ...]]:
        """A query with ``{each}`` in the place of a query for the values."""
        return self.read(sql.format(each=self._each), json.dumps(list(values)))

    def create(self) -> None:
        """Create the tables, in a transaction of the caller. Raises DatabaseFailed if they exist."""
        for statement in _TABLES.format(**self._types).strip().rstrip(";").split(";"):
            self.write(statement)

    def close(self) -> None:
        self._connection.close()

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            kind = Conflict if isinstance(error, self._conflicts) else DatabaseFailed
            raise kind(f"{self._place}: {str(error).strip() or type(error).__name__}") from None

    @abstractmethod
    def transaction(self, *, alone: bool = False) -> contextlib.AbstractContextManager[None]:
        """On the disk if the block ends, undone if it fails. ``alone``: no other runs at the same time."""

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock that all workers share."""

    @abstractmethod
    def stepping(self) -> contextlib.AbstractContextManager[bool]:
        """Whether this process is the only one that computes a step. It is released when a process dies."""


class SqliteDatabase(Database):
    """A file, with a write-ahead log. Each transaction is synced to the disk before it counts."""

    _mark, _each = "?", "SELECT value FROM json_each(?) WHERE true"
    _types: ClassVar = {"real": "REAL", "blob": "BLOB", "packed": " WITHOUT ROWID"}
    _error, _conflicts = sqlite3.Error, (sqlite3.IntegrityError,)

    def __init__(self, path: Path, *, new: bool = False) -> None:
        if not new and not path.is_file():
            raise DatabaseFailed(f"{path} does not exist: restore it from a backup, or create a study")
        self._path, self._place = path, str(path)
        with self._failing():
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA secure_delete = ON")
            self._connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns
        self._file, self._start = path.stat(), time.time() - time.monotonic()

    @contextlib.contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        self.write("BEGIN IMMEDIATE")  # SQLite has one writer at a time
        try:
            yield
            if not (self._path.exists() and os.path.samestat(self._path.stat(), self._file)):
                # Nobody would ever read what is written to it.
                gone = f"{self._path} was deleted or replaced while it was open: restart the service"
                raise DatabaseFailed(gone)
            self.write("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # the reason is the first error
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise

    def now(self) -> float:
        """That of the start, and what went by since: a clock that is set does not end rounds."""
        return self._start + time.monotonic()

    @contextlib.contextmanager
    def stepping(self) -> Iterator[bool]:
        held = False
        with open(f"{self._path}.step", "a", opener=partial(os.open, mode=0o600)) as file:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            yield held

    def create(self) -> None:
        super().create()
        self._path.chmod(0o600)


def open_database(folder: Path) -> Database:
    """Return the database of a study: where $SQSGD_DATABASE or ``database.url`` says, else ``collect.db``."""
    path = folder / URL
    url = os.environ.get("SQSGD_DATABASE") or (path.read_text().strip() if path.is_file() else "")
    return connect(folder, url)


def connect(folder: Path, url: str, *, new: bool = False) -> Database:
    """PostgreSQL by its URL; SQLite, in the folder, if there is none. ``new``: it may not exist yet."""
    if not url:
        return SqliteDatabase(folder / FILE, new=new)
    if not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("database must be a URL such as postgresql://user@host/study; omit it for SQLite")
    from sqsgd.federation.collect.postgres import PostgresDatabase

    return PostgresDatabase(url)
