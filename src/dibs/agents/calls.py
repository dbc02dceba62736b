"""What each tool does: asks the backend, and says the answer in words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from dibs.agents import arguments, words
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, LeaseLost, NotClaimed

if TYPE_CHECKING:
    from dibs.agents import answers
    from dibs.agents.backend import ToolBackend

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 2_000


async def claim_job(backend: ToolBackend, asked: arguments.ClaimJob) -> answers.ClaimAnswer:
    wait = asked.wait_seconds or None
    return await _claim(backend, "acquire", [asked.job], asked, wait=wait)


async def claim_any_job(backend: ToolBackend, asked: arguments.ClaimAnyJob) -> answers.ClaimAnswer:
    """Waits by asking again: a place in the line of each job would hold up everybody behind it."""
    until_ms = steady_ms() + asked.wait_seconds * 1000
    pause_ms = PAUSE_MS_MIN
    while True:
        answer = await _claim(backend, "acquire-any", asked.jobs, asked)
        left_ms = until_ms - steady_ms()
        if answer.claimed or answer.status not in ("held", "delayed") or left_ms <= 0:
            return answer
        await asyncio.sleep(min(pause_ms, left_ms) / 1000)
        pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)


async def claim_all_jobs(backend: ToolBackend, asked: arguments.ClaimAllJobs) -> answers.ClaimAnswer:
    jobs = list(dict.fromkeys(asked.jobs))
    try:
        leases = await backend.claim_all(jobs, wait=asked.wait_seconds or None, **_terms(asked))
    except NotClaimed as error:
        return words.not_claimed(error, None)
    return words.all_claimed(leases, kept=backend.keeps)


async def _claim(
    backend: ToolBackend,
    verb: str,
    jobs: list[str],
    asked: arguments.ClaimJob | arguments.ClaimAnyJob,
    **more: Any,
) -> answers.ClaimAnswer:
    try:
        lease, again = await backend.claim(verb, jobs, **_terms(asked), **more)
    except NotClaimed as error:
        return words.not_claimed(error, jobs[0] if verb == "acquire" else None)
    return words.claimed(lease, kept=backend.keeps, again=again)


def _terms(asked: arguments.ClaimJob | arguments.ClaimAnyJob | arguments.ClaimAllJobs) -> dict[str, Any]:
    """What all claims have."""
    terms: dict[str, Any] = {"owner": asked.owner, "metadata": asked.metadata, "again": asked.again}
    if isinstance(asked, arguments.LooseClaimJob | arguments.LooseClaimAnyJob | arguments.LooseClaimAllJobs):
        terms["ttl"] = asked.ttl_seconds
        if asked.request_key is not None:
            terms["request_key"] = asked.request_key
    return terms


async def heartbeat_job(backend: ToolBackend, asked: arguments.HeartbeatJob) -> answers.HeartbeatAnswer:
    try:
        lease = await backend.heartbeat(asked.job, asked.lease_id, asked.checkpoint, asked.metadata)
    except LeaseLost as lost:
        return words.heartbeat_lost(lost, asked.job)
    return words.renewed(lease, asked.checkpoint, kept=backend.has(asked.job, asked.lease_id))


async def release_job(backend: ToolBackend, asked: arguments.ReleaseJob) -> answers.ReleaseAnswer:
    if asked.result is not None and not asked.done:
        raise InvalidInput("result needs done=true: it is shown to later claims.")
    if asked.failed and asked.done:
        raise InvalidInput("Use failed=true or done=true, not both.")
    if not asked.failed and (asked.reason is not None or asked.retry_after_seconds is not None):
        raise InvalidInput("reason and retry_after_seconds need failed=true.")
    try:
        await _let_go(backend, asked)
    except LeaseLost as lost:
        return words.release_lost(lost, asked.job)
    return words.released(
        asked.job, done=asked.done, failed=asked.failed, retry_after=asked.retry_after_seconds
    )


async def _let_go(backend: ToolBackend, asked: arguments.ReleaseJob) -> None:
    if asked.failed:
        retry_after = asked.retry_after_seconds
        await backend.fail(
            asked.job, asked.lease_id, asked.reason, retry_after=retry_after, checkpoint=asked.checkpoint
        )
        return
    done = asked.done_seconds if asked.done else None
    await backend.release(
        asked.job, asked.lease_id, done=done, result=asked.result, checkpoint=asked.checkpoint
    )


async def hand_over_job(backend: ToolBackend, asked: arguments.HandOverJob) -> answers.HandOverAnswer:
    if not asked.to_owner and not asked.to_session:
        raise InvalidInput("Give to_owner (a name) or to_session (the id of a session).")
    try:
        lease = await backend.hand_over(
            asked.job,
            asked.lease_id,
            to_owner=asked.to_owner,
            to_session=asked.to_session,
            ttl=asked.ttl_seconds,
            checkpoint=asked.checkpoint,
        )
    except LeaseLost as lost:
        return words.hand_over_lost(lost, asked.job)
    except NotClaimed as refused:
        return words.hand_over_refused(refused, asked.job)
    return words.handed_over(lease)


async def get_job_owner(backend: ToolBackend, asked: arguments.GetJobOwner) -> answers.JobAnswer:
    yours = backend.has(asked.job)
    if isinstance(asked, arguments.LooseGetJobOwner) and asked.lease_id:
        try:
            await backend.heartbeat(asked.job, asked.lease_id)
            yours = True
        except LeaseLost:  # the status says who has it now
            pass
    return words.status_answer(await backend.status(asked.job), yours=yours)


async def list_claimed_jobs(backend: ToolBackend, asked: arguments.ListClaimedJobs) -> answers.JobsAnswer:
    return words.listed(await backend.listing(asked.prefix), asked.prefix, asked.limit)


async def wait_for_job(backend: ToolBackend, asked: arguments.WaitForJob) -> answers.JobAnswer:
    """Polls, as `dibs wait` does: it takes no place in line and claims nothing."""
    until_ms = steady_ms() + asked.wait_seconds * 1000
    pause_ms = PAUSE_MS_MIN
    while True:
        status = await backend.status(asked.job)
        left_ms = until_ms - steady_ms()
        if not words.is_taken(status) or left_ms <= 0:
            return words.status_answer(status, yours=backend.has(asked.job))
        await asyncio.sleep(min(pause_ms, left_ms, status.remaining_ms or pause_ms) / 1000)
        pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)
