"""An agent's client and the MCP server it talks to, joined in this process: the SDK's own client, and a real store."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp import Client

from dibs.agents.stdio import stdio_mcp
from dibs.client.embedded import EmbeddedDoor
from dibs.client.settings import Settings
from dibs.sdk.async_doors import open_door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from dibs.wire.documents import Reply

# The two kinds of protocol revision that the SDK speaks.
LEGACY, MODERN = "legacy", "auto"


class Agent:
    """What a model can do: call tools and read resources."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer. The SDK's client has held it against the tool's schema."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        document: dict[str, Any] = result.structured_content
        return document

    async def error(self, tool: str, **arguments: Any) -> str:
        """The sentence of a tool error."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        assert result.structured_content is None
        return str(result.content[0].text)  # type: ignore[union-attr]  # a text, or the test fails here

    async def read(self, uri: str) -> str:
        result = await self.client.read_resource(uri)
        return str(result.contents[0].text)  # type: ignore[union-attr]


class Store:
    """A store in a file, and what a person at a terminal would see of it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite://{folder}/dibs.db"

    @asynccontextmanager
    async def agent(self, owner: str | None = None, mode: str = MODERN) -> AsyncIterator[Agent]:
        """One connection, for as long as the block runs."""
        door = open_door(Settings({"url": self.url}, {}))
        try:
            async with Client(stdio_mcp(door, owner), mode=mode, raise_exceptions=True) as client:
                yield Agent(client)
        finally:
            door.close()

    def ask(self, verb: str, name: str, **document: Any) -> Reply:
        door = EmbeddedDoor.at(self.url)
        try:
            return door.call(verb, name, document)
        finally:
            door.close()

    def status(self, name: str) -> str:
        body = self.ask("inspect", name).body or {}
        return str(body.get("status", "unknown"))

    def sessions(self) -> list[dict[str, Any]]:
        """Those that are open."""
        door = EmbeddedDoor.at(self.url)
        try:
            found: list[dict[str, Any]] = (door.sessions().body or {})["sessions"]
            return found
        finally:
            door.close()
