"""What Action Llama's commands ask of GATEWAY_URL that is not about locks: signals, calls between agents, shutdown.

Its commands share one GATEWAY_URL. A server told where their gateway is passes these requests on to it as they are;
one that was not told says so. The secret goes along, because it is the proof over there too, and is in no log.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dibs.client.http1 import ConnectionLost, request_bytes
from dibs.client.transport import Deadline, ServerConnection
from dibs.client.urls import server_address
from dibs.compat.action_llama.protocol import Rejected
from dibs.core.limits import UPSTREAM_MS_MAX, UPSTREAM_REQUESTS_MAX
from dibs.errors import DibsError
from dibs.ids import new_request_id
from dibs.server.response import HttpResponse

if TYPE_CHECKING:
    from dibs.client.http1 import RawReply
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


class Upstream:
    """Their gateway at `url`, or None: then nothing can be passed on."""

    def __init__(self, url: str | None) -> None:
        self._address = None if url is None else server_address(url)
        self._threads = ThreadPoolExecutor(UPSTREAM_REQUESTS_MAX, thread_name_prefix="dibs upstream")

    async def forward(self, method: str, path: str, call: HttpRequest) -> HttpResponse:
        """Their answer, status and body."""
        body = await call.rest()
        if self._address is None:
            raise Rejected("not served here", NOT_TOLD, 501)
        target = self._address.path + path
        if call.query:
            target += f"?{call.query.decode('latin-1')}"
        kind = call.headers.get(b"content-type", b"application/json").decode("latin-1")
        headers = {"Host": self._address.authority, "Content-Type": kind, "Connection": "close"}
        request = request_bytes(method, target, headers, body if method == "POST" else None)
        loop = asyncio.get_running_loop()
        raw = await loop.run_in_executor(self._threads, self._exchange, request)
        return HttpResponse(raw.status, raw.body, new_request_id().encode())

    def _exchange(self, request: bytes) -> RawReply:
        assert self._address is not None
        try:
            return ServerConnection(self._address).exchange(
                request, Deadline(UPSTREAM_MS_MAX), repeatable=False
            )
        except (ConnectionLost, DibsError):
            raise Rejected(
                "gateway unreachable",
                "Action Llama's gateway did not answer. Locks are served here as before.",
                502,
            ) from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
