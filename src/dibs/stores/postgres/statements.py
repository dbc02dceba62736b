"""The SQL of the store. `{s}` stands for the schema.

Functions have a number and are never changed once released: a server of an older version calls the functions it knows,
and a newer one adds its own. Planner settings are part of a function, because a plan made for empty tables must not
scan whole tables later.
"""

from __future__ import annotations

INDEXED = "SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off"

# Wall time in milliseconds. A separate function, so that tests can replace it.
CLOCK = """
CREATE FUNCTION {s}.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint $$
"""

# The first row has no key: it holds the time and the number of its offset. The records follow. A body is sent only if
# the caller does not have that version.
READ = f"""
CREATE FUNCTION {{s}}.read_1(wanted text[], known bigint[])
RETURNS TABLE (key text, version bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({{s}}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, NULL::text FROM {{s}}.state s
    UNION ALL
    SELECT r.key, r.version, NULL::bigint, CASE WHEN r.version = w.known THEN NULL ELSE r.body END
    FROM unnest(wanted, known) AS w(key, known) JOIN {{s}}.records r ON r.key = w.key;
END $$
"""

DUE = f"""
CREATE FUNCTION {{s}}.due_1(most bigint) RETURNS TABLE (key text, due_ms bigint, note bigint)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({{s}}.clock_1() + s.offset_ms, s.high_ms), s.offset_no FROM {{s}}.state s
    UNION ALL
    (SELECT r.key, r.due_ms, NULL::bigint FROM {{s}}.records r WHERE r.due_ms IS NOT NULL ORDER BY r.due_ms LIMIT most);
END $$
"""

# A whole commit in one statement. `last_seq` null: a record is not at its version, and nothing was written. The row of
# `state` is locked first: commits run one after another, so events are numbered without gaps and become visible in the
# order of their numbers. `handed_ms` is the time of the caller's latest decision.
COMMIT = f"""
CREATE FUNCTION {{s}}.commit_1(
  expect_keys text[], expect_versions bigint[],
  put_keys text[], put_due bigint[], put_live boolean[], put_bodies text[], gone_keys text[],
  event_at bigint[], event_ns text[], event_job text[], event_kind text[], event_bodies text[],
  handed_ms bigint, channel text, hint text, OUT last_seq bigint, OUT revision bigint)
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
  IF EXISTS (
    SELECT 1 FROM unnest(expect_keys, expect_versions) AS e(key, version)
    WHERE coalesce((SELECT r.version FROM {{s}}.records r WHERE r.key = e.key), 0) <> e.version
  ) THEN
    RETURN;
  END IF;
  s.revision := s.revision + 1;
  s.last_seq := s.last_seq + events;
  s.high_ms := greatest(s.high_ms, handed_ms);
  wall_ms := {{s}}.clock_1();
  IF wall_ms + s.offset_ms < s.high_ms THEN
    s.offset_ms := s.high_ms - wall_ms;
    s.offset_no := s.offset_no + 1;
  END IF;
  INSERT INTO {{s}}.records AS r (key, version, due_ms, live, body)
    SELECT p.key, s.revision, p.due_ms, p.live, p.body
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
  UPDATE {{s}}.state t SET revision = s.revision, last_seq = s.last_seq, high_ms = s.high_ms,
    offset_ms = s.offset_ms, offset_no = s.offset_no;
  IF events > 0 OR hint <> '' THEN
    PERFORM pg_notify(channel, s.last_seq || ' ' || hint);
  END IF;
  last_seq := s.last_seq;
  revision := s.revision;
END $$
"""

# Subtracts a step of the wall clock from the offset, unless somebody else has changed it meanwhile.
CORRECT = """
CREATE FUNCTION {s}.correct_1(seen_no bigint, latest_ms bigint) RETURNS void
LANGUAGE sql VOLATILE SET lock_timeout = '4s' AS $$
  UPDATE {s}.state SET offset_ms = greatest(latest_ms, high_ms) - {s}.clock_1(), offset_no = offset_no + 1
  WHERE offset_no = seen_no
$$
"""


class Queries:
    """The statements of one schema, ready to be sent."""

    def __init__(self, schema: str) -> None:
        def said(sql: str) -> bytes:
            return sql.replace("{s}", schema).encode()

        self.read = said("SELECT * FROM {s}.read_1($1, $2)")
        self.due = said("SELECT * FROM {s}.due_1($1)")
        self.commit = said(
            "SELECT * FROM {s}.commit_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"
        )
        self.correct = said("SELECT {s}.correct_1($1, $2)")
        self.last_seq = said("SELECT last_seq FROM {s}.state")
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
