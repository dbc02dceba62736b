"""TransportPool for event loops. To a server over the loop's sockets; to a store through threads, because stores block.

Connections belong to the loop they were made in, so each loop has its own. Threads come in groups, so that
waiting and claiming never take the threads of releases. Heartbeats do not come here: they need no loop (`heart.py`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, ServerUnreachable, StoreUnavailable
from dibs.base.generators import run_generator_async
from dibs.base.http1 import ConnectionLost, Reading, ReplyReader, whole_reply
from dibs.client.connection import (
    RECEIVE_BYTES,
    Challenge,
    NotConnected,
    TimedOut,
    addresses_of,
    client_context,
    is_ours,
    not_ours,
    not_there,
    not_trusted,
    too_slow,
)
from dibs.client.event_reader import StreamFrames
from dibs.client.exchange import Attempts, Result, ask_servers
from dibs.client.flow import Flow, Pause, Step, Work
from dibs.client.pool import TransportPool
from dibs.client.requests import RequestBuilder
from dibs.client.servers import Servers
from dibs.client.settings import TIMEOUT_MS_DEFAULT, Settings, naming_of
from dibs.client.transport import Ask, Streamed
from dibs.client.urls import ServerAddress
from dibs.core.limits import CLIENT_IDLE_MS_MAX, HEAD_BYTES_MAX, REPLY_BYTES_MAX, STREAM_SILENCE_MS
from dibs.system.socket_peer import peer_uid
from dibs.wire.documents import Reply, reply_for_error

# One connection of an event loop to a server.
#
# It uses plain sockets instead of asyncio's streams. A kept stream cannot be closed after its loop was closed, and
# `asyncio.run` closes a loop without notice. A socket can be closed at any time.

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
        self._has(plain)
        self.address = address
        self.used_ms = 0

    async def open(self, where: Any) -> None:
        """Raises ServerUnreachable unless the server can be trusted, if it must be."""
        address = self.address
        self._socket.setblocking(False)
        await asyncio.get_running_loop().sock_connect(self._socket, where)
        if address.scheme == "https":
            secured = client_context().wrap_socket(
                self._socket, server_hostname=address.host, do_handshake_on_connect=False
            )
            self._has(secured)
            await self._step(secured.do_handshake)
        elif address.own_token is not None:
            await self._prove(address.own_token)

    async def _prove(self, token: str) -> None:
        try:
            if self.address.scheme == "unix":
                if not is_ours(peer_uid(self._socket)):
                    raise not_ours(self.address)
            else:
                asked = Challenge(self.address, token, self._socket.getpeername())
                asked.check(await self.exchange(asked.request))
        except ConnectionLost:
            raise not_ours(self.address) from None

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
            return await asyncio.get_running_loop().sock_recv(self._socket, RECEIVE_BYTES)
        return await self._step(partial(self._socket.recv, RECEIVE_BYTES))

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

    def _has(self, connected: socket.socket) -> None:
        """Closed when this is dropped. `__del__` comes too late for a part of a circle: the socket warns first."""
        self._socket = connected
        weakref.finalize(self, connected.close)


def hang_up(connections: list[AsyncServerConnection]) -> None:
    while connections:
        connections.pop().close()


async def connected(address: ServerAddress) -> AsyncServerConnection:
    """A connection. Raises ServerUnreachable with the reason."""
    why: OSError | None = None
    for family, protocol, where in await asyncio.to_thread(addresses_of, address):
        connection = AsyncServerConnection(socket.socket(family, socket.SOCK_STREAM, protocol), address)
        done = False
        try:
            await connection.open(where)
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


IDLE_MAX = 8
ASKING, LEAVING, WAITING, WATCHING = "asking", "leaving", "waiting", "watching"
THREADS = {ASKING: 4, LEAVING: 4, WAITING: 64, WATCHING: 64}
TRIES = 3
EMBEDDED_SLICE_SECONDS = 1  # how long a waiter keeps a thread before another waiter gets it


class AsyncTransport:
    """The interface of both kinds. `lane` says what the request is for. `timeout_ms` is for one request, without the
    time spent waiting in line. Threads that renew use `transports`."""

    slice_seconds: int
    transports: TransportPool
    timeout_ms = TIMEOUT_MS_DEFAULT

    async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
        raise NotImplementedError

    def awaited_events(self, asked: Ask) -> ServerStream | StoreNews:
        """Events after a position as they happen."""
        raise NotImplementedError

    # Whether a cancelled request continues by itself, so that its answer must be handled.
    runs_on = False

    def close(self) -> None:
        raise NotImplementedError


def open_transport(settings: Settings, timeout_ms: int = TIMEOUT_MS_DEFAULT) -> AsyncTransport:
    transports = TransportPool(settings, timeout_ms)
    transport: AsyncTransport
    if transports.servers is None:
        transport = ThreadedTransport(transports)
    else:
        transport = ServerTransport(
            transports, transports.servers, RequestBuilder(transports.servers, naming=naming_of(settings), keep=True)
        )
    transport.timeout_ms = timeout_ms
    return transport


async def drive(transport: AsyncTransport, flow: Flow[T], lane: str = ASKING, timeout_ms: int | None = None) -> T:
    """Run a flow; `timeout_ms` is the transport's unless it is given. If it is cancelled, a request that would continue
    anyway is finished first, so that the flow knows its result."""

    async def answer(step: Step) -> Any:
        if isinstance(step, Ask):
            return await _asked(transport, step, timeout_ms or transport.timeout_ms, lane, flow)
        if isinstance(step, Work):
            return await asyncio.to_thread(step.do)
        if isinstance(step, Pause):
            await asyncio.sleep(step.ms / 1000)
        return None

    return await run_generator_async(flow, answer)


async def _asked(transport: AsyncTransport, step: Ask, timeout_ms: int, lane: str, flow: Flow[T]) -> Reply:
    if not transport.runs_on:
        return await transport.ask(step, timeout_ms, lane)
    under_way = asyncio.ensure_future(transport.ask(step, timeout_ms, lane))
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        while not under_way.done():  # despite cancellations: it takes a short time, and it may be a lease
            with suppress(asyncio.CancelledError):
                await asyncio.wait([under_way])
        if not under_way.cancelled() and under_way.exception() is None:
            with suppress(StopIteration, DibsError):  # the flow is about to end
                flow.send(under_way.result())
        raise


async def shielded(begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `begin()` to its end, which takes a bounded time; cancellations take effect afterwards. A loop that shuts
    down cancels all tasks, including the one that does the work: then that is started again."""
    cancelled: asyncio.CancelledError | None = None
    left = TRIES
    while True:
        task = asyncio.ensure_future(begin())
        left -= 1
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
        if left == 0 or not task.cancelled():
            break
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # its result does not matter to a cancelled task
    raise cancelled


