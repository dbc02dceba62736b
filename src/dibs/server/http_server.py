"""The HTTP server: its operations, its sockets, its clock, its end. `connection.py` has its connections."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError
from dibs.base.logger import log
from dibs.base.reply import Reply
from dibs.core import limits
from dibs.core.upkeep.outages import live_servers
from dibs.engine.pulses import pulses_of
from dibs.server.connection import HttpConnection, RequestObserver, ServerState
from dibs.server.engine import Engine
from dibs.server.handlers import Api
from dibs.server.http.admission import LOG_EVERY_MS, Admission
from dibs.server.http.listen import BACKLOG
from dibs.server.http.parse import MOVED_HEADER, STORE_HEADER
from dibs.server.http.response import Header, HttpError, answer_for_error
from dibs.server.http.tls import TlsListener
from dibs.server.monitor.server_log import RequestLog
from dibs.server.plugins import PluginRoutes, metrics_document, shared_routes
from dibs.server.routes.dashboard import board_routes, dashboard_routes, login_routes
from dibs.server.routes.description import description_routes
from dibs.server.routes.health import health_routes, metrics_routes
from dibs.server.routes.introduction import introduction_routes
from dibs.server.routes.jobs import job_routes, webhook_routes
from dibs.server.routes.table import Router, Table

NO_SNIFF: Header = (b"x-content-type-options", b"nosniff")
HSTS: Header = (b"strict-transport-security", b"max-age=31536000")  # browsers heed it for names, not for addresses
TICK_S = 0.1
TICKS_IN_A_SECOND = 10
_ROUTES = (
    *(job_routes, login_routes, shared_routes, webhook_routes, health_routes, description_routes),
    *(lambda api: metrics_routes(api, metrics_document()), board_routes, introduction_routes, dashboard_routes),
)


class HttpServer:
    """Leaves signals to its caller (`Lifecycle`)."""

    def __init__(
        self,
        state: ServerState,
        plugins: Sequence[PluginRoutes],
        on_ready: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.server_state = state
        self.api = state.api
        self.should_exit = False
        self.force_exit = False  # without waiting for the answers under way
        # To a type checker it is no `asyncio.Protocol`: see its class.
        self.connect: Callable[[], Any] = functools.partial(HttpConnection, state)
        self._tls = tls
        self._plugins = plugins
        self._on_ready = on_ready
        self._next_line_ms = 0  # about files that are used up

    async def serve(self, listening: socket.socket) -> None:
        """Serve until `should_exit`, then finish the requests under way."""
        state = self.server_state
        loop = asyncio.get_running_loop()
        listener: asyncio.Server | TlsListener
        if self._tls is None:
            listener = await loop.create_server(self.connect, sock=listening, backlog=BACKLOG)
        else:
            listener = TlsListener(listening, self._tls, self.connect, state.admission)
        for start in self.api.on_start:
            start(lambda: state.total_requests)
        self._on_ready()
        ticks = 0
        while not self.should_exit:
            await asyncio.sleep(TICK_S)
            ticks += 1
            if not ticks % TICKS_IN_A_SECOND:
                state.set_headers()
                self._look_for_files()
        self.dismiss_waiters()
        listener.close()
        listening.close()
        await self._finish()

    def _look_for_files(self) -> None:
        """Log that this process may open no more files: the system then closes new connections without a report."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            now_ms = steady_ms()
            if error.errno in (errno.EMFILE, errno.ENFILE) and now_ms >= self._next_line_ms:
                self._next_line_ms = now_ms + LOG_EVERY_MS
                count = len(self.server_state.connections)
                log.error("new connections are refused with %d open: %s (ulimit -n)", count, error.strerror)

    async def _finish(self) -> None:
        self.close_idle_connections()
        tasks = self.server_state.tasks
        try:
            async with asyncio.timeout(limits.SHUTDOWN_MS_MAX / 2000):
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
        for each in self._plugins:
            each.close()

    def close_idle_connections(self) -> None:
        """Close idle connections. The answer to a request under way says that it is the last one of its connection."""
        for connection in list(self.server_state.connections):
            connection.shutdown()


# How a server ends.
#
# SIGTERM drains the server, if there are other servers on the store: it takes no new claims and no new sessions, and
# sends waiters elsewhere with their tickets. Clients that hold something are still served (renew, release, heartbeat,
# transfer, a look). Draining ends when nobody has asked for a moment, and in any case after `--drain`. Then the
# server stops accepting, finishes the requests under way and writes the accepted commands, within SHUTDOWN_MS_MAX. It
# does so at once on SIGINT, on a second signal, or if there is no other server. A server that is alone does not
# drain: its clients have no other server and wait for it to come back.


