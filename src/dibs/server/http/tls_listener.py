"""Accepts connections and shakes hands with them.

The event loop could do both by itself, but then a connection would count only after its handshake: a client that
connects and says nothing would take files and memory beyond every bound. Here a connection is admitted when it is
accepted, and must finish its handshake in time.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING

from dibs.core.limits import HANDSHAKE_MS_MAX, OVERLOAD_RETRY_MS, TLS_CLOSE_MS_MAX

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from dibs.server.http.admission import Admission
    from dibs.server.http.protocol import BoundedProtocol

log = logging.getLogger("dibs")

_ACCEPTED_MAX = 64  # at a time, so that others get their turn


class TlsListener:
    """For one event loop. It can be closed like the servers that the loop makes."""

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        connect: Callable[[], BoundedProtocol],
        admission: Admission | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._context = context
        self._connect = connect
        self._admission = admission
        self._handshakes: set[asyncio.Task[None]] = set()
        self._closed = False
        self._listen()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listening)
            for task in self._handshakes:
                task.cancel()

    async def wait_closed(self) -> None:
        if self._handshakes:
            await asyncio.wait(self._handshakes)

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                accepted, peer = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left: it would fail again at once
                log.error("cannot accept connections: %s", error.strerror)
                self._loop.remove_reader(self._listening)
                self._loop.call_later(OVERLOAD_RETRY_MS / 1000, self._listen)
                return
            accepted.setblocking(False)
            client = str(peer[0])
            if self._admission is not None and self._admission.enter(client) is not None:
                accepted.close()  # without a handshake there is no way to tell it why
                continue
            task = self._loop.create_task(self._shake_hands(accepted, client))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, client: str) -> None:
        protocol = self._connect()
        protocol.is_admitted_as(client)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_MS_MAX / 1000,
                ssl_shutdown_timeout=TLS_CLOSE_MS_MAX / 1000,
            )
        except (OSError, asyncio.CancelledError) as error:  # TLS errors and time-outs are of the first kind
            log.debug("no handshake with %s: %s", client, error)
        finally:
            if not protocol.is_connected and self._admission is not None:
                self._admission.leave(client)
