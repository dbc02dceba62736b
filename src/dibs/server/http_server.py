"""uvicorn with our protocol, our routes and our shutdown."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import uvicorn

from dibs.core.limits import SHUTDOWN_MS_MAX
from dibs.server.app import build_app
from dibs.server.http.cors import with_cors
from dibs.server.http.fast_lane import FastLaneProtocol
from dibs.server.http.protocol import BoundedProtocol
from dibs.server.http.tls_listener import TlsListener
from dibs.server.monitor.server_log import RequestLog

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from dibs.server.annexes import AnnexRoutes
    from dibs.server.handlers import Api
    from dibs.server.http.admission import Admission
    from dibs.server.http.proxies import TrustedProxies
    from dibs.server.monitor.request_note import RequestObserver


NO_SNIFF = ("X-Content-Type-Options", "nosniff")
HSTS = ("Strict-Transport-Security", "max-age=31536000")  # browsers heed it for names, not for bare addresses


class HttpServer(uvicorn.Server):
    """Leaves signals to its caller (`lifecycle.py`)."""

    def __init__(
        self,
        config: uvicorn.Config,
        api: Api,
        annexes: Sequence[AnnexRoutes],
        on_ready: Callable[[], None],
        tls: ssl.SSLContext | None = None,
        admission: Admission | None = None,
    ) -> None:
        super().__init__(config)
        self._tls = tls
        self._admission = admission
        self.api = api
        self._annexes = annexes
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # uvicorn would raise the signal again at its end, and the exit code would not be 0.
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or sockets is None:
            await super().startup(sockets)
        else:
            await super().startup([])
            for each in sockets:
                listener: Any = TlsListener(each, self._tls, self._connect, self._admission)
                self.servers.append(listener)
        self.api.minutes.start(lambda: self.server_state.total_requests)
        self._on_ready()

    def _connect(self) -> BoundedProtocol:
        """A protocol, made as uvicorn makes them."""
        made: Any = self.config.http_protocol_class
        connection: BoundedProtocol = made(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return connection

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.dismiss_waiters()
        await super().shutdown(sockets)

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
    mcp: Any | None = None,
    access_log: bool = False,
    json_log: bool = False,
    observers: Sequence[RequestObserver] = (),
    lane: bool = True,
    on_ready: Callable[[], None] = lambda: None,
    annexes: Sequence[AnnexRoutes] = (),
    admission: Admission | None = None,
    knows_peers: bool = False,
    tls: ssl.SSLContext | None = None,
    proxies: TrustedProxies | None = None,
) -> HttpServer:
    """An HTTP server for `api`, for `mcp` at /mcp, and for the routes of `annexes`. `admission` bounds its
    connections."""
    # The answers of another program are made by routes of their own, which the fast lane does not know.
    lane = lane and api.settings.contract is None
    if access_log and json_log:
        access_log, observers = False, [*observers, RequestLog()]
    if observers:  # they are told by the general way
        lane, api.notes_callers = False, True
    made = functools.partial(FastLaneProtocol, api=api) if lane else BoundedProtocol
    connect = functools.partial(
        made,
        admission=admission,
        knows_peers=knows_peers,
        proxies=proxies or None,
        closes=lambda: api.is_draining,
        metrics=api.engine.metrics,
    )
    config = uvicorn.Config(
        with_cors(build_app(api, annexes, mcp, observers), api.settings.cors_origins),
        # uvicorn calls this once for each connection, in place of a class.
        http=connect,  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=access_log,
        server_header=False,
        headers=[("X-Dibs-Store", api.engine.store_id), NO_SNIFF, *([] if tls is None else [HSTS])],
        proxy_headers=False,
        timeout_graceful_shutdown=SHUTDOWN_MS_MAX // 2000,
    )
    return HttpServer(config, api, annexes, on_ready, tls, admission)
