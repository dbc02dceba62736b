"""Sends one delivery over HTTP/1.1. Proxies are ignored, redirects are not followed, and every part of an answer is
bounded in size and time. The connection goes to an address that was checked; the host's name is used for
TLS and in the Host header.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from dibs._version import __version__
from dibs.base.clock import steady_ms, wall_ms
from dibs.base.errors import BadReply
from dibs.base.generators import run_generator_async
from dibs.base.http1 import ConnectionLost, ReplyReader, ReplyTooLarge, http_date_ms, request_bytes
from dibs.base.record import Record
from dibs.core import limits
from dibs.core.durations import format_duration
from dibs.core.events import Event
from dibs.core.service.webhooks import Webhook
from dibs.engine.webhooks import Target, TargetPolicy, TargetRefused, check_addresses, parse_target

Lookup = Callable[[str, int], list[str]]


# Looks up the addresses of targets. A lookup may hang for long, and cannot be cancelled, so each has a thread of its
# own that nobody waits for at the end. A host has one lookup at a time, so hosts that hang hold up no others.


class LookupFailed(Exception):
    """There is no address. The text says why."""


def look_up(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise LookupFailed("the host has no address") from None
    return list(dict.fromkeys([str(address[0]) for *_, address in found]))


class Resolver:
    """Looks up addresses, one lookup per host at a time. For one event loop."""

    def __init__(self, lookup: Lookup = look_up) -> None:
        self._lookup = lookup
        self._under_way: dict[tuple[str, int], asyncio.Future[list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Raises LookupFailed. The caller bounds the time."""
        key = (host, port)
        future = self._under_way.get(key)
        if future is None:
            if len(self._under_way) >= limits.WEBHOOK_LOOKUPS_MAX:
                raise LookupFailed("too many lookups of other hosts hang")
            loop = asyncio.get_running_loop()
            future = self._under_way[key] = loop.create_future()
            threading.Thread(target=self._look, args=(loop, key), name="dibs-lookup", daemon=True).start()
        return await asyncio.shield(future)

    def _look(self, loop: asyncio.AbstractEventLoop, key: tuple[str, int]) -> None:
        found: list[str] | BaseException
        try:
            found = self._lookup(*key)
        except BaseException as error:
            found = error if isinstance(error, LookupFailed) else LookupFailed("the lookup failed")
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._finish, key, found)

    def _finish(self, key: tuple[str, int], found: list[str] | BaseException) -> None:
        future = self._under_way.pop(key)
        if future.cancelled():
            return
        if isinstance(found, BaseException):
            future.set_exception(found)
            future.exception()  # perhaps nobody waits for it any more
        else:
            future.set_result(found)


# Signs deliveries. A receiver checks one of the two headers with the webhook's secret.

OCTOSTORE_HEADER = "X-OctoStore-Signature"
HEADER = "X-Dibs-Signature"


def delivery_headers(webhook: Webhook, event: Event, tries: int, body: bytes, at_s: int) -> dict[str, str]:
    """OctoStore's signature is over the body alone: a copy stays valid for ever. Ours is over the time, too."""
    key = webhook.secret.encode()
    signed = {OCTOSTORE_HEADER: f"sha256={hmac.new(key, body, 'sha256').hexdigest()}"} if key else {}
    if webhook.own:
        return {"User-Agent": "OctoStore-Webhook/1.0", **signed}
    if key:
        signed[HEADER] = f"t={at_s},v1={hmac.new(key, b'%d.' % at_s + body, 'sha256').hexdigest()}"
    return {"X-Dibs-Event-Id": str(event.seq), "X-Dibs-Webhook-Id": webhook.id, "X-Dibs-Try": str(tries), **signed}


USER_AGENT = f"dibs-webhook/{__version__}"
_BODY_S = 1.0  # for the rest of an answer whose head says success
_RESTING = frozenset((429, 503))  # with these, Retry-After says how long
_SECONDS_DIGITS_MAX = 9  # of Retry-After; more is not meant


class DeliveryResult(Record):
    """`error`: empty if it was delivered. `status` 0: no answer. `rest_ms`: how long the target wants a rest."""

    status: int = 0
    error: str = ""
    took_ms: int = 0
    rest_ms: int = 0


class _Undelivered(Exception):
    """The text says why, for the delivery log."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.idle_ms = 0

    async def is_quiet(self) -> bool:
        """Nothing came that was not asked for: it would be taken for the answer to the next request."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0):
                await self.reader.read(1)
                return False
        return self.is_fresh()

    async def head(self, answer: ReplyReader) -> tuple[int, dict[str, str]]:
        """Read status and headers of the answer. What the target wrote is not shown: the log is for others, too."""
        try:
            return await run_generator_async(answer.head(), self._more)
        except ConnectionLost:
            raise _Undelivered("the target closed the connection without an answer") from None
        except ReplyTooLarge:
            raise _Undelivered("the head of the answer is too large") from None
        except BadReply:
            raise _Undelivered("the answer is not HTTP") from None

    async def is_read(self, answer: ReplyReader, status: int, headers: dict[str, str]) -> bool:
        """Read the rest of an answer, if it is short and comes at once. True if another request may follow."""
        has_end = status == 204 or "content-length" in headers or "transfer-encoding" in headers
        if not has_end or "close" in headers.get("connection", "").lower():
            return False
        try:
            async with asyncio.timeout(_BODY_S):
                return (await run_generator_async(answer.rest(status, headers), self._more)).again
        except (TimeoutError, BadReply, ConnectionLost, OSError):
            return False

    async def _more(self, _: None) -> bytes:
        return await self.reader.read(limits.WEBHOOK_HEAD_BYTES_MAX)

    def is_fresh(self) -> bool:
        closed = self.writer.is_closing() or self.reader.at_eof()
        return not closed and steady_ms() - self.idle_ms < limits.WEBHOOK_KEPT_MS

    def close(self) -> None:
        self.writer.transport.abort()  # a target that does not read must not be waited for


