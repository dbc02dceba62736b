"""One question and its answer, from whichever server answers. A flow without I/O: it yields attempts.

The doors carry attempts out, in a thread or on an event loop. This decides what comes next: the same server again when
the connection broke, another one when a server is away, hangs, drains or has lost its store, and when to give up.

A lost reply is not lost ownership. What may be asked twice without doing it twice (`requests.py`) is asked again,
unchanged. What may not (a break could hit the next owner) goes to another server only if nothing was sent, or if the
server said that it did nothing; else its outcome is not known, and the caller is told so.
"""

from __future__ import annotations

from dibs.base.clock import steady_ms
from dibs.base.errors import FATE_UNKNOWN, ServerUnreachable
from dibs.base.http1 import ConnectionLost, RawReply
from dibs.client.replies import checked_reply
from dibs.client.requests import is_repeatable, method_of, waits_ms, within
from dibs.client.servers import PATIENCE_MS
from dibs.client.transport import NOT_NOW, NotConnected, TimedOut
from dibs.wire.documents import Reply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from dibs.client.door import Ask
    from dibs.client.requests import RequestBuilder
    from dibs.client.servers import Servers
    from dibs.client.urls import ServerAddress

    Failure = ServerUnreachable | ConnectionLost
    Result = RawReply | Failure

RETRIES_MAX = 2
SHORT_WAIT_MS = 1_000  # with the second server: the first took long enough
_ELSEWHERE = ("draining", "upstream_unavailable", "capacity_exceeded")
UNAVAILABLE = 503


class Attempt:
    """Send `request` to `address` and wait for the reply for `timeout_ms`. Answered with the reply, or with what went
    wrong: ConnectionLost or a ServerUnreachable, as values."""

    __slots__ = ("address", "repeatable", "request", "timeout_ms")

    def __init__(self, address: ServerAddress, request: bytes, timeout_ms: int, repeatable: bool) -> None:
        self.address = address
        self.request = request
        self.timeout_ms = timeout_ms
        self.repeatable = repeatable


def ask_servers(
    servers: Servers, builder: RequestBuilder, asked: Ask, timeout_ms: int
) -> Generator[Attempt, Result, Reply]:
    """The reply. Raises DibsError when nobody answered, or with something that is not dibs."""
    if not servers.is_one:
        asked = within(asked, builder.slice_ms)
    now_ms = steady_ms()
    until_ms = now_ms + timeout_ms + waits_ms(asked)
    waiting = servers.order(now_ms)
    tries = _Tries(asked, alone=servers.is_one)
    while waiting:
        address = waiting.pop(0)
        left_ms = max(1, until_ms - now_ms)
        if waiting:
            line_ms = waits_ms(asked)
            spare_ms = max(0, left_ms - line_ms) // (len(waiting) + 1)
            left_ms = max(1, min(left_ms, line_ms + min(PATIENCE_MS, spare_ms)))
        request = builder.request(asked, address)
        got = yield Attempt(address, request, left_ms, tries.repeatable)
        now_ms = steady_ms()
        if isinstance(got, RawReply):
            servers.heard(address, got.status, got.headers.get("x-dibs-store"), now_ms)
            reply = _read(asked, got, address)
            if isinstance(reply, Reply) and not _is_elsewhere(reply):
                servers.answered(address, now_ms)
                return reply
            tries.refused(reply)
        else:
            if isinstance(got, ConnectionLost) and tries.may_repeat():
                waiting.append(address)  # the others first
            tries.failed(got, address)
        servers.failed(address, now_ms)
        if not tries.may_go_on() or now_ms >= until_ms:
            break
        asked = within(asked, SHORT_WAIT_MS)
    return tries.end()


def _read(asked: Ask, raw: RawReply, address: ServerAddress) -> Reply | ServerUnreachable:
    try:
        return checked_reply(asked.verb, raw, address)
    except ServerUnreachable as error:  # a proxy says that nobody is behind it
        return error


def _is_elsewhere(reply: Reply) -> bool:
    """Whether a server says that another one may do better: it cannot now, or has too much to do and did nothing."""
    body = reply.body or {}
    can_later = reply.status == UNAVAILABLE or "retry_after_ms" in body
    return can_later and body.get("code") in _ELSEWHERE


class _Tries:
    """What came of the attempts so far. `alone`: there is one server only, and its own words are told as they are."""

    def __init__(self, asked: Ask, *, alone: bool) -> None:
        self._asked = asked
        self._alone = alone
        self.repeatable = is_repeatable(asked)
        self._repeats = RETRIES_MAX if self.repeatable else 0
        self._errors: list[ServerUnreachable] = []
        self._reply: Reply | None = None
        self._unsure = False  # a request went out, and nobody knows what became of it
        self._passed_on = False  # a proxy answered, which may have passed it on before

    def may_repeat(self) -> bool:
        self._repeats -= 1
        return self._repeats >= 0

    def refused(self, reply: Reply | ServerUnreachable) -> None:
        if isinstance(reply, Reply):
            self._reply = reply
            self._unsure = self._unsure or FATE_UNKNOWN in str((reply.body or {}).get("details"))
        else:
            self._errors.append(reply)
            self._passed_on = True

    def failed(self, error: Failure, address: ServerAddress) -> None:
        if isinstance(error, ConnectionLost):
            self._unsure = True
            error = ServerUnreachable(f"{address.url} closed the connection without an answer. {NOT_NOW}")
        elif isinstance(error, TimedOut):
            self._unsure = self._unsure or error.sent
        self._errors.append(error)

    def may_go_on(self) -> bool:
        return self.repeatable or not (self._unsure or self._passed_on)

    def end(self) -> Reply:
        unknown = self._unsure and method_of(self._asked) != "GET"
        if self._reply is not None:
            return _unknown(self._reply) if unknown else self._reply
        details = self._errors[-1].details
        if not self._alone:
            said = dict.fromkeys(error.details.removesuffix(NOT_NOW).strip() for error in self._errors)
            details = f"{' '.join(said)} {NOT_NOW}"
        if unknown:
            raise ServerUnreachable(f"{details} {FATE_UNKNOWN}")
        if all(isinstance(error, NotConnected) for error in self._errors):
            raise NotConnected(details)
        raise ServerUnreachable(details)


def _unknown(reply: Reply) -> Reply:
    details = str((reply.body or {}).get("details"))
    if FATE_UNKNOWN in details:
        return reply
    return reply.replace(body={**(reply.body or {}), "details": f"{details} {FATE_UNKNOWN}"})
