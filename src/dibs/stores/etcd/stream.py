"""One stream from etcd for all waiters of this process: it reports new events and deleted records.

Whoever waits for events hears the revision of the newest and need not ask for it. Waiters look at the store often while
there is no stream, seldom while there is one. When a stream begins, all of them look once. So a stream that is cut,
that moves to another member, or that fell behind a compaction loses nothing.
"""

from __future__ import annotations

import threading

from dibs.core.limits import ETCD_HEARD_POLL_MS, ETCD_POLL_MS, ETCD_SILENCE_MS
from dibs.stores.etcd.client import WATCH, EtcdClient
from dibs.stores.etcd.errors import LostConnection, Refusal
from dibs.stores.etcd.http2 import EtcdConnection
from dibs.stores.etcd.location import Layout
from dibs.stores.etcd.messages import NO_MESSAGE, WatchAnswer, watch_request
from dibs.stores.etcd.transaction import end_of
from dibs.stores.waiters import StoreWaiters, mark_of

PAUSE_S = 0.2


class EtcdStream(StoreWaiters):
    """Wakes waiters for events (key None) and deleted records (the record's key). The first starts its thread."""

    def __init__(self, client: EtcdClient, layout: Layout) -> None:
        super().__init__()
        self._client = client
        self._layout = layout
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: EtcdConnection | None = None
        self._closed = False
        self.hears = False

    def listen(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._work, name="dibs-etcd-watch", daemon=True)
                self._thread.start()

    def pause_ms(self, _: int) -> int:
        return ETCD_HEARD_POLL_MS if self.hears else ETCD_POLL_MS

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connection = self._connection
        if connection is not None:
            connection.cut()
        self.wake_all()

    def _work(self) -> None:
        pause = threading.Event()
        while not self._closed:
            try:
                self._follow()
            except (LostConnection, Refusal, *NO_MESSAGE) as error:
                if self._connection is not None:
                    self._client.failed(self._connection.endpoint, error)
            self.hears = False
            self._connection = None
            pause.wait(PAUSE_S)

    def _follow(self) -> None:
        """Two watches on one stream: the newest event, and records that are deleted."""
        keys = self._layout
        requests = [watch_request(keys.last), watch_request(keys.records, end_of(keys.records), only_deleted=True)]
        connection, answers = self._client.stream(WATCH, requests, ETCD_SILENCE_MS)
        with self._lock:
            self._connection = connection
            if self._closed:
                connection.close()
                return
        created = 0
        for answer in map(WatchAnswer, answers):
            if answer.canceled:
                return  # it fell behind a compaction, most likely; the next stream begins at the present
            if answer.created:
                created += 1
                if created == 2:
                    self.hears = True
                    self.wake_all()
            for kv in answer.kvs:
                self.wake((None if kv.key == keys.last else kv.key,), kv.mod_revision)
            gone = [kv.key[len(keys.records) :].decode() for kv in answer.kvs if kv.key != keys.last]
            if gone:
                self.on_gone([mark_of(key) for key in gone])
