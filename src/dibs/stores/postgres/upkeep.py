"""For operators: the size of the store, its probe, a vacuum, and who keeps dibs waiting in the database."""

from __future__ import annotations

from dibs.base import clock
from dibs.stores.port import checked
from dibs.stores.postgres.errors import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from dibs.stores.postgres import PostgresLocation
    from dibs.stores.postgres.connection import PostgresConnection
    from dibs.stores.postgres.pool import Pool

    Finding = dict[str, Any]

# Who keeps dibs waiting in the database, as its system views tell.
#
# Names in the statements are qualified, because they run with the session's search path: an unqualified function
# could be another user's.

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
    if not rows:
        return "", False
    return (rows[0][1] or b"").decode(), rows[0][0] == b"SyncRep"


def held_back(link: PostgresConnection, deadline_ms: int) -> str | None:
    """Return what slows every commit down, if anything does."""
    for who, since in link.query(_OLDEST.encode(), (), deadline_ms):
        if int(since or 0) >= HELD_BACK_MAX:
            return (
                f"{(who or b'').decode()} sees the database as it was {int(since or 0):,} transactions ago. Until it "
                "ends, every commit takes longer. End it, or give dibs a database of its own"
            )
    return None


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
        lambda link, deadline_ms: link.script(f"VACUUM (ANALYZE) {tables}", deadline_ms),
        timeout_ms=VACUUM_MS_MAX,
    )
    return {}


def probe(pool: Pool, location: PostgresLocation, write: Callable[[], str]) -> list[Finding]:
    found = [_good("server", pool.call(_server))]
    found.append(_wall_clock(pool, location))
    found.append(_good("wake", _wake(pool, location)))
    found += _standby(pool, location)
    slowed = pool.call(held_back)
    if slowed is not None:
        found.append({"check": "old transaction", "ok": False, "says": slowed})
    return [*found, checked("write", write)]


def _standby(pool: Pool, location: PostgresLocation) -> list[Finding]:
    if not location.has_several:
        return []
    ((names, waits),) = pool.rows(
        b"SELECT pg_catalog.current_setting('synchronous_standby_names'),"
        b" pg_catalog.current_setting('synchronous_commit')"
    )
    if names and waits != b"local":
        return [_good("standby", f"commits wait for a standby ({names.decode()})")]
    wrong = "synchronous_commit is local" if names else "synchronous_standby_names is empty"
    return [
        {
            "check": "standby",
            "ok": False,
            "says": f"the URL names several hosts, but {wrong}: a failover loses claims that were acknowledged. "
            "Replicate synchronously",
        }
    ]


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
    return {"check": "database clock", "ok": False, "says": f"{says}. Leases are safe; set the clocks by NTP."}
