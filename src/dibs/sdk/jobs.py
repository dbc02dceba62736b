"""The job functions: plain calls for programs that keep the lease id and send heartbeats themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dibs.sdk.default import default_client
from dibs.sdk.parameters import explained

if TYPE_CHECKING:
    from dibs.core.durations import Duration
    from dibs.sdk.answers import JobStatus, Lease


@explained
def claim_job(job_id: str, owner: str, metadata: str | None = None, ttl: Duration = 120) -> Lease:
    """Claim a job for `ttl` seconds from the last heartbeat. Raises JobHeld (with the owner), JobDone, … …"""
    return default_client().acquire(job_id, owner=owner, metadata=metadata, ttl=ttl)


@explained
def heartbeat_job(job_id: str, lease_id: str, checkpoint: str | None = None) -> Lease:
    """Renew the lease. Raises LeaseLost if the job is not yours any more: stop the work."""
    return default_client().renew(job_id, lease_id, checkpoint=checkpoint)


@explained
def release_job(
    job_id: str, lease_id: str, done: Duration | bool | None = None, result: str | None = None
) -> None:
    """Release a job; with `done`, it is marked as done for that many seconds."""
    default_client().release(job_id, lease_id, done=done, result=result)


@explained
def fail_job(
    job_id: str, lease_id: str, reason: str | None = None, retry_after: Duration | None = None
) -> None:
    """Release a job as failed: it counts as an attempt, and nobody gets it for `retry_after`."""
    default_client().fail(job_id, lease_id, reason, retry_after=retry_after)


@explained
def get_job_owner(job_id: str) -> str | None:
    """The owner of a job, or None."""
    status = default_client().owner(job_id)
    return status.owner if status.held else None


@explained
def list_claimed_jobs(prefix: str | None = None) -> list[JobStatus]:
    """All jobs with that prefix that are held."""
    return default_client().list(prefix)