class Lifecycle:
    """For one event loop. `drain_ms` None: the default, where there are other servers."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop, drain_ms: int | None = None) -> None:
        self._server = server
        self._loop = loop
        self._drain_ms = drain_ms
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on_signals(self, reload: Callable[[], object], change_level: Callable[[int], object]) -> Iterator[None]:
        handlers = {
            signal.SIGTERM: self.drain,
            signal.SIGINT: self.stop,
            signal.SIGHUP: reload,
            signal.SIGUSR1: lambda: change_level(-1),
            signal.SIGUSR2: lambda: change_level(1),
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        try:
            yield
        finally:
            for number in handlers:
                self._loop.remove_signal_handler(number)
            if self._drain is not None:
                self._drain.cancel()

    def stop(self) -> None:
        """Accept nothing more and finish the requests under way; on a second call, without waiting."""
        if self._server.should_exit:
            self._server.force_exit = True
        self._server.should_exit = True

    def drain(self) -> None:
        """Refuse new claims, still serve clients that hold something, then stop. On a second call, stop at once."""
        if self._drain is not None or self._server.should_exit or self._drain_ms == 0:
            self.stop()
        else:
            self._drain = self._loop.create_task(self._drained())

    async def _drained(self) -> None:
        try:
            drain_ms = self._drain_ms
            if drain_ms is None:
                drain_ms = limits.DRAIN_MS_DEFAULT if await self._has_others() else 0
            if drain_ms:
                await self._serve_on(drain_ms)
        finally:
            if not self._server.should_exit:
                self.stop()

    async def _has_others(self) -> bool:
        """Tell whether there is another server on the store. One that ended a moment ago also has a recent pulse, so
        this waits for one more. Servers send none while nobody holds anything; then there is nobody to drain for."""
        with contextlib.suppress(TimeoutError, DibsError):  # without its store it serves nobody
            async with asyncio.timeout(limits.HEALTH_MS_MAX / 1000):
                first = await self._others()
                until_s = self._loop.time() + limits.PULSE_LATE_MS / 1000
                while first and self._loop.time() < until_s and not self._server.should_exit:
                    await asyncio.sleep(limits.DRAIN_LOOK_MS / 1000)
                    now = await self._others()
                    if any(at_ms > first.get(server, 0) for server, at_ms in now.items()):
                        return True
        return False

    async def _others(self) -> dict[str, int]:
        """The last pulse of each other server with a recent pulse."""
        engine = self._server.api.engine

        def read() -> dict[str, int]:
            pulses = pulses_of(engine.store)
            others = {*live_servers(pulses, engine.store.read(()).now_ms)} - {engine.decider.server}
            return {pulse.server: pulse.at_ms for pulse in pulses if pulse.server in others}

        return await asyncio.to_thread(read)

    async def _serve_on(self, drain_ms: int) -> None:
        server = self._server
        server.api.is_draining = True
        log.warning("draining for up to %g s: no new claims", drain_ms / 1000)
        server.dismiss_waiters()
        server.close_idle_connections()
        until_s = self._loop.time() + drain_ms / 1000
        quiet_s = min(until_s, self._loop.time() + limits.DRAIN_QUIET_MS / 1000)
        answered = server.server_state.total_requests
        while self._loop.time() < min(until_s, quiet_s) and not server.should_exit:
            await asyncio.sleep(limits.DRAIN_LOOK_MS / 1000)
            state = server.server_state
            if state.total_requests != answered or state.connections:
                answered = state.total_requests
                quiet_s = self._loop.time() + limits.DRAIN_QUIET_MS / 1000


def make_server(
    api: Api,
    *,
    observers: Sequence[RequestObserver] = (),
    on_ready: Callable[[], None] = lambda: None,
    plugins: Sequence[PluginRoutes] = (),
    admission: Admission | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """An HTTP server for `api` and the routes of `plugins`. `admission` bounds its connections."""
    if api.settings.access_log:
        observers = [*observers, RequestLog()]
    api.notes_callers = bool(observers)
    safe = [NO_SNIFF, *([] if tls is None else [HSTS])]
    state = ServerState(api, build_router(api, plugins), lambda: [*_names(api.engine), *safe], admission, observers)
    api.engine.on_named = state.set_headers
    return HttpServer(state, plugins, on_ready, tls)


def _names(engine: Engine) -> list[Header]:
    """The store's name, and the names of those that it goes on from: clients that know one of them go on, too."""
    own = (STORE_HEADER, engine.store_id.encode())
    return [own, *([(MOVED_HEADER, ",".join(engine.moved_from).encode())] if engine.moved_from else [])]


def build_router(api: Api, plugins: Sequence[PluginRoutes] = ()) -> Router:
    table = [*served_table(api), *(route for each in plugins for route in each.routes())]
    api.operations = [operation for operation, _ in table]

    def refuse(refusal: HttpError) -> Reply:
        contract = api.settings.contract
        return answer_for_error(refusal) if contract is None else contract.refusal(refusal)

    return Router(table, refuse)


def served_table(api: Api) -> Table:
    """Every operation that each server has, with its handler. Of two that match, the first is taken."""
    table = [route for routes in _ROUTES for route in routes(api)]
    return table if api.settings.contract is None else api.settings.contract.served(api, table)
