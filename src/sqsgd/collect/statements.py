"""The statements that admit devices and store reports, for both databases."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Statement:
    """A statement for many rows of values."""

    each: str
    """For one row, with a ``?`` for each value. SQLite is quickest with these."""
    together: str
    """For all rows, with an array for each column. PostgreSQL is quickest with one of these."""


FREE = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NOT NULL ORDER BY draw LIMIT ?"
OWNED = "SELECT ticket, round, slot, report IS NOT NULL, expires, renewed FROM slots WHERE ticket {among}"
FILLED = "SELECT ticket, round, slot, report FROM slots WHERE ticket {among}"
REFUSED = Statement(
    "INSERT INTO refusals VALUES (?, ?) "
    "ON CONFLICT (code) DO UPDATE SET count = refusals.count + excluded.count",
    "INSERT INTO refusals SELECT * FROM unnest(?::text[], ?::bigint[]) "
    "ON CONFLICT (code) DO UPDATE SET count = refusals.count + excluded.count",
)
USED = Statement(
    "INSERT INTO invitations VALUES (?)", "INSERT INTO invitations SELECT * FROM unnest(?::text[])"
)
GIVEN = Statement(
    "UPDATE slots SET draw = NULL, ticket = ?, expires = ?, renewed = 0 WHERE round = ? AND slot = ?",
    "UPDATE slots AS s SET draw = NULL, ticket = v.ticket, expires = v.expires, renewed = 0 "
    "FROM unnest(?::text[], ?::float8[], ?::int[], ?::int[]) AS v (ticket, expires, round, slot) "
    "WHERE s.round = v.round AND s.slot = v.slot",
)
KEPT = Statement(
    "UPDATE slots SET report = ?, draw = NULL, expires = NULL "
    "WHERE round = ? AND slot = ? AND report IS NULL",
    "UPDATE slots AS s SET report = v.report, draw = NULL, expires = NULL "
    "FROM unnest(?::bytea[], ?::int[], ?::int[]) AS v (report, round, slot) "
    "WHERE s.round = v.round AND s.slot = v.slot AND s.report IS NULL",
)
RENEWED = "UPDATE slots SET draw = NULL, expires = ?, renewed = 1 WHERE round = ? AND slot = ?"
LATE = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NULL AND expires < ?"
WAITING = "SELECT slot FROM slots WHERE round = ? AND report IS NULL AND draw IS NOT NULL"
UNUSED = "UPDATE slots SET draw = NULL, ticket = NULL, expires = NULL WHERE round = ? AND report IS NULL"

NEW = Statement(
    "INSERT INTO slots (round, slot, draw) VALUES (?, ?, ?)",
    "INSERT INTO slots (round, slot, draw) SELECT * FROM unnest(?::int[], ?::int[], ?::text[])",
)
FREED = Statement(
    "UPDATE slots SET draw = ?, expires = NULL WHERE round = ? AND slot = ?",
    "UPDATE slots AS s SET draw = v.draw, expires = NULL FROM unnest(?::text[], ?::int[], ?::int[]) "
    "AS v (draw, round, slot) WHERE s.round = v.round AND s.slot = v.slot",
)
