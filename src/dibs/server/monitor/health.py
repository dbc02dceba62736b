"""Asks whether the store answers. There is one look at a time, however many callers ask."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from dibs._version import __version__
from dibs.base.errors import DibsError, StoreUnavailable, Unavailable
from dibs.base.reply import Reply
from dibs.core.records import META_KEY, Stored
from dibs.engine.queries import why_frozen
from dibs.server.http.response import answer_document
from dibs.stores.port import Store, maintenance_of
from dibs.wire.parts import timestamp

Found = TypeVar("Found")


class SharedProbe(Generic[Found]):
    """Has a thread of its own, so that nothing else can delay it. Belongs to one event loop."""

    def __init__(self, look: Callable[[], Found], name: str) -> None:
        self._look = look
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._under_way: asyncio.Future[Found] | None = None

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def ask(self, within_ms: int) -> Found:
        """Return what a look finds. Callers that ask meanwhile share it. Raises TimeoutError if it takes too long."""
        if self._under_way is None:
            self._under_way = asyncio.get_running_loop().run_in_executor(self._thread, self._look)
            self._under_way.add_done_callback(self._done)
        return await asyncio.wait_for(asyncio.shield(self._under_way), within_ms / 1000)

    def _done(self, looked: asyncio.Future[Found]) -> None:
        self._under_way = None
        if not looked.cancelled():
            looked.exception()  # those who waited for it got the exception


def known_trouble(store: Store, meta: Stored | None) -> DibsError | None:
    """The failure of the store that is not known to be over; or that it is frozen, as its record `meta` says."""
    if isinstance(store.trouble(), StoreUnavailable):  # the failure may be over, but nobody has written since
        with contextlib.suppress(StoreUnavailable):
            store.commit({}, {}, ())
    why = why_frozen(meta)
    return store.trouble() or (Unavailable(f"The store is frozen: {why}") if why else None)


def health_of(store: Store) -> Reply:
    """`ok`, or `degraded` with the known failure of the store: some of it may still be readable."""
    found = store.read((META_KEY,))
    maintenance = maintenance_of(store)
    versions = maintenance.migrated()
    document = {
        "status": "ok",
        "dibs": __version__,
        "storage": store.capabilities.name,
        "schema": None if versions is None else versions[1],
        "db_size_bytes": maintenance.size_bytes(),
        "now": timestamp(found.now_ms),
    }
    if damaged := store.damaged():  # this concerns only those jobs: the server itself is as healthy as before
        document["damaged"] = len(damaged)
    trouble = known_trouble(store, found.records[META_KEY].record)
    if trouble is None:
        return answer_document(document)
    return answer_document({**document, "status": "degraded", "details": trouble.public or trouble.details}, 503)
