"""The HTTP server: its sockets, its clock, its end. `http/protocol.py` has its connections."""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING

from dibs.core.limits import SHUTDOWN_MS_MAX
from dibs.server.app import build_router
from dibs.server.http.browser import Cors
from dibs.server.http.listen import BACKLOG
from dibs.server.http.protocol import HttpConnection, ServerState
from dibs.server.http.tls import TlsListener
from dibs.server.monitor.server_log import RequestLog, log_access

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from dibs.server.annexes import AnnexRoutes
    from dibs.server.handlers import Api
    from dibs.server.http.admission import Admission
    from dibs.server.http.proxies import TrustedProxies
    from dibs.server.http.response import Header
    from dibs.server.monitor.request_note import RequestObserver

log = logging.getLogger("dibs")

NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
HSTS: Header = (
    b"strict-transport-security",
    b"max-age=31536000",
)  # browsers heed it for names, not for addresses
TICK_S = 0.1
TICKS_IN_A_SECOND = 10


class HttpServer:
    """Leaves signals to its caller (`startup.Lifecycle`)."""

    def __init__(
        self,
        state: ServerState,
        annexes: Sequence[AnnexRoutes],
        on_ready: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.server_state = state
        self.api = state.api
        self.should_exit = False
        self.force_exit = False  # without waiting for the answers under way
        self.connect = functools.partial(HttpConnection, state)
        self._tls = tls
        self._annexes = annexes
        self._on_ready = on_ready
        self._listeners: list[asyncio.Server | TlsListener] = []

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `should_exit`, then finish the requests under way."""
        state = self.server_state
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._listeners = [await loop.create_server(self.connect, sock=listening, backlog=BACKLOG)]
        else:
            self._listeners = [TlsListener(listening, self._tls, self.connect, state.admission)]
        self.api.minutes.start(lambda: state.total_requests)
        self._on_ready()
        ticks = 0
        while not self.should_exit:
            await asyncio.sleep(TICK_S)
            ticks += 1
            if not ticks % TICKS_IN_A_SECOND:
                state.set_date()
        await self._shut_down(listening)

    async def _shut_down(self, listening: socket.socket) -> None:
        self.dismiss_waiters()
        for listener in self._listeners:
            listener.close()
        listening.close()
        self.close_idle_connections()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(SHUTDOWN_MS_MAX / 2000):
                while (self.server_state.connections or tasks) and not self.force_exit:
                    await asyncio.sleep(TICK_S)
        except TimeoutError:
            count = len(self.server_state.connections)
            log.error("connections were cut off, because their requests took too long to end: %d", count)
            for task in list(tasks):
                task.cancel()

    def dismiss_waiters(self) -> None:
        """Give each waiter its ticket, and end each stream, so that they can continue here or at another server."""
        self.api.engine.waiters.close()
        self.api.streams.close()
        for each in self._annexes:
            each.close()

    def close_idle_connections(self) -> None:
        """Close idle connections. Connections with a request under way are told that its answer is the last one."""
        for connection in list(self.server_state.connections):
            connection.shutdown()


def make_server(
    api: Api,
    *,
    access_log: bool = False,
    json_log: bool = False,
    observers: Sequence[RequestObserver] = (),
    on_ready: Callable[[], None] = lambda: None,
    annexes: Sequence[AnnexRoutes] = (),
    admission: Admission | None = None,
    knows_peers: bool = False,
    tls: ssl.SSLContext | None = None,
    proxies: TrustedProxies | None = None,
) -> HttpServer:
    """An HTTP server for `api` and the routes of `annexes`. `admission` bounds its
    connections."""
    if access_log and json_log:
        access_log, observers = False, [*observers, RequestLog()]
    api.notes_callers = bool(observers)
    origins = api.settings.cors_origins
    state = ServerState(
        api,
        build_router(api, annexes),
        headers=[(b"x-dibs-store", api.engine.store_id.encode()), NO_SNIFF, *([] if tls is None else [HSTS])],
        admission=admission,
        knows_peers=knows_peers,
        proxies=proxies,
        cors=Cors(origins) if origins else None,
        log_access=log_access if access_log else None,
        observers=observers,
    )
    return HttpServer(state, annexes, on_ready, tls)
