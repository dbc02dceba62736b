"""dibs: one owner per job for distributed workers and agent swarms.

    import dibs

    with dibs.claim("issue-1842", ttl=120) as claim:      # heartbeats by itself
        fix(issue, fencing_token=claim.fencing_token)     # raises LeaseLost when it is not yours any more

What `__all__` lists is public and stays. It is imported at its first use: the `dibs` command needs none of it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs._version import __version__
    from dibs.base.errors import (
        AuthenticationFailed,
        AuthenticationRequired,
        BadReply,
        DibsError,
        EventsGone,
        InvalidInput,
        InvalidName,
        InvalidTtl,
        JobClosed,
        JobDone,
        JobHeld,
        JobParked,
        JobResting,
        JobSuperseded,
        LeaseLost,
        MissingExtra,
        NoneFree,
        NotAllowed,
        NotClaimed,
        RequestRefused,
        StaleToken,
        Unavailable,
        WouldDeadlock,
    )
    from dibs.sdk.answers import Effect, JobEvent, JobStatus, Lease, Overdue, Previous
    from dibs.sdk.async_claim import AsyncClaim, AsyncLeader
    from dibs.sdk.async_client import AsyncClient, AsyncSession
    from dibs.sdk.async_events import AsyncEvents
    from dibs.sdk.claim import Claim, Leader
    from dibs.sdk.client import Client, Session
    from dibs.sdk.default import (
        claim,
        claim_all,
        claim_any,
        claim_job,
        connect,
        fail_job,
        get_job_owner,
        heartbeat_job,
        list_claimed_jobs,
        release_job,
    )
    from dibs.sdk.events import Events
    from dibs.sdk.fence import AsyncFence, Fence
    from dibs.sdk.locks import AsyncLock, Lock, RLock, exclusive

__all__ = ["__version__", "claim", "claim_all", "claim_any", "claim_job", "connect", "exclusive", "fail_job"]
__all__ += ["get_job_owner", "heartbeat_job", "list_claimed_jobs", "release_job"]
__all__ += ["AsyncClaim", "AsyncClient", "AsyncEvents", "AsyncFence", "AsyncLeader", "AsyncLock", "AsyncSession"]
__all__ += [
    "Claim",
    "Client",
    "Effect",
    "Events",
    "Fence",
    "JobEvent",
    "JobStatus",
    "Leader",
    "Lease",
    "Lock",
    "Overdue",
]
__all__ += ["Previous", "RLock", "Session"]
__all__ += ["AuthenticationFailed", "AuthenticationRequired", "BadReply", "DibsError", "EventsGone", "InvalidInput"]
__all__ += ["InvalidName", "InvalidTtl", "JobClosed", "JobDone", "JobHeld", "JobParked", "JobResting", "JobSuperseded"]
__all__ += ["LeaseLost", "MissingExtra", "NoneFree", "NotAllowed", "NotClaimed", "RequestRefused", "StaleToken"]
__all__ += ["Unavailable", "WouldDeadlock"]
# The modules they live in. Names that are not listed are in `base.errors`.
_PLACES = {
    "__version__": "_version",
    "AsyncClaim": "sdk.async_claim",
    "AsyncClient": "sdk.async_client",
    "AsyncEvents": "sdk.async_events",
    "AsyncFence": "sdk.fence",
    "AsyncLeader": "sdk.async_claim",
    "AsyncLock": "sdk.locks",
    "AsyncSession": "sdk.async_client",
    "Claim": "sdk.claim",
    "Client": "sdk.client",
    "Effect": "sdk.answers",
    "Events": "sdk.events",
    "Fence": "sdk.fence",
    "JobEvent": "sdk.answers",
    "JobStatus": "sdk.answers",
    "Leader": "sdk.claim",
    "Lease": "sdk.answers",
    "Lock": "sdk.locks",
    "Overdue": "sdk.answers",
    "Previous": "sdk.answers",
    "RLock": "sdk.locks",
    "Session": "sdk.client",
    "claim": "sdk.default",
    "claim_all": "sdk.default",
    "claim_any": "sdk.default",
    "claim_job": "sdk.default",
    "connect": "sdk.default",
    "exclusive": "sdk.locks",
    "fail_job": "sdk.default",
    "get_job_owner": "sdk.default",
    "heartbeat_job": "sdk.default",
    "list_claimed_jobs": "sdk.default",
    "release_job": "sdk.default",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    module = __import__(f"dibs.{_PLACES.get(name, 'base.errors')}", fromlist=("",))
    globals()[name] = value = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])


del TYPE_CHECKING  # it would be offered as if it were ours