class ServerTransport(AsyncTransport):
    """A transport to a server. A cancelled request is dropped: the server notices that the connection was closed."""

    slice_seconds = 20

    def __init__(self, transports: TransportPool, servers: Servers, builder: RequestBuilder) -> None:
        self.transports = transports
        self._servers = servers
        self._builder = builder
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[AsyncServerConnection]] = (
            weakref.WeakKeyDictionary()
        )
        self._pid = os.getpid()
        self._closed = False

    async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
        try:
            naming, jobs = self._builder.naming, step.jobs
            if not naming.is_known(jobs):
                await asyncio.to_thread(naming.namespace, jobs)  # which runs git
            if self._closed:
                raise StoreUnavailable("This client was closed. Connect again.")
            flow = ask_servers(self._servers, self._builder, step, timeout_ms)
            return naming.with_namespace(await run_generator_async(flow, self._attempt), jobs)
        except DibsError as error:
            return reply_for_error(error, sent=not isinstance(error, NotConnected))

    async def _attempt(self, attempt: Attempts) -> Result:
        address, sent = attempt.address, False
        try:
            async with asyncio.timeout(attempt.timeout_ms / 1000):
                # The server may have closed a kept connection long ago. Finding that out does not count as an attempt.
                while connection := self._kept_connection(address) if attempt.repeatable else None:
                    sent = True
                    with suppress(ConnectionLost):
                        return await self._over(connection, attempt.request)
                connection = await connected(address)
                sent = True
                return await self._over(connection, attempt.request)
        except TimeoutError:
            return TimedOut(too_slow(address, attempt.timeout_ms), sent=sent)
        except (ConnectionLost, ServerUnreachable) as error:
            return ConnectionLost() if sent and isinstance(error, ServerUnreachable) else error

    def awaited_events(self, asked: Ask) -> ServerStream | StoreNews:
        """From the server that answers first; a page of events has just asked it."""
        address = self._servers.order(steady_ms())[0]
        return ServerStream(address, self._builder.request(asked, address), self.timeout_ms)

    def _connections(self) -> list[AsyncServerConnection]:
        """The idle connections of this loop."""
        if os.getpid() != self._pid:  # a forked child: these connections are the parent's
            self._idle, self._pid = weakref.WeakKeyDictionary(), os.getpid()
        loop = asyncio.get_running_loop()
        connections = self._idle.get(loop)
        if connections is None:
            for other, left in list(self._idle.items()):
                if other.is_closed():
                    hang_up(left)
            connections = self._idle[loop] = []
            # A loop ends without notice. This is called before the sockets are garbage collected.
            weakref.finalize(loop, hang_up, connections).atexit = False
        return connections

    def _kept_connection(self, address: ServerAddress) -> AsyncServerConnection | None:
        connections = self._connections()
        for connection in [each for each in connections if each.address is address]:
            connections.remove(connection)
            if steady_ms() - connection.used_ms < CLIENT_IDLE_MS_MAX:
                return connection
            connection.close()
        return None

    async def _over(self, connection: AsyncServerConnection, request: bytes) -> Reply:
        again = False
        try:
            reply = await connection.exchange(request)
            again = reply.again and not self._closed and len(self._connections()) < IDLE_MAX
            return reply
        finally:
            if again:
                connection.used_ms = steady_ms()
                self._connections().append(connection)
            else:
                connection.close()

    def close(self) -> None:
        self._closed = True
        if os.getpid() == self._pid:
            for connections in list(self._idle.values()):
                hang_up(connections)
        self._idle.clear()
        self.transports.close()


