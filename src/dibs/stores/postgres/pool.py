"""Connections for any number of threads, and retries.

A call takes an idle connection, or makes one, and puts it back after a success. A connection that failed, or that an
interrupt left in the middle of an answer, is closed and never used again. There is no lock that a signal could leave
taken.

A read is tried again on another connection while the call has time. A write is tried again only if the server said that
it was rolled back. If no answer came, the write may have happened: `unknown`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeVar

from psycopg import pq

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.base.ids import new_fraction
from dibs.stores.fork_safety import Forgetful, listen
from dibs.stores.postgres.connection import LinkBehind, LinkLost, PostgresConnection, QueryRefused, Row
from dibs.stores.postgres.errors import LOCKED, READ_ONLY, SERIALIZATION, is_final, quoted, refusal, unreachable
from dibs.stores.postgres.location import PostgresLocation

Look = tuple[int, bytes, str]  # which host it is, what tells one server from another, and its timeline
T = TypeVar("T")
Admit = Callable[[PostgresConnection, int], None]

# The timeline of the database: the first 8 hexadecimal digits of the name of the file that is being written.
TIMELINE = (
    "('x' OPERATOR(pg_catalog.||) pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))"
    "::pg_catalog.bit(32)::pg_catalog.int8"
)

# Finds who keeps dibs waiting in the database, by its system views.
#
# Names in the statements are qualified: by the session's search path, a function could be another user's.

# Each commit leaves the old versions of the rows it changed. The next commits pass them all until no transaction of the
# database can see them: from about this many on, it takes them longer than the work itself.
HELD_BACK_MAX = 10_000

_PROCESS = (
    "pg_catalog.format('process %s (role %s, application %s)', a.pid, coalesce(a.usename, '?'),"
    " coalesce(nullif(a.application_name, ''), '?'))"
)

# Of those that have locked the row of `state` or wait for it, the one that has it: it waits for no lock.
_HOLDER = (
    f"SELECT a.wait_event, {_PROCESS} FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.relation OPERATOR(pg_catalog.=) '{s}.state'::pg_catalog.regclass AND l.granted"
    " AND l.mode OPERATOR(pg_catalog.=) 'RowShareLock' AND a.wait_event_type IS DISTINCT FROM 'Lock'"
    " AND a.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()"
    " ORDER BY a.wait_event IS NOT DISTINCT FROM 'SyncRep' DESC, a.xact_start LIMIT 1"
)

# Whose view of the database is the oldest, and how many transactions began since.
_OLDEST = (
    f"SELECT who, since FROM (SELECT {_PROCESS} AS who, pg_catalog.age(a.backend_xmin) AS since"
    " FROM pg_catalog.pg_stat_activity a WHERE a.backend_xmin IS NOT NULL AND a.backend_type IS DISTINCT FROM"
    " 'autovacuum worker' AND (a.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() OR a.datname IS NULL)"
    " UNION ALL SELECT pg_catalog.format('the replication slot %s', r.slot_name), pg_catalog.age(r.xmin)"
    " FROM pg_catalog.pg_replication_slots r WHERE r.xmin IS NOT NULL"
    " UNION ALL SELECT pg_catalog.format('the prepared transaction %s', p.gid), pg_catalog.age(p.transaction)"
    " FROM pg_catalog.pg_prepared_xacts p WHERE p.database OPERATOR(pg_catalog.=) pg_catalog.current_database()) each"
    " ORDER BY since DESC LIMIT 1"
)


def holder(link: PostgresConnection, schema: str, deadline_ms: int) -> tuple[str, bool]:
    """Return who has locked the store, or ""; and whether it is a commit that waits for the standby."""
    sql = _HOLDER.replace("{s}", quoted(schema).replace("'", "''"))
    rows = link.query(sql.encode(), (), deadline_ms)
    return ((rows[0][1] or b"").decode(), rows[0][0] == b"SyncRep") if rows else ("", False)


def held_back(link: PostgresConnection, deadline_ms: int) -> str | None:
    """Return what slows every commit down, if anything does."""
    for who, since in link.query(_OLDEST.encode(), (), deadline_ms):
        if int(since or 0) >= HELD_BACK_MAX:
            return (
                f"{(who or b'').decode()} sees the database as it was {int(since or 0):,} transactions ago. Until it "
                "ends, every commit takes longer. End it, or give dibs a database of its own"
            )
    return None


IDLE_MAX = 8  # how many idle connections are kept
PAUSE_MS = 50
PAUSE_MS_MAX = 400
TRY_MS_MIN = 200  # with less time left, what the server refused is not tried again: its reason would be lost


class Pool(Forgetful):
    def __init__(self, location: PostgresLocation, first: int = 0) -> None:
        self._location = location
        self._idle: list[PostgresConnection] = []
        self._closed = False
        self._first = first  # the host that was last used
        self.admit: Admit = lambda link, deadline_ms: None
        self._listening = listen(self)

    def rows(self, sql: bytes, values: Sequence[bytes | None] = ()) -> list[Row]:
        """The rows of one statement, which may happen twice."""
        return self.call(lambda link, deadline_ms: link.query(sql, values, deadline_ms))

    def call(
        self, ask: Callable[[PostgresConnection, int], T], *, writes: bool = False, timeout_ms: int | None = None
    ) -> T:
        """The result of `ask` on a connection, until a deadline."""
        deadline_ms = steady_ms() + (self._location.timeout_ms if timeout_ms is None else timeout_ms)
        pause_ms = 0
        while True:
            try:
                return self._try(ask, deadline_ms)
            except LinkLost as lost:
                self.drop_idle()  # the others have most likely failed, too
                unknown = writes and lost.sent
                if unknown or is_final(lost) or steady_ms() + pause_ms >= deadline_ms:
                    raise unreachable(lost, self._location, unknown=unknown) from None
            except QueryRefused as refused:
                again = refused.sqlstate in SERIALIZATION or (
                    refused.sqlstate == READ_ONLY and self._location.has_several
                )
                if not again or steady_ms() + pause_ms + TRY_MS_MIN >= deadline_ms:
                    raise refusal(refused, self._location) from None
            if pause_ms:
                time.sleep(pause_ms / 1000 * (0.5 + new_fraction() / 2))
            pause_ms = min(PAUSE_MS_MAX, pause_ms * 2 or PAUSE_MS)

    def _try(self, ask: Callable[[PostgresConnection, int], T], deadline_ms: int) -> T:
        link = self._take(deadline_ms)
        try:
            answer = ask(link, deadline_ms)
        except QueryRefused as refused:
            if refused.sqlstate == READ_ONLY:
                link.close()
                self.drop_idle()  # they lead to the same server
            else:
                if refused.sqlstate == LOCKED:
                    with suppress(QueryRefused):  # the server's views are not for everybody
                        refused.holder, refused.by_standby = holder(link, self._location.schema, deadline_ms)
                self._put_back(link)
            raise
        except BaseException:
            link.close()
            raise
        self._put_back(link)
        return answer

    def _take(self, deadline_ms: int) -> PostgresConnection:
        if self._closed:
            raise StoreUnavailable(f"The store at {self._location.shown} was closed. Open it again.")
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:
                break  # another thread was faster
            if link.is_alive:
                return link
            link.close()
        self._first, link = connected(self._location.attempts, self._first, self.admit, deadline_ms)
        return link

    def _put_back(self, link: PostgresConnection) -> None:
        if self._closed or len(self._idle) >= IDLE_MAX:
            link.close()
        else:
            self._idle.append(link)

    def drop_idle(self) -> None:
        with suppress(IndexError):  # another thread was faster
            while self._idle:
                self._idle.pop().close()

    def forget(self) -> None:
        """Drop the connections: in a forked child they belong to the parent. This sends nothing, because psycopg closes
        only connections that its own process opened."""
        self._idle = []

    def close(self) -> None:
        self._closed = True
        self.drop_idle()


def connected(attempts: Sequence[bytes], first: int, admit: Admit, deadline_ms: int) -> tuple[int, PostgresConnection]:
    """A connection to a host that accepts us and that `admit` takes, and which one that is. `first` is tried first."""
    lost: LinkLost | None = None
    for offset in range(len(attempts)):
        which = (first + offset) % len(attempts)
        until_ms = steady_ms() + (deadline_ms - steady_ms()) // (len(attempts) - offset)
        try:
            link = PostgresConnection(attempts[which], until_ms)
        except LinkLost as error:
            lost = lost if isinstance(lost, LinkBehind) else error
            continue
        try:
            admit(link, until_ms)
            return which, link
        except LinkLost as error:
            lost = error
            link.close()
        except BaseException:
            link.close()
            raise
    assert lost is not None
    raise lost


# Which of several hosts is the primary, when a store is opened.
#
# A process that has used the store knows its revision, and does not use a host that is behind. One that begins knows
# nothing, so it looks at all hosts: if two of them accept writes, one is an old primary that came back, and what is
# written there is lost or given away twice.

# How much longer than for the first answer to wait for the others: a standby may be away for days.
OTHERS_MS = 500


def primary(location: PostgresLocation) -> int:
    """Return which of the hosts accepts writes; 0 if none does. Raises StoreUnavailable if two do."""
    if not location.has_several:
        return 0
    until_ms = steady_ms() + location.timeout_ms
    answers: SimpleQueue[Look | None] = SimpleQueue()
    for which in range(len(location.attempts)):
        Thread(target=_look, args=(location, which, until_ms, answers), name="dibs-host", daemon=True).start()
    found: dict[bytes, Look] = {}
    for _ in location.attempts:
        try:
            look = answers.get(timeout=max(0, until_ms - steady_ms()) / 1000)
        except Empty:
            break
        if look is not None:
            found.setdefault(look[1], look)
            until_ms = min(until_ms, steady_ms() + OTHERS_MS)
    if len(found) > 1:
        hosts = " and ".join(f"{_name(location, which)} ({line})" for which, _, line in sorted(found.values()))
        raise StoreUnavailable(
            f"Several hosts of {location.shown} accept writes: {hosts}. Most likely an old primary came back. Stop it: "
            "the one with the highest timeline goes on."
        )
    return next((look[0] for look in found.values()), 0)


def _look(location: PostgresLocation, which: int, until_ms: int, answers: SimpleQueue[Look | None]) -> None:
    look: Look | None = None
    with suppress(LinkLost, QueryRefused), closing(PostgresConnection(location.attempts[which], until_ms)) as link:
        # Two addresses may lead to one server, which began only once.
        sql = f"SELECT pg_catalog.pg_postmaster_start_time(), {TIMELINE}".encode()
        ((began, line),) = link.query(sql, (), until_ms)
        look = which, began or b"", f"timeline {int(line or 0)}"
    answers.put(look)


def _name(location: PostgresLocation, which: int) -> str:
    settings = {each.keyword: each.val for each in pq.Conninfo.parse(location.attempts[which])}
    host = settings[b"host"] or settings[b"hostaddr"] or b""
    return f"{host.decode()}:{(settings[b'port'] or b'5432').decode()}"
