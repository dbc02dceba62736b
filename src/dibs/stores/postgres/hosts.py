"""Which of several hosts is the primary, when a store is opened.

A process that has used the store knows its revision, and does not use a host that is behind. One that begins knows
nothing, so it looks at all hosts: if two of them accept writes, one is an old primary that came back, and what is
written there is lost or given away twice.
"""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread

from psycopg import pq

from dibs.base.clock import steady_ms
from dibs.base.errors import StoreUnavailable
from dibs.stores.postgres.connection import LinkLost, PostgresConnection, QueryRefused
from dibs.stores.postgres.schema import TIMELINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.postgres.location import PostgresLocation

    Look = tuple[int, bytes, str]  # which host it is, what tells one server from another, and its timeline

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
    try:
        link = PostgresConnection(location.attempts[which], until_ms)
        try:
            # Two addresses may lead to one server, which began only once.
            sql = f"SELECT pg_catalog.pg_postmaster_start_time(), {TIMELINE}".encode()
            ((began, line),) = link.query(sql, (), until_ms)
            look = which, began or b"", f"timeline {int(line or 0)}"
        finally:
            link.close()
    except (LinkLost, QueryRefused):
        pass
    answers.put(look)


def _name(location: PostgresLocation, which: int) -> str:
    settings = {each.keyword: each.val for each in pq.Conninfo.parse(location.attempts[which])}
    host = settings[b"host"] or settings[b"hostaddr"] or b""
    return f"{host.decode()}:{(settings[b'port'] or b'5432').decode()}"
