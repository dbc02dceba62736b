"""What Action Llama's commands ask of GATEWAY_URL that is not about locks: signals, calls between agents, shutdown.

Its commands share one GATEWAY_URL. A server told where their gateway is passes these requests on to it as they are;
one that was not told says so. The secret goes along, because it is the proof over there too, and is in no log.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from dibs.client.http1 import ConnectionLost, request_bytes
from dibs.client.transport import Deadline, ServerConnection
from dibs.client.urls import server_address
from dibs.compat.action_llama.protocol import Rejected
from dibs.core.limits import UPSTREAM_MS_MAX, UPSTREAM_REQUESTS_MAX
from dibs.errors import DibsError
from dibs.ids import new_id, new_request_id
from dibs.server.response import ClientGone, HttpResponse

if TYPE_CHECKING:
    from dibs.client.http1 import RawReply
    from dibs.client.urls import ServerAddress
    from dibs.server.request import HttpRequest

# Below GATEWAY_URL, what is theirs: method, path, and the command that asks it.
ROUTES = (
    ("POST", "/signals/{name:segment}", "al-rerun, al-return, al-status"),
    ("POST", "/calls", "al-subagent"),
    ("GET", "/calls/{name:segment}", "al-subagent-check, al-subagent-wait"),
    ("POST", "/shutdown", "al-shutdown"),
)
NOT_TOLD = (
    "This gateway serves locks only. The operator of dibs can name Action Llama's own gateway, which answers this: "
    "dibs serve --gateway --gateway-upstream URL."
)


_STATUSES = range(200, 600)


class Upstream:
    """Their gateway at `url`, or None: then nothing can be passed on. Belongs to one event loop."""

    def __init__(self, url: str | None) -> None:
        self._address = None if url is None else server_address(url)
        self._mark = f"1.1 dibs-{new_id()}"  # how a request that comes back to us is known
        self._seats = asyncio.Semaphore(UPSTREAM_REQUESTS_MAX)
        self._under_way: set[asyncio.Future[RawReply]] = set()
        self._closed = False

    async def forward(self, method: str, path: str, call: HttpRequest) -> HttpResponse:
        """Their answer, status and body."""
        if self._address is None:
            raise Rejected("not served here", NOT_TOLD, 501)
        via = call.headers.get(b"via", b"").decode("latin-1")
        if self._mark in via:
            raise Rejected("gateway loop", "--gateway-upstream leads back to this very server.", 508)
        body = await call.rest()
        target = self._address.path + path
        if call.query:
            target += f"?{call.query.decode('latin-1')}"
        kind = call.headers.get(b"content-type", b"application/json").decode("latin-1")
        headers = {"Host": self._address.authority, "Content-Type": kind, "Connection": "close"}
        headers["Via"] = f"{via}, {self._mark}" if via else self._mark
        request = request_bytes(method, target, headers, body if method == "POST" else None)
        async with self._seats:
            if call.connection.is_gone:  # while it waited for its turn
                raise ClientGone
            raw = await self._asked(self._address, request)
        return HttpResponse(raw.status, raw.body, new_request_id().encode())

    def close(self) -> None:
        """Whoever waits for their gateway is told that we stop, and waits no longer."""
        self._closed = True
        for answer in self._under_way:
            if not answer.done():
                answer.set_exception(_stopping())

    async def _asked(self, address: ServerAddress, request: bytes) -> RawReply:
        """In a thread that nobody waits for when the server ends: their gateway may never answer."""
        if self._closed:
            raise _stopping()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[RawReply] = loop.create_future()

        def settle(result: RawReply | Rejected) -> None:
            if answer.done():
                return
            if isinstance(result, Rejected):
                answer.set_exception(result)
            else:
                answer.set_result(result)

        def ask() -> None:
            result = _exchange(address, request)
            try:
                loop.call_soon_threadsafe(settle, result)
            except RuntimeError:
                pass  # the server has ended meanwhile

        self._under_way.add(answer)
        try:
            threading.Thread(target=ask, name="dibs upstream", daemon=True).start()
            return await answer
        finally:
            self._under_way.discard(answer)


def _exchange(address: ServerAddress, request: bytes) -> RawReply | Rejected:
    try:
        raw = ServerConnection(address).exchange(request, Deadline(UPSTREAM_MS_MAX), repeatable=False)
        if raw.status in _STATUSES:
            return raw
    except (ConnectionLost, DibsError):
        pass
    return Rejected(
        "gateway unreachable", "Action Llama's gateway did not answer. Locks are served here as before.", 502
    )


def _stopping() -> Rejected:
    return Rejected("gateway unreachable", "This server is stopping. Ask again in a moment.", 503)
