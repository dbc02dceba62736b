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

from dibs.agents.keeper import ClaimKeeper, with_time
from dibs.agents.mcp import build_server
from dibs.agents.tools import TOOLS
from dibs.base.annexes import needed
from dibs.base.errors import DibsError, LeaseLost
from dibs.base.loglines import LogLines
from dibs.core.names import check_name
from dibs.sdk import operations
from dibs.sdk.async_doors import open_door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp.server import Server

    from dibs.agents.keeper import KeptClaim
    from dibs.agents.mcp import Context
    from dibs.agents.tools import Tool
    from dibs.client.settings import Settings
    from dibs.sdk.answers import JobStatus, Lease
    from dibs.sdk.async_doors import AsyncDoor


# The backend of a connection that keeps its claims: how an agent ends a claim, hands it over, or looks at it.
#
# A call without a lease id, or with that of a kept claim, ends the kept claim's block. Any other lease id belongs to a
# claim made elsewhere, and is handled as over `/mcp`.


class SessionBackend(ClaimKeeper):
    """For one connection. The arguments are those of `ToolBackend`."""

    async def _meant(self, job: str, lease_id: str | None) -> KeptClaim | None:
        """The kept claim that a call is about."""
        await self._adopt(job, lease_id)
        return self._own(job, lease_id)

    async def _adopt(self, job: str, lease_id: str | None) -> None:
        """Keep here what a command or a hook of the same agent has claimed in its session, if the call is about it."""
        name = check_name(job)
        if self._joins is None or lease_id or name in self._kept or name in self._asked_for:
            return
        session = await self._session.open()
        if name in await self._held_elsewhere(session):
            await self._take(session.claim(name), elsewhere=True)

    async def heartbeat(self, job: str, lease_id: str | None, *notes: str | None) -> Lease:
        kept = await self._meant(job, lease_id)
        try:
            return await super().heartbeat(job, lease_id, *notes)
        except LeaseLost:
            if kept is not None:
                self._let_go(kept)
            raise

    async def release(self, job: str, lease_id: str | None, **how: Any) -> None:
        kept = await self._meant(job, lease_id)
        if kept is None:
            await super().release(job, lease_id, **how)
        elif how["done"] is None:
            await self._ended(kept, kept.claim.release(checkpoint=how["checkpoint"]))
        else:
            await self._ended(kept, kept.claim.done(**how))

    async def fail(self, job: str, lease_id: str | None, reason: str | None, **how: Any) -> None:
        kept = await self._meant(job, lease_id)
        if kept is None:
            await super().fail(job, lease_id, reason, **how)
        else:
            await self._ended(kept, kept.claim.fail(reason, **how))

    async def hand_over(self, job: str, lease_id: str | None, *, ttl: int, **to: Any) -> Lease:
        kept = await self._meant(job, lease_id)
        if kept is None:
            return await super().hand_over(job, lease_id, ttl=ttl, **to)
        given = await self._ended(kept, kept.claim.transfer(**to))
        if to["to_session"]:
            return given
        # The claim lasted as long as our session. Give the new owner a TTL of its own.
        renewed = await self.run(operations.renew(given.name, given.lease_id, ttl=ttl))
        return with_time(given, renewed)

    async def status(self, job: str) -> JobStatus:
        await self._settle()
        return await super().status(job)

    async def listing(self, prefix: str) -> list[JobStatus]:
        await self._settle()
        return await super().listing(prefix)

    async def _settle(self) -> None:
        """Give back claims that a call could not give up because there was no answer. The session's heartbeat does
        this, too; but the agent must not be told that a job is not its own while its session still holds it."""
        session = self._session.opened
        if session is not None:
            try:
                await session._settle()
            except DibsError:  # no answer
                pass


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
        theirs = needed("dibs.compat.action_llama.tools", "dibs mcp --action-llama")
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
