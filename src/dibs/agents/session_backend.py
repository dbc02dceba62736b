"""The backend of a connection that keeps its claims: how an agent ends a claim or hands it over.

A call without a lease id, or with that of a kept claim, ends the kept claim's block. Any other lease id belongs to a
claim made elsewhere, and is handled as over `/mcp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.agents.keeper import ClaimKeeper
from dibs.agents.kept_claim import with_time
from dibs.errors import LeaseLost
from dibs.sdk import operations

if TYPE_CHECKING:
    from dibs.sdk.answers import Lease


class SessionBackend(ClaimKeeper):
    """For one connection."""

    async def heartbeat(
        self, job: str, lease_id: str | None, checkpoint: str | None = None, metadata: str | None = None
    ) -> Lease:
        await self._adopt(job, lease_id)
        kept = self._own(job, lease_id)
        try:
            return await super().heartbeat(job, lease_id, checkpoint, metadata)
        except LeaseLost:
            if kept is not None:
                self._let_go(kept)
            raise

    async def release(
        self,
        job: str,
        lease_id: str | None,
        *,
        done: float | None,
        result: str | None,
        checkpoint: str | None,
    ) -> None:
        await self._adopt(job, lease_id)
        kept = self._own(job, lease_id)
        if kept is None:
            await super().release(job, lease_id, done=done, result=result, checkpoint=checkpoint)
            return
        if done is None:
            await self._ended(kept, kept.claim.release(checkpoint=checkpoint))
        else:
            await self._ended(kept, kept.claim.done(result, done=done, checkpoint=checkpoint))

    async def fail(
        self,
        job: str,
        lease_id: str | None,
        reason: str | None,
        *,
        retry_after: float | None,
        checkpoint: str | None,
    ) -> None:
        await self._adopt(job, lease_id)
        kept = self._own(job, lease_id)
        if kept is None:
            await super().fail(job, lease_id, reason, retry_after=retry_after, checkpoint=checkpoint)
        else:
            failing = kept.claim.fail(reason, retry_after=retry_after, checkpoint=checkpoint)
            await self._ended(kept, failing)

    async def hand_over(
        self,
        job: str,
        lease_id: str | None,
        *,
        to_owner: str | None,
        to_session: str | None,
        ttl: int,
        checkpoint: str | None,
    ) -> Lease:
        await self._adopt(job, lease_id)
        kept = self._own(job, lease_id)
        if kept is None:
            return await super().hand_over(
                job, lease_id, to_owner=to_owner, to_session=to_session, ttl=ttl, checkpoint=checkpoint
            )
        given = await self._ended(
            kept, kept.claim.transfer(to_owner=to_owner, to_session=to_session, checkpoint=checkpoint)
        )
        if to_session:
            return given
        # The claim lasted as long as our session. Give the new owner a TTL of its own.
        renewed = await self.run(operations.renew(given.name, given.lease_id, ttl=ttl))
        return with_time(given, renewed)
