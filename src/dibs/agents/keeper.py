"""The keeper: one connection's claims, in one dibs session that lives as long as the connection.

An agent that thinks for twenty minutes keeps its jobs, because the session is renewed here. When the agent's
connection ends, the session is ended and its jobs are released. If this process is killed, the session expires by its
TTL, or as soon as another dibs process on the same machine sees that this process is dead.

Each claim is an `async with` block in a task of its own, so a loss ends only that block. A loss is reported with the
next answer. Nothing is claimed again automatically.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.agents.backend import TIMEOUT_MS, ToolBackend
from dibs.agents.words import YOU
from dibs.base.checkout import current_folder
from dibs.base.errors import DibsError, InvalidInput, JobHeld, LeaseLost, RequestRefused, Unavailable
from dibs.client.door import OVER_CODES, Ask
from dibs.client.naming import Naming
from dibs.core.names import check_name
from dibs.sdk import operations
from dibs.sdk.answers import body_of
from dibs.sdk.async_guard import shielded
from dibs.sdk.async_session import AsyncSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence

    from dibs.client.queueing import Flow
    from dibs.sdk.answers import Lease
    from dibs.sdk.async_claim import AsyncClaim
    from dibs.sdk.async_doors import AsyncDoor
    from dibs.wire.documents import Reply


# One claim that a connection keeps, and helper functions for it.

T = TypeVar("T")


class KeptClaim:
    """A claim whose block is open. `elsewhere`: the agent had it before, by a command, a hook or another connection."""

    def __init__(self, claim: AsyncClaim, *, elsewhere: bool = False) -> None:
        self.claim = claim
        self.elsewhere = elsewhere
        self.over = asyncio.Event()  # the agent has released it
        self.entered: asyncio.Future[None] = ignore_failure(asyncio.get_running_loop().create_future())
        self.told = False  # the agent was told that it is lost
        self.ending = False  # the agent is releasing it


def holds_of(session_id: str) -> Flow[set[tuple[str, int]]]:
    """What a session holds, by name and fencing token; nothing if it has ended."""
    reply: Reply = yield Ask("session-show", session_id, {})
    if reply.status in (404, 410):
        return set()
    return {(each["name"], each["fencing_token"]) for each in body_of(reply).get("holds", ())}


def kept_active(session_id: str) -> Flow[dict[str, int]]:
    """Renew a session because its agent is at work. Returns the jobs for which somebody began to wait."""
    reply: Reply = yield Ask("session-keep", session_id, {"active": True})
    body = (reply.body or {}) if reply.status < 300 else {}
    return {each["name"]: each["waiting"] for each in body.get("wanted", ())}


def with_time(given: Lease, renewed: Lease) -> Lease:
    return replace(given, remaining_ms=renewed.remaining_ms, expires_at=renewed.expires_at)


def ignore_failure(future: asyncio.Future[T]) -> asyncio.Future[T]:
    """Mark the future's exception as retrieved, because the caller that would await it may be gone."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return future


