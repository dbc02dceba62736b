"""The tools: what each does, its name and its description.

Over stdio the server renews claims while the connection lives, and the lease id may be left out. Over HTTP nothing
watches the client: each call with the lease id renews the claim. Both have the same tool names and answers; the
differences are in the `loose` texts and in the fields that one transport has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from dibs.agents.mcp import tool_answers, tool_fields
from dibs.agents.mcp.backend import ToolBackend
from dibs.agents.mcp.tool_fields import ToolField
from dibs.base.clock import steady_ms
from dibs.base.errors import InvalidInput, LeaseLost, NotClaimed, Unavailable
from dibs.base.jsontext import Document
from dibs.core.records import EFFECT_BEGUN
from dibs.sdk.answers import JobStatus
from dibs.sdk.operations import ClaimTerms

Do = Callable[[ToolBackend, Any], Awaitable[Document]]

PAUSE_MS_MIN = 100
PAUSE_MS_MAX = 2_000
_KEPT = "Your claims are renewed while this connection lives, and released when it ends."
_LOOSE = (
    "Keep the lease_id: it proves the claim. The job stays yours for ttl_seconds (default 15 minutes) after "
    "your last call with the lease_id; heartbeat_job and get_job_owner with it renew the claim."
)


@dataclass(frozen=True)
class Tool:
    """`destructive`: it ends something that others see. `idempotent`: a repeated call changes nothing."""

    name: str
    title: str
    about: str
    takes: tuple[ToolField, ...]
    gives: tuple[ToolField, ...]
    do: Do
    reads: bool = False
    renews_loose: bool = False  # it only reads, but over HTTP a call with the lease id renews the lease
    destructive: bool = False
    idempotent: bool = True
    about_kept: str = ""
    about_loose: str = ""

    def description(self, *, kept: bool) -> str:
        return " ".join(part for part in (self.about, self.about_kept if kept else self.about_loose) if part)

    def taken(self, *, kept: bool) -> list[ToolField]:
        here = tool_fields.STDIO if kept else tool_fields.HTTP
        return [field for field in self.takes if field.over in (None, here)]

    def asked(self, given: Document) -> SimpleNamespace:
        """All arguments of a call, those that were left out with their defaults."""
        return SimpleNamespace(**{field.name: field.default for field in self.takes} | given)


def tool(
    title: str, about: str, takes: tuple[ToolField, ...], gives: tuple[ToolField, ...], **more: Any
) -> Callable[[Do], Tool]:
    """Makes a tool of what it does: asks the backend, and says the answer in words. It has the function's name."""
    return lambda do: Tool(do.__name__, title, about, takes, gives, do, **more)


@tool(
    "Claim a job",
    "Claim a job before you begin work that only one agent may do at a time. If somebody has it, the "
    "answer is claimed=false, status=held, with the owner, since when and its last sign of life: skip it, or "
    "call again with wait_seconds to wait in line. status=done: it was finished, and "
    "the answer has the result: skip it.",
    tool_fields.CLAIM_JOB,
    tool_fields.CLAIM_ANSWER,
    about_kept=f"{_KEPT} Claiming a job that you have is answered with the same claim.",
    about_loose=f"{_LOOSE} A repeated call is a second claim, and is refused, unless it has the same request_key.",
)
async def claim_job(backend: ToolBackend, asked: Any) -> Document:
    return await _claim(backend, "acquire", [asked.job], asked)


@tool(
    "Claim the first free job of several",
    "Claim the first free one of several jobs, in one atomic step, such as those of a backlog "
    "that agents share. If none is free, the answer is claimed=false with one entry in refused for each job. "
    "status=held: others have those that are not done; wait_seconds tries again, "
    "or stop and say so. status=done: all are done.",
    tool_fields.CLAIM_ANY_JOB,
    tool_fields.CLAIM_ANSWER,
    idempotent=False,
    about_kept="Renewed as with claim_job. Jobs that you have are skipped.",
    about_loose="Keep the lease_id and renew the claim, as with claim_job.",
)
async def claim_any_job(backend: ToolBackend, asked: Any) -> Document:
    """Waits without a place in line: that would hold up everybody behind it in the line of each job."""
    return await _claim(backend, "acquire-any", asked.jobs, asked)


