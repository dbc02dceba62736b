"""Records in PostgreSQL 13 or newer: one store for any number of servers and machines.

Read store.py first. psycopg is imported only when a store is opened.
"""

from __future__ import annotations

from dibs.base.errors import MissingExtra
from dibs.stores.port import Opening, Store
from dibs.stores.postgres.location import CAPABILITIES, PostgresLocation

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