class ServerStream:
    """A stream of a server, over a connection of its own. `next` waits for events and positions. None: it is over, and
    a page of events says why and what comes next."""

    def __init__(self, address: ServerAddress, request: bytes, timeout_ms: int) -> None:
        self._address = address
        self._request = request
        self._timeout_ms = timeout_ms
        self._frames = StreamFrames()
        self._connection: AsyncServerConnection | None = None
        self._reader: ReplyReader | None = None

    async def next(self) -> list[Streamed] | None:
        try:
            if self._connection is None or self._reader is None:
                async with asyncio.timeout(self._timeout_ms / 1000):
                    self._connection = await connected(self._address)
                    self._reader = await self._connection.open_stream(self._request)
            if self._frames.is_over:
                return None
            async with asyncio.timeout(STREAM_SILENCE_MS / 1000):
                part = await self._connection.stream_part(self._reader)
            return list(self._frames.read(part)) if part else None
        except (TimeoutError, ConnectionLost, ServerUnreachable, BadReply, ValueError):
            return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ThreadedTransport(AsyncTransport):
    """A store, asked from threads."""

    slice_seconds = EMBEDDED_SLICE_SECONDS
    runs_on = True

    def __init__(self, transports: TransportPool) -> None:
        self.transports = transports
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.is_closed = False

    async def ask(self, step: Ask, timeout_ms: int, lane: str) -> Reply:
        if self.is_closed:
            return reply_for_error(StoreUnavailable("This client was closed. Connect again."), sent=False)
        lane = WAITING if step.document.get("wait_seconds") else lane
        return await asyncio.get_running_loop().run_in_executor(self.pool(lane), self._ask, step)

    def awaited_events(self, asked: Ask) -> ServerStream | StoreNews:
        return StoreNews(self, asked.document["after"])

    def _ask(self, step: Ask) -> Reply:
        with self.transports.one() as transport:
            return transport.ask(step)

    def pool(self, lane: str) -> ThreadPoolExecutor:
        if os.getpid() != self._pid:  # threads do not survive a fork
            self._pid, self._threads, self._lock = os.getpid(), {}, threading.Lock()
        with self._lock:
            if lane not in self._threads:
                self._threads[lane] = ThreadPoolExecutor(THREADS[lane], thread_name_prefix=f"dibs {lane}")
            return self._threads[lane]

    def close(self) -> None:
        self.is_closed = True
        if os.getpid() == self._pid:
            for pool in self._threads.values():
                pool.shutdown(wait=False)
        self.transports.close()


class StoreNews:
    """Waits for a store's news. What came is read as a page, which costs a store of this machine nothing."""

    def __init__(self, transport: ThreadedTransport, after: int) -> None:
        self._transport = transport
        self._after = after

    async def next(self) -> list[Streamed] | None:
        transport = self._transport

        def watch() -> bool:
            return transport.transports.store.coordinator().store.watch(self._after, EMBEDDED_SLICE_SECONDS * 1000)

        try:
            if not transport.is_closed and not await asyncio.get_running_loop().run_in_executor(
                transport.pool(WATCHING), watch
            ):
                return []
        except DibsError:  # the page says so
            pass
        return None

    def close(self) -> None:
        """There is nothing to hang up."""
