"""An agent's client and the MCP server it talks to, joined in this process: the SDK's own client, a store in memory.
The SDK's client checks each answer against the protocol. Every worker collects every test, so the SDK, which takes a
second, is imported by who runs these."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from dibs.agents.mcp.backend import ConnectionSession, ToolBackend
from dibs.agents.mcp.methods import Methods
from dibs.agents.mcp.stdio import Connection
from dibs.agents.mcp.tools import TOOLS, Tool
from dibs.client.embedded import EmbeddedTransport
from dibs.client.pool import TransportPool
from dibs.client.settings import TIMEOUT_MS_DEFAULT, Settings
from dibs.client.transport import Ask
from dibs.engine.coordinator import Coordinator
from dibs.sdk.async_transport import ThreadedTransport
from dibs.stores.registry import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mcp import Client

    from dibs.sdk.async_transport import AsyncTransport
    from dibs.wire.documents import Reply

Transport = TypeVar("Transport", bound=ThreadedTransport)
# The two kinds of protocol revision that the SDK speaks.
LEGACY, MODERN = "legacy", "auto"


def backend_of(transport: AsyncTransport, owner: str | None) -> ToolBackend:
    """One that keeps its claims, as over stdio."""
    return ToolBackend(transport, owner, ConnectionSession(transport))


@asynccontextmanager
async def served(transport: AsyncTransport, owner: str | None, tools: tuple[Tool, ...] = TOOLS) -> AsyncIterator[Any]:
    """A connection as the SDK's client uses it: what it reads, and where it writes."""
    import mcp_types
    from mcp.shared.message import SessionMessage

    to_client, reading = anyio.create_memory_object_stream[SessionMessage](100)
    writing, from_client = anyio.create_memory_object_stream[SessionMessage](100)

    def send(line: bytes) -> None:
        to_client.send_nowait(SessionMessage(mcp_types.jsonrpc_message_adapter.validate_json(line)))

    connection = Connection(Methods(tools, kept=True), backend_of(transport, owner), send)

    async def pass_on() -> None:
        async for sent in from_client:
            connection.receive(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode())

    async with to_client, reading, writing, from_client, anyio.create_task_group() as tasks:
        tasks.start_soon(pass_on)
        try:
            yield reading, writing
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close()
            tasks.cancel_scope.cancel()


class Agent:
    """What a model can do: call tools and read resources."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer. The SDK's client has checked it against the tool's schema."""
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


class Opened:
    """A store that several transports share, and that outlives them."""

    def __init__(self) -> None:
        self._coordinator = Coordinator(open_store("memory://"))

    def coordinator(self) -> Coordinator:
        return self._coordinator

    def close(self) -> None:
        pass


class Store:
    """A store, and its jobs as a person at a terminal sees them."""

    def __init__(self) -> None:
        self._opened = Opened()

    def transport(self, kind: type[Transport]) -> Transport:
        made = kind(TransportPool(Settings({"url": "memory://"}, {}), TIMEOUT_MS_DEFAULT))
        made.transports.store = self._opened  # type: ignore[assignment]  # as much of it as a transport asks for
        return made

    @asynccontextmanager
    async def agent(
        self, owner: str | None = None, mode: str = MODERN, tools: tuple[Tool, ...] = TOOLS
    ) -> AsyncIterator[Agent]:
        """One connection, for as long as the block runs."""
        from mcp import Client

        transport = self.transport(ThreadedTransport)
        try:
            async with Client(served(transport, owner, tools), mode=mode, raise_exceptions=True) as client:
                yield Agent(client)
        finally:
            transport.close()

    def ask(self, verb: str, name: str, **document: Any) -> Reply:
        return EmbeddedTransport(self._opened.coordinator).ask(Ask(verb, name, document))

    def status(self, name: str) -> str:
        body = self.ask("inspect", name).body or {}
        return str(body.get("status", "unknown"))

    def sessions(self) -> list[dict[str, Any]]:
        """Those that are open."""
        body = EmbeddedTransport(self._opened.coordinator).ask(Ask("sessions")).body or {}
        found: list[dict[str, Any]] = body["sessions"]
        return found
