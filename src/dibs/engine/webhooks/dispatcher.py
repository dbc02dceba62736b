"""The thread that delivers to webhooks. It has an event loop of its own: neither a slow target nor a TLS handshake
delays a claim. Without webhooks there is no thread.

All servers of a store know its webhooks, and one has the **duty** to deliver (`core/webhooks.py`). It keeps the
duty while there is something to deliver; the others look again when it should have been renewed. The duty has a number
that rises, and progress is written only with the current one: a server that was paused cannot move the position of the
one that took over. What was sent since the last write is sent again after a crash.

What is done on that loop is in `delivery_rounds.py`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import DibsError, Unavailable
from dibs.base.ids import new_token
from dibs.core.events import Event
from dibs.core.webhooks import TEST
from dibs.engine.webhooks.delivery_rounds import FAILED_MS, DeliveryRounds, WebhookLedger
from dibs.engine.webhooks.sender import DeliveryResult, Sender

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    from dibs.core.webhooks import Webhook
    from dibs.stores.port import Store

    Found = TypeVar("Found")

log = logging.getLogger("dibs")

_STOP_S = 3.0
_GATHER_S = 0.01


class WebhookDispatcher:
    """One per server. `wake`, `changed`, `start` and `stop` are for any thread."""

    def __init__(
        self,
        store: Store,
        make_sender: Callable[[], Sender] = Sender,
        server: str = "",
        steady: Callable[[], int] = steady_ms,
        counts: dict[str, int] | None = None,
    ) -> None:
        self.ledger = WebhookLedger(store, server or new_token())
        self._rounds = DeliveryRounds(self.ledger, steady, counts)
        self._make_sender = make_sender
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._up = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._has_failed = False
        self._is_rousing = False
        self.is_started = False

    def start(self) -> None:
        """Begin to deliver. Calling it again does nothing."""
        with self._starting:
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(target=self._run, name="dibs-webhooks", daemon=True)
                self._thread.start()
                self.is_started = True

    def end(self) -> None:
        """Send nothing more, write down how far it is, and give up the duty. Does not wait for that."""
        self._is_stopping = True
        self._is_rousing = False
        self._rouse()

    def stop(self) -> None:
        """The same. The store may be closed after this."""
        self.end()
        if self._thread is not None:
            self._thread.join(_STOP_S)

    def wake(self) -> None:
        """There may be new events."""
        self._rounds.has_news = True
        self._rouse()

    def changed(self) -> None:
        """A webhook was made, removed or replayed."""
        self._rounds.has_changes = True
        self.start()
        self.wake()

    @property
    def has_duty(self) -> bool:
        """Return whether this server is the one that delivers. For any thread."""
        return self._rounds.has_duty

    @property
    def jobs_waiting(self) -> int:
        """Return how many jobs have something to be sent by this server. For any thread."""
        return self._rounds.jobs_waiting

    async def check(self, url: str) -> None:
        """Raise TargetRefused if a webhook may not lead there. For any event loop."""
        await self._elsewhere(lambda: self._rounds.sender.check(url))

    async def test(self, webhook: Webhook) -> DeliveryResult:
        """Send a delivery that is about nothing, now. For any event loop."""
        event = Event(at_ms=wall_ms(), kind=TEST)
        return await self._elsewhere(lambda: self._rounds.send(webhook, event, 1))

    async def _elsewhere(self, make: Callable[[], Coroutine[Any, Any, Found]]) -> Found:
        self.start()
        if not await asyncio.to_thread(self._up.wait, _STOP_S) or self._loop is None or self._is_stopping:
            raise Unavailable("The server is shutting down. Try again in a moment.")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    def _rouse(self) -> None:
        loop = self._loop
        if loop is not None and not self._is_rousing:
            self._is_rousing = True
            with suppress(RuntimeError):  # it is closed
                loop.call_soon_threadsafe(self._roused.set)

    # All that follows runs on the dispatcher's own thread.

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._roused = asyncio.Event()
        self._loop = asyncio.get_running_loop()  # from here on, other threads rouse it
        self._rounds.begin(self._make_sender(), self._roused.set)
        self._up.set()
        try:
            while not self._is_stopping:
                await self._pause(await self._guarded_round())
        finally:
            self._up.clear()
            await self._rounds.end()

    async def _pause(self, pause_ms: int) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._roused.wait()
        self._is_rousing = False
        self._roused.clear()
        if self._rounds.has_news and not self._is_stopping:
            await asyncio.sleep(_GATHER_S)  # events come in crowds, and one page has many

    async def _guarded_round(self) -> int:
        try:
            pause_ms = await self._rounds.round()
        except Exception as error:
            if not self._has_failed:
                ours = None if isinstance(error, DibsError) else error
                log.error("webhooks wait, and are tried again: %s", error, exc_info=ours)
            self._has_failed = True
            return FAILED_MS
        self._has_failed = False
        return pause_ms
