"""One HTTP/1.1 connection over raw asyncio streams: as little as possible between a reply and the clock."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

from procs import BenchError

LIMIT_SECONDS = 60.0


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str | None) -> None:
        self._reader = reader
        self._writer = writer
        self._head = f"Host: bench\r\nAuthorization: Bearer {token}\r\n" if token else "Host: bench\r\n"

    @classmethod
    async def open(cls, url: str, token: str | None = None) -> Connection:
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(reader, writer, token)

    def send(self, method: str, path: str, body: object = None) -> None:
        text = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)

    async def receive(self) -> Any:
        """The document of the next reply. Raises BenchError for a refusal."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        status = int(head.split(" ", 2)[1])
        if "transfer-encoding: chunked" in head:
            text = await self._chunks()
        else:
            _, _, rest = head.partition("content-length: ")
            text = await self._reader.readexactly(int(rest.split("\r\n", 1)[0] or 0)) if rest else b""
        if status >= 400:
            raise BenchError(f"refused with {status}: {text[:300].decode(errors='replace')}")
        return json.loads(text) if text else None

    async def _chunks(self) -> bytes:
        parts = []
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            parts.append(await self._reader.readexactly(size))
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return b"".join(parts)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        self.send(method, path, body)
        return await asyncio.wait_for(self.receive(), LIMIT_SECONDS)

    def close(self) -> None:
        self._writer.close()
