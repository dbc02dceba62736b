"""`dibs mcp`: the MCP server over standard input and output, for the one client that started it.

The client is gone when standard input ends, or when nobody reads standard output any more: then the session is ended,
and with it everything that was claimed. The same on SIGTERM, SIGINT and SIGHUP. Killed with SIGKILL, the mark of this
process in its session says so to whoever asks next on this machine; from elsewhere the session's TTL does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import select
import signal
import sys
import threading
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.stdio import stdio_server

from dibs.agents.mcp import build_server
from dibs.agents.session_backend import SessionBackend
from dibs.agents.tools import TOOLS
from dibs.loglines import LogLines
from dibs.sdk.async_doors import open_door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp.server import Server

    from dibs.agents.mcp import Context
    from dibs.agents.tools import Tool
    from dibs.client.settings import Settings
    from dibs.sdk.async_doors import AsyncDoor

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ODD = re.compile(r"[^\w.@+-]+")


def stdio_mcp(
    door: AsyncDoor,
    owner: str | None,
    around: Callable[[SessionBackend], AbstractContextManager[None]] = nullcontext,  # type: ignore[assignment]
    tools: tuple[Tool, ...] = TOOLS,
) -> Server[Any]:
    """A server for one connection. Its claims are let go when the connection ends. `around` is what else lives as long
    as that."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[SessionBackend]:
        backend = SessionBackend(door, owner)
        with around(backend):
            try:
                yield backend
            finally:
                with anyio.CancelScope(shield=True):
                    await backend.close()

    def backend_for(context: Context) -> SessionBackend:
        backend: SessionBackend = context.lifespan_context
        if backend.owner is None:
            backend.owner = _owner_of(context)
        return backend

    return build_server(backend_for, kept=True, lifespan=lifespan, tools=tools)


def _owner_of(context: Context) -> str:
    """Who asks, when nobody said: the client's name, and what tells two of them apart."""
    params = context.session.client_params
    name = _ODD.sub("-", params.client_info.name)[:64].strip("-") if params is not None else ""
    return f"{name or 'mcp'}-{os.getpid()}@{os.uname().nodename}"


class _Ends(AbstractContextManager[None]):
    """A thread of the SDK's sits in a read of standard input that nothing can interrupt. So a signal, or the end of
    whoever reads our output, does not unwind the server: it lets everything go and ends the process."""

    def __init__(self, backend: SessionBackend, output: int) -> None:
        self._backend = backend
        self._output = output
        self._leaving: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._leave, 128 + number)
        threading.Thread(target=self._watch_output, args=(loop,), daemon=True).start()

    def _watch_output(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for as long as somebody can read standard output. A file always can be."""
        watch = select.poll()
        watch.register(self._output, 0)  # no event but the end
        watch.poll()
        with suppress(RuntimeError):  # the loop is closed: we are ending anyway
            loop.call_soon_threadsafe(self._leave, 128 + signal.SIGPIPE)

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _leave(self, code: int) -> None:
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._left(code))

    async def _left(self, code: int) -> None:
        try:
            await self._backend.close()
        finally:
            os._exit(code)


def run(settings: Settings, *, action_llama: bool = False) -> None:
    """Serve until the client is gone. `action_llama`: offer its two lock tools as well."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    tools: tuple[Tool, ...] = TOOLS
    if action_llama:
        from dibs.compat.action_llama import tools as theirs

        tools = (*TOOLS, *theirs.TOOLS)
    asyncio.run(_serve(settings, tools))


async def _serve(settings: Settings, tools: tuple[Tool, ...]) -> None:
    output = os.dup(1)  # the SDK puts something else in its place
    door = open_door(settings)
    try:
        owner = settings.pick("owner", "DIBS_OWNER")
        server = stdio_mcp(door, owner, lambda backend: _Ends(backend, output), tools)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        door.close()
