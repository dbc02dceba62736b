"""The usual way behind the same HTTP stack: one transaction for each request, on a pool of connections.

It answers the two requests of dibs' cycle and nothing else: no tokens, no line, no history, no sessions.

    python sql_server.py URL PORT CONNECTIONS
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import psycopg
import uvicorn

TABLE = """
CREATE TABLE IF NOT EXISTS claims (name text PRIMARY KEY, owner text, token bigint, expires timestamptz)
"""
ACQUIRE = """
INSERT INTO claims AS c VALUES (%s, %s, 1, now() + interval '60 s')
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = c.token + 1, expires = excluded.expires
WHERE c.expires < now() RETURNING token
"""
RELEASE = "UPDATE claims SET expires = '-infinity' WHERE name = %s AND owner = %s RETURNING token"

Message = MutableMapping[str, Any]


class SqlClaims:
    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections
        self._idle: asyncio.Queue[psycopg.AsyncConnection[Any]] = asyncio.Queue()
        self._opening = asyncio.Lock()

    async def open(self) -> None:
        async with self._opening:
            if self._connections:
                for _ in range(self._connections):
                    self._idle.put_nowait(await psycopg.AsyncConnection.connect(self._url, autocommit=True))
                self._connections = 0

    async def answer(self, path: str, body: bytes) -> bytes:
        await self.open()
        _, _, name, verb = path.split("/")
        given = json.loads(body)
        lease = given.get("lease_id") or str(uuid.uuid4())
        link = await self._idle.get()
        try:
            found = await link.execute(ACQUIRE if verb == "acquire" else RELEASE, (name, lease))
            row = await found.fetchone()
        finally:
            self._idle.put_nowait(link)
        if row is None:
            return b'{"status":"held"}'
        if verb == "release":
            return b"null"
        # Without blanks, as dibs writes it: the load script looks for text.
        reply = {
            "status": "acquired",
            "lease_id": lease,
            "fencing_token": row[0],
            "metadata": given["metadata"],
        }
        return json.dumps(reply, separators=(",", ":")).encode()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        text = b"{}" if scope["path"] == "/health" else await self.answer(scope["path"], body)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


def main() -> None:
    url, port, connections = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(TABLE)
    config = uvicorn.Config(
        SqlClaims(url, connections),
        host="127.0.0.1",
        port=port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
