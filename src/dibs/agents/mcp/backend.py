"""The requests of the tools to dibs, for one caller.

Over `/mcp` nothing is remembered between calls, as stateless HTTP requires: each call is proven by a lease id.

Over stdio the claims are kept in one dibs session that lives as long as the connection. An agent that thinks for twenty
minutes keeps its jobs, because the session is renewed here. When the connection ends, the session is ended and its jobs
are released. If this process is killed, the session expires by its TTL, or as soon as another dibs process on the same
machine sees that this process is dead. A lost claim is reported with the next answer, and never claimed again
automatically. A lease id of a claim that was made elsewhere acts on that claim alone, as over `/mcp`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dibs.agents.mcp.tool_answers import YOU
from dibs.base.checkout import current_folder
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, JobHeld, LeaseLost, RequestRefused, Unavailable
from dibs.base.ids import new_id
from dibs.base.jsontext import Document
from dibs.base.logger import log
from dibs.client.flow import Flow, name_in_use
from dibs.client.naming import Naming
from dibs.client.transport import Ask
from dibs.core.names import check_name
from dibs.core.records import EFFECT_BEGUN
from dibs.sdk import operations
from dibs.sdk.answers import Effect, JobStatus, Lease, body_of, effect_of, lease_of
from dibs.sdk.async_claim import on_loop, taken
from dibs.sdk.async_client import JoinableSession
from dibs.sdk.async_transport import LEAVING, AsyncTransport, drive, shielded
from dibs.sdk.claim_state import ClaimEnd, finish_hold, release_at_exit
from dibs.sdk.hold import LeaseHold, SessionLeaseHold
from dibs.sdk.operations import NO_TERMS, ClaimTerms, claim_request
from dibs.wire.codes import NOT_ANY_MORE, row_of_error
from dibs.wire.documents import Reply
from dibs.wire.issue_names import is_plain

FindsSession = Callable[[], Callable[[], str] | None]

T = TypeVar("T")
CLOSE_SECONDS_MAX = 4.0  # clients give a server five seconds to stop
_ODD = re.compile(r"[^\w.@+-]+")
ONE, ANY, ALL = "acquire", "acquire-any", "acquire-all"


class ConnectionSession:
    """The dibs session of one connection: opened with the first claim, opened again after it was lost, and ended with
    the connection. `finds` looks for the agent that the connection belongs to; if there is one, it gives what opens the
    agent's session. The agent's commands and hooks use that, too, so it is not ended."""

    def __init__(self, transport: AsyncTransport, finds: FindsSession = lambda: None) -> None:
        # The client's name, with pid and host to tell two apart.
        self.client: str | None = None
        self.joins: Callable[[], str] | None = None
        self._finds = finds
        self._transport = transport
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[JoinableSession] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def opened(self) -> JoinableSession | None:
        ready = self._ready
        if ready is None or not ready.done() or ready.cancelled() or ready.exception() is not None:
            return None
        return ready.result()

    async def find(self) -> bool:
        """Tell whether this is an agent's connection. Nothing changes while a session is open."""
        if self._ready is None:
            self.joins = await asyncio.to_thread(self._finds)
        return self.joins is not None

    async def open(self, owner: str | None) -> JoinableSession:
        for _ in range(2):
            if self._ready is None:
                self._ready = asyncio.get_running_loop().create_future()
                # The caller that waits for it may be gone.
                self._ready.add_done_callback(lambda done: done.cancelled() or done.exception())
                self._task = asyncio.create_task(self._live(self._ready, owner), name="dibs mcp session")
            session = await asyncio.shield(self._ready)
            try:
                session.check()
                return session
            except LeaseLost:
                await self._over()
        raise Unavailable("The session of this connection was lost, and a new one was lost, too.")

    async def _live(self, ready: asyncio.Future[JoinableSession], owner: str | None) -> None:
        try:
            self.joins = await asyncio.to_thread(self._finds)
            owner = owner or (self.client if self.joins is None else None)
            session = JoinableSession(self._transport, owner, "mcp", self.joins)
            async with session:
                ready.set_result(session)
                await self._closing.wait()
        except LeaseLost as lost:
            log.warning("the session was lost: %s", lost.why)
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            self._ready = None

    async def drop(self) -> None:
        """Leave a session that somebody ended: the next `open` opens another one."""
        if self._task is not None:
            self._task.cancel()
            await self._over()

    async def close(self) -> None:
        self._closing.set()
        await self._over()

    async def _over(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS_MAX)


