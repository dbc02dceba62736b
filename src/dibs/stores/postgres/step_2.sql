-- Every commit has a name: a random number, which its caller makes. It is the version of the records that the commit
-- wrote, and `state` has that of the last commit. A database that lacks commits, because it was a standby or a copy, can
-- come to any revision again, but never to a name: who has a record of a version has the record that the database has.
-- Servers of the first step give revisions as versions, and leave the name of the last commit as it was.

ALTER TABLE {s}.state ADD COLUMN name bigint NOT NULL DEFAULT 0

-- As in the first step. The row without a key tells which commit was the last, with the revision.
CREATE FUNCTION {s}.due_2(most bigint) RETURNS TABLE (key text, due_ms bigint, note bigint, body text)
LANGUAGE plpgsql STABLE {INDEXED} AS $$
BEGIN
  RETURN QUERY
    SELECT NULL::text, greatest({s}.clock_1() + s.offset_ms, s.high_ms), s.offset_no, {MARK}
    FROM {s}.state s
    UNION ALL
    (SELECT r.key, r.due_ms, NULL::bigint, NULL::text FROM {s}.records r
     WHERE r.due_ms >= (SELECT s.due_from_ms FROM {s}.state s) ORDER BY r.due_ms LIMIT most);
END $$

-- As in the first step, under the name `name`. At the commit `none_due_at` no record was due before `none_due_before_ms`.
CREATE FUNCTION {s}.commit_2(
  expect_keys text[], expect_versions bigint[],
  put_keys text[], put_due bigint[], put_live boolean[], put_bodies text[], gone_keys text[],
  event_at bigint[], event_ns text[], event_job text[], event_kind text[], event_bodies text[],
  handed_ms bigint, channel text, hint text, seen bigint, seen_seq bigint,
  first_due_ms bigint, none_due_before_ms bigint, none_due_at text, arrives boolean, name bigint,
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
  IF none_due_at = {MARK} THEN
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
    SELECT p.key, commit_2.name, p.due_ms, p.live, p.body
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
  UPDATE {s}.state t SET revision = commit_2.revision, name = commit_2.name, timeline = s.timeline,
    last_seq = s.last_seq, high_ms = s.high_ms, offset_ms = s.offset_ms, offset_no = s.offset_no, due_from_ms = s.due_from_ms;
  IF events > 0 OR hint <> '' THEN
    PERFORM pg_notify(channel, s.last_seq || ' ' || hint);
  END IF;
  last_seq := s.last_seq;
END $$

ALTER FUNCTION {s}.due_2 SET plan_cache_mode = force_generic_plan
