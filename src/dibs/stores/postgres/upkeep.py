"""For operators: the size of the store, its probe, a vacuum."""

from __future__ import annotations

from dibs.base import clock
from dibs.stores.port import Maintenance, Store, checked
from dibs.stores.postgres.errors import quoted
from dibs.stores.postgres.pool import Pool, held_back

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dibs.stores.postgres.location import PostgresLocation
    from dibs.stores.postgres.schema import Queries

    Finding = dict[str, Any]

TABLES = ("records", "events", "state")
VACUUM_MS_MAX = 60_000
SKEW_MS_MAX = 1_000


class PostgresUpkeep(Store, Maintenance):
    _pool: Pool
    _location: PostgresLocation
    _queries: Queries

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


def _finding(check: str, says: str, *, ok: bool = True) -> Finding:
    return {"check": check, "ok": ok, "says": says}
