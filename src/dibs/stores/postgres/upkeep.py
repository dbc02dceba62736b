"""For operators: the size of the store, its probe, a vacuum."""

from __future__ import annotations

from dibs.base import clock
from dibs.stores.port import checked
from dibs.stores.postgres.errors import quoted
from dibs.stores.postgres.pool import Pool, held_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.postgres.location import PostgresLocation

    Finding = dict[str, Any]

TABLES = ("records", "events", "state")
VACUUM_MS_MAX = 60_000
SKEW_MS_MAX = 1_000


def size_bytes(pool: Pool, location: PostgresLocation) -> int:
    schema = quoted(location.schema).replace("'", "''")
    total = " + ".join(
        f"pg_catalog.pg_total_relation_size('{schema}.{table}'::pg_catalog.regclass)" for table in TABLES
    )
    ((size,),) = pool.rows(f"SELECT {total}".encode())
    return int(size or 0)


def tidy(pool: Pool, location: PostgresLocation) -> Finding:
    """Do now what autovacuum does later."""
    tables = ", ".join(f"{quoted(location.schema)}.{table}" for table in TABLES)
    pool.call(
        lambda link, deadline_ms: link.script(f"VACUUM (ANALYZE) {tables}", deadline_ms), timeout_ms=VACUUM_MS_MAX
    )
    return {}


def probe(pool: Pool, location: PostgresLocation, write: Callable[[], str]) -> list[Finding]:
    found = [_finding("server", pool.call(lambda link, deadline_ms: link.about)), _wall_clock(pool, location)]
    found.append(_finding("wake", _wake(pool, location)))
    if location.has_several:
        found.append(_standby(pool))
    slowed = pool.call(held_back)
    if slowed is not None:
        found.append(_finding("old transaction", slowed, ok=False))
    return [*found, checked("write", write)]


def _finding(check: str, says: str, *, ok: bool = True) -> Finding:
    return {"check": check, "ok": ok, "says": says}


def _standby(pool: Pool) -> Finding:
    ((names, waits),) = pool.rows(
        b"SELECT pg_catalog.current_setting('synchronous_standby_names'),"
        b" pg_catalog.current_setting('synchronous_commit')"
    )
    if names and waits != b"local":
        return _finding("standby", f"commits wait for a standby ({names.decode()})")
    wrong = "synchronous_commit is local" if names else "synchronous_standby_names is empty"
    says = f"the URL names several hosts, but {wrong}: a failover loses claims that were acknowledged"
    return _finding("standby", f"{says}. Replicate synchronously", ok=False)


def _wake(pool: Pool, location: PostgresLocation) -> str:
    if not location.listens_at:
        return "no notifications (listen=off): waiters look every 100 ms"
    if location.listens_at == location.attempts and pool.call(lambda link, deadline_ms: link.is_pooled):
        return "a pooler is in between: waiters look every 100 ms. With listen=host:port they are notified"
    return "waiters are notified (LISTEN)"


def _wall_clock(pool: Pool, location: PostgresLocation) -> Finding:
    schema = quoted(location.schema)
    asked_ms = clock.wall_ms()
    ((wall, offset),) = pool.rows(f"SELECT {schema}.clock_1(), offset_ms FROM {schema}.state".encode())
    apart_ms = int(wall or 0) - (asked_ms + clock.wall_ms()) // 2
    says = f"its wall clock and this machine's are {abs(apart_ms)} ms apart"
    if int(offset or 0):
        says += f"; {abs(int(offset or 0))} ms of steps are subtracted from it"
    if abs(apart_ms) <= SKEW_MS_MAX:
        return _finding("database clock", says)
    return _finding("database clock", f"{says}. Leases are safe; set the clocks by NTP.", ok=False)
