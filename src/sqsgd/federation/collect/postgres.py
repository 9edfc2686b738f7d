"""PostgreSQL, for workers on several machines. The only module with psycopg."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from sqsgd.federation.collect.database import Conflict, Database, DatabaseFailed

_ORDER, _STEP = 7_118_721, 7_118_722  # numbers of advisory locks
_AGAIN = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


class PostgresDatabase(Database):
    """A database of its own for each study; time is the server's."""

    taking, locking, among = " FOR UPDATE SKIP LOCKED", " ORDER BY round, slot FOR UPDATE", "= ANY(?)"

    def __init__(self, url: str, tables: str) -> None:
        self._tables = tables
        try:
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=5, keepalives_idle=10, tcp_user_timeout=20_000
            )  # a server that vanished is given up after 20 s, not when TCP does
            self._connection.execute("SET synchronous_commit = on")
            self._connection.execute("SET statement_timeout = '60s'")
            self._connection.execute("SET idle_in_transaction_session_timeout = '60s'")
        except psycopg.Error as error:
            raise self._failed(error) from None

    def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql.replace("?", "%s"), values).fetchall()
        except psycopg.Error as error:
            raise self._failed(error) from None

    def write(self, sql: str, *values: object) -> int:
        try:
            return self._connection.execute(sql.replace("?", "%s"), values).rowcount
        except psycopg.Error as error:
            raise self._failed(error) from None

    def write_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.executemany(sql.replace("?", "%s"), rows)  # one round trip: psycopg pipelines them
        except psycopg.Error as error:
            raise self._failed(error) from None

    def read_among(self, sql: str, values: Sequence[str]) -> list[tuple[Any, ...]]:
        return self.read(sql.format(among=self.among), list(values))

    @contextlib.contextmanager
    def transaction(self, *, alone: bool = False) -> Iterator[None]:
        try:
            with self._connection.transaction():
                # A lock with a queue: whoever ends a round waits for the reports under way, and no longer.
                kind = "pg_advisory_xact_lock" + ("" if alone else "_shared")
                self._connection.execute(f"SELECT {kind}({_ORDER})")
                yield
        except psycopg.Error as error:
            raise self._failed(error) from None

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
        with self.transaction(alone=True):
            if self.read("SELECT to_regclass('study')")[0][0] is not None:
                raise DatabaseFailed("the database holds a study already: create a database for each study")
            for statement in self._tables.split(";"):
                if statement.strip():
                    self.write(statement)

    def discard(self) -> None:
        self.write("DROP TABLE study, rounds, slots, invitations, refusals, joins")

    def scrub(self) -> None:
        # VACUUM FULL would keep the order of rows and the numbers of the transactions that wrote them.
        with self.transaction(alone=True):
            for table, key in (("slots", "round, slot"), ("invitations", "number"), ("joins", "minute")):
                self.write(f"CREATE TEMPORARY TABLE kept ON COMMIT DROP AS TABLE {table}")
                self.write(f"TRUNCATE {table}")
                self.write(f"INSERT INTO {table} TABLE kept ORDER BY {key}")
                self.write("DROP TABLE kept")

    def close(self) -> None:
        self._connection.close()

    @staticmethod
    def _failed(error: psycopg.Error) -> DatabaseFailed:
        kind = Conflict if isinstance(error, _AGAIN) else DatabaseFailed
        return kind(f"PostgreSQL: {str(error).strip() or type(error).__name__}")
