"""Requests of Action Llama's commands that are not about locks: signals, calls between agents, shutdown.

All its commands use one GATEWAY_URL. A server with --gateway-upstream forwards these requests to their gateway
unchanged; a server without it refuses them. It forwards the secret too, because their gateway checks it. No log has it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from dibs.base.errors import DibsError
from dibs.base.http1 import ConnectionLost, request_bytes
from dibs.base.ids import new_id
from dibs.base.reply import Reply
from dibs.client.urls import ServerAddress, server_address
from dibs.compat.action_llama.protocol import Rejected
from dibs.core.limits import UPSTREAM_MS_MAX, UPSTREAM_REQUESTS_MAX
from dibs.sdk.async_connection import connected
from dibs.server.http.response import ClientGone

if TYPE_CHECKING:
    from dibs.server.http.request import HttpRequest

NOT_TOLD = (
    "This gateway serves locks only. The operator of dibs can name Action Llama's own gateway, which answers this: "
    "dibs serve --gateway --gateway-upstream URL."
)


_STATUSES = range(200, 600)


class Upstream:
    """Their gateway at `url`. With None nothing can be forwarded. Belongs to one event loop."""

    def __init__(self, url: str | None) -> None:
        self._address = None if url is None else server_address(url)
        self._mark = f"1.1 dibs-{new_id()}"  # identifies a request that comes back to this server
        self._seats = asyncio.Semaphore(UPSTREAM_REQUESTS_MAX)
        self._closing = asyncio.Event()

    async def forward(self, method: str, path: str, call: HttpRequest) -> Reply:
        if self._address is None:
            raise Rejected("not served here", NOT_TOLD, 501)
        name = unquote_to_bytes(call.raw_name)
        if name in (b".", b"..") or b"/" in name or b"\\" in name:  # it could lead out of its place in the path
            raise Rejected("invalid name", "A name in the address is no step in a path.", 400)
        via = call.headers.get(b"via", b"").decode("latin-1")
        if self._mark in via:
            raise Rejected("gateway loop", "--gateway-upstream leads back to this server.", 508)
        body = await call.rest()
        target = self._address.path + path
        if call.query:
            target += f"?{call.query.decode('latin-1')}"
        kind = call.headers.get(b"content-type", b"application/json").decode("latin-1")
        headers = {"Host": self._address.authority, "Connection": "close"}
        headers["Via"] = f"{via}, {self._mark}" if via else self._mark
        request = request_bytes(method, target, headers, body if method == "POST" else None, kind)
        async with self._seats:
            if call.connection.is_gone:  # the client left while the request waited for a seat
                raise ClientGone
            raw = await self._asked(self._address, request)
        return Reply(raw.status, content=raw.content)

    def close(self) -> None:
        """Answer every waiting request that this server is stopping."""
        self._closing.set()

    async def _asked(self, address: ServerAddress, request: bytes) -> Reply:
        """Their gateway may never answer, and a stopping server must not wait."""
        asking, closing = [asyncio.ensure_future(each) for each in (_exchange(address, request), self._closing.wait())]
        try:
            await asyncio.wait((asking, closing), timeout=UPSTREAM_MS_MAX / 1000, return_when=asyncio.FIRST_COMPLETED)
            if closing.done() and not asking.done():
                raise Rejected("gateway unreachable", "This server is stopping. Ask again in a moment.", 503)
            raw = await asking if asking.done() else None
            if isinstance(raw, Reply) and raw.status in _STATUSES:
                return raw
        except (ConnectionLost, DibsError):
            pass
        finally:
            asking.cancel()
            closing.cancel()
        told = "Action Llama's gateway did not answer. Locks are served here as before."
        raise Rejected("gateway unreachable", told, 502)


async def _exchange(address: ServerAddress, request: bytes) -> Reply:
    connection = await connected(address)
    try:
        return await connection.exchange(request)
    finally:
        connection.close()