class ToolBackend:
    """For one caller. With a `session`, claims are kept there until `close`. Without one, a lease id proves each call.
    Raises what the SDK raises: NotClaimed and its subclasses, LeaseLost, DibsError."""

    def __init__(
        self, transport: AsyncTransport, owner: str | None = None, session: ConnectionSession | None = None
    ) -> None:
        self.transport = transport
        self.owner = owner
        self._session = session
        # Only over stdio is the caller's folder known, and with it the repository and its tracker.
        self._names = Naming({}, None) if session is None else Naming(os.environ, current_folder())
        self._kept: dict[str, LeaseHold] = {}
        # Kept claims that the agent had before, by a command, a hook or another connection. They go on after this one.
        self._elsewhere: set[str] = set()
        # Names that a call in progress may claim.
        self._asked_for: set[str] = set()
        # Claims that were lost since the last answer.
        self._lost: list[LeaseLost] = []
        # Jobs of the caller for which somebody began to wait, and how many wait.
        self._wanted: dict[str, int] = {}

    @property
    def keeps(self) -> bool:
        return self._session is not None

    def introduce(self, client: str) -> None:
        """Name the default owner of the connection's own session."""
        if self._session is not None:
            name = _ODD.sub("-", client)[:64].strip("-")
            self._session.client = f"{name or 'mcp'}-{os.getpid()}@{os.uname().nodename}"

    async def close(self) -> None:
        """End the session, and with it all claims. This takes a bounded time: what cannot be ended in time expires."""
        if self._session is None:
            return
        if self._session.joins is not None:  # it goes on, so each claim is given back, as the end of a session would do
            own = [hold for name, hold in self._kept.items() if name not in self._elsewhere]
            over = asyncio.CancelledError()
            ends = [
                asyncio.create_task(drive(self.transport, release_at_exit(hold, left, over), LEAVING))
                for hold in own
                if (left := hold.give_up(hold.leases))
            ]
            if ends:
                await asyncio.wait(ends, timeout=CLOSE_SECONDS_MAX)
        await self._session.close()

    # Names

    async def one_name(self, job: str) -> str:
        """The job's one name; or the name as it is written, if a job is held under that."""
        return await self.run(name_in_use((await self.one_names([job]))[0], job))

    async def one_names(self, jobs: Sequence[str]) -> list[str]:
        """The jobs' one names. This may run git, which must not block the loop."""
        if all(is_plain(job) for job in jobs):
            return list(jobs)
        return await asyncio.to_thread(self._names.of_all, jobs)

    async def run(self, flow: Flow[T]) -> T:
        return await drive(self.transport, flow)

    # Claiming

    async def claim(self, verb: str, jobs: Sequence[str], asked: ClaimTerms = NO_TERMS) -> tuple[Sequence[Lease], bool]:
        """Claim one job, or any or all of several. Returns the leases, and whether they were ours before."""
        if self._session is None:
            return (await self._taken(verb, jobs, asked)).leases, False
        names = [check_name(job) for job in jobs]
        names = list(dict.fromkeys(names)) if verb == ALL else names
        kept = self._kept.get(names[0]) if verb == ONE else None
        if kept is not None:
            renewed = await self._still_ours(kept)
            if renewed is not None:
                return [_with_time(kept.leases[0], renewed)], True
        free = [name for name in names if name not in self._asked_for and (verb == ALL or name not in self._kept)]
        if not free or (verb == ALL and free != names):
            raise _already_claiming(verb, names)
        return await self._claimed(self._session, verb, free, asked), False

    async def _claimed(
        self, session: ConnectionSession, verb: str, names: Sequence[str], asked: ClaimTerms
    ) -> Sequence[Lease]:
        """Claim in the session of this connection, and in another one if somebody ended it."""
        self._asked_for.update(names)
        try:
            try:
                return await self._keep(await session.open(self.owner), verb, names, asked)
            except RequestRefused as error:
                if row_of_error(error).kind != NOT_ANY_MORE:
                    raise
            await self._look()  # notes the claims that were lost with it
            await session.drop()
            return await self._keep(await session.open(self.owner), verb, names, asked)
        finally:
            self._asked_for.difference_update(names)

    async def _keep(
        self, session: JoinableSession, verb: str, names: Sequence[str], asked: ClaimTerms
    ) -> Sequence[Lease]:
        before = set() if verb == ANY else await self._held_elsewhere(session)
        hold = await self._taken(verb, names, asked, session)
        holds: list[LeaseHold] = [hold]
        if verb == ALL:  # claimed together, they are released one by one
            had = session.hold.had(hold.leases)
            fresh = [lease for lease in hold.leases if lease.name not in had]
            holds = [SessionLeaseHold((lease,), steady_ms(), session.hold) for lease in fresh]
        for each in holds:
            self._kept[each.name] = each
            each.listen(on_loop(partial(self._learned, each)))
        self._elsewhere.update(before.intersection([each.name for each in holds]))
        return hold.leases

    async def _taken(
        self, verb: str, names: Sequence[str], asked: ClaimTerms, session: JoinableSession | None = None
    ) -> LeaseHold:
        terms, tracker = asked.replace(owner=asked.owner or self.owner), None
        if session is not None:
            terms = terms.replace(owner=terms.owner or session.owner, session_id=session.session_id)
            tracker = self._names
        request = claim_request(verb, names, terms, slice_seconds=self.transport.slice_seconds, tracker=tracker)
        within = None if session is None or verb == ALL else session.hold
        return await taken(self.transport, request, within)

    async def _held_elsewhere(self, session: JoinableSession) -> set[str]:
        """The names that a command, a hook or another connection of the same agent may have claimed in its session."""
        if session.joins is None:
            return set()
        return {name for name, _ in await self.run(_holds_of(session.session_id))}

    # The claims of this connection

    async def _meant(self, job: str, lease_id: str | None) -> LeaseHold | None:
        """The kept claim that a call is about, also one that a command or hook of the agent made in its session."""
        session, name = self._session, check_name(job)
        is_known = name in self._kept or name in self._asked_for
        if session is not None and not lease_id and not is_known and await session.find():
            opened = await session.open(self.owner)
            if name in await self._held_elsewhere(opened):
                await self._keep(opened, ONE, [name], NO_TERMS)
        return self._own(job, lease_id)

    def _own(self, job: str, lease_id: str | None) -> LeaseHold | None:
        """The kept claim on the job, unless the call gives another lease id."""
        kept = self._kept.get(check_name(job))
        return None if kept is None or (lease_id and lease_id.lower() != kept.leases[0].lease_id) else kept

    def has(self, job: str, lease_id: str | None = None) -> bool:
        """Tell whether this connection keeps a claim on the job, or the claim with this lease id."""
        return self._own(job, lease_id) is not None

    def proof(self, job: str, lease_id: str | None) -> str:
        if lease_id:
            return lease_id
        kept = self._own(job, None)
        if kept is not None:
            return kept.leases[0].lease_id
        if self.keeps:
            raise LeaseLost(job, 0, "this connection has not claimed it, or has lost or released it since.")
        raise InvalidInput(f"lease_id is missing: give the one that you got when you claimed {job}.")

    def _learned(self, kept: LeaseHold, lost: LeaseLost) -> None:
        """Note a loss, to be reported once. A call that is ending the claim reports it itself."""
        if self._forget(kept) and not kept.ending:
            self._lost.append(lost)

    def _forget(self, kept: LeaseHold) -> bool:
        """Keep a claim no more. False if that happened before."""
        if self._kept.get(kept.name) is not kept:
            return False
        del self._kept[kept.name]
        self._elsewhere.discard(kept.name)
        kept.let_go()
        return True

    async def _still_ours(self, kept: LeaseHold) -> Lease | None:
        """Renew a claim. None if it is lost; the loss is reported with the next answer."""
        lease = kept.leases[0]
        try:
            return self._heard(await self.run(operations.renew(lease.name, lease.lease_id)))
        except LeaseLost as lost:
            self._learned(kept, LeaseLost(lease.name, lease.fencing_token, lost.why))
            return None

    # Working on a job, and ending the work

    async def heartbeat(
        self,
        job: str,
        lease_id: str | None,
        step: Document | None = None,
        checkpoint: str | None = None,
        metadata: str | None = None,
    ) -> tuple[Lease, Effect | None]:
        """Renew a claim, with progress and how a step stands (`key`, `status`, `result`). An agent keeps no ids: each
        beginning is a try of its own, and an end is that of the try under its lease."""
        kept = await self._meant(job, lease_id)
        proof = self.proof(job, lease_id)
        try:
            if step is None:
                renewal = operations.renew(job, proof, checkpoint=checkpoint, metadata=metadata)
                return self._heard(await self.run(renewal)), None
            effect_id = new_id() if step["status"] == EFFECT_BEGUN else None
            note = operations.note_effect(
                job, proof, effect_id=effect_id, checkpoint=checkpoint, metadata=metadata, **step
            )
            body = await self.run(note)
            return self._heard(lease_of(body, job)), effect_of(body["effect"])
        except LeaseLost:
            if kept is not None:
                self._forget(kept)
            raise

    def _heard(self, lease: Lease) -> Lease:
        if lease.new_waiters:
            self._wanted[lease.name] = lease.waiting
        return lease

    async def release(self, job: str, lease_id: str | None, **how: Any) -> None:
        """`how`: done, result and checkpoint, as `operations.release` takes them."""
        await self._end(job, lease_id, lambda name, proof: operations.release(name, proof, **how))

    async def fail(self, job: str, lease_id: str | None, reason: str | None, **how: Any) -> None:
        """`how`: retry_after and checkpoint, as `operations.fail` takes them."""
        await self._end(job, lease_id, lambda name, proof: operations.fail(name, proof, reason, **how))

    async def hand_over(self, job: str, lease_id: str | None, *, ttl: int, **to: Any) -> Lease:
        """`to`: to_owner, to_session and checkpoint, as `operations.transfer` takes them."""
        fresh = new_id()  # the same for each try: a repeat is known by it
        # In a session it lasts as long as the session, ours or the new owner's.
        is_kept = await self._meant(job, lease_id) is not None
        lasts = None if is_kept or to["to_session"] else ttl
        given = await self._end(
            job, lease_id, lambda name, proof: operations.transfer(name, proof, ttl=lasts, fresh_lease_id=fresh, **to)
        )
        if not is_kept or to["to_session"]:
            return given
        return _with_time(given, await self.run(operations.renew(given.name, given.lease_id, ttl=ttl)))

    async def _end(self, job: str, lease_id: str | None, flow: Callable[[str, str], Flow[T]]) -> T:
        """End a claim. A kept one stays if there was no answer, so that the agent can try again."""
        kept = await self._meant(job, lease_id)
        if kept is None:
            proof = self.proof(job, lease_id)
            return await shielded(lambda: self.run(flow(job, proof)))

        def end() -> Flow[list[T]]:
            return finish_hold(kept, kept.leases, ClaimEnd(flow))

        try:
            (result,) = await shielded(lambda: drive(self.transport, end(), LEAVING))
        except LeaseLost:
            self._forget(kept)
            raise
        self._forget(kept)
        return result

    # Looking

    async def status(self, job: str) -> JobStatus:
        await self._settle()
        return await self.run(operations.inspect(job))

    async def listing(self, prefix: str) -> list[JobStatus]:
        await self._settle()
        return await self.run(operations.list_jobs(prefix))

    @property
    def _opened(self) -> JoinableSession | None:
        return None if self._session is None else self._session.opened

    async def _settle(self) -> None:
        """Say again what nobody answered, such as that the claim of a call given up is withdrawn. The session's
        heartbeat does this, too; but the agent must not be told that a job is not its own while its session still holds
        it."""
        if self._opened is not None:
            with suppress(DibsError):  # no answer
                await self.run(self._opened.hold.say_again())

    async def wanted(self) -> dict[str, int]:
        """Jobs of the caller for which somebody began to wait, and how many wait. Its call is a sign of life."""
        if self._opened is not None:
            with suppress(DibsError):  # no answer: it is said another time
                self._wanted |= await self.run(_kept_active(self._opened.session_id))
        found, self._wanted = self._wanted, {}
        return found

    async def losses(self) -> list[LeaseLost]:
        await self._look()
        found, self._lost = self._lost, []
        return found

    async def _look(self) -> None:
        """Check that all kept claims are still ours. The session's heartbeat would find a loss only later."""
        kept = [each for each in self._kept.values() if not each.ending]
        if not kept or self._opened is None:
            return
        try:
            held = await self.run(_holds_of(self._opened.session_id))
            for each in kept:
                is_held = (each.name, each.fencing_token) in held
                if not is_held and not each.ending and self._kept.get(each.name) is each:
                    await self._still_ours(each)  # the answer says why it is lost
        except DibsError:  # no answer: a loss is noticed by the heartbeat
            return


