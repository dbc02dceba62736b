"""The SQL of the store. `{s}` stands for the schema.

Functions have a number and are never changed once released: a server of an older version calls the functions it knows,
and a newer one adds its own. Settings are part of a function. A plan made for empty tables must not scan whole tables
later. Whoever may make functions in another schema of the search path must not have them called by the role of dibs.

**A version is never used twice, not even by a promoted standby that lacks commits.** `state.revision` is a counter
below a number of 23 bits that rises with the database's timeline, and versions are made of it. A promotion or a
recovery from a backup begins a timeline. Until the first commit on it, the row of `state` names another timeline than
the one that the database writes: such a row stands for the revision at which the new line begins. So of two databases
with one past, the one with the higher revision is the one that goes on.
"""

from __future__ import annotations

SAFE = "SET search_path = pg_catalog, pg_temp"
INDEXED = (
    f"{SAFE} SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"
)

COUNTER_BITS = 40
# The first 8 hexadecimal digits of the name of the file that is being written.
TIMELINE = (
    "('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))"
    "::pg_catalog.bit(32)::pg_catalog.int8"
)
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
CREATE FUNCTION {{s}}.read_2(wanted text[], known bigint[])
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
CREATE FUNCTION {{s}}.due_2(most bigint) RETURNS TABLE (key text, due_ms bigint, note bigint, body text)
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
CREATE FUNCTION {{s}}.commit_2(
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
    SELECT p.key, commit_2.revision, p.due_ms, p.live, p.body
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
  UPDATE {{s}}.state t SET revision = commit_2.revision, timeline = s.timeline, last_seq = s.last_seq,
    high_ms = s.high_ms, offset_ms = s.offset_ms, offset_no = s.offset_no, due_from_ms = s.due_from_ms;
  IF events > 0 OR hint <> '' THEN
    PERFORM pg_notify(channel, s.last_seq || ' ' || hint);
  END IF;
  last_seq := s.last_seq;
END $$
"""

# Subtracts a step of the wall clock from the offset, unless somebody else has changed it meanwhile.
CORRECT = f"""
CREATE FUNCTION {{s}}.correct_2(seen_no bigint, latest_ms bigint) RETURNS void
LANGUAGE sql VOLATILE {SAFE} SET lock_timeout = '4s' AS $$
  UPDATE {{s}}.state SET offset_ms = greatest(latest_ms, high_ms) - {{s}}.clock_1(), offset_no = offset_no + 1
  WHERE offset_no = seen_no
$$
"""

# Whether the tables can grow. Most commits change rows where they are, and go well on a full disk. This writes more
# than the free space of a page, and takes it back.
ROOM = f"""
CREATE FUNCTION {{s}}.room_2() RETURNS void LANGUAGE plpgsql {SAFE} SET lock_timeout = '4s' AS $$
BEGIN
  INSERT INTO {{s}}.records (key, version, live, body)
    SELECT '', 0, false, string_agg(md5(random()::text), '') FROM generate_series(1, 512);
  RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
  RETURN;
END $$
"""


class Queries:
    """The statements of one schema, ready to be sent."""

    def __init__(self, schema: str) -> None:
        def said(sql: str) -> bytes:
            return sql.replace("{s}", schema).encode()

        self.read = said("SELECT * FROM {s}.read_2($1, $2)")
        self.due = said("SELECT * FROM {s}.due_2($1)")
        self.commit = said(
            f"SELECT * FROM {{s}}.commit_2({', '.join(f'${number}' for number in range(1, 22))})"
        )
        self.correct = said("SELECT {s}.correct_2($1, $2)")
        self.room = said("SELECT {s}.room_2()")
        self.last_seq = said("SELECT last_seq FROM {s}.state")
        self.number_from = said("UPDATE {s}.state SET last_seq = greatest(last_seq, $1)")
        self.exists = said("SELECT 1 FROM {s}.records WHERE key = $1")
        self.first_kept = said("SELECT seq FROM {s}.events WHERE at_ms >= $1 ORDER BY seq LIMIT 1")
        self.delete_events = said(
            "WITH gone AS (DELETE FROM {s}.events WHERE seq IN (SELECT seq FROM {s}.events WHERE seq < $1 ORDER BY seq"
            " LIMIT $2) RETURNING 1) SELECT count(*) FROM gone"
        )
        self._scan = (
            "SELECT key, version, body FROM {s}.records WHERE key {begin} $1{end}{live} ORDER BY key LIMIT $2"
        )
        self._events = "SELECT seq, body FROM {s}.events WHERE seq > $1{job} ORDER BY seq{order} LIMIT $2"
        self._said = said

    def scan(self, *, begins_after: bool, ends: bool, live: bool) -> bytes:
        return self._said(
            self._scan.replace("{begin}", ">" if begins_after else ">=")
            .replace("{end}", " AND key < $3" if ends else "")
            .replace("{live}", " AND live" if live else "")
        )

    def events(self, *, of_a_job: bool, newest: bool) -> bytes:
        return self._said(
            self._events.replace("{job}", " AND ns = $3 AND job = $4" if of_a_job else "").replace(
                "{order}", " DESC" if newest else ""
            )
        )
