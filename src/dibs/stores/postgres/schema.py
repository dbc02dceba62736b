"""The schema as numbered steps. A released step is never changed; new ones are appended.

All missing steps are applied in one transaction, under an advisory lock that ends with it: if several servers start at
once, one does the work and the others find it done. The lock belongs to the transaction and not to the session, so all
of this works behind pgbouncer.

Steps only add: a server of an older version continues beside a newer one, with the functions it knows. A step that
older versions cannot work with raises `state.needs`, the oldest version that may use the schema from then on.
"""

from __future__ import annotations

from dibs.base.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from dibs.stores.postgres.connection import PostgresConnection, QueryRefused
from dibs.stores.postgres.errors import MISSING, quoted
from dibs.stores.postgres.pool import TIMELINE, Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.stores.postgres.location import PostgresLocation


# The SQL of the store. `{s}` stands for the schema.
#
# Functions have a number and are never changed once released: a server of an older version calls the functions it
# knows, and a newer one adds its own. Settings are part of a function. A plan made for empty tables must not scan
# whole tables later. Whoever may make functions in another schema of the search path must not have them called by the
# role of dibs.
#
# **A version is never used twice, not even by a promoted standby that lacks commits.** `state.revision` is a counter
# below a number of 23 bits that rises with the database's timeline, and versions are made of it. A promotion or a
# recovery from a backup begins a timeline. Until the first commit on it, the row of `state` names another timeline than
# the one that the database writes: such a row stands for the revision at which the new line begins. So of two databases
# with one past, the one with the higher revision is the one that goes on.

SAFE = "SET search_path = pg_catalog, pg_temp"
INDEXED = f"{SAFE} SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"

COUNTER_BITS = 40
# Of the row `s`. A standby in recovery has no timeline of its own.
_REVISION = f"""CASE WHEN pg_is_in_recovery() THEN s.revision WHEN s.timeline = {TIMELINE} THEN s.revision
      ELSE ((s.revision >> {COUNTER_BITS}) + greatest(1, {TIMELINE} - s.timeline)) << {COUNTER_BITS} END"""

# Wall time in milliseconds. A separate function, so that tests can replace it. It has no settings, and its names are
# qualified instead, so that it becomes a part of the statement that calls it.
CLOCK = """
CREATE OR REPLACE FUNCTION {s}.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.floor(
  extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::pg_catalog.numeric)::pg_catalog.int8 $$
"""

# The first row has no key: it holds the time, the number of its offset, and the revision. The records follow. A body is
# sent only if the caller does not have that version.
READ = f"""
CREATE FUNCTION {{s}}.read_1(wanted text[], known bigint[])
RETURNS TABLE (key text, version bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({{s}}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, ({_REVISION})::text
    FROM {{s}}.state s
    UNION ALL
    SELECT r.key, r.version, NULL::bigint, CASE WHEN r.version = w.known THEN NULL ELSE r.body END
    FROM unnest(wanted, known) AS w(key, known) JOIN {{s}}.records r ON r.key = w.key;
END $$
"""

# No record is due before `state.due_from_ms`. The index may hold many entries before it: of records that have changed,
# which stay as long as any transaction of the database is older than the change.
DUE = f"""
CREATE FUNCTION {{s}}.due_1(most bigint) RETURNS TABLE (key text, due_ms bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({{s}}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, ({_REVISION})::text
    FROM {{s}}.state s
    UNION ALL
    (SELECT r.key, r.due_ms, NULL::bigint, NULL::text FROM {{s}}.records r
     WHERE r.due_ms >= (SELECT s.due_from_ms FROM {{s}}.state s) ORDER BY r.due_ms LIMIT most);
END $$
"""

