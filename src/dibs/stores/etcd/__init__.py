"""The etcd store: records in an etcd cluster, for several servers, and for programs that ask it directly.

    store.py         the port's methods, and the index of due records
    transaction.py   transactions within the server's limits; commits that are larger than one
    log.py           events, in chapters
    upkeep.py        dropping the beginning of the log; what `dibs doctor` finds out
    clock.py         the store's time, the guard, and the clock's keys in etcd
    stream.py        one stream that wakes waiters
    gateway.py       connections; calls: members in turn, tokens, retries
    errors.py        what etcd's errors mean, in words
    location.py      what a URL means, what the store can do, which key holds what

It speaks to etcd's JSON gateway with the standard library. docs/reference/stores.md says why.
"""

from __future__ import annotations

from dibs.stores.etcd.location import CAPABILITIES, EtcdLocation, etcd_location
from dibs.stores.etcd.store import EtcdStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.port import Opening

__all__ = ["CAPABILITIES", "EtcdLocation", "EtcdStore", "etcd_location", "open_url"]


def open_url(url: str, opening: Opening) -> EtcdStore:
    return EtcdStore(etcd_location(url))
