"""The etcd store: records in an etcd cluster, for several servers, and for programs that ask it directly.

Read store.py first. hpack is imported only when a store is opened.
"""

from __future__ import annotations

from dibs.base.errors import MissingExtra
from dibs.stores.etcd.location import CAPABILITIES, EtcdLocation, etcd_location
from dibs.stores.port import Opening, Store

__all__ = ["CAPABILITIES", "EtcdLocation", "etcd_location", "open_url"]


def open_url(url: str, opening: Opening) -> Store:
    try:
        import hpack  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra(f"A store on etcd needs hpack ({error}).\nRun: pip install hpack") from None
    from dibs.stores.etcd.store import EtcdStore

    return EtcdStore(etcd_location(url))