class Sender:
    """For one event loop."""

    def __init__(
        self,
        policy: TargetPolicy | None = None,
        resolver: Resolver | None = None,
        *,
        answer_ms: int = limits.WEBHOOK_ANSWER_MS,
    ) -> None:
        self.policy = policy or TargetPolicy()
        self._resolver = resolver or Resolver()
        self._tls: ssl.SSLContext | None = None  # made for the first target that needs it
        self._answer_ms = answer_ms
        self._kept: dict[str, list[_Connection]] = {}

    async def check(self, url: str) -> None:
        target = parse_target(url, self.policy)
        try:
            async with asyncio.timeout(limits.WEBHOOK_CONNECT_MS / 1000):
                check_addresses(await self._resolver.addresses(target.host, target.port), self.policy)
        except LookupFailed as error:
            raise TargetRefused(f"url leads nowhere: {error}.") from None
        except TimeoutError:
            raise TargetRefused("url leads nowhere: its host's address was not found in time.") from None

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        """Deliver `body`. Never raises."""
        began_ms = steady_ms()
        status, rest_ms, error = 0, 0, ""
        try:
            async with asyncio.timeout(self._answer_ms / 1000):
                status, rest_ms = await self._post(url, headers, body)
        except TimeoutError:
            error = f"no answer within {self._answer_ms // 1000} s"
        except ssl.SSLCertVerificationError as problem:
            error = f"the certificate is not valid: {problem.verify_message}"
        except (ssl.SSLError, OSError) as problem:
            error = f"no connection: {problem.strerror or type(problem).__name__}"
        except (_Undelivered, LookupFailed) as problem:
            error = str(problem)
        except TargetRefused as problem:
            error = problem.details
        if 300 <= status < 400:
            error = f"answered {status}; redirects are not followed"
        elif status and not 200 <= status < 300:
            error = f"answered {status}"
        if rest_ms:
            error += f"; it asks to wait {format_duration(rest_ms)}"
        return DeliveryResult(status=status, error=error, took_ms=steady_ms() - began_ms, rest_ms=rest_ms)

    def close(self) -> None:
        for connections in self._kept.values():
            for connection in connections:
                connection.close()
        self._kept.clear()

    def tidy(self) -> None:
        for url, connections in list(self._kept.items()):
            for connection in [each for each in connections if not each.is_fresh()]:
                connections.remove(connection)
                connection.close()
            if not connections:
                del self._kept[url]

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> tuple[int, int]:
        """The status of the answer, and the rest that it asks for."""
        target = parse_target(url, self.policy)
        named = {"Host": target.host_header, "User-Agent": USER_AGENT, **headers}
        request = request_bytes("POST", target.path, named, body)
        kept = self._kept.get(url, [])
        while kept:
            connection = kept.pop()
            if connection.is_fresh() and await connection.is_quiet():
                try:
                    return await self._exchange(url, connection, request)
                except (_Undelivered, OSError):
                    continue  # the target closed it meanwhile; a delivery may come twice
            connection.close()
        return await self._exchange(url, await self._connect(target), request)

    async def _connect(self, target: Target) -> _Connection:
        try:
            async with asyncio.timeout(limits.WEBHOOK_CONNECT_MS / 1000):
                found = await self._resolver.addresses(target.host, target.port)
                return await self._connect_to(target, check_addresses(found, self.policy))
        except TimeoutError:
            raise _Undelivered(f"no connection within {limits.WEBHOOK_CONNECT_MS // 1000} s") from None

    async def _connect_to(self, target: Target, addresses: list[str]) -> _Connection:
        """Connect to the first of the checked addresses that takes it."""
        if target.is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
            if self.policy.ca is not None:
                self._tls.load_verify_locations(self.policy.ca)
        tls = self._tls if target.is_tls else None
        for address in addresses:
            try:
                reader, writer = await asyncio.open_connection(
                    address,
                    target.port,
                    ssl=tls,
                    server_hostname=target.host if tls is not None else None,
                    limit=limits.WEBHOOK_HEAD_BYTES_MAX,
                )
                return _Connection(reader, writer)
            except OSError:
                if address == addresses[-1]:
                    raise
        raise AssertionError("there is at least one address")

    async def _exchange(self, url: str, connection: _Connection, request: bytes) -> tuple[int, int]:
        is_kept = False
        try:
            connection.writer.write(request)
            await connection.writer.drain()
            answer = ReplyReader(limits.WEBHOOK_HEAD_BYTES_MAX, limits.WEBHOOK_BODY_BYTES_MAX)
            status, headers = await connection.head(answer)
            if 200 <= status < 300:
                is_kept = await connection.is_read(answer, status, headers)
            return status, _rest_ms(headers) if status in _RESTING else 0
        finally:
            if is_kept:
                connection.idle_ms = steady_ms()
                self._kept.setdefault(url, []).append(connection)
            else:
                connection.close()


def _rest_ms(headers: dict[str, str]) -> int:
    """Return for how long `Retry-After`, in seconds or as a date, asks for a rest; 0: it says nothing."""
    text = headers.get("retry-after", "")
    if text.isascii() and text.isdecimal():
        return int(text) * 1000 if len(text) <= _SECONDS_DIGITS_MAX else 0
    until_ms = http_date_ms(text)
    return 0 if until_ms is None else max(0, until_ms - wall_ms())
