"""Records in PostgreSQL 13 or newer: one store for any number of servers and machines.

    store.py       the port's methods
    clock.py       the store's time, compared with this process's steady clock
    schema.py      the SQL functions and queries; numbered migrations
    pool.py        connections and retries; who keeps dibs waiting; which of several hosts is the primary
    connection.py  one connection; every wait on it is bounded
    notify.py      LISTEN: a waiter is woken by the commit that concerns it
    upkeep.py      size, probe and vacuum, for operators
    location.py    what a URL means, and what the store can do
    errors.py      what an error of PostgreSQL means, in words

psycopg is imported only when a store is opened.
"""

from __future__ import annotations

from dibs.base.errors import MissingExtra
from dibs.stores.postgres.location import CAPABILITIES, PostgresLocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Opening, Store

__all__ = ["CAPABILITIES", "PostgresLocation", "open_url"]


def open_url(url: str, opening: Opening) -> Store:
    """The store that a `postgresql:` URL names, upgraded if it is older, unless the URL says otherwise."""
    try:
        import psycopg  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra(
            f"A store on PostgreSQL needs psycopg ({error}).\nRun: pip install 'psycopg[binary]'"
        ) from None
    from dibs.stores.postgres.store import PostgresStore

    return PostgresStore(PostgresLocation(url), migrate=opening.migrate)
