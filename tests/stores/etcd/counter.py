"""A record that counts, and an event for each count: what several writers may do to one another."""

from __future__ import annotations

from dibs.core.records import META_KEY, Meta
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.port import Conflict
from dibs.testing.contract_base import event


def increment(store: EtcdStore) -> None:
    """Count one up, however often others are faster."""
    while True:
        found = store.read([META_KEY]).records[META_KEY]
        number = found.record.token_floor + 1 if isinstance(found.record, Meta) else 1
        try:
            store.commit({META_KEY: found.version}, {META_KEY: Meta(token_floor=number)}, [event("n", token=number)])
            return
        except Conflict:
            continue
