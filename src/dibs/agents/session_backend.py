"""The backend of a connection that keeps its claims: how an agent ends a claim, hands it over, or looks at it.

A call without a lease id, or with that of a kept claim, ends the kept claim's block. Any other lease id belongs to a
claim made elsewhere, and is handled as over `/mcp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.agents.keeper import ClaimKeeper
from dibs.agents.kept_claim import with_time
from dibs.base.errors import DibsError, LeaseLost
from dibs.core.names import check_name
from dibs.sdk import operations

if TYPE_CHECKING:
    from dibs.agents.kept_claim import KeptClaim
    from dibs.sdk.answers import JobStatus, Lease


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
