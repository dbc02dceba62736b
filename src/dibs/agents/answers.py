"""Arguments and answers of the tools. The JSON schemas for clients are made from these classes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from dibs.core.limits import ALL_NAMES_MAX, DONE_MS_DEFAULT, NAMES_MAX, REASON_CHARS_MAX
from dibs.wire.request_fields import REQUESTS, tool_text

TTL_SECONDS_LOOSE = 15 * 60  # for HTTP: how long a model may think without a call
WAIT_SECONDS_MAX = 300  # clients give up on a tool call after some minutes
DONE_SECONDS = DONE_MS_DEFAULT // 1000
LIST_MAX = 1_000


def _given(verb: str, name: str, **more: int) -> Any:
    """An argument that is a field of a request, described and bounded as that is."""
    numbers = REQUESTS[verb][name].numbers
    bounds = {} if numbers is None else {"ge": numbers[0], "le": numbers[1]}
    made: Any = Field
    return made(description=tool_text(verb, name), **{**bounds, **more})


Job = Annotated[str, Field(description="Stable name of the work, such as issue-1842 or path:src/auth.rs.")]
Owner = Annotated[str | None, _given("acquire", "owner")]
Metadata = Annotated[str | None, _given("acquire", "metadata")]
Checkpoint = Annotated[str | None, _given("release", "checkpoint")]
LeaseId = Annotated[str, _given("release", "lease_id")]
OwnLeaseId = Annotated[
    str | None,
    Field(description="Leave out for a claim of this connection. A lease_id from elsewhere is also valid."),
]
Wait = Annotated[
    int,
    Field(
        ge=0,
        le=WAIT_SECONDS_MAX,
        description=f"If somebody has it, wait in line this long; at most {WAIT_SECONDS_MAX}.",
    ),
]
Ttl = Annotated[int, _given("acquire", "ttl_seconds")]
RequestKey = Annotated[str | None, _given("acquire", "request_key")]
Again = Annotated[bool, _given("acquire", "again")]


class ToolArguments(BaseModel):
    """Arguments of a tool. Unknown fields are refused, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid")


class ClaimJob(ToolArguments):
    job: Job
    owner: Owner = None
    metadata: Metadata = None
    wait_seconds: Wait = 0
    again: Again = False


class ClaimAnyJob(ToolArguments):
    jobs: Annotated[
        list[str], Field(min_length=1, max_length=NAMES_MAX, description="Names, in order of preference.")
    ]
    owner: Owner = None
    metadata: Metadata = None
    wait_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=WAIT_SECONDS_MAX,
            description="If all are held, try again for this long, without a place.",
        ),
    ] = 0
    again: Again = False


class ClaimAllJobs(ToolArguments):
    jobs: Annotated[
        list[str], Field(min_length=1, max_length=ALL_NAMES_MAX, description="Names of the jobs.")
    ]
    owner: Owner = None
    metadata: Metadata = None
    wait_seconds: Wait = 0
    again: Again = False


class LooseClaimJob(ClaimJob):
    ttl_seconds: Ttl = TTL_SECONDS_LOOSE
    request_key: RequestKey = None


class LooseClaimAnyJob(ClaimAnyJob):
    ttl_seconds: Ttl = TTL_SECONDS_LOOSE
    request_key: RequestKey = None


class LooseClaimAllJobs(ClaimAllJobs):
    ttl_seconds: Ttl = TTL_SECONDS_LOOSE
    request_key: RequestKey = None


class HeartbeatJob(ToolArguments):
    job: Job
    lease_id: OwnLeaseId = None
    checkpoint: Checkpoint = None
    metadata: Metadata = None


class ReleaseJob(ToolArguments):
    job: Job
    lease_id: OwnLeaseId = None
    done: Annotated[bool, _given("release", "done")] = False
    done_seconds: Annotated[int, _given("release", "done_seconds", ge=1)] = DONE_SECONDS
    result: Annotated[str | None, _given("release", "result")] = None
    failed: Annotated[bool, _given("release", "failed")] = False
    reason: Annotated[str | None, _given("release", "reason", max_length=REASON_CHARS_MAX)] = None
    retry_after_seconds: Annotated[int | None, _given("release", "retry_after_seconds")] = None
    checkpoint: Checkpoint = None


class HandOverJob(ToolArguments):
    job: Job
    lease_id: OwnLeaseId = None
    to_owner: Annotated[str | None, _given("transfer", "to_owner")] = None
    to_session: Annotated[str | None, _given("transfer", "to_session")] = None
    checkpoint: Checkpoint = None
    ttl_seconds: Ttl = TTL_SECONDS_LOOSE


class GetJobOwner(ToolArguments):
    job: Job


class LooseHeartbeatJob(HeartbeatJob):
    lease_id: LeaseId


class LooseReleaseJob(ReleaseJob):
    lease_id: LeaseId


class LooseHandOverJob(HandOverJob):
    lease_id: LeaseId


class LooseGetJobOwner(GetJobOwner):
    lease_id: Annotated[
        str | None, Field(description="If the job is yours: giving the lease_id renews your lease.")
    ] = None


class ListClaimedJobs(ToolArguments):
    prefix: Annotated[str, Field(description="Only names that begin with this.")] = ""
    limit: Annotated[int, Field(ge=1, le=LIST_MAX, description=f"How many to list, at most {LIST_MAX}.")] = (
        100
    )


class WaitForJob(ToolArguments):
    job: Job
    wait_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=WAIT_SECONDS_MAX,
            description=f"Return after this long in any case; at most {WAIT_SECONDS_MAX}.",
        ),
    ] = 30


