"""One stream from etcd for all waiters of this process: it reports new events and deleted records.

Whoever waits for events hears the revision of the newest and need not ask for it. Waiters look at the store often while
there is no stream, seldom while there is one. When a stream begins, all of them look once. So a stream that is cut,
that moves to another member, or that fell behind a compaction loses nothing.
"""

from __future__ import annotations

import threading

from dibs.base.jsontext import decode, encode
from dibs.core.limits import ETCD_HEARD_POLL_MS, ETCD_POLL_MS, ETCD_SILENCE_MS
from dibs.stores.etcd.errors import UNAUTHENTICATED, LostConnection, Refusal
from dibs.stores.etcd.gateway import b64, unb64
from dibs.stores.etcd.transaction import end_of
from dibs.stores.waiters import StoreWaiters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.stores.etcd.gateway import EtcdConnection, EtcdGateway
    from dibs.stores.etcd.location import Layout


PAUSE_S = 0.2


class EtcdStream(StoreWaiters):
    """Wakes waiters for events (key None) and for deleted records (the record's key). Its own thread starts with the
    first of them."""

    def __init__(self, gateway: EtcdGateway, layout: Layout) -> None:
        super().__init__()
        self._gateway = gateway
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
            bad_token = False
            try:
                self._follow()
            except LostConnection:
                pass
            except Refusal as error:
                bad_token = error.code == UNAUTHENTICATED
            except (ValueError, LookupError, TypeError):
                pass  # something that is not etcd; polling continues
            self.hears = False
            if self._connection is not None:
                self._gateway.stream_failed(self._connection, bad_token=bad_token)
                self._connection = None
            pause.wait(PAUSE_S)

    def _follow(self) -> None:
        connection, lines = self._gateway.stream("/v3/watch", self._request(), ETCD_SILENCE_MS)
        with self._lock:
            self._connection = connection
            if self._closed:
                connection.close()
                return
        created = 0
        for line in lines:
            document = decode(line.decode())
            if "error" in document:
                error = document["error"]
                raise Refusal(int(error.get("grpc_code", 2)), str(error.get("message", "")))
            result = document.get("result", {})
            if result.get("canceled"):
                return  # it fell behind a compaction, most likely; the next stream begins at the present
            if result.get("created"):
                created += 1
                if created == 2:
                    self.hears = True
                    self.wake_all()
            for event in result.get("events", ()):
                key = unb64(event["kv"]["key"])
                self.wake((None if key == self._layout.last else key,), int(event["kv"]["mod_revision"]))

    def _request(self) -> bytes:
        """Two watches on one stream: the newest event, and records that are deleted."""
        records = self._layout.records
        newest = {"key": b64(self._layout.last)}
        deleted = {"key": b64(records), "range_end": b64(end_of(records)), "filters": ["NOPUT"]}
        return "\n".join([encode({"create_request": each}) for each in (newest, deleted)]).encode()