def _holds_of(session_id: str) -> Flow[set[tuple[str, int]]]:
    """Return what a session holds, by name and fencing token; nothing if it has ended."""
    reply: Reply = yield Ask("session-show", session_id, {})
    if reply.status in (404, 410):
        return set()
    return {(each["name"], each["fencing_token"]) for each in body_of(reply).get("holds", ())}


def _kept_active(session_id: str) -> Flow[dict[str, int]]:
    """Renew a session because its agent is at work. Returns the jobs for which somebody began to wait."""
    reply: Reply = yield Ask("session-keep", session_id, {"active": True})
    body = (reply.body or {}) if reply.status < 300 else {}
    return {each["name"]: each["waiting"] for each in body.get("wanted", ())}


def _with_time(given: Lease, renewed: Lease) -> Lease:
    return replace(
        given,
        remaining_ms=renewed.remaining_ms,
        expires_at=renewed.expires_at,
        ends_at=renewed.ends_at,
        ends_in_ms=renewed.ends_in_ms,
    )


def _already_claiming(verb: str, names: Sequence[str]) -> DibsError:
    if verb != ANY:
        which = names[0] if verb == ONE else "one of these jobs"
        return InvalidInput(f"Another call of yours is claiming {which} now: wait for its answer.")
    held = [{"name": name, "status": "held", "owner": YOU} for name in names]
    return JobHeld("You already have, or are claiming, each of these jobs.", {"refused": held})
