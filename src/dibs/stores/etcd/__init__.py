"""The etcd store: records in an etcd cluster, for several servers, and for programs that ask it directly.

    store.py         the port's methods, and the index of due records
    transaction.py   transactions within the server's limits; commits that are larger than one
    log.py           events, in chapters
    upkeep.py        dropping the beginning of the log; what `dibs doctor` finds out
    clock.py         the store's time, the guard, and the clock's keys in etcd
    stream.py        one stream that wakes waiters
    client.py        calls: members in turn, tokens, retries
    http2.py         one connection: gRPC over HTTP/2
    messages.py      the messages of etcd's API
    errors.py        what etcd's errors mean, in words
    location.py      what a URL means, what the store can do, which key holds what

hpack is imported only when a store is opened.
"""

from __future__ import annotations

from dibs.base.errors import MissingExtra
from dibs.stores.etcd.location import CAPABILITIES, EtcdLocation, etcd_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Opening, Store

__all__ = ["CAPABILITIES", "EtcdLocation", "etcd_location", "open_url"]


def open_url(url: str, opening: Opening) -> Store:
    try:
        import hpack  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra(f"A store on etcd needs hpack ({error}).\nRun: pip install hpack") from None
    from dibs.stores.etcd.store import EtcdStore

    return EtcdStore(etcd_location(url))
