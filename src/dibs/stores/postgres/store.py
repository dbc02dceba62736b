"""The port's methods over PostgreSQL: one statement to read, one to write.

Records that were read or written are cached with their version. A read sends the cached versions, and the database
sends only the text of records that changed. So every answer of a read comes from the database, and the cache only saves
sending and decoding. A decision may begin with the cache alone (`recall`): then a claim is one statement, its commit.

**The database may be another one than before**, a promoted standby or a copy that was put back. A version is the random
name of the commit that wrote the record, so what is cached is never taken for what another database has (schema.py).
With every answer comes the revision of the store. The highest one is remembered, and a database that is behind it is
not used: it is an old primary that came back, or a copy. If the timeline is a new one, the standby that was promoted
may lack the last commits. Then nothing is written before this store has arrived: the floor of the fencing tokens is
raised above all that can have been handed out, which changes `meta`, so that whatever was decided by records of the old
timeline is a conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from dibs.base import clock
from dibs.base.errors import DibsError, StoreUnavailable
from dibs.base.ids import new_number
from dibs.base.logger import log
from dibs.core.events import Event
from dibs.core.records import META_KEY, Meta
from dibs.stores.codec import decode, encode, end_of, events_of, is_event_readable, is_readable, page_of
from dibs.stores.port import (
    ABSENT,
    EVENT_PREFIX,
    Conflict,
    Due,
    Job,
    Maintenance,
    Page,
    Puts,
    RecordCorrupt,
    Snapshot,
    Store,
    Versioned,
    beyond,
    checked,
    still_damaged,
)
from dibs.stores.postgres import connection as arrays
from dibs.stores.postgres.clock import StepWatch
from dibs.stores.postgres.connection import LinkBehind, PostgresConnection, QueryRefused, Row
from dibs.stores.postgres.errors import quoted
from dibs.stores.postgres.location import CAPABILITIES, PostgresLocation
from dibs.stores.postgres.notify import Listener, hint_of
from dibs.stores.postgres.pool import Pool, held_back, primary
from dibs.stores.postgres.schema import Queries, prepare
from dibs.stores.waiters import StoreWaiter, mark_of

CACHE_ENTRIES_MAX = 50_000
PRUNE_ROWS = 10_000  # in one statement
CORRECTIONS_MAX = 3  # others may correct the clock at the same moment
NOTICES_MAX = 10
NEVER_MS = 1 << 62
TABLES = ("records", "events", "state")
VACUUM_MS_MAX = 60_000
SKEW_MS_MAX = 1_000

Finding = dict[str, Any]


class PostgresStore(Store, Maintenance):
    """The schema at `location`. `migrate` None: as the URL says. The steady clock can be given for tests."""

    capabilities = CAPABILITIES

    def __init__(
        self, location: PostgresLocation, *, migrate: bool | None = None, steady_ms: Callable[[], int] = clock.steady_ms
    ) -> None:
        self._location = location
        self._pool = Pool(location, primary(location))
        self._queries = Queries(quoted(location.schema))
        self._steps = StepWatch(steady_ms)
        self._listener = Listener(location, self._pool)
        self._cache: dict[str, Versioned] = {}
        self._notices: list[str] = []
        self._trouble: DibsError | None = None
        self._damaged: dict[str, RecordCorrupt] = {}
        self._held_back: str | None = None
        self._seen = 0  # the highest revision that an answer had
        self._seen_seq = 0  # the last event that this process knows of
        self._last_event: tuple[int, str] | None = None  # that it has read or written: its number and text
        self._lacks_history = False
        self._none_due = (0, b"")  # no record was due before this time, at this commit
        self._versions = prepare(self._pool, location, migrate=location.migrates if migrate is None else migrate)
        self._pool.admit = self._admit

    def migrated(self) -> tuple[int, int]:
        return self._versions

    def read(self, keys: Iterable[str]) -> Snapshot:
        wanted = list(dict.fromkeys(keys))
        known = {key: self._cache.get(key, ABSENT) for key in wanted}
        values = (arrays.array(wanted), arrays.numbers([each.version for each in known.values()]))
        rows, now_ms, _ = self._timed(self._queries.read, values)
        found = dict.fromkeys(wanted, ABSENT)
        for key, version, _, body in rows:
            name = _text(key)
            if body is None:
                found[name] = known[name]
            else:
                try:
                    found[name] = Versioned(version=int(version or 0), record=decode(name, _text(body)))
                except RecordCorrupt as error:
                    self._damaged[name] = error
                    raise
        self._keep(found)
        return Snapshot(now_ms=now_ms, records=found)

    def recall(self, keys: Iterable[str]) -> Snapshot:
        """A record that is not cached is reported as absent: most jobs are when they are claimed."""
        cache = self._cache
        now_ms = self._steps.now_ms() if cache else None
        if now_ms is None:
            return self.read(keys)
        return Snapshot(now_ms=now_ms, records={key: cache.get(key, ABSENT) for key in keys}, is_recalled=True)

    def _timed(self, sql: bytes, values: Sequence[bytes | None]) -> tuple[list[Row], int, bytes]:
        """The rows of a statement, without the row that holds the time, the time, and what that row says of the store:
        the revision, and to those who ask what is due also the last commit's name."""
        tries = 0
        while True:
            asked_ms = self._steps.steady_ms()
            rows, (_, now, number, mark) = self._pool.call(
                lambda link, until_ms: self._asked(link, sql, values, until_ms)
            )
            now_ms = int(now or 0)
            latest_ms = self._steps.expected_ms(now_ms, asked_ms)
            if latest_ms is None:
                return rows, self._steps.handed_out(now_ms), mark or b""
            tries += 1
            if tries > CORRECTIONS_MAX:
                return rows, self._steps.handed_out(latest_ms), mark or b""
            self._correct(number, now_ms, latest_ms)

    def _asked(
        self, link: PostgresConnection, sql: bytes, values: Sequence[bytes | None], until_ms: int
    ) -> tuple[list[Row], Row]:
        """The rows of a statement, and the row with the time and the revision, which has no key."""
        seen = self._seen
        rows = link.repeat(sql, values, until_ms)
        about = rows.pop(next(index for index, row in enumerate(rows) if row[0] is None))
        self._see(int((about[3] or b"0").split()[0]), seen)
        return rows, about

    def _admit(self, link: PostgresConnection, until_ms: int) -> None:
        """Raise LinkBehind for a new connection that does not lead to the store that this process knows."""
        with suppress(QueryRefused):  # the statement that needs the connection is refused, too, and says why
            self._asked(link, self._queries.read, (b"{}", b"{}"), until_ms)
            if self._last_event is not None:
                self._look_for(self._last_event, link, until_ms)

    def _know_event(self, seq: int, text: str) -> None:
        if self._last_event is None or self._last_event[0] < seq:
            self._last_event = (seq, text)

    def _look_for(self, known: tuple[int, str], link: PostgresConnection, until_ms: int) -> None:
        """Find out whether the database has the last event that this process knows. If it was pruned, nobody knows."""
        seq, text = known
        rows = link.query(self._queries.event, (arrays.number(seq),), until_ms)
        if rows and (int(rows[0][0] or 0), _text(rows[0][1])) != (seq, text):
            self._lacks_history, self._last_event = True, None

    def _see(self, revision: int, seen: int) -> None:
        """Take note of the revision in an answer. `seen`: what was known when the question was sent."""
        if revision < seen:
            raise LinkBehind(f"it is at revision {revision}, and was at {seen}", sent=False)
        self._seen = max(self._seen, revision)

    def _correct(self, number: bytes | None, now_ms: int, latest_ms: int) -> None:
        """See clock.py. If the correction cannot be written, nothing can be decided, either."""
        if len(self._notices) < NOTICES_MAX:
            self._notices.append(
                f"The clock of PostgreSQL ({self._location.shown}) ran ahead by {(now_ms - latest_ms) / 1000:g} "
                "seconds. Leases go on as if it had not."
            )
        with suppress(StoreUnavailable):
            self._pool.rows(self._queries.correct, (number, arrays.number(latest_ms)))

    def _keep(self, found: Mapping[str, Versioned]) -> None:
        if len(self._cache) + len(found) > CACHE_ENTRIES_MAX:
            self._cache = {}
        for key, each in found.items():
            if each.version:
                self._cache[key] = each
            else:
                self._cache.pop(key, None)

    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        try:
            if self._lacks_history:
                self._raise_floor()
            last_seq = self._write(expect, puts, events)
        except StoreUnavailable as error:
            self._trouble = error
            raise
        if self._trouble is not None and (events or not puts or any(not expect[key] for key in puts)):
            with suppress(StoreUnavailable):
                self._pool.rows(self._queries.room)
                self._trouble = None
        return last_seq

    def _write(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event], *, arrives: bool = False) -> int:
        gone = [key for key, record in puts.items() if record is None and expect[key]]
        hint = hint_of(gone)
        kept = {key: record for key, record in puts.items() if record is not None}
        due_ms = [record.due_ms() for record in kept.values()]
        event_texts = [encode(event) for event in events]
        none_due_ms, none_due_at = self._none_due
        seen = self._seen
        name = new_number()
        values = (
            arrays.array(expect),
            arrays.numbers(expect.values()),
            arrays.array(kept),
            arrays.numbers(due_ms),
            arrays.numbers([record.is_live() for record in kept.values()]),
            arrays.array([encode(record) for record in kept.values()]),
            arrays.array(gone),
            arrays.numbers([event.at_ms for event in events]),
            arrays.array([event.ns for event in events]),
            arrays.array([event.job for event in events]),
            arrays.array([event.kind for event in events]),
            arrays.array(event_texts),
            arrays.number(self._steps.last_ms),
            arrays.text(self._location.channel),
            hint.encode(),
            arrays.number(seen),
            arrays.number(self._seen_seq),
            arrays.number(min([each for each in due_ms if each is not None], default=NEVER_MS)),
            arrays.number(none_due_ms),
            none_due_at,
            b"t" if arrives else b"f",
            arrays.number(name),
        )

        def ask(link: PostgresConnection, until_ms: int) -> tuple[bytes | None, bool]:
            ((done,),) = link.repeat(self._queries.commit, values, until_ms)
            last, revision, promoted = (done or b"(,,)")[1:-1].split(b",")  # as PostgreSQL writes a row: (12,34,f)
            self._see(int(revision or 0), seen)
            return last or None, promoted == b"t"

        last, promoted = self._pool.call(ask, writes=not arrives)
        if last is None:
            if promoted and not arrives:
                self._arrive()
                if not expect:
                    return self._write(expect, puts, events)  # nothing that it could be in conflict with
            raise Conflict
        written = {key: Versioned(version=name, record=record) for key, record in kept.items()}
        self._keep({**dict.fromkeys(gone, ABSENT), **written})
        self._seen_seq = max(self._seen_seq, int(last))
        if events:
            self._know_event(int(last), event_texts[-1])
        if events or gone:
            self._listener.committed(hint, events=bool(events), seq=int(last))
        return int(last)

    def _raise_floor(self, *, arrives: bool = False) -> int:
        """Raise the floor above the tokens that this database can lack: they are below the time in milliseconds, and
        the numbers of events below that in microseconds."""
        snapshot = self.read((META_KEY,))
        found = snapshot.records[META_KEY]
        meta = found.record if isinstance(found.record, Meta) else Meta()
        floor = max(meta.token_floor + 1, snapshot.now_ms)
        self._write({META_KEY: found.version}, {META_KEY: meta.replace(token_floor=floor)}, (), arrives=arrives)
        self.number_from(snapshot.now_ms * 1_000)
        if self._lacks_history:
            self._lacks_history = False
            log.warning(
                "PostgreSQL (%s) holds an older copy of the store: a dump or a snapshot was put back. What was done "
                "since then is lost. New fencing tokens are above %s.",
                self._location.shown,
                floor,
            )
        return floor

    def _arrive(self) -> None:
        """Be the first to write on a new timeline."""
        self._lacks_history = False  # it may lack the last commits, as after any promotion
        try:
            floor = self._raise_floor(arrives=True)
        except Conflict:
            return  # another process has arrived
        log.warning(
            "PostgreSQL (%s) has begun a new timeline: a standby was promoted, or a backup restored. New fencing "
            "tokens are above %s. If replication was not synchronous, the last commits may be lost.",
            self._location.shown,
            floor,
        )

    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        end = end_of(prefix)

        def rows(beyond: str, count: int) -> list[tuple[str, int, str]]:
            begins_after = beyond >= prefix
            values = [arrays.text(beyond if begins_after else prefix), arrays.number(count)]
            if end is not None:
                values.append(arrays.text(end))
            sql = self._queries.scan(begins_after=begins_after, ends=end is not None, live=live)
            found = self._pool.rows(sql, values)
            return [(_text(key), int(version or 0), _text(body)) for key, version, body in found]

        return page_of(rows, after, limit, self._damaged)

    def due(self, limit: int) -> Due:
        rows, now_ms, mark = self._timed(self._queries.due, (arrays.number(max(1, limit)),))
        first = [(int(due_ms or 0), _text(key)) for key, due_ms, *_ in rows]
        self._none_due = (first[0][0] if first else NEVER_MS, mark)
        keys = [key for due_ms, key in first if due_ms <= now_ms]
        return Due(keys=keys[: max(0, limit)], next_ms=first[0][0] if first else None)

    def events(self, after: int, limit: int, job: Job | None = None, *, newest: bool = False) -> list[Event]:
        def rows(count: int) -> list[tuple[int, str]]:
            values = [arrays.number(after), arrays.number(count), *map(arrays.text, job or ())]
            found = self._pool.rows(self._queries.events(of_a_job=job is not None, newest=newest), values)
            shown = [(int(seq or 0), _text(body)) for seq, body in (reversed(found) if newest else found)]
            for seq, body in shown[-1:]:
                self._know_event(seq, body)
                self._seen_seq = max(self._seen_seq, seq)
            return shown

        return events_of(rows, max(0, limit), self._damaged, newest=newest)

    def watch(self, after: int, timeout_ms: int) -> bool:
        """Every commit with an event, on any machine, wakes it; it also looks now and then. Who does not wait always
        looks."""
        listener, may_know = self._listener, timeout_ms > 0

        def is_so(waiter: StoreWaiter) -> bool:
            nonlocal may_know
            knows, may_know = may_know and listener.is_up_to_date(after), False
            if waiter.heard > after or knows:
                return not knows
            times = listener.times if listener.hears else 0
            newest = self.newest_seq()
            listener.looked(times)
            return newest > after

        return self._listener.until(None, is_so, self._listener.pause_ms, timeout_ms)

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        """The commit that deletes the record wakes it."""
        asked = (arrays.text(key),)

        def is_gone(_: StoreWaiter) -> bool:
            return not self._pool.rows(self._queries.exists, asked)

        return self._listener.until(mark_of(key), is_gone, self._listener.pause_ms, timeout_ms)

    def on_gone(self, notify: Callable[[Sequence[str]], None]) -> None:
        self._listener.on_gone = notify

    def newest_seq(self) -> int:
        ((last,),) = self._pool.rows(self._queries.last_seq)
        self._seen_seq = max(self._seen_seq, int(last or 0))
        return int(last or 0)

    def prune(self, *, keep: int, before_ms: int) -> int:
        """An event that is committed meanwhile stays: the last number is read first."""
        last_seq = self.newest_seq()
        held = self._pool.call(held_back)  # a server prunes every minute; its log says when that begins
        if held is not None and self._held_back is None:
            log.warning("PostgreSQL (%s): %s.", self._location.shown, held)
        self._held_back = held
        young = self._pool.rows(self._queries.first_kept, (arrays.number(before_ms),))
        first_kept = int(young[0][0] or 0) if young else last_seq + 1
        too_many = beyond(
            keep,
            last_seq,
            lambda bound: self._bounded(self._queries.first_above, bound),
            lambda bound: self._bounded(self._queries.last_up_to, bound),
        )
        bound = max(first_kept, too_many + 1)
        total, count = 0, PRUNE_ROWS
        while count == PRUNE_ROWS:
            values = (arrays.number(bound), arrays.number(PRUNE_ROWS))
            ((gone,),) = self._pool.rows(self._queries.delete_events, values)
            count = int(gone or 0)
            total += count
        return total

    def _bounded(self, query: bytes, bound: int) -> int | None:
        ((found,),) = self._pool.rows(query, (arrays.number(bound),))
        return None if found is None else int(found)

    def number_from(self, seq: int) -> None:
        self._pool.rows(self._queries.number_from, (arrays.number(seq),))

    def damaged(self) -> list[str]:
        return still_damaged(self, self._damaged)

    def set_aside(self, key: str, keep: Callable[[str], None]) -> bool:
        if key.startswith(EVENT_PREFIX):
            return self._set_event_aside(key, int(key.removeprefix(EVENT_PREFIX)), keep)
        asked = arrays.text(key)
        found = self._pool.rows(self._queries.text_of, (asked,))
        if not found or is_readable(key, _text(found[0][1])):
            return False
        keep(_text(found[0][1]))
        gone = self._pool.rows(self._queries.set_aside, (asked, arrays.number(int(found[0][0] or 0))))
        self._damaged.pop(key, None)
        return bool(gone)

    def _set_event_aside(self, key: str, seq: int, keep: Callable[[str], None]) -> bool:
        asked = arrays.number(seq)
        found = [(int(number or 0), _text(body)) for number, body in self._pool.rows(self._queries.event, (asked,))]
        if not found or found[0][0] != seq or is_event_readable(*found[0]):
            return False
        keep(found[0][1])
        gone = self._pool.rows(self._queries.set_event_aside, (asked,))
        self._damaged.pop(key, None)
        return bool(gone)

    def size_bytes(self) -> int:
        schema = quoted(self._location.schema).replace("'", "''")
        sizes = [f"pg_catalog.pg_total_relation_size('{schema}.{each}'::pg_catalog.regclass)" for each in TABLES]
        ((size,),) = self._pool.rows(f"SELECT {' + '.join(sizes)}".encode())
        return int(size or 0)

    def tidy(self) -> Finding:
        """Do now what autovacuum does later."""
        sql = f"VACUUM (ANALYZE) {', '.join(f'{quoted(self._location.schema)}.{table}' for table in TABLES)}"
        self._pool.call(lambda link, deadline_ms: link.script(sql, deadline_ms), timeout_ms=VACUUM_MS_MAX)
        return {}

    def probe(self) -> list[Finding]:
        found = [_finding("server", self._pool.call(lambda link, deadline_ms: link.about)), self._wall_clock()]
        found.append(_finding("wake", self._wake()))
        if self._location.has_several:
            found.append(self._standby())
        slowed = self._pool.call(held_back)
        if slowed is not None:
            found.append(_finding("old transaction", slowed, ok=False))
        return [*found, checked("write", self._write_something)]

    def _write_something(self) -> str:
        self.commit({}, {}, ())
        self._pool.rows(self._queries.room)
        return f"the schema {self._location.schema} can be written"

    def _standby(self) -> Finding:
        ((names, waits),) = self._pool.rows(
            b"SELECT pg_catalog.current_setting('synchronous_standby_names'),"
            b" pg_catalog.current_setting('synchronous_commit')"
        )
        if names and waits != b"local":
            return _finding("standby", f"commits wait for a standby ({names.decode()})")
        wrong = "synchronous_commit is local" if names else "synchronous_standby_names is empty"
        says = f"the URL names several hosts, but {wrong}: a failover loses claims that were acknowledged"
        return _finding("standby", f"{says}. Replicate synchronously", ok=False)

    def _wake(self) -> str:
        listens_at = self._location.listens_at
        if not listens_at:
            return "no notifications (listen=off): waiters look every 100 ms"
        if listens_at == self._location.attempts and self._pool.call(lambda link, deadline_ms: link.is_pooled):
            return "a pooler is in between: waiters look every 100 ms. With listen=host:port they are notified"
        return "waiters are notified (LISTEN)"

    def _wall_clock(self) -> Finding:
        schema = quoted(self._location.schema)
        asked_ms = clock.wall_ms()
        ((wall, offset),) = self._pool.rows(f"SELECT {schema}.clock_1(), offset_ms FROM {schema}.state".encode())
        apart_ms = int(wall or 0) - (asked_ms + clock.wall_ms()) // 2
        says = f"its wall clock and this machine's are {abs(apart_ms)} ms apart"
        if int(offset or 0):
            says += f"; {abs(int(offset or 0))} ms of steps are subtracted from it"
        if abs(apart_ms) <= SKEW_MS_MAX:
            return _finding("database clock", says)
        return _finding("database clock", f"{says}. Leases are safe; set the clocks by NTP.", ok=False)

    def notices(self) -> list[str]:
        return [*self._notices, *([] if self._held_back is None else [f"{self._held_back}."])]

    def trouble(self) -> DibsError | None:
        """Return why the last commit failed: a full disk, or a standby that does not answer. Most commits go well on a
        full disk, because they change rows where they are, and reads need no standby. So it is over only when the
        tables could grow."""
        return self._trouble

    def close(self) -> None:
        self._listener.close()
        self._pool.close()


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode()


def _finding(check: str, says: str, *, ok: bool = True) -> Finding:
    return {"check": check, "ok": ok, "says": says}