@tool(
    "Claim several jobs together",
    "Claim all of several jobs or none, in one atomic step, such as the files of one change. With "
    "wait_seconds it waits in line for all of them and holds none meanwhile, so it cannot deadlock. Release each.",
    tool_fields.CLAIM_ALL_JOBS,
    tool_fields.CLAIM_ANSWER,
    idempotent=False,
    about_kept="Renewed as with claim_job.",
    about_loose="One lease_id proves them all. Otherwise as claim_job.",
)
async def claim_all_jobs(backend: ToolBackend, asked: Any) -> Document:
    return await _claim(backend, "acquire-all", list(dict.fromkeys(asked.jobs)), asked)


async def _claim(backend: ToolBackend, verb: str, jobs: list[str], asked: Any) -> Document:
    terms = ClaimTerms(owner=asked.owner, metadata=asked.metadata, again=asked.again, wait=asked.wait_seconds or None)
    if not backend.keeps:
        terms = terms.replace(ttl=asked.ttl_seconds, request_key=asked.request_key)
    try:
        leases, again = await backend.claim(verb, jobs, terms)
    except NotClaimed as error:
        return tool_answers.not_claimed(error, jobs[0] if verb == "acquire" else None)
    if verb == "acquire-all":
        return tool_answers.all_claimed(leases, kept=backend.keeps)
    return tool_answers.claimed(leases[0], kept=backend.keeps, again=again)


@tool(
    "Record your progress",
    "Store a checkpoint for the next owner, and check that the job is still yours. If yours=false, stop "
    "the work at once: somebody else may have begun it. Call it with effect_key before a step that must not be "
    "repeated, such as a comment or a release: the answer says whether it was done. Then say how it ended.",
    tool_fields.HEARTBEAT_JOB,
    tool_fields.HEARTBEAT_ANSWER,
    about_kept="You need it only to store progress: the claim is renewed without it.",
    about_loose="It renews the lease: call it well before expires_in_seconds is over.",
)
async def heartbeat_job(backend: ToolBackend, asked: Any) -> Document:
    try:
        step = None
        if asked.effect_key is not None:
            status = asked.effect_status or EFFECT_BEGUN
            step = {"key": asked.effect_key, "status": status, "result": asked.effect_result}
        elif asked.effect_status is not None or asked.effect_result is not None:
            raise InvalidInput("effect_status and effect_result need effect_key.")
        lease, effect = await backend.heartbeat(asked.job, asked.lease_id, step, asked.checkpoint, asked.metadata)
    except LeaseLost as lost:
        return tool_answers.lost(lost, asked.job, "yours")
    return tool_answers.renewed(lease, asked.checkpoint, effect, kept=backend.has(asked.job, asked.lease_id))


@tool(
    "Release a job",
    "Release a job at the end of your work. With done=true it is marked as done for a day "
    "(done_seconds): later claims get your result instead. If the work failed, use failed=true and the reason: "
    "the next agent sees it, and nobody gets the job for retry_after_seconds. With neither (always for path:, "
    "repo:, branch:) the next agent has it at once.",
    tool_fields.RELEASE_JOB,
    tool_fields.RELEASE_ANSWER,
    destructive=True,
)
async def release_job(backend: ToolBackend, asked: Any) -> Document:
    if asked.result is not None and not asked.done:
        raise InvalidInput("result needs done=true: it is shown to later claims.")
    if asked.failed and asked.done:
        raise InvalidInput("Use failed=true or done=true, not both.")
    if not asked.failed and (asked.reason is not None or asked.retry_after_seconds is not None):
        raise InvalidInput("reason and retry_after_seconds need failed=true.")
    try:
        if asked.failed:
            how = {"retry_after": asked.retry_after_seconds, "checkpoint": asked.checkpoint}
            await backend.fail(asked.job, asked.lease_id, asked.reason, **how)
        else:
            how = {"done": asked.done_seconds if asked.done else None, "result": asked.result}
            await backend.release(asked.job, asked.lease_id, checkpoint=asked.checkpoint, **how)
    except LeaseLost as lost:
        return tool_answers.lost(lost, asked.job, "released")
    return tool_answers.released(asked.job, done=asked.done, failed=asked.failed, retry_after=asked.retry_after_seconds)


