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
    from dibs.sdk.answers import JobEvent, JobStatus, Lease, Overdue, Previous
    from dibs.sdk.claim import AsyncClaim, AsyncLeader, Claim, Leader
    from dibs.sdk.client import AsyncClient, AsyncSession, Client, Session
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
    from dibs.sdk.events import AsyncEvents, Events
    from dibs.sdk.fence import AsyncFence, Fence
    from dibs.sdk.locks import AsyncLock, Lock, RLock, exclusive

__all__ = ["__version__", "claim", "claim_all", "claim_any", "claim_job", "connect", "exclusive", "fail_job"]
__all__ += ["get_job_owner", "heartbeat_job", "list_claimed_jobs", "release_job"]
__all__ += ["AsyncClaim", "AsyncClient", "AsyncEvents", "AsyncFence", "AsyncLeader", "AsyncLock", "AsyncSession"]
__all__ += ["Claim", "Client", "Events", "Fence", "JobEvent", "JobStatus", "Leader", "Lease", "Lock", "Overdue"]
__all__ += ["Previous", "RLock", "Session"]
__all__ += ["AuthenticationFailed", "AuthenticationRequired", "BadReply", "DibsError", "EventsGone", "InvalidInput"]
__all__ += ["InvalidName", "InvalidTtl", "JobClosed", "JobDone", "JobHeld", "JobParked", "JobResting", "JobSuperseded"]
__all__ += ["LeaseLost", "MissingExtra", "NoneFree", "NotAllowed", "NotClaimed", "RequestRefused", "StaleToken"]
__all__ += ["Unavailable", "WouldDeadlock"]
# Where they live. What is not listed is in `base.errors`.
_PLACES = {
    "_version": "__version__",
    "sdk.answers": "JobEvent JobStatus Lease Overdue Previous",
    "sdk.claim": "AsyncClaim AsyncLeader Claim Leader",
    "sdk.client": "AsyncClient AsyncSession Client Session",
    "sdk.default": (
        "claim claim_all claim_any connect claim_job fail_job get_job_owner heartbeat_job list_claimed_jobs release_job"
    ),
    "sdk.events": "AsyncEvents Events",
    "sdk.fence": "AsyncFence Fence",
    "sdk.locks": "AsyncLock Lock RLock exclusive",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    from importlib import import_module

    place = next((place for place, names in _PLACES.items() if name in names.split()), "base.errors")
    globals()[name] = value = getattr(import_module(f"dibs.{place}"), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])


del TYPE_CHECKING  # it would be offered as if it were ours
