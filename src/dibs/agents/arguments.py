"""Arguments of the tools. The JSON schemas for clients are made from these classes."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from dibs.core.limits import ALL_NAMES_MAX, DONE_MS_DEFAULT, NAMES_MAX
from dibs.wire.fields import BYTES, CHARACTERS, NUMBERS

TTL_SECONDS_LOOSE = 15 * 60  # for HTTP: how long a model may think without a call
WAIT_SECONDS_MAX = 300  # clients give up on a tool call after some minutes
DONE_SECONDS = DONE_MS_DEFAULT // 1000
LIST_MAX = 1_000

Job = Annotated[str, Field(description="Stable name of the work, such as issue-1842 or path:src/auth.rs.")]
Owner = Annotated[
    str | None,
    Field(description="Your name, as shown to others. Leave out for the default."),
]
Metadata = Annotated[
    str | None,
    Field(description=f"A short public note, at most {CHARACTERS['metadata']} characters. Never a secret."),
]
Checkpoint = Annotated[
    str | None,
    Field(
        description=f"How far you got, for the next owner; at most {BYTES['checkpoint']} bytes. Never a secret."
    ),
]
LeaseId = Annotated[
    str, Field(description="The lease_id from your claim, which proves that the job is yours.")
]
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
Ttl = Annotated[
    int,
    Field(
        ge=1,
        le=NUMBERS["ttl_seconds"][1],
        description="How long the job stays yours without a call that gives its lease_id.",
    ),
]
RequestKey = Annotated[
    str | None,
    Field(description="A unique value for each claim: repeating the call with it gives the same lease."),
]
Again = Annotated[bool, Field(description="Claim it even if it is marked as done.")]


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
        list[str],
        Field(min_length=1, max_length=NAMES_MAX, description="Names, in order of preference."),
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
    done: Annotated[bool, Field(description="The work is finished: later claims are told so.")] = False
    done_seconds: Annotated[
        int,
        Field(
            ge=1, le=NUMBERS["done_seconds"][1], description="With done=true: how long it is marked as done."
        ),
    ] = DONE_SECONDS
    result: Annotated[
        str | None,
        Field(
            description="With done=true: the result, such as a link to the pull request. "
            f"{BYTES['result']} bytes."
        ),
    ] = None
    failed: Annotated[bool, Field(description="The work failed. Counts as an attempt.")] = False
    reason: Annotated[
        str | None,
        Field(max_length=CHARACTERS["reason"], description="With failed=true: why. Public."),
    ] = None
    retry_after_seconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=NUMBERS["retry_after_seconds"][1],
            description="With failed=true: nobody gets it for this long.",
        ),
    ] = None
    checkpoint: Checkpoint = None


class HandOverJob(ToolArguments):
    job: Job
    lease_id: OwnLeaseId = None
    to_owner: Annotated[str | None, Field(description="Name of the new owner, as shown to others.")] = None
    to_session: Annotated[
        str | None,
        Field(description="Id of the new owner's dibs session, if it has one. It then needs no lease_id."),
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
        Field(description="If the job is yours: giving the lease_id renews your lease."),
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
