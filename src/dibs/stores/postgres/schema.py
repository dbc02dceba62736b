"""The schema as steps, each with the format that it leads to. A released step is never changed.

All missing steps are applied in one transaction, under an advisory lock that ends with it: if several servers start at
once, one does the work and the others find it done. The lock belongs to the transaction and not to the session, so all
of this works behind pgbouncer.

Steps only add: a server of an older version that runs continues beside a newer one, with the functions it knows, and is
refused when it starts again: `state.needs` is the oldest format whose programs may open the schema.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreCorrupt, StoreUnavailable
from dibs.stores import formats
from dibs.stores.codec import FORMAT
from dibs.stores.postgres.connection import PostgresConnection, QueryRefused
from dibs.stores.postgres.errors import LOCKED, MISSING, quoted
from dibs.stores.postgres.location import PostgresLocation
from dibs.stores.postgres.pool import TIMELINE, Pool

# The SQL of the store is in files, one for each step. `{s}` stands for the schema.
#
# Functions have a number and are never changed once released: a server of an older version calls the functions it
# knows, and a newer one adds its own. Settings are part of a function. A plan made for empty tables must not scan
# whole tables later. Whoever may make functions in another schema of the search path must not have them called by the
# role of dibs.
#
# **Names say what is the same, numbers what is later.** A record's version is the random name of the commit that wrote
# it. So a version means the same record in every database, also in a promoted standby that lacks commits and in a copy
# that was put back. Which of two databases goes on takes an order, which names do not have: `state.revision` is a
# counter below a number of 23 bits that rises with the database's timeline. A promotion or a recovery from a backup
# begins a timeline. Until the first commit on it, the row of `state` names another timeline than the one that the
# database writes: such a row stands for the revision at which the new line begins.

SAFE = "SET search_path = pg_catalog, pg_temp"
INDEXED = f"{SAFE} SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"

COUNTER_BITS = 40
# The numbers of a new timeline's events begin this much higher. Whichever of the lost events somebody has read, the gap
# shows that some are missing.
LOST_EVENTS_MAX = 10_000
# Of the row `s`. A standby in recovery has no timeline of its own.
_REVISION = f"""CASE WHEN pg_is_in_recovery() THEN s.revision WHEN s.timeline = {TIMELINE} THEN s.revision
      ELSE ((s.revision >> {COUNTER_BITS}) + greatest(1, {TIMELINE} - s.timeline)) << {COUNTER_BITS} END"""
# The last commit, by its name. Servers of the first step count a revision and give no name, so it takes both.
_MARK = f"({_REVISION}) || ' ' || s.name"


def _step(name: str) -> tuple[str, ...]:
    """The statements of a file, which have a blank line between them."""
    words = {"SAFE": SAFE, "INDEXED": INDEXED, "REVISION": _REVISION, "MARK": _MARK, "TIMELINE": TIMELINE}
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        text = "".join([line for line in file if not line.startswith("--")])
    for word, sql in {**words, "LOST_EVENTS_MAX": str(LOST_EVENTS_MAX)}.items():
        text = text.replace(f"{{{word}}}", sql)
    return tuple(text.strip().split("\n\n"))


class Queries:
    def __init__(self, schema: str) -> None:
        def said(sql: str) -> bytes:
            return sql.replace("{s}", schema).encode()

        self.read = said("SELECT * FROM {s}.read_1($1, $2)")
        self.due = said("SELECT * FROM {s}.due_2($1)")
        # One value of three parts. By `SELECT * FROM` it takes a tenth more instructions of the database: the scan of a
        # function is planned, and stores its rows before they are read.
        self.commit = said(f"SELECT {{s}}.commit_2({', '.join(f'${number}' for number in range(1, 23))})")
        self.correct = said("SELECT {s}.correct_1($1, $2)")
        self.room = said("SELECT {s}.room_1()")
        self.last_seq = said("SELECT last_seq FROM {s}.state")
        self.event = said("SELECT seq, body FROM {s}.events WHERE seq <= $1 ORDER BY seq DESC LIMIT 1")
        self.number_from = said("UPDATE {s}.state SET last_seq = greatest(last_seq, $1)")
        self.text_of = said("SELECT version, body FROM {s}.records WHERE key = $1")
        self.set_aside = said("DELETE FROM {s}.records WHERE key = $1 AND version = $2 RETURNING body")
        self.set_event_aside = said("DELETE FROM {s}.events WHERE seq = $1 RETURNING seq")
        self.exists = said("SELECT 1 FROM {s}.records WHERE key = $1")
        self.first_kept = said("SELECT seq FROM {s}.events WHERE at_ms >= $1 ORDER BY seq LIMIT 1")
        self.first_above = said("SELECT min(seq) FROM {s}.events WHERE seq > $1")
        self.last_up_to = said("SELECT max(seq) FROM {s}.events WHERE seq <= $1")
        self.delete_events = said(
            "WITH gone AS (DELETE FROM {s}.events WHERE seq IN (SELECT seq FROM {s}.events WHERE seq < $1 ORDER BY seq"
            " LIMIT $2) RETURNING 1) SELECT count(*) FROM gone"
        )
        self._said = said

    def scan(self, *, begins_after: bool, ends: bool, live: bool) -> bytes:
        begin, end = ">" if begins_after else ">=", " AND key < $3" if ends else ""
        where = f"key {begin} $1{end}{' AND live' if live else ''}"
        return self._said(f"SELECT key, version, body FROM {{s}}.records WHERE {where} ORDER BY key LIMIT $2")

    def events(self, *, of_a_job: bool, newest: bool) -> bytes:
        where = f"seq > $1{' AND ns = $3 AND job = $4' if of_a_job else ''}"
        order = " DESC" if newest else ""
        return self._said(f"SELECT seq, body FROM {{s}}.events WHERE {where} ORDER BY seq{order} LIMIT $2")


SERVER_VERSION_MIN = 130_000
MIGRATE_MS_MAX = 60_000  # how long a server waits for another server's migration, and for its own
# How long a step waits for a table that somebody reads, as a backup does, before it lets others pass: all servers wait
# behind it.
STEP_MS_MAX = 1_000
STEP_PAUSE_MS = 1_000

MIGRATIONS: dict[int, tuple[str, ...]] = {1: _step("step_1.sql"), 2: _step("step_2.sql")}
# What 0.1.0 wrote has the same number as what 0.2.0 did, and not this column.
_SINCE_0_2_0 = "due_from_ms"


def prepare(pool: Pool, location: PostgresLocation, *, migrate: bool) -> tuple[int, int]:
    """The format that was found (0: none), and the schema's format now."""
    found = pool.call(lambda link, deadline_ms: _look(link, location, deadline_ms))
    if found >= FORMAT:
        return found, found
    if not migrate:
        what = f"is of format {found}" if found else "is not there"
        raise StoreUnavailable(
            f"The schema {location.schema} {what}, this dibs needs format {FORMAT}, and migrate=off. Run, as a role "
            f"that may change it: dibs migrate URL"
        )
    pool.call(lambda link, deadline_ms: migrated(link, location, deadline_ms), timeout_ms=MIGRATE_MS_MAX)
    return found, FORMAT