@tool(
    "Who has a job",
    "The state of a job: its owner, since when, for how long, the checkpoint; or that it is free, or "
    "done, with the result. This claims nothing: somebody else may claim it before you act.",
    tool_fields.GET_JOB_OWNER,
    tool_fields.JOB_ANSWER,
    reads=True,
    renews_loose=True,
    about_loose="With your lease_id it also renews your lease.",
)
async def get_job_owner(backend: ToolBackend, asked: Any) -> Document:
    yours = backend.has(asked.job)
    if asked.lease_id:
        try:
            await backend.heartbeat(asked.job, asked.lease_id)
            yours = True
        except LeaseLost:  # the status says who has it now
            pass
    return tool_answers.status_answer(await backend.status(asked.job), yours=yours)


@tool(
    "List claimed jobs",
    "All jobs that are held now, with owner, time and checkpoint. Jobs that are free or done are not listed.",
    tool_fields.LIST_CLAIMED_JOBS,
    tool_fields.JOBS_ANSWER,
    reads=True,
)
async def list_claimed_jobs(backend: ToolBackend, asked: Any) -> Document:
    return tool_answers.listed(await backend.listing(asked.prefix), asked.prefix, asked.limit)


@tool(
    "Wait until nobody has a job",
    "Wait until nobody has a job, for instance because your work needs its result. Claims nothing and "
    "takes no place in line: to get the job itself, use claim_job. status=held: somebody still has it after "
    "wait_seconds; call it again to continue.",
    tool_fields.WAIT_FOR_JOB,
    tool_fields.JOB_ANSWER,
    reads=True,
)
async def wait_for_job(backend: ToolBackend, asked: Any) -> Document:
    """Polls, as `dibs wait` does: it takes no place in line and claims nothing."""
    until_ms = steady_ms() + asked.wait_seconds * 1000
    pause_ms = PAUSE_MS_MIN
    status: JobStatus | None = None
    while True:
        left_ms = until_ms - steady_ms()
        try:
            status = await backend.status(asked.job)
        except Unavailable:  # it was there, so it is waited for
            if status is None or left_ms <= 0:
                raise
        else:
            if not tool_answers.is_taken(status) or left_ms <= 0:
                return tool_answers.status_answer(status, yours=backend.has(asked.job))
        await asyncio.sleep(min(pause_ms, max(left_ms, 0), status.remaining_ms or pause_ms) / 1000)
        pause_ms = min(PAUSE_MS_MAX, pause_ms * 2)


@tool(
    "Hand over a job",
    "Give a job you hold to another agent, in one atomic step. The answer has a new lease_id: pass it to "
    "that agent as proof of its claim. Stop working on the job. If anybody may take it, use release_job "
    "instead.",
    tool_fields.HAND_OVER_JOB,
    tool_fields.HAND_OVER_ANSWER,
    destructive=True,
    idempotent=False,
)
async def hand_over_job(backend: ToolBackend, asked: Any) -> Document:
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
        return tool_answers.lost(lost, asked.job, "handed_over")
    except NotClaimed as refused:
        return tool_answers.hand_over_refused(refused, asked.job)
    return tool_answers.handed_over(lease)


TOOLS = tuple([each for each in globals().values() if isinstance(each, Tool)])  # all of them, in this order
