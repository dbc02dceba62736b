"""One connection of an event loop to a server.

It uses plain sockets instead of asyncio's streams. A kept stream cannot be closed after its loop was closed, and
`asyncio.run` closes a loop without notice. A socket can be closed at any time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from dibs.base.generators import run_generator_async
from dibs.base.http1 import ConnectionLost, Reading, ReplyReader, whole_reply
from dibs.base.reply import Reply
from dibs.client import transport
from dibs.client.urls import ServerAddress
from dibs.core.limits import HEAD_BYTES_MAX, REPLY_BYTES_MAX
from dibs.system.socket_peer import peer_uid

T = TypeVar("T")


@contextmanager
def _as_lost() -> Iterator[None]:
    """Errors of sockets and of TLS: it is not known whether a request was carried out."""
    try:
        yield
    except TimeoutError:
        raise
    except OSError:
        raise ConnectionLost from None


class AsyncServerConnection:
    """Dropping it closes it."""

    def __init__(self, plain: socket.socket, address: ServerAddress) -> None:
        self._socket = plain
        self.address = address
        self.used_ms = 0

    async def open(self, where: Any) -> None:
        """Raises ServerUnreachable unless the server can be trusted, if it must be."""
        address = self.address
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, where)
        if address.scheme == "https":
            secured = self._socket = transport.client_context().wrap_socket(
                self._socket, server_hostname=address.host, do_handshake_on_connect=False
            )
            await self._step(secured.do_handshake)
        elif address.own_token is not None:
            await self._prove(address.own_token)

    async def _prove(self, token: str) -> None:
        try:
            if self.address.scheme == "unix":
                if not transport.is_ours(peer_uid(self._socket)):
                    raise transport.not_ours(self.address)
            else:
                asked = transport.Challenge(self.address, token, self._socket.getpeername())
                asked.check(await self.exchange(asked.request))
        except ConnectionLost:
            raise transport.not_ours(self.address) from None

    async def exchange(self, request: bytes) -> Reply:
        """Send, and read the reply. Raises ConnectionLost if it is unknown whether the request was carried out."""
        with _as_lost():
            await self._send(request)
            data = await self._receive()
            reader, whole = ReplyReader(HEAD_BYTES_MAX, REPLY_BYTES_MAX), whole_reply(data)
            return await self._read(reader.steps(data)) if whole is None else whole

    async def open_stream(self, request: bytes) -> ReplyReader:
        """Send, and read the head of a stream. Raises ConnectionLost if the answer is no stream."""
        reader = ReplyReader(HEAD_BYTES_MAX, REPLY_BYTES_MAX)
        with _as_lost():
            await self._send(request)
            if await self._read(reader.stream_head()):
                return reader
        raise ConnectionLost

    async def stream_part(self, reader: ReplyReader) -> bytes:
        """The next part of a stream; empty at its end."""
        with _as_lost():
            return await self._read(reader.stream_part())

    async def _read(self, reading: Reading[T]) -> T:
        return await run_generator_async(reading, lambda _: self._receive())

    async def _send(self, data: bytes) -> None:
        if not isinstance(self._socket, ssl.SSLSocket):
            return await asyncio.get_running_loop().sock_sendall(self._socket, data)
        send = self._socket.send
        while data:
            sent = await self._step(partial(send, data))
            data = data[sent:]

    async def _receive(self) -> bytes:
        if not isinstance(self._socket, ssl.SSLSocket):
            return await asyncio.get_running_loop().sock_recv(self._socket, transport.RECEIVE_BYTES)
        return await self._step(partial(self._socket.recv, transport.RECEIVE_BYTES))

    async def _step(self, step: Callable[[], T]) -> T:
        """Take a step of TLS, as soon as the socket is ready for it. `sock_recv` and `sock_sendall` know no TLS."""
        loop, file = asyncio.get_running_loop(), self._socket.fileno()
        while True:
            ready = loop.create_future()
            try:
                return step()
            except ssl.SSLWantReadError:
                add, remove = loop.add_reader, loop.remove_reader
            except ssl.SSLWantWriteError:
                add, remove = loop.add_writer, loop.remove_writer
            add(file, ready.set_result, None)
            try:
                await ready
            finally:
                remove(file)

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


def hang_up(connections: list[AsyncServerConnection]) -> None:
    while connections:
        connections.pop().close()


async def connected(address: ServerAddress) -> AsyncServerConnection:
    """A connection. Raises ServerUnreachable with the reason."""
    why: OSError | None = None
    for family, protocol, where in await asyncio.to_thread(transport.addresses_of, address):
        connection = AsyncServerConnection(socket.socket(family, socket.SOCK_STREAM, protocol), address)
        done = False
        try:
            await connection.open(where)
            done = True
            return connection
        except ssl.SSLError as error:
            raise transport.not_trusted(address, error) from None
        except TimeoutError:
            raise
        except OSError as error:
            why = why or error
        finally:
            if not done:
                connection.close()
    raise transport.NotConnected(transport.not_there(address, why))
