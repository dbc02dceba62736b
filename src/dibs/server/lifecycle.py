"""How a server ends.

SIGTERM drains the server, if there are other servers on the store: it takes no new claims and no new sessions, and
sends waiters elsewhere with their tickets. Clients that hold something are still served (renew, release, heartbeat,
transfer, a look). Draining ends when nobody has asked for a moment, and in any case after `--drain`. Then the server
stops accepting, finishes the requests under way and writes the accepted commands, within SHUTDOWN_MS_MAX. It does so at
once on SIGINT, on a second signal, or if there is no other server. A server that is alone does not drain: its clients
have no other server and wait for it to come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING

from dibs.base.errors import DibsError
from dibs.core.limits import DRAIN_LOOK_MS, DRAIN_MS_DEFAULT, DRAIN_QUIET_MS, HEALTH_MS_MAX, PULSE_LATE_MS
from dibs.core.outages import live_servers
from dibs.engine.servers import pulses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.server.engine import Engine
    from dibs.server.http_server import HttpServer

log = logging.getLogger("dibs")


class Lifecycle:
    """For one event loop. `drain_ms` None: the default, where there are other servers."""

    def __init__(
        self, server: HttpServer, loop: asyncio.AbstractEventLoop, drain_ms: int | None = None
    ) -> None:
        self._server = server
        self._loop = loop
        self._drain_ms = drain_ms
        self._drain: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def on_signals(
        self, reload: Callable[[], object], change_level: Callable[[int], object]
    ) -> Iterator[None]:
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
                drain_ms = DRAIN_MS_DEFAULT if await self._has_others() else 0
            if drain_ms:
                await self._serve_on(drain_ms)
        finally:
            if not self._server.should_exit:
                self.stop()

    async def _has_others(self) -> bool:
        """Whether there is another server on the store. A server that ended a moment ago also has a recent pulse, so
        this waits for one more pulse of it. Servers send no pulse while nobody holds anything; then there is nobody to
        drain for."""
        with contextlib.suppress(TimeoutError, DibsError):  # without its store it serves nobody
            async with asyncio.timeout(HEALTH_MS_MAX / 1000):
                first = await self._others()
                until_s = self._loop.time() + PULSE_LATE_MS / 1000
                while first and self._loop.time() < until_s and not self._server.should_exit:
                    await asyncio.sleep(DRAIN_LOOK_MS / 1000)
                    now = await self._others()
                    if any(at_ms > first.get(server, 0) for server, at_ms in now.items()):
                        return True
        return False

    async def _others(self) -> dict[str, int]:
        """The last pulse of each other server with a recent pulse."""
        return await asyncio.to_thread(_others_of, self._server.api.engine)

    async def _serve_on(self, drain_ms: int) -> None:
        server = self._server
        server.api.is_draining = True
        log.warning("draining for up to %g s: no new claims", drain_ms / 1000)
        server.dismiss_waiters()
        server.close_idle_connections()
        until_s = self._loop.time() + drain_ms / 1000
        quiet_s = min(until_s, self._loop.time() + DRAIN_QUIET_MS / 1000)
        answered = server.server_state.total_requests
        while self._loop.time() < min(until_s, quiet_s) and not server.should_exit:
            await asyncio.sleep(DRAIN_LOOK_MS / 1000)
            state = server.server_state
            if state.total_requests != answered or state.connections:
                answered = state.total_requests
                quiet_s = self._loop.time() + DRAIN_QUIET_MS / 1000


def _others_of(engine: Engine) -> dict[str, int]:
    pulses = pulses_of(engine.store)
    live = live_servers(pulses, engine.store.read(()).now_ms)
    own = engine.decider.server
    return {pulse.server: pulse.at_ms for pulse in pulses if pulse.server in live and pulse.server != own}