Name = Annotated[str, Field(description="The job.")]
OwnerName = Annotated[str, Field(description="The owner, or the last one.")]
Namespace = Annotated[
    str | None, Field(description="The namespace of the git repository, for path: and repo: names.")
]
Expires = Annotated[int | None, Field(description="How long it stays yours without a renewal.")]


class LostClaim(BaseModel):
    """A claim of this connection that it lost."""

    job: Name
    why: Annotated[str, Field(description="How it was lost.")]


class PreviousOwner(BaseModel):
    """The previous owner, how its hold ended, and its checkpoint."""

    owner: OwnerName
    how: Annotated[
        str, Field(description="How its hold ended: released, failed, expired, broken or transferred.")
    ]
    at: Annotated[str, Field(description="When it ended.")]
    checkpoint: Annotated[str | None, Field(description="Its last checkpoint.")] = None
    reason: Annotated[str | None, Field(description="Why it failed or was broken.")] = None


class ToolAnswer(BaseModel):
    """Fields of every answer."""

    message: Annotated[str, Field(description="What happened, and what to do next.")]
    lost: Annotated[
        list[LostClaim],
        Field(description="Jobs of yours that were lost since the last call. Stop any work on them at once."),
    ] = []


class JobOwner(BaseModel):
    """An owner of a job."""

    job: Name
    status: Annotated[
        str, Field(description="held, done, free, delayed or parked; deadlock for a refused claim.")
    ]
    owner: OwnerName | None = None
    since: Annotated[str | None, Field(description="When its owner got it.")] = None
    held_seconds: Annotated[int | None, Field(description="For how long its owner has had it.")] = None
    silent_seconds: Annotated[int | None, Field(description="How long ago its owner was last heard of.")] = (
        None
    )
    free_in_seconds: Annotated[
        int | None, Field(description="When it expires without another heartbeat.")
    ] = None
    retry_after_seconds: Annotated[int | None, Field(description="When to try again.")] = None
    metadata: Annotated[str | None, Field(description="The owner's metadata.")] = None
    checkpoint: Annotated[str | None, Field(description="The owner's checkpoint.")] = None
    result: Annotated[str | None, Field(description="If it is done: the result.")] = None
    namespace: Namespace = None


class ClaimedJob(BaseModel):
    """One of several jobs that are yours."""

    job: Name
    fencing_token: Annotated[int, Field(description="Rises with every owner.")]
    attempt: Annotated[int, Field(description="As of a single claim.")]
    previous: Annotated[PreviousOwner | None, Field(description="Who had it before you.")] = None


class ClaimAnswer(ToolAnswer):
    claimed: Annotated[bool, Field(description="True: the job is yours, begin. False: do not begin.")]
    status: Annotated[
        str,
        Field(
            description="claimed; or why not: held (somebody has it now), done (it was finished: skip it), delayed, "
            "parked or deadlock. Of several: held if one of them is."
        ),
    ]
    job: Name | None = None
    lease_id: Annotated[str | None, Field(description="The proof that the job is yours. Keep it secret.")] = (
        None
    )
    fencing_token: Annotated[
        int | None,
        Field(description="Rises with every owner. Send it with writes; the receiver refuses smaller ones."),
    ] = None
    owner: OwnerName | None = None
    attempt: Annotated[
        int | None,
        Field(description="1 for the first owner since the last success, 2 for the next, and so on."),
    ] = None
    expires_in_seconds: Expires = None
    previous: Annotated[PreviousOwner | None, Field(description="Who had it before you.")] = None
    namespace: Namespace = None
    claims: Annotated[list[ClaimedJob], Field(description="Of claim_all_jobs: one entry for each.")] = []
    refused: Annotated[
        list[JobOwner], Field(description="One entry for each job that you cannot have, with the reason.")
    ] = []


class HeartbeatAnswer(ToolAnswer):
    yours: Annotated[bool, Field(description="False: stop the work, somebody else may have it.")]
    job: Name
    expires_in_seconds: Expires = None
    checkpoint: Annotated[str | None, Field(description="The checkpoint that was stored.")] = None


class ReleaseAnswer(ToolAnswer):
    released: Annotated[
        bool, Field(description="False: the job was not yours any more; the message says why.")
    ]
    job: Name


class HandOverAnswer(ToolAnswer):
    handed_over: Annotated[bool, Field(description="False: the job was not yours; the message says why.")]
    job: Name
    owner: OwnerName | None = None
    lease_id: Annotated[
        str | None, Field(description="The new owner's lease. Give it to the new owner and to nobody else.")
    ] = None
    fencing_token: Annotated[int | None, Field(description="The new owner's.")] = None
    expires_in_seconds: Annotated[
        int | None, Field(description="How long the new owner has until its first heartbeat or release.")
    ] = None


class JobAnswer(ToolAnswer, JobOwner):
    yours: Annotated[
        bool, Field(description="Whether the job is yours: by your lease_id, or by this connection.")
    ] = False
    fencing_token: Annotated[int, Field(description="The latest fencing token.")] = 0
    waiting: Annotated[int, Field(description="How many wait in line.")] = 0
    previous: Annotated[PreviousOwner | None, Field(description="The last owner before the present one.")] = (
        None
    )


class JobsAnswer(ToolAnswer):
    jobs: Annotated[list[JobOwner], Field(description="One entry for each.")]
    more: Annotated[bool, Field(description="Whether there are more jobs than the limit.")] = False
