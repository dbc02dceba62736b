"""What the tools ask of dibs. Each call is proven by a lease id, and nothing is remembered between calls, as stateless
HTTP requires. `session_backend.SessionBackend` remembers claims."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.errors import InvalidInput, LeaseLost
from dibs.client.naming import Naming
from dibs.client.queueing import name_in_use
from dibs.core.references import is_plain
from dibs.sdk import operations
from dibs.sdk.async_claim import taken
from dibs.sdk.async_doors import drive
from dibs.sdk.async_guard import shielded
from dibs.sdk.claims import TIMEOUT_SECONDS
from dibs.sdk.operations import ClaimRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dibs.client.queueing import Flow
    from dibs.sdk.answers import JobEvent, JobStatus, Lease
    from dibs.sdk.async_doors import AsyncDoor

T = TypeVar("T")
TIMEOUT_MS = round(TIMEOUT_SECONDS * 1000)


class ToolBackend:
    """For one caller. Raises what the SDK raises: NotClaimed and its subclasses, LeaseLost, DibsError."""

    keeps = False  # whether this backend renews its claims

    def __init__(self, door: AsyncDoor, owner: str | None = None, names: Naming | None = None) -> None:
        self.door = door
        self.owner = owner
        self._names = names or Naming({}, None)  # without a folder no clone is known
        self._wanted: dict[
            str, int
        ] = {}  # jobs of the caller for which somebody began to wait, and how many wait

    async def one_name(self, job: str) -> str:
        """The job's one name, or the name as it is written if it is in use so."""
        return await self.run(name_in_use((await self.one_names([job]))[0], job))

    async def one_names(self, jobs: Sequence[str]) -> list[str]:
        """The jobs' one names. This may run git, which must not block the loop."""
        if all(is_plain(job) for job in jobs):
            return list(jobs)
        return await asyncio.to_thread(self._names.of_all, jobs)

    async def run(self, flow: Flow[T]) -> T:
        return await drive(self.door, flow, TIMEOUT_MS)

    async def claim(self, verb: str, jobs: Sequence[str], **asked: Any) -> tuple[Lease, bool]:
        """Returns the lease, and whether it was ours before."""
        asked["owner"] = asked.get("owner") or self.owner
        wish = ClaimRequest(verb, jobs, slice_seconds=self.door.slice_seconds, **asked)
        return (await taken(self.door, wish, TIMEOUT_MS, None)).leases[0], False

    async def claim_all(self, jobs: Sequence[str], **asked: Any) -> Sequence[Lease]:
        """Claim all of the jobs or none."""
        asked["owner"] = asked.get("owner") or self.owner
        wish = ClaimRequest("acquire-all", jobs, slice_seconds=self.door.slice_seconds, **asked)
        return (await taken(self.door, wish, TIMEOUT_MS, None)).leases

    async def heartbeat(
        self, job: str, lease_id: str | None, checkpoint: str | None = None, metadata: str | None = None
    ) -> Lease:
        proof = self.proof(job, lease_id)
        return self._heard(
            await self.run(operations.renew(job, proof, checkpoint=checkpoint, metadata=metadata))
        )

    def _heard(self, lease: Lease) -> Lease:
        if lease.new_waiters:
            self._wanted[lease.name] = lease.waiting
        return lease

    async def release(
        self,
        job: str,
        lease_id: str | None,
        *,
        done: float | None,
        result: str | None,
        checkpoint: str | None,
    ) -> None:
        proof = self.proof(job, lease_id)
        await shielded(
            lambda: self.run(operations.release(job, proof, done=done, result=result, checkpoint=checkpoint))
        )

    async def fail(
        self,
        job: str,
        lease_id: str | None,
        reason: str | None,
        *,
        retry_after: float | None,
        checkpoint: str | None,
    ) -> None:
        proof = self.proof(job, lease_id)
        flow = operations.fail
        await shielded(
            lambda: self.run(flow(job, proof, reason, retry_after=retry_after, checkpoint=checkpoint))
        )

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
        proof = self.proof(job, lease_id)
        return await shielded(
            lambda: self.run(
                operations.transfer(
                    job,
                    proof,
                    to_owner=to_owner,
                    to_session=to_session,
                    ttl=None if to_session else ttl,  # in a session it lasts as long as the session
                    checkpoint=checkpoint,
                )
            )
        )

    async def status(self, job: str) -> JobStatus:
        return await self.run(operations.inspect(job))

    async def listing(self, prefix: str) -> list[JobStatus]:
        return await self.run(operations.list_jobs(prefix))

    async def history(self, job: str, limit: int) -> list[JobEvent]:
        return await self.run(operations.history(job, limit))

    def proof(self, job: str, lease_id: str | None) -> str:
        """The lease id that proves the claim on a job."""
        if not lease_id:
            raise InvalidInput(f"lease_id is missing: give the one that you got when you claimed {job}.")
        return lease_id

    def has(self, job: str, lease_id: str | None = None) -> bool:
        """Whether this connection keeps a claim on the job, or the claim with this lease id."""
        return False

    async def wanted(self) -> dict[str, int]:
        """Jobs of the caller for which somebody began to wait since the last call, and how many wait for each."""
        found, self._wanted = self._wanted, {}
        return found

    async def losses(self) -> list[LeaseLost]:
        """The claims lost since the last call."""
        return []
