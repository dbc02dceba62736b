"""The file at one moment: a read transaction on a connection of its own. With the write-ahead log it blocks nobody,
and nobody blocks it."""

from __future__ import annotations

from dibs.stores.codec import decode_event
from dibs.stores.port import StoreMoment
from dibs.stores.sqlite.errors import translated
from dibs.stores.sqlite.history import selected
from dibs.stores.sqlite.queries import decoded, page

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable

    from dibs.core.events import Event
    from dibs.stores.port import Versioned
else:
    from dibs.stores.sqlite.driver import sqlite3


def uri(path: str, how: str) -> str:
    """The file as SQLite wants it named."""
    escaped = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return f"file:{escaped}?{how}"


class SqliteMoment(StoreMoment):
    def __init__(self, path: str, busy_ms: int, now_ms: Callable[[], int]) -> None:
        self._path = path
        self._busy_ms = busy_ms
        with translated(path, busy_ms):
            self._db = sqlite3.connect(
                uri(path, "mode=rw"),
                uri=True,
                timeout=busy_ms / 1000,
                isolation_level=None,
                check_same_thread=False,
            )
            self._db.execute("BEGIN")
            self._db.execute(
                "SELECT revision FROM counters"
            ).fetchone()  # from here on nothing changes for us
        self.now_ms = now_ms()

    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        with translated(self._path, self._busy_ms):
            return decoded(page(self._db, prefix, after, limit, live=False))

    def events(self, after: int, limit: int) -> list[Event]:
        with translated(self._path, self._busy_ms):
            rows = selected(self._db, after, limit, newest=False)
        return [decode_event(seq, body) for seq, body in rows]

    def close(self) -> None:
        self._db.close()