async def wait_for_either(one: asyncio.Event, other: asyncio.Event) -> None:
    waits = [asyncio.ensure_future(one.wait()), asyncio.ensure_future(other.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def already_claiming(verb: str, names: Sequence[str]) -> DibsError:
    if verb == "acquire":
        return InvalidInput(f"Another call of yours is claiming {names[0]} now: wait for its answer.")
    held = [{"name": name, "status": "held", "owner": YOU} for name in names]
    return JobHeld("You already have, or are claiming, each of these jobs.", {"refused": held})


# The dibs session of one connection: opened with the first claim, opened again after it was lost, and ended with the
# connection. A session that the agent's commands and hooks use, too, is not ended.

log = logging.getLogger("dibs")
CLOSE_SECONDS_MAX = 4.0  # the MCP SDK gives a server five seconds to stop


class ConnectionSession:
    """`make` gives a session that is not open yet. `closing` is set when the connection ends. `claims` are the tasks
    that hold the claims of this connection."""

    def __init__(
        self,
        make: Callable[[], AsyncSession],
        closing: asyncio.Event,
        claims: Collection[asyncio.Task[None]],
    ) -> None:
        self._make = make
        self._closing = closing
        self._claims = claims
        self._ready: asyncio.Future[AsyncSession] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def opened(self) -> AsyncSession | None:
        """The session, if it is open."""
        ready = self._ready
        if ready is None or not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [] if self._task is None else [self._task]

    async def open(self) -> AsyncSession:
        for _ in range(2):
            if self._ready is None:
                self._ready = ignore_failure(asyncio.get_running_loop().create_future())
                self._task = asyncio.create_task(self._live(self._ready), name="dibs mcp session")
            session = await asyncio.shield(self._ready)
            try:
                session.check()
                return session
            except LeaseLost:
                await asyncio.wait(self.tasks, timeout=CLOSE_SECONDS_MAX)
        raise Unavailable("The session of this connection was lost, and a new one was lost, too.")

    async def _live(self, ready: asyncio.Future[AsyncSession]) -> None:
        try:
            session = self._make()
            async with session:
                ready.set_result(session)
                await self._closing.wait()
                if session._joins is not None and self._claims:  # it goes on, so each claim is released
                    await asyncio.wait(set(self._claims), timeout=CLOSE_SECONDS_MAX)
        except LeaseLost as lost:
            log.warning("the session was lost: %s", lost.why)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._ready = None

    async def drop(self) -> None:
        """Somebody ended it: the next `open` opens another one."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS_MAX)

    async def over(self) -> None:
        if self._task is not None:
            await asyncio.shield(self._task)


class ClaimKeeper(ToolBackend):
    """The claims of one connection. `close` releases them all. How an agent ends a claim is in
    `session_backend.py`."""

    keeps = True

    def __init__(
        self, door: AsyncDoor, owner: str | None = None, joins: Callable[[], str] | None = None
    ) -> None:
        """`joins` gives the session of the agent, where its harness names it: its commands and hooks use it, too."""
        super().__init__(door, owner, Naming(os.environ, current_folder()))
        self._tracker = self._names
        self._tasks: set[asyncio.Task[None]] = set()  # each task claims, holds or releases one claim
        self._closing = asyncio.Event()
        self._session = ConnectionSession(self._new_session, self._closing, self._tasks)
        self._joins = joins
        self._kept: dict[str, KeptClaim] = {}
        self._asked_for: set[str] = set()  # names that a call in progress may claim
        self._lost: list[LeaseLost] = []

    def _new_session(self) -> AsyncSession:
        session = AsyncSession(self.door, TIMEOUT_MS, self.owner, None, "mcp", None, self._joins)
        session._tracker = self._tracker
        return session

    async def close(self) -> None:
        """End the session, and with it all claims. This takes a bounded time: what cannot be ended in time expires."""
        self._closing.set()
        ends = [*self._tasks, *self._session.tasks]
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_SECONDS_MAX)

    # Claiming

    async def claim(self, verb: str, jobs: Sequence[str], **asked: Any) -> tuple[Lease, bool]:
        names = [check_name(job) for job in jobs]
        if verb == "acquire" and names[0] in self._kept:
            kept = self._kept[names[0]]
            renewed = await self._still_ours(kept)
            if renewed is not None:
                return with_time(kept.claim.leases[0], renewed), True
        free = [name for name in names if name not in self._kept and name not in self._asked_for]
        if not free:
            raise already_claiming(verb, names)
        asked["owner"] = asked.get("owner") or self.owner
        with self._asking_for(free):
            return await self._in_session(lambda session: self._claim(session, verb, free, asked)), False

    async def claim_all(self, jobs: Sequence[str], **asked: Any) -> Sequence[Lease]:
        """Claimed in one step, and then kept one by one, because an agent releases them one by one."""
        names = list(dict.fromkeys([check_name(job) for job in jobs]))
        if any(name in self._asked_for for name in names):
            raise InvalidInput(
                "Another call of yours is claiming one of these jobs now: wait for its answer."
            )
        with self._asking_for(names):
            return await self._in_session(lambda session: self._claim_all(session, names, asked))

    async def _claim_all(
        self, session: AsyncSession, names: Sequence[str], asked: dict[str, Any]
    ) -> Sequence[Lease]:
        asked = {**asked, "session_id": session.session_id, "tracker": self._tracker}
        before = await self._held_elsewhere(session)
        leases = await super().claim_all(names, **asked)
        fresh = [lease for lease in leases if lease.name not in self._kept]
        try:
            for lease in fresh:
                claim = session.claim(lease.name, owner=lease.owner)
                await self._take(claim, elsewhere=lease.name in before)
        except BaseException:
            await shielded(lambda: self._give_back([each for each in fresh if each.name not in before]))
            raise
        return leases

    @contextmanager
    def _asking_for(self, names: Sequence[str]) -> Iterator[None]:
        self._asked_for.update(names)
        try:
            yield
        finally:
            self._asked_for.difference_update(names)

    async def _in_session(self, claim: Callable[[AsyncSession], Awaitable[T]]) -> T:
        """Claim in the session of this connection, and in another one if somebody ended it."""
        try:
            return await claim(await self._session.open())
        except RequestRefused as error:
            if error.code not in OVER_CODES:
                raise
        await self._look()  # notes the claims that were lost with it
        await self._session.drop()
        return await claim(await self._session.open())

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            try:
                await self.run(operations.give_back(lease.name, lease.lease_id))
            except DibsError:  # it ends with the session
                pass

    async def _claim(
        self, session: AsyncSession, verb: str, names: Sequence[str], asked: dict[str, Any]
    ) -> Lease:
        claim = session.claim(names[0], **asked) if verb == "acquire" else session.claim_any(names, **asked)
        elsewhere = verb == "acquire" and names[0] in await self._held_elsewhere(session)
        return (await self._take(claim, elsewhere=elsewhere)).claim.leases[0]

    async def _held_elsewhere(self, session: AsyncSession) -> set[str]:
        """What a command, a hook or another connection of the same agent may have claimed in its session before."""
        return (
            set()
            if self._joins is None
            else {name for name, _ in await self.run(holds_of(session.session_id))}
        )

    async def _take(self, claim: AsyncClaim, *, elsewhere: bool = False) -> KeptClaim:
        kept = KeptClaim(claim, elsewhere=elsewhere)
        task = asyncio.create_task(self._hold(kept), name="dibs mcp claim")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.shield(kept.entered)
        except asyncio.CancelledError:
            # The caller is gone or has cancelled. Leaving the block releases the claim.
            kept.over.set()
            if not kept.entered.done():
                task.cancel()
            raise
        return kept

    async def _hold(self, kept: KeptClaim) -> None:
        name = ""
        try:
            async with kept.claim:
                name = kept.claim.name
                self._kept[name] = kept
                if not kept.entered.done():
                    kept.entered.set_result(None)
                await wait_for_either(kept.over, self._closing)
                if self._closing.is_set() and kept.elsewhere and not kept.over.is_set():
                    kept.claim._hold.let_go()  # it was there before this connection, and goes on after it
                elif self._closing.is_set() and self._joins is None:
                    await self._session.over()  # ending the session releases all claims in one step
        except LeaseLost as lost:
            if not kept.entered.done():
                kept.entered.set_exception(lost)
            elif not self._closing.is_set():
                self._tell(kept, lost)
        except asyncio.CancelledError:
            kept.entered.cancel()
            raise
        except Exception as error:
            if kept.entered.done():
                log.warning("%s could not be released: %s", name, error)
            else:
                kept.entered.set_exception(error)
        finally:
            if self._kept.get(name) is kept:
                del self._kept[name]

    # The claims of this connection

    def proof(self, job: str, lease_id: str | None) -> str:
        if lease_id:
            return lease_id
        kept = self._own(job, None)
        if kept is None:
            raise LeaseLost(job, 0, "this connection has not claimed it, or has lost or released it since.")
        return kept.claim.lease_id

    def _own(self, job: str, lease_id: str | None) -> KeptClaim | None:
        """The kept claim that a call refers to: the one on the job, unless the call gives another lease id."""
        kept = self._kept.get(check_name(job))
        return None if kept is None or (lease_id and lease_id.lower() != kept.claim.lease_id) else kept

    async def _ended(self, kept: KeptClaim, end: Awaitable[T]) -> T:
        """The agent ends a claim. Its block ends if that succeeded, or if the claim turned out to be lost."""
        kept.ending = True
        try:
            result = await end
        except LeaseLost:
            self._let_go(kept)
            raise
        finally:
            kept.ending = False
        self._let_go(kept)
        return result

    def _let_go(self, kept: KeptClaim) -> None:
        """End the block of a claim, without telling the agent of a loss."""
        kept.told = True
        kept.over.set()
        if self._kept.get(kept.claim.name) is kept:
            del self._kept[kept.claim.name]

    def has(self, job: str, lease_id: str | None = None) -> bool:
        return self._own(job, lease_id) is not None

    async def wanted(self) -> dict[str, int]:
        """The agent called a tool, which is a sign of life."""
        session = self._session.opened
        if session is not None:
            try:
                self._wanted |= await self.run(kept_active(session.session_id))
            except DibsError:  # no answer: it is said another time
                pass
        return await super().wanted()

    async def losses(self) -> list[LeaseLost]:
        await self._look()
        found, self._lost = self._lost, []
        return found

    async def _look(self) -> None:
        """Check that all kept claims are still ours. The session's heartbeat would find a loss only later."""
        kept = [each for each in self._kept.values() if not each.ending]
        session = self._session.opened
        if not kept or session is None:
            return
        try:
            held = await self.run(holds_of(session.session_id))
            for each in kept:
                lease = each.claim.leases[0]
                if (lease.name, lease.fencing_token) not in held and not (each.ending or each.over.is_set()):
                    await self._still_ours(each)  # it is not; this finds out why
        except DibsError:  # no answer: a loss is noticed by the heartbeat
            return

    async def _still_ours(self, kept: KeptClaim) -> Lease | None:
        """Renew a claim. None if it is lost; the loss is reported with the next answer."""
        lease = kept.claim.leases[0]
        try:
            return self._heard(await self.run(operations.renew(lease.name, lease.lease_id)))
        except LeaseLost as lost:
            self._tell(kept, LeaseLost(lease.name, lease.fencing_token, lost.why))
            self._let_go(kept)
            return None

    def _tell(self, kept: KeptClaim, lost: LeaseLost) -> None:
        """Note a loss, to be reported once, with the next answer."""
        if not kept.told:
            kept.told = True
            self._lost.append(lost)