def _look(link: PostgresConnection, location: PostgresLocation, deadline_ms: int) -> int:
    """The schema's format, if this dibs may use it; 0: there is no schema."""
    if link.server_version < SERVER_VERSION_MIN:
        raise StoreUnavailable(
            f"PostgreSQL 13 or newer is needed; the one at {location.shown} is {link.server_version // 10_000}."
        )
    schema = quoted(location.schema)
    try:
        look = f"SELECT version, needs, to_jsonb(s) ? '{_SINCE_0_2_0}' FROM {schema}.state s"
        (row,) = link.query(look.encode(), (), deadline_ms)
    except QueryRefused as error:
        if error.sqlstate not in MISSING:
            raise
        return 0
    found, needs, where = int(row[0] or 0), int(row[1] or 0), f"The schema {location.schema}"
    if found == 1 and row[2] != b"t":
        raise formats.too_old("0.1.0", where)
    if found <= FORMAT or needs > FORMAT:
        formats.refuse_unread(formats.POSTGRESQL, found, where)
    return found


def migrated(
    link: PostgresConnection,
    location: PostgresLocation,
    deadline_ms: int,
    steps: Mapping[int, Sequence[str]] = MIGRATIONS,
    number: int = FORMAT,
) -> None:
    while True:
        try:
            return _migrate(link, location, deadline_ms, steps, number)
        except QueryRefused as error:
            if error.sqlstate != LOCKED or steady_ms() + STEP_PAUSE_MS + STEP_MS_MAX >= deadline_ms:
                raise
        time.sleep(STEP_PAUSE_MS / 1000)


def _migrate(
    link: PostgresConnection,
    location: PostgresLocation,
    deadline_ms: int,
    steps: Mapping[int, Sequence[str]],
    number: int,
) -> None:
    schema = quoted(location.schema)
    literal = "'dibs:" + location.schema.replace("'", "''") + "'"
    (row,) = link.script(
        f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '{MIGRATE_MS_MAX}ms';"
        " SET LOCAL standard_conforming_strings = on; SET LOCAL search_path = pg_catalog, pg_temp;"
        f" SELECT pg_advisory_xact_lock(hashtextextended({literal}, 0));"
        " SELECT current_setting('server_encoding'),"
        f" (SELECT count(*) FROM pg_namespace WHERE nspname = substr({literal}, 6)),"
        " (SELECT count(*) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid ="
        f" c.relnamespace WHERE nspname = substr({literal}, 6) AND relname = 'state' AND attname = 'needs')",
        deadline_ms,
    )
    try:
        encoding, schemas, ours = (each or b"" for each in row)
        if encoding != b"UTF8":
            raise StoreUnavailable(
                f"The database's encoding is {encoding.decode()}, and dibs needs UTF8. Make one: "
                "CREATE DATABASE dibs ENCODING 'UTF8' TEMPLATE template0."
            )
        if schemas == b"0":
            link.script(f"CREATE SCHEMA {schema}", deadline_ms)
        found = _look(link, location, deadline_ms) if ours != b"0" else 0
        link.script(f"SET LOCAL lock_timeout = '{STEP_MS_MAX}ms'", deadline_ms)
        for each in [each.replace("{s}", schema) for step in steps if step > found for each in steps[step]]:
            link.script(each, deadline_ms)
        if found < number:
            link.script(f"UPDATE {schema}.state SET version = {number}, needs = {number}", deadline_ms)
        link.script("COMMIT", deadline_ms)
    except QueryRefused as error:
        link.script("ROLLBACK", deadline_ms)  # for every other error the connection is closed
        if error.sqlstate not in ("42P07", "42723"):
            raise
        raise StoreCorrupt(
            f"The schema {location.schema} holds tables of another program ({error}). Nothing in it was changed; give "
            "dibs a schema of its own with ?schema=NAME."
        ) from None
