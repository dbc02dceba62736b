"""One connection of an event loop to a server.

It uses plain sockets instead of asyncio's streams. A kept stream cannot be closed after its loop was closed, and
`asyncio.run` closes a loop without notice. A socket can be closed at any time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING, Any

from dibs.base.generators import run_generator_async
from dibs.base.http1 import ConnectionLost, ReplyReader, whole_reply
from dibs.client.transport import (
    RECEIVE_BYTES,
    Challenge,
    NotConnected,
    client_context,
    is_ours,
    no_host,
    not_ours,
    not_there,
    not_trusted,
)
from dibs.core.limits import HEAD_BYTES_MAX, REPLY_BYTES_MAX
from dibs.system.socket_peer import peer_uid

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.base.http1 import RawReply
    from dibs.client.urls import ServerAddress


class AsyncServerConnection:
    """Dropping it closes it."""

    def __init__(self, plain: socket.socket, address: ServerAddress) -> None:
        self._socket = plain
        self.address = address
        self._tls: _Tls | None = None
        self.used_ms = 0

    async def secure(self, host: str) -> None:
        self._tls = _Tls(host)
        await self._until(self._tls.shaken)

    async def prove(self, address: ServerAddress, token: str) -> None:
        """Raises ServerUnreachable unless the server is this user's own."""
        try:
            if address.scheme == "unix":
                if not is_ours(peer_uid(self._socket)):
                    raise not_ours(address)
            else:
                asked = Challenge(address, token, self._socket.getpeername())
                asked.check(await self.exchange(asked.request))
        except ConnectionLost:
            raise not_ours(address) from None

    async def exchange(self, request: bytes) -> RawReply:
        """Send, and read the reply. Raises ConnectionLost if it is unknown whether the request was carried out."""
        try:
            await self._send(request)
            data = await self._receive()
            whole = whole_reply(data)
            if whole is not None:
                return whole
            return await run_generator_async(
                ReplyReader(HEAD_BYTES_MAX, REPLY_BYTES_MAX).steps(data), lambda _: self._receive()
            )
        except TimeoutError:
            raise
        except OSError:  # TLS errors are of this kind too
            raise ConnectionLost from None

    async def open_stream(self, request: bytes) -> ReplyReader:
        """Send, and read the head of a stream. Raises ConnectionLost if the answer is no stream."""
        try:
            await self._send(request)
            reader = ReplyReader(HEAD_BYTES_MAX, REPLY_BYTES_MAX)
            if await run_generator_async(reader.stream_head(), lambda _: self._receive()):
                return reader
        except TimeoutError:
            raise
        except OSError:
            pass
        raise ConnectionLost

    async def stream_part(self, reader: ReplyReader) -> bytes:
        """The next part of a stream; empty at its end."""
        try:
            return await run_generator_async(reader.stream_part(), lambda _: self._receive())
        except TimeoutError:
            raise
        except OSError:
            raise ConnectionLost from None

    async def _send(self, data: bytes) -> None:
        if self._tls is not None:
            data = self._tls.sealed(data)
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def _receive(self) -> bytes:
        if self._tls is None:
            return await asyncio.get_running_loop().sock_recv(self._socket, RECEIVE_BYTES)
        tls = self._tls
        await self._until(tls.read)
        return tls.plain

    async def _until(self, step: Callable[[], bool]) -> None:
        """Take a step of TLS, moving bytes both ways until it is done."""
        loop = asyncio.get_running_loop()
        assert self._tls is not None
        while True:
            done = step()
            out = self._tls.outgoing()
            if out:
                await loop.sock_sendall(self._socket, out)
            if done:
                return
            self._tls.incoming(await loop.sock_recv(self._socket, RECEIVE_BYTES))

    def close(self) -> None:
        self._socket.close()

    def __del__(self) -> None:
        self._socket.close()


class _Tls:
    """TLS without a socket: bytes in, bytes out."""

    def __init__(self, host: str) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context()
        self._engine = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.plain = b""

    def shaken(self) -> bool:
        try:
            self._engine.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def read(self) -> bool:
        try:
            self.plain = self._engine.read(RECEIVE_BYTES)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            self.plain = b""
        return True

    def sealed(self, data: bytes) -> bytes:
        self._engine.write(data)
        return self._out.read()

    def outgoing(self) -> bytes:
        return self._out.read()

    def incoming(self, data: bytes) -> None:
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()


def hang_up(connections: list[AsyncServerConnection]) -> None:
    while connections:
        connections.pop().close()


async def connected(address: ServerAddress) -> AsyncServerConnection:
    """A connection. Raises ServerUnreachable with the reason."""
    why: OSError | None = None
    for family, where in await _addresses(address):
        connection = AsyncServerConnection(socket.socket(family, socket.SOCK_STREAM), address)
        connection._socket.setblocking(False)
        done = False
        try:
            await asyncio.get_running_loop().sock_connect(connection._socket, where)
            if address.scheme == "https":
                await connection.secure(address.host)
            elif address.own_token is not None:
                await connection.prove(address, address.own_token)
            done = True
            return connection
        except ssl.SSLError as error:
            raise not_trusted(address, error) from None
        except TimeoutError:
            raise
        except OSError as error:
            why = why or error
        finally:
            if not done:
                connection.close()
    raise NotConnected(not_there(address, why))


async def _addresses(address: ServerAddress) -> list[tuple[int, Any]]:
    if address.scheme == "unix":
        return [(socket.AF_UNIX, address.path)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter: a name that cannot be one
        raise no_host(address, error) from None
    return [(family, address) for family, _, _, _, address in found]
