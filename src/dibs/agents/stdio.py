"""`dibs mcp`: the MCP server over standard input and output, for the one client that started it.

The client is gone when standard input ends, or when nobody reads standard output any more. Then the session is ended,
which releases all claims. The same happens on SIGTERM, SIGINT and SIGHUP. After SIGKILL, the next dibs process on this
machine sees from the session's process mark that it is dead; for other machines its TTL ends it.
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
from dibs.base.loglines import LogLines
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
    joins: Callable[[], str] | None = None,
) -> Server[Any]:
    """A server for one connection. Its claims are released when the connection ends. `around` is a context manager
    that is open during the connection. `joins` gives the agent's session, where its harness names it."""

    @asynccontextmanager
    async def lifespan(_: Server[Any]) -> AsyncIterator[SessionBackend]:
        backend = SessionBackend(door, owner, joins)
        with around(backend):
            try:
                yield backend
            finally:
                with anyio.CancelScope(shield=True):
                    await backend.close()

    def backend_for(context: Context) -> SessionBackend:
        backend: SessionBackend = context.lifespan_context
        if backend.owner is None and joins is None:
            backend.owner = _owner_of(context)
        return backend

    return build_server(backend_for, kept=True, lifespan=lifespan, tools=tools)


def _owner_of(context: Context) -> str:
    """The default owner: the client's name, with pid and host to tell two clients apart."""
    params = context.session.client_params
    name = _ODD.sub("-", params.client_info.name)[:64].strip("-") if params is not None else ""
    return f"{name or 'mcp'}-{os.getpid()}@{os.uname().nodename}"


class _Ends(AbstractContextManager[None]):
    """Ends the process on a signal, or when nobody reads its output. A thread of the SDK blocks in a read of standard
    input that cannot be interrupted, so the server cannot return normally: this releases all claims and exits."""

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
        """Wait until nobody can read standard output. For a file this never happens."""
        watch = select.poll()
        watch.register(self._output, 0)  # only the end is reported
        watch.poll()
        with suppress(RuntimeError):  # the loop is closed: the process is ending anyway
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


def run(settings: Settings, *, action_llama: bool = False, joins: Callable[[], str] | None = None) -> None:
    """Serve until the client is gone. `action_llama`: also offer its two lock tools. `joins` gives the session of the
    agent whose commands and hooks claim in it, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    tools: tuple[Tool, ...] = TOOLS
    if action_llama:
        from dibs.compat.action_llama import tools as theirs

        tools = (*TOOLS, *theirs.TOOLS)
    asyncio.run(_serve(settings, tools, joins))


async def _serve(settings: Settings, tools: tuple[Tool, ...], joins: Callable[[], str] | None) -> None:
    output = os.dup(1)  # the SDK replaces it
    door = open_door(settings)
    try:
        owner = settings.pick("owner", "DIBS_OWNER")
        server = stdio_mcp(door, owner, lambda backend: _Ends(backend, output), tools, joins)
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        door.close()
