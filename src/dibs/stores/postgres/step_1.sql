-- The first step of the schema, as the roles of dibs' servers run it. Statements have a blank line between them.
-- {s} stands for the schema; the words in capitals are in schema.py.

-- Text in the order of its bytes, which is the order of code points.
CREATE TABLE {s}.records (key text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, due_ms bigint,
  live boolean NOT NULL, body text NOT NULL)

CREATE INDEX records_due ON {s}.records (due_ms) WHERE due_ms IS NOT NULL

CREATE INDEX records_live ON {s}.records (key) WHERE live

CREATE TABLE {s}.events (seq bigint PRIMARY KEY, at_ms bigint NOT NULL, ns text COLLATE "C" NOT NULL,
  job text COLLATE "C" NOT NULL, kind text NOT NULL, body text NOT NULL)

CREATE INDEX events_job ON {s}.events (ns, job, seq)

-- One row, written by every commit. The fill factor leaves room for its next versions on the same page.
CREATE TABLE {s}.state (id integer PRIMARY KEY CHECK (id = 1), version integer NOT NULL,
  needs integer NOT NULL, store_id text NOT NULL, revision bigint NOT NULL, last_seq bigint NOT NULL,
  high_ms bigint NOT NULL, offset_ms bigint NOT NULL, offset_no bigint NOT NULL, timeline bigint NOT NULL,
  due_from_ms bigint NOT NULL) WITH (fillfactor = 10)

INSERT INTO {s}.state VALUES (1, 0, 1, md5(random()::text || clock_timestamp()::text), 0, 0, 0, 0, 0,
  {TIMELINE}, 0)

-- Wall time in milliseconds. A separate function, so that tests can replace it. It has no settings, and its names are
-- qualified instead, so that it becomes a part of the statement that calls it.
CREATE OR REPLACE FUNCTION {s}.clock_1() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT pg_catalog.floor(
  extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000::pg_catalog.numeric)::pg_catalog.int8 $$

