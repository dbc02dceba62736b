"""For operators: the size of the store, its probe, a vacuum."""

from __future__ import annotations

from dibs import clock
from dibs.errors import DibsError
from dibs.stores.postgres.errors import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.postgres.connection import PostgresConnection
    from dibs.stores.postgres.location import PostgresLocation
    from dibs.stores.postgres.pool import Pool

    Finding = dict[str, Any]

TABLES = ("records", "events", "state")
VACUUM_MS_MAX = 60_000
SKEW_MS_MAX = 1_000


def size_bytes(pool: Pool, location: PostgresLocation) -> int:
    schema = quoted(location.schema).replace("'", "''")
    total = " + ".join(f"pg_total_relation_size('{schema}.{table}')" for table in TABLES)
    ((size,),) = pool.rows(f"SELECT {total}".encode())
    return int(size or 0)


def tidy(pool: Pool, location: PostgresLocation) -> Finding:
    """Do now what autovacuum does later."""
    tables = ", ".join(f"{quoted(location.schema)}.{table}" for table in TABLES)
    pool.call(
        lambda link, deadline_ms: link.script(f"VACUUM (ANALYZE) {tables}", deadline_ms),
        timeout_ms=VACUUM_MS_MAX,
    )
    return {}


def probe(pool: Pool, location: PostgresLocation, write: Callable[[], object]) -> list[Finding]:
    found = [_good("server", pool.call(_server))]
    found.append(_wall_clock(pool, location))
    found.append(_good("wake", _wake(pool, location)))
    try:
        write()
    except DibsError as error:
        return [*found, {"check": "write", "ok": False, "says": error.details}]
    return [*found, _good("write", f"the schema {location.schema} can be written")]


def _good(check: str, says: str) -> Finding:
    return {"check": check, "ok": True, "says": says}


def _server(link: PostgresConnection, deadline_ms: int) -> str:
    return f"PostgreSQL {link.parameter('server_version')}, database {link.database}, role {link.user}"


def _wake(pool: Pool, location: PostgresLocation) -> str:
    if not location.listens_at:
        return "no notifications (listen=off): waiters look every 100 ms"
    if location.listens_at == location.attempts and pool.call(lambda link, deadline_ms: link.is_pooled):
        return "a pooler is in between: waiters look every 100 ms. With listen=host:port they are notified"
    return "waiters are notified (LISTEN)"


def _wall_clock(pool: Pool, location: PostgresLocation) -> Finding:
    schema = quoted(location.schema)
    asked_ms = clock.wall_ms()
    sql = f"SELECT {schema}.clock_1(), offset_ms FROM {schema}.state"
    ((wall, offset),) = pool.rows(sql.encode())
    apart_ms = int(wall or 0) - (asked_ms + clock.wall_ms()) // 2
    says = f"its wall clock and this machine's are {abs(apart_ms)} ms apart"
    if int(offset or 0):
        says += f"; {abs(int(offset or 0))} ms of steps are subtracted from it"
    if abs(apart_ms) <= SKEW_MS_MAX:
        return _good("database clock", says)
    return {
        "check": "database clock",
        "ok": False,
        "says": f"{says}. Leases are safe; set the clocks by NTP.",
    }
