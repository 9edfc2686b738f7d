"""PostgreSQL, for workers on several machines. The only module with psycopg."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import ClassVar

import psycopg
from psycopg import errors

from sqsgd.federation.collect.database import Database, DatabaseFailed

_ORDER, _STEP = 7_118_721, 7_118_722  # numbers of advisory locks


class PostgresDatabase(Database):
    """One database for each study; time is the server's."""

    _mark, _each = "%s", "SELECT json_array_elements_text(?::json)"
    _types: ClassVar = {"real": "DOUBLE PRECISION", "blob": "BYTEA", "packed": ""}
    _error, _place = psycopg.Error, "PostgreSQL"
    _conflicts = errors.UniqueViolation, errors.DeadlockDetected, errors.SerializationFailure

    def __init__(self, url: str) -> None:
        with self._failing():
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=5, keepalives_idle=10, tcp_user_timeout=20_000
            )  # a vanished server is detected after 20 s, before TCP detects it
            self._connection.execute("SET synchronous_commit = on")
            self._connection.execute("SET statement_timeout = '60s'")
            self._connection.execute("SET idle_in_transaction_session_timeout = '60s'")

    @contextlib.contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        with self._failing(), self._connection.transaction():
            # A lock with a queue: the end of a round waits for the reports under way, and no longer.
            kind = "pg_advisory_xact_lock" + ("" if alone else "_shared")
            self._connection.execute(f"SELECT {kind}({_ORDER})")
            yield

    def now(self) -> float:
        return float(self.read("SELECT extract(epoch FROM clock_timestamp())")[0][0])

    @contextlib.contextmanager
    def stepping(self) -> Iterator[bool]:
        held = bool(self.read(f"SELECT pg_try_advisory_lock({_STEP})")[0][0])
        try:
            yield held
        finally:
            if held and not self._connection.closed:
                self.read(f"SELECT pg_advisory_unlock({_STEP})")

    def create(self) -> None:
        if self.read("SELECT to_regclass('study')")[0][0] is not None:
            raise DatabaseFailed("the database holds a study already: create a database for each study")
        super().create()
