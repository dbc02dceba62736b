"""What a tool takes and what it answers. Clients are shown the JSON schemas that are made from these classes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dibs.core.limits import DONE_MS_DEFAULT, NAMES_MAX
from dibs.wire.fields import BYTES, CHARACTERS, NUMBERS

TTL_SECONDS_LOOSE = 15 * 60  # where no connection is watched: as long as a model may think without a call
WAIT_SECONDS_MAX = 300  # clients give up on a tool call after some minutes
DONE_SECONDS = DONE_MS_DEFAULT // 1000
LIST_MAX = 1_000

Job = Annotated[str, Field(description="Stable name of the work, such as issue-1842 or path:src/auth.rs.")]
Owner = Annotated[
    str | None,
    Field(description="Who you are, as others are shown it. Leave out for the usual name."),
]
Metadata = Annotated[
    str | None,
    Field(
        description=f"A short note that everybody can see, {CHARACTERS['metadata']} characters at most. Never a secret."
    ),
]
Checkpoint = Annotated[
    str | None,
    Field(
        description=f"How far you got, for whoever takes over; {BYTES['checkpoint']} bytes at most. Never a secret."
    ),
]
LeaseId = Annotated[
    str, Field(description="The lease_id that claiming the job gave you: the proof that it is yours.")
]
OwnLeaseId = Annotated[
    str | None,
    Field(
        description="Leave out for what this connection claimed. A lease_id from elsewhere is proof as well."
    ),
]
Wait = Annotated[
    int,
    Field(
        ge=0,
        le=WAIT_SECONDS_MAX,
        description=f"Stand in line this long if somebody has it, {WAIT_SECONDS_MAX} at most.",
    ),
]
Ttl = Annotated[
    int,
    Field(
        ge=1,
        le=NUMBERS["ttl_seconds"][1],
        description="How long the job stays yours without a call that shows its lease_id.",
    ),
]
RequestKey = Annotated[
    str | None,
    Field(
        description="A value of your own, new for each claim: repeating the call with it gives the same lease."
    ),
]
Again = Annotated[bool, Field(description="Claim it even if it counts as done.")]


class ToolArguments(BaseModel):
    """Arguments of a tool. What is not known is refused, so that a misspelt field is not silently without effect."""

    model_config = ConfigDict(extra="forbid")


class ClaimJob(ToolArguments):
    job: Job
    owner: Owner = None
    metadata: Metadata = None
    wait_seconds: Wait = 0
    again: Again = False


class ClaimAnyJob(ToolArguments):
    jobs: Annotated[
        list[str],
        Field(min_length=1, max_length=NAMES_MAX, description="Names, the one you like best first."),
    ]
    owner: Owner = None
    metadata: Metadata = None
    again: Again = False


class LooseClaimJob(ClaimJob):
    ttl_seconds: Ttl = TTL_SECONDS_LOOSE
    request_key: RequestKey = None


class LooseClaimAnyJob(ClaimAnyJob):
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
    done: Annotated[
        bool, Field(description="The work is finished: whoever claims it later is told so, and skips it.")
    ] = False
    done_seconds: Annotated[
        int,
        Field(
            ge=1, le=NUMBERS["done_seconds"][1], description="How long it counts as done (with done=true)."
        ),
    ] = DONE_SECONDS
    result: Annotated[
        str | None,
        Field(
            description="With done=true: what others are told, such as a link to the pull request. "
            f"{BYTES['result']} bytes."
        ),
    ] = None
    failed: Annotated[bool, Field(description="The work did not succeed. Counts as an attempt.")] = False
    reason: Annotated[
        str | None,
        Field(max_length=CHARACTERS["reason"], description="With failed=true: why. Everybody sees it."),
    ] = None
    retry_after_seconds: Annotated[
        int | None,
        Field(
            ge=0, le=NUMBERS["retry_after_seconds"][1], description="With failed=true: nobody gets it before."
        ),
    ] = None
    checkpoint: Checkpoint = None


class HandOverJob(ToolArguments):
    job: Job
    lease_id: OwnLeaseId = None
    to_owner: Annotated[str | None, Field(description="Name of the new owner, as others are shown it.")] = (
        None
    )
    to_session: Annotated[
        str | None,
        Field(description="Id of the new owner's dibs session, if it has one: then it needs no lease_id."),
    ] = None
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
        str | None,
        Field(description="If the job is yours: showing the lease_id keeps it so, for its ttl anew."),
    ] = None


class ListClaimedJobs(ToolArguments):
    prefix: Annotated[str, Field(description="Only names that begin with this.")] = ""
    limit: Annotated[
        int, Field(ge=1, le=LIST_MAX, description=f"How many at most; {LIST_MAX} is the most.")
    ] = 100


class WaitForJob(ToolArguments):
    job: Job
    wait_seconds: Annotated[
        int,
        Field(
            ge=0,
            le=WAIT_SECONDS_MAX,
            description=f"Come back after this long in any case; {WAIT_SECONDS_MAX} at most.",
        ),
    ] = 30


Name = Annotated[str, Field(description="The job.")]
OwnerName = Annotated[str, Field(description="Whose it is or was.")]
Namespace = Annotated[
    str | None, Field(description="Where path: and repo: names are: the namespace of the git repository.")
]
Expires = Annotated[int | None, Field(description="How long it stays yours if nothing keeps it alive.")]


class LostClaim(BaseModel):
    """A claim of this connection that it lost."""

    job: Name
    why: Annotated[str, Field(description="How it was lost.")]


class PreviousOwner(BaseModel):
    """Who had the job before you, how that ended, and where it stopped."""

    owner: OwnerName
    how: Annotated[
        str, Field(description="How that ended: released, failed, expired, broken or transferred.")
    ]
    at: Annotated[str, Field(description="When it ended.")]
    checkpoint: Annotated[str | None, Field(description="Where it stopped.")] = None
    reason: Annotated[str | None, Field(description="Why it failed or was broken.")] = None


class ToolAnswer(BaseModel):
    """What every answer has."""

    message: Annotated[str, Field(description="What happened, and what to do next.")]
    lost: Annotated[
        list[LostClaim],
        Field(description="Jobs of yours that were lost since the last call. Stop any work on them at once."),
    ] = []


class JobOwner(BaseModel):
    """Somebody who has a job."""

    job: Name
    status: Annotated[
        str, Field(description="held, done, free, delayed or parked; deadlock for a refused claim.")
    ]
    owner: OwnerName | None = None
    since: Annotated[str | None, Field(description="Since when its owner has it.")] = None
    held_seconds: Annotated[int | None, Field(description="For how long its owner has had it.")] = None
    free_in_seconds: Annotated[
        int | None, Field(description="When it is free at the latest, unless its owner heartbeats.")
    ] = None
    retry_after_seconds: Annotated[int | None, Field(description="When asking again is worth while.")] = None
    metadata: Annotated[str | None, Field(description="What its owner noted.")] = None
    checkpoint: Annotated[str | None, Field(description="How far its owner got.")] = None
    result: Annotated[str | None, Field(description="If it is done: what its owner left.")] = None
    namespace: Namespace = None


class ClaimAnswer(ToolAnswer):
    claimed: Annotated[bool, Field(description="True: the job is yours, begin. False: do not begin.")]
    job: Name | None = None
    lease_id: Annotated[str | None, Field(description="The proof that it is yours. Tell nobody.")] = None
    fencing_token: Annotated[
        int | None,
        Field(description="Rises with every owner. Send it along with writes, and refuse smaller ones."),
    ] = None
    owner: OwnerName | None = None
    attempt: Annotated[
        int | None,
        Field(description="1 for the first owner since it was last finished, 2 for the next."),
    ] = None
    expires_in_seconds: Expires = None
    previous: Annotated[PreviousOwner | None, Field(description="Who had it before you.")] = None
    namespace: Namespace = None
    refused: Annotated[
        list[JobOwner], Field(description="Why not: one entry for each job that you cannot have.")
    ] = []


class HeartbeatAnswer(ToolAnswer):
    yours: Annotated[bool, Field(description="False: stop the work, somebody else may have it.")]
    job: Name
    expires_in_seconds: Expires = None
    checkpoint: Annotated[str | None, Field(description="What was noted.")] = None


class ReleaseAnswer(ToolAnswer):
    released: Annotated[bool, Field(description="False: it was not yours any more; the message says why.")]
    job: Name


class HandOverAnswer(ToolAnswer):
    handed_over: Annotated[bool, Field(description="False: it was not yours to give; the message says why.")]
    job: Name
    owner: OwnerName | None = None
    lease_id: Annotated[
        str | None, Field(description="The new owner's lease. Give it to the new owner and to nobody else.")
    ] = None
    fencing_token: Annotated[int | None, Field(description="The new owner's.")] = None
    expires_in_seconds: Annotated[
        int | None, Field(description="How long the new owner has to begin: to heartbeat, or to release.")
    ] = None


class JobAnswer(ToolAnswer, JobOwner):
    yours: Annotated[bool, Field(description="Whether you showed, or this connection has, its lease.")] = (
        False
    )
    fencing_token: Annotated[int, Field(description="The one given out last.")] = 0
    waiting: Annotated[int, Field(description="How many stand in line.")] = 0
    previous: Annotated[
        PreviousOwner | None, Field(description="Who had it last, before any owner it has now.")
    ] = None


class JobsAnswer(ToolAnswer):
    jobs: Annotated[list[JobOwner], Field(description="One entry for each.")]
    more: Annotated[bool, Field(description="There are more than were asked for.")] = False
