"""Says who a client is, and bounds how many there are: connections, in all and from one client, and requests without a
token.

A connection that has shown a valid token has standing: it never goes to make room for others. When there are too many,
in all or from one client, the oldest without standing is closed and the newcomer stays: a client with a token shows it
with its first request. Only if all have standing is the newcomer refused. Strangers never take all connections.

A client is an address; of IPv6 the network, because one machine may use all its addresses; on a Unix socket, a user of
this machine. All clients behind a proxy have one address. There is no bound for a proxy that the operator named: it
must count its clients itself.

Anybody can write `X-Forwarded-For`. So it counts only if the connection comes from a proxy that the operator named, and
only back to the first hop that is not such a proxy: whatever stands left of that hop may be written by anybody.
`Forwarded` is not read. A proxy writes one of the two and may pass on the other as the client sent it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput
from dibs.base.logger import log
from dibs.base.terminal import plain
from dibs.core import limits
from dibs.engine.auth import RateLimited
from dibs.engine.metrics import Metrics
from dibs.server.http.response import HttpError
from dibs.system import socket_peer


class Waiting(Protocol):
    def cancel(self) -> None:
        """The client is gone."""

    def hurry(self) -> None:
        """The client sent another request: answer this one with its place in line."""


UNIX = "unix"
_SCHEMES = (b"http", b"https")


class TrustedProxies:
    """`named` are addresses, networks, or `unix` for whoever connects to a Unix socket."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        words = tuple(named)
        self._unix = UNIX in words
        self._networks = [_network(word) for word in words if word != UNIX]

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)

    def trusts(self, client: str) -> bool:
        """Tell whether a client, as `admission.client_of` calls it, is one of the proxies."""
        address = _address(client)
        if address is None:
            return self._unix
        return any(address in network for network in self._networks)

    def client(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        lines = [value for name, value in headers if name == b"x-forwarded-for"]
        found = peer
        for hop in reversed(b",".join(lines).split(b",") if lines else []):
            text = hop.decode("latin-1").strip()
            if text.startswith("["):
                text = text[1:].partition("]")[0]
            elif text.count(":") == 1:
                text = text.partition(":")[0]  # its port
            address = _address(text)
            if address is None:
                break  # the proxy passed on what is no address
            found = str(address)
            if not self.trusts(found):
                break
        return found


def forwarded_scheme(headers: Iterable[tuple[bytes, bytes]], scheme: str) -> str:
    """The scheme that the browser used, by the word of the nearest proxy; else `scheme`."""
    lines = [value for name, value in headers if name == b"x-forwarded-proto"]
    said = lines[-1].rpartition(b",")[2].strip().lower() if lines else b""
    return said.decode() if said in _SCHEMES else scheme


def _network(word: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        network = ipaddress.ip_network(word)
    except ValueError:
        raise InvalidInput(
            f"{word!r} is no proxy's address. Write addresses or networks with commas between: "
            "10.0.0.2,192.168.7.0/24. Or unix, for a proxy on a Unix socket."
        ) from None
    if network.prefixlen == 0:
        raise InvalidInput(f"{word} would trust everybody to say who a client is.")
    return network


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


# Counts requests of each client by the minute, for what needs no token. Clients that nobody counts apart share one
# count, so that many addresses cannot fill the memory.

_OTHERS = ""


class ClientWindows:
    """For one event loop. A client is named as for its connections."""

    def __init__(self, most: int, what: str, steady: Callable[[], int] = steady_ms) -> None:
        self._most = most
        self._what = what
        self._steady = steady
        self._windows: dict[str, tuple[int, int]] = {}  # since when, and how many

    def __len__(self) -> int:
        return len(self._windows)

    def check(self, client: str) -> None:
        now_ms = self._steady()
        since_ms, count = self._windows.get(self._counted_as(client, now_ms), (now_ms, 0))
        if count >= self._most and now_ms - since_ms < limits.PUBLIC_REQUESTS_MS:
            raise RateLimited(
                f"One client may send {self._most} {self._what} a minute here. Ask again later.",
                since_ms + limits.PUBLIC_REQUESTS_MS - now_ms,
            )

    def count(self, client: str) -> None:
        """Count one; raises RateLimited, and counts nothing, if it is one too many."""
        self.check(client)
        now_ms = self._steady()
        client = self._counted_as(client, now_ms)
        since_ms, count = self._windows.get(client, (now_ms, 0))
        if now_ms - since_ms >= limits.PUBLIC_REQUESTS_MS:
            since_ms, count = now_ms, 0
        self._windows[client] = since_ms, count + 1

    def _counted_as(self, client: str, now_ms: int) -> str:
        if client in self._windows or len(self._windows) < limits.PUBLIC_CLIENTS_MAX:
            return client
        self._windows = {
            each: window for each, window in self._windows.items() if now_ms - window[0] < limits.PUBLIC_REQUESTS_MS
        }
        return client if len(self._windows) < limits.PUBLIC_CLIENTS_MAX else _OTHERS


LOG_EVERY_MS = 10_000
_IN_ALL, _PER_CLIENT = "--connections changes the bound", "--connections-per-client changes the bound"


class Guest(Protocol):
    """A connection, as it counts."""

    client: str  # whose it is; empty if it does not count (any more)

    def turn_out(self) -> None: ...


class ClientConnections:
    """The connections of one client."""

    __slots__ = ("count", "strangers")

    def __init__(self) -> None:
        self.count = 0
        self.strangers: dict[Guest, None] = {}  # the oldest first


class Admission:
    """For one event loop. A bound of 0 is no bound."""

    def __init__(
        self,
        most: int = limits.CONNECTIONS_MAX,
        most_per_client: int = limits.CONNECTIONS_PER_CLIENT_MAX,
        steady: Callable[[], int] = steady_ms,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self._proxies = proxies or TrustedProxies()
        self._most = most
        self._most_per_client = most_per_client
        self._steady = steady
        self._most_strangers = most - most // limits.CONNECTIONS_KEPT_PART
        self._strangers: dict[Guest, int] = {}  # since when, the oldest first
        self._by_client: dict[str, ClientConnections] = {}
        self._count = 0
        self._turned_away = 0  # since the last line in the log
        self._next_line_ms = 0
        self.leaving = 0  # turned away; the refusal is still being sent

    def enter(self, guest: Guest, client: str) -> HttpError | None:
        """Count a connection of `client`, or return the refusal. It counts until it leaves, or is turned out."""
        own = self._by_client.get(counted_as(client)) or ClientConnections()
        now_ms = self._steady()
        if self._most_per_client and not self._proxies.trusts(client):
            is_full = own.count >= self._most_per_client
            if is_full and not self._turn_out_one(own.strangers, _PER_CLIENT):
                self._note(client, own.count, _PER_CLIENT)
                says = f"You have {own.count} connections to this server, which is the limit for one client."
                return HttpError(says, 429, code="rate_limited", retry_after_ms=limits.OVERLOAD_RETRY_MS)
            if len(own.strangers) >= limits.STRANGERS_PER_CLIENT_MAX:
                oldest = next(iter(own.strangers))
                if self._strangers[oldest] + limits.STRANGER_MS_MIN <= now_ms:
                    self._turn_out_one(own.strangers, "it showed no token")
        is_full = self._count >= self._most or len(self._strangers) >= self._most_strangers
        if self._most and is_full and not self._turn_out_one(self._strangers, _IN_ALL):
            self._note(client, own.count, _IN_ALL)
            says = f"This server has {self._count} connections, which is its limit."
            return HttpError(says, 503, code="capacity_exceeded", retry_after_ms=limits.OVERLOAD_RETRY_MS)
        guest.client = client
        self._strangers[guest] = now_ms
        own.strangers[guest] = None
        own.count += 1
        self._count += 1
        self._by_client[counted_as(client)] = own
        return None

    def prove(self, guest: Guest) -> None:
        """It has shown a valid token."""
        if guest.client:
            self._strangers.pop(guest, None)
            self._by_client[counted_as(guest.client)].strangers.pop(guest, None)

    def leave(self, guest: Guest) -> None:
        if guest.client:
            self.prove(guest)
            self._count -= 1
            counted, guest.client = counted_as(guest.client), ""
            own = self._by_client[counted]
            own.count -= 1
            if not own.count:
                del self._by_client[counted]

    def _turn_out_one(self, strangers: Mapping[Guest, object], why: str) -> bool:
        """Make room by ending the oldest of these. False if there is none."""
        oldest = next(iter(strangers), None)
        if oldest is None:
            return False
        client = oldest.client
        self._note(client, self._by_client[counted_as(client)].count, why)
        self.leave(oldest)
        oldest.turn_out()
        return True

    def _note(self, client: str, of_client: int, why: str) -> None:
        self._turned_away += 1
        now_ms = self._steady()
        if now_ms < self._next_line_ms:
            return
        log.warning(
            "turned away %d connection(s), the last from %s: %d open, %d from there (%s)",
            self._turned_away,
            client,
            self._count,
            of_client,
            why,
        )
        self._turned_away = 0
        self._next_line_ms = now_ms + LOG_EVERY_MS


# Requests of unknown callers and of callers who may not: counted, and reported in the log, at most a line of each kind
# in LOG_EVERY_MS.


class Refusals:
    """For one event loop."""

    def __init__(self, metrics: Metrics, steady: Callable[[], int] = steady_ms) -> None:
        self._counts = metrics.refused
        self._steady = steady
        self._reported = dict.fromkeys(self._counts, 0)  # how many were refused at the last line
        self._next_line_ms = dict.fromkeys(self._counts, 0)

    def note(self, status: int, verb: str, client: str, principal: Callable[[], str]) -> None:
        if status not in self._counts:
            return
        self._counts[status] += 1
        now_ms = self._steady()
        if now_ms < self._next_line_ms[status] or not log.isEnabledFor(logging.INFO):
            return
        log.info(
            "refused %d request(s) with %d, the last: %s of %s from %s",
            self._counts[status] - self._reported[status],
            status,
            verb,
            plain(principal()),
            client,
        )
        self._reported[status] = self._counts[status]
        self._next_line_ms[status] = now_ms + LOG_EVERY_MS


def counted_as(client: str) -> str:
    """By what a client is counted: an IPv4 address, an IPv6 network, a user."""
    if ":" not in client:
        return client
    try:
        address = ipaddress.IPv6Address(client.partition("%")[0])
    except ValueError:
        return client
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))


def client_of(transport: asyncio.BaseTransport) -> str:
    uid = peer_uid(transport.get_extra_info("socket"))
    if uid is not None:
        return f"user {uid}"
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else "a Unix socket"


def peer_uid(connection: socket.socket | None) -> int | None:
    """The user at the other end of a Unix socket; None for other connections, and if the kernel does not say."""
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    uid = socket_peer.peer_uid(connection)
    return None if uid < 0 else uid
