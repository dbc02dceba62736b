"""Who keeps dibs waiting in the database, as its system views tell.

Names in the statements are qualified, because they run with the session's search path: an unqualified function could be
another user's.
"""

from __future__ import annotations

from dibs.stores.postgres.errors import quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.postgres.connection import PostgresConnection

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
    """Who has locked the store, or ""; and whether it is a commit that waits for the standby."""
    sql = _HOLDER.replace("{s}", quoted(schema).replace("'", "''"))
    rows = link.query(sql.encode(), (), deadline_ms)
    if not rows:
        return "", False
    return (rows[0][1] or b"").decode(), rows[0][0] == b"SyncRep"


def held_back(link: PostgresConnection, deadline_ms: int) -> str | None:
    """What slows every commit down, if anything does."""
    for who, since in link.query(_OLDEST.encode(), (), deadline_ms):
        if int(since or 0) >= HELD_BACK_MAX:
            return (
                f"{(who or b'').decode()} sees the database as it was {int(since or 0):,} transactions ago. Until it "
                "ends, every commit takes longer. End it, or give dibs a database of its own"
            )
    return None