-- The first row has no key: it holds the time, the number of its offset, and the revision. The records follow. A body is
-- sent only if the caller does not have that version.
CREATE FUNCTION {s}.read_1(wanted text[], known bigint[])
RETURNS TABLE (key text, version bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({s}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, ({REVISION})::text
    FROM {s}.state s
    UNION ALL
    SELECT r.key, r.version, NULL::bigint, CASE WHEN r.version = w.known THEN NULL ELSE r.body END
    FROM unnest(wanted, known) AS w(key, known) JOIN {s}.records r ON r.key = w.key;
END $$

-- No record is due before `state.due_from_ms`. The index may hold many entries before it: of records that have changed,
-- which stay as long as any transaction of the database is older than the change.
CREATE FUNCTION {s}.due_1(most bigint) RETURNS TABLE (key text, due_ms bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({s}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, ({REVISION})::text
    FROM {s}.state s
    UNION ALL
    (SELECT r.key, r.due_ms, NULL::bigint, NULL::text FROM {s}.records r
     WHERE r.due_ms >= (SELECT s.due_from_ms FROM {s}.state s) ORDER BY r.due_ms LIMIT most);
END $$

-- A whole commit in one statement. The row of `state` is locked first: commits run one after another, so events are
-- numbered without gaps and become visible in the order of their numbers. `last_seq` null: nothing was written, because
-- a record is not at its version, the store is behind the revision `seen`, or its timeline is new. Only a commit that
-- `arrives` can be the first on a new timeline.
--
-- What the caller knows: `handed_ms` is the time of its latest decision, `seen` and `seen_seq` are the highest revision
-- and event it was told of. At the revision `none_due_at` no record was due before `none_due_before_ms`; of those that
-- the commit puts, the first is due at `first_due_ms`.
CREATE FUNCTION {s}.commit_1(
  expect_keys text[], expect_versions bigint[],
  put_keys text[], put_due bigint[], put_live boolean[], put_bodies text[], gone_keys text[],
  event_at bigint[], event_ns text[], event_job text[], event_kind text[], event_bodies text[],
  handed_ms bigint, channel text, hint text, seen bigint, seen_seq bigint,
  first_due_ms bigint, none_due_before_ms bigint, none_due_at bigint, arrives boolean,
  OUT last_seq bigint, OUT revision bigint, OUT promoted boolean)
LANGUAGE plpgsql {INDEXED} SET lock_timeout = '4s' AS $$
DECLARE
  s {s}.state%ROWTYPE;
  events integer := cardinality(event_at);
  wall_ms bigint;
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  SELECT * INTO STRICT s FROM {s}.state FOR UPDATE;
  revision := {REVISION};
  promoted := revision <> s.revision;
  IF revision < seen OR promoted <> arrives OR EXISTS (
    SELECT 1 FROM unnest(expect_keys, expect_versions) AS e(key, version)
    WHERE coalesce((SELECT r.version FROM {s}.records r WHERE r.key = e.key), 0) <> e.version
  ) THEN
    RETURN;
  END IF;
  IF none_due_at = revision THEN
    s.due_from_ms := none_due_before_ms;
  END IF;
  s.due_from_ms := least(s.due_from_ms, first_due_ms);
  revision := revision + 1;
  s.last_seq := greatest(s.last_seq, seen_seq) + events;
  IF arrives THEN
    s.timeline := {TIMELINE};
    s.last_seq := s.last_seq + {LOST_EVENTS_MAX};
  END IF;
  s.high_ms := greatest(s.high_ms, handed_ms);
  wall_ms := {s}.clock_1();
  IF wall_ms + s.offset_ms < s.high_ms THEN
    s.offset_ms := s.high_ms - wall_ms;
    s.offset_no := s.offset_no + 1;
  END IF;
  INSERT INTO {s}.records AS r (key, version, due_ms, live, body)
    SELECT p.key, commit_1.revision, p.due_ms, p.live, p.body
    FROM unnest(put_keys, put_due, put_live, put_bodies) AS p(key, due_ms, live, body)
    ON CONFLICT ON CONSTRAINT records_pkey DO UPDATE
    SET version = excluded.version, due_ms = excluded.due_ms, live = excluded.live, body = excluded.body;
  IF cardinality(gone_keys) > 0 THEN
    DELETE FROM {s}.records r WHERE r.key = ANY (gone_keys);
  END IF;
  IF events > 0 THEN
    INSERT INTO {s}.events (seq, at_ms, ns, job, kind, body)
      SELECT s.last_seq - events + e.number, e.at_ms, e.ns, e.job, e.kind, e.body
      FROM unnest(event_at, event_ns, event_job, event_kind, event_bodies)
        WITH ORDINALITY AS e(at_ms, ns, job, kind, body, number);
  END IF;
  UPDATE {s}.state t SET revision = commit_1.revision, timeline = s.timeline, last_seq = s.last_seq,
    high_ms = s.high_ms, offset_ms = s.offset_ms, offset_no = s.offset_no, due_from_ms = s.due_from_ms;
  IF events > 0 OR hint <> '' THEN
    PERFORM pg_notify(channel, s.last_seq || ' ' || hint);
  END IF;
  last_seq := s.last_seq;
END $$

-- Subtracts a step of the wall clock from the offset, unless somebody else has changed it meanwhile.
CREATE FUNCTION {s}.correct_1(seen_no bigint, latest_ms bigint) RETURNS void
LANGUAGE sql VOLATILE {SAFE} SET lock_timeout = '4s' AS $$
  UPDATE {s}.state SET offset_ms = greatest(latest_ms, high_ms) - {s}.clock_1(), offset_no = offset_no + 1
  WHERE offset_no = seen_no
$$

-- Whether the tables can grow. Most commits change rows where they are, and go well on a full disk. This writes more
-- than the free space of a page, and takes it back.
CREATE FUNCTION {s}.room_1() RETURNS void LANGUAGE plpgsql {SAFE} SET lock_timeout = '4s' AS $$
BEGIN
  INSERT INTO {s}.records (key, version, live, body)
    SELECT '', 0, false, string_agg(md5(random()::text), '') FROM generate_series(1, 512);
  RAISE EXCEPTION USING ERRCODE = 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
  RETURN;
END $$

-- One plan for each session. Left to itself, PostgreSQL plans a read of a few records anew at every call: what is off
-- costs so much that no plan for all values seems better than one for the values at hand (measured for one record: 360
-- instead of 190 us of the database's time; for 32, and for commits, there is no difference).
ALTER FUNCTION {s}.read_1 SET plan_cache_mode = force_generic_plan

ALTER FUNCTION {s}.due_1 SET plan_cache_mode = force_generic_plan