# A whole commit in one statement. The row of `state` is locked first: commits run one after another, so events are
# numbered without gaps and become visible in the order of their numbers. `last_seq` null: nothing was written, because
# a record is not at its version, the store is behind the revision `seen`, or its timeline is new. Only a commit that
# `arrives` can be the first on a new timeline.
#
# What the caller knows: `handed_ms` is the time of its latest decision, `seen` and `seen_seq` are the highest revision
# and event it was told of. At the revision `none_due_at` no record was due before `none_due_before_ms`; of those that
# the commit puts, the first is due at `first_due_ms`.
COMMIT = f"""
CREATE FUNCTION {{s}}.commit_1(
  expect_keys text[], expect_versions bigint[],
  put_keys text[], put_due bigint[], put_live boolean[], put_bodies text[], gone_keys text[],
  event_at bigint[], event_ns text[], event_job text[], event_kind text[], event_bodies text[],
  handed_ms bigint, channel text, hint text, seen bigint, seen_seq bigint,
  first_due_ms bigint, none_due_before_ms bigint, none_due_at bigint, arrives boolean,
  OUT last_seq bigint, OUT revision bigint, OUT promoted boolean)
LANGUAGE plpgsql {INDEXED} SET lock_timeout = '4s' AS $$
DECLARE
  s {{s}}.state%ROWTYPE;
  events integer := cardinality(event_at);
  wall_ms bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT * INTO STRICT s FROM {{s}}.state FOR UPDATE;
  revision := {_REVISION};
  promoted := revision <> s.revision;
  IF revision < seen OR promoted <> arrives OR EXISTS (
    SELECT 1 FROM unnest(expect_keys, expect_versions) AS e(key, version)
    WHERE coalesce((SELECT r.version FROM {{s}}.records r WHERE r.key = e.key), 0) <> e.version
  ) THEN
    RETURN;
  END IF;
  IF none_due_at = revision THEN
    s.due_from_ms := none_due_before_ms;
  END IF;
  s.due_from_ms := least(s.due_from_ms, first_due_ms);
  revision := revision + 1;
  IF arrives THEN
    s.timeline := {TIMELINE};
  END IF;
  s.last_seq := greatest(s.last_seq, seen_seq) + events;
  s.high_ms := greatest(s.high_ms, handed_ms);
  wall_ms := {{s}}.clock_1();
  IF wall_ms + s.offset_ms < s.high_ms THEN
    s.offset_ms := s.high_ms - wall_ms;
    s.offset_no := s.offset_no + 1;
  END IF;
  INSERT INTO {{s}}.records AS r (key, version, due_ms, live, body)
    SELECT p.key, commit_1.revision, p.due_ms, p.live, p.body
    FROM unnest(put_keys, put_due, put_live, put_bodies) AS p(key, due_ms, live, body)
    ON CONFLICT ON CONSTRAINT records_pkey DO UPDATE
    SET version = excluded.version, due_ms = excluded.due_ms, live = excluded.live, body = excluded.body;
  IF cardinality(gone_keys) > 0 THEN
    DELETE FROM {{s}}.records r WHERE r.key = ANY (gone_keys);
  END IF;
  IF events > 0 THEN
    INSERT INTO {{s}}.events (seq, at_ms, ns, job, kind, body)
      SELECT s.last_seq - events + e.number, e.at_ms, e.ns, e.job, e.kind, e.body
      FROM unnest(event_at, event_ns, event_job, event_kind, event_bodies)
        WITH ORDINALITY AS e(at_ms, ns, job, kind, body, number);
  END IF;
  UPDATE {{s}}.state t SET revision = commit_1.revision, timeline = s.timeline, last_seq = s.last_seq,
    high_ms = s.high_ms, offset_ms = s.offset_ms, offset_no = s.offset_no, due_from_ms = s.due_from_ms;
  IF events > 0 OR hint <> '' THEN
    PERFORM pg_notify(channel, s.last_seq || ' ' || hint);
  END IF;
  last_seq := s.last_seq;
END $$
"""

# Subtracts a step of the wall clock from the offset, unless somebody else has changed it meanwhile.
CORRECT = f"""
CREATE FUNCTION {{s}}.correct_1(seen_no bigint, latest_ms bigint) RETURNS void
LANGUAGE sql VOLATILE {SAFE} SET lock_timeout = '4s' AS $$
  UPDATE {{s}}.state SET offset_ms = greatest(latest_ms, high_ms) - {{s}}.clock_1(), offset_no = offset_no + 1
  WHERE offset_no = seen_no
$$
"""

# Whether the tables can grow. Most commits change rows where they are, and go well on a full disk. This writes more
# than the free space of a page, and takes it back.
ROOM = f"""
CREATE FUNCTION {{s}}.room_1() RETURNS void LANGUAGE plpgsql {SAFE} SET lock_timeout = '4s' AS $$
BEGIN
  INSERT INTO {{s}}.records (key, version, live, body)
    SELECT '', 0, false, string_agg(md5(random()::text), '') FROM generate_series(1, 512);
  RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
  RETURN;
END $$
"""

# One plan for each session. Left to itself, PostgreSQL plans a read of a few records anew at every call: what is off
# costs so much that no plan for all values seems better than one for the values at hand (measured for one record: 360
# instead of 190 us of the database's time; for 32, and for commits, there is no difference).
PLAN_ONCE = (
    "ALTER FUNCTION {s}.read_1 SET plan_cache_mode = force_generic_plan",
    "ALTER FUNCTION {s}.due_1 SET plan_cache_mode = force_generic_plan",
)


class Queries:
    def __init__(self, schema: str) -> None:
        def said(sql: str) -> bytes:
            return sql.replace("{s}", schema).encode()

        self.read = said("SELECT * FROM {s}.read_1($1, $2)")
        self.due = said("SELECT * FROM {s}.due_1($1)")
        self.commit = said(f"SELECT * FROM {{s}}.commit_1({', '.join(f'${number}' for number in range(1, 22))})")
        self.correct = said("SELECT {s}.correct_1($1, $2)")
        self.room = said("SELECT {s}.room_1()")
        self.last_seq = said("SELECT last_seq FROM {s}.state")
        self.number_from = said("UPDATE {s}.state SET last_seq = greatest(last_seq, $1)")
        self.exists = said("SELECT 1 FROM {s}.records WHERE key = $1")
        self.first_kept = said("SELECT seq FROM {s}.events WHERE at_ms >= $1 ORDER BY seq LIMIT 1")
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

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # Text in the order of its bytes, which is the order of code points.
        'CREATE TABLE {s}.records (key text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, due_ms bigint,'
        " live boolean NOT NULL, body text NOT NULL)",
        "CREATE INDEX records_due ON {s}.records (due_ms) WHERE due_ms IS NOT NULL",
        "CREATE INDEX records_live ON {s}.records (key) WHERE live",
        'CREATE TABLE {s}.events (seq bigint PRIMARY KEY, at_ms bigint NOT NULL, ns text COLLATE "C" NOT NULL,'
        ' job text COLLATE "C" NOT NULL, kind text NOT NULL, body text NOT NULL)',
        "CREATE INDEX events_job ON {s}.events (ns, job, seq)",
        # One row, written by every commit. The fill factor leaves room for its next versions on the same page.
        "CREATE TABLE {s}.state (id integer PRIMARY KEY CHECK (id = 1), version integer NOT NULL,"
        " needs integer NOT NULL, store_id text NOT NULL, revision bigint NOT NULL, last_seq bigint NOT NULL,"
        " high_ms bigint NOT NULL, offset_ms bigint NOT NULL, offset_no bigint NOT NULL, timeline bigint NOT NULL,"
        " due_from_ms bigint NOT NULL) WITH (fillfactor = 10)",
        f"INSERT INTO {{s}}.state VALUES (1, 0, 1, md5(random()::text || clock_timestamp()::text), 0, 0, 0, 0, 0,"
        f" {TIMELINE}, 0)",
        CLOCK,
        READ,
        DUE,
        COMMIT,
        CORRECT,
        ROOM,
        *PLAN_ONCE,
    ),
)
VERSION = len(MIGRATIONS)


def prepare(pool: Pool, location: PostgresLocation, *, migrate: bool) -> tuple[int, int]:
    """The version that was found (0: none), and the schema's version now."""
    found = pool.call(lambda link, deadline_ms: _look(link, location, deadline_ms))
    if found >= VERSION:
        return found, found
    if not migrate:
        what = f"is at version {found}" if found else "is not there"
        raise StoreUnavailable(
            f"The schema {location.schema} {what}, this dibs needs version {VERSION}, and migrate=off. Run, as a role "
            f"that may change it: dibs migrate URL"
        )
    pool.call(lambda link, deadline_ms: migrated(link, location, deadline_ms), timeout_ms=MIGRATE_MS_MAX)
    return found, VERSION


def _look(link: PostgresConnection, location: PostgresLocation, deadline_ms: int) -> int:
    """The schema's version, if this dibs may use it; 0: there is no schema."""
    if link.server_version < SERVER_VERSION_MIN:
        raise StoreUnavailable(
            f"PostgreSQL 13 or newer is needed; the one at {location.shown} is {link.server_version // 10_000}."
        )
    schema = quoted(location.schema)
    try:
        (row,) = link.query(f"SELECT version, needs FROM {schema}.state".encode(), (), deadline_ms)
    except QueryRefused as error:
        if error.sqlstate not in MISSING:
            raise
        return 0
    version, needs = (int(each or 0) for each in row)
    if needs > VERSION:
        raise StoreTooNew(
            f"The schema {location.schema} is at version {version} and needs a dibs of version {needs}; "
            f"this one knows up to {VERSION}. Upgrade dibs; nothing was changed."
        )
    return version


def migrated(
    link: PostgresConnection, location: PostgresLocation, deadline_ms: int, steps: Sequence[Sequence[str]] = MIGRATIONS
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
        version = _look(link, location, deadline_ms) if ours != b"0" else 0
        statements_left = [each.replace("{s}", schema) for step in steps[version:] for each in step]
        for each in statements_left:
            link.script(each, deadline_ms)
        if version < len(steps):
            link.script(f"UPDATE {schema}.state SET version = {len(steps)}", deadline_ms)
        link.script("COMMIT", deadline_ms)
    except QueryRefused as error:
        link.script("ROLLBACK", deadline_ms)  # for every other error the connection is closed
        if error.sqlstate not in ("42P07", "42723"):
            raise
        raise StoreCorrupt(
            f"The schema {location.schema} holds tables of another program ({error}). Nothing in it was changed; give "
            "dibs a schema of its own with ?schema=NAME."
        ) from None
