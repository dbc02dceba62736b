"""dibs: one owner per job for distributed workers and agent swarms.

    import dibs

    with dibs.claim("issue-1842", ttl=120) as claim:      # heartbeats by itself
        fix(issue, fencing_token=claim.fencing_token)     # raises LeaseLost when it is not yours any more

What is listed in `__all__` is public and stays. It is imported when it is first used: the `dibs` command goes through
this file as well, and needs none of it.
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

__all__ = [
    "AsyncClaim",
    "AsyncClient",
    "AsyncEvents",
    "AsyncFence",
    "AsyncLeader",
    "AsyncLock",
    "AsyncSession",
    "AuthenticationFailed",
    "AuthenticationRequired",
    "BadReply",
    "Claim",
    "Client",
    "DibsError",
    "Events",
    "EventsGone",
    "Fence",
    "InvalidInput",
    "InvalidName",
    "InvalidTtl",
    "JobClosed",
    "JobDone",
    "JobEvent",
    "JobHeld",
    "JobParked",
    "JobResting",
    "JobStatus",
    "JobSuperseded",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "MissingExtra",
    "NoneFree",
    "NotAllowed",
    "NotClaimed",
    "Overdue",
    "Previous",
    "RLock",
    "RequestRefused",
    "Session",
    "StaleToken",
    "Unavailable",
    "WouldDeadlock",
    "__version__",
    "claim",
    "claim_all",
    "claim_any",
    "claim_job",
    "connect",
    "exclusive",
    "fail_job",
    "get_job_owner",
    "heartbeat_job",
    "list_claimed_jobs",
    "release_job",
]

# Where each of them lives.
_PLACES = {
    "dibs._version": "__version__",
    "dibs.base.errors": (
        "AuthenticationFailed AuthenticationRequired BadReply DibsError EventsGone InvalidInput InvalidName InvalidTtl"
        " JobClosed JobDone JobHeld JobParked JobResting JobSuperseded LeaseLost MissingExtra NoneFree NotAllowed"
        " NotClaimed RequestRefused StaleToken Unavailable WouldDeadlock"
    ),
    "dibs.sdk.answers": "JobEvent JobStatus Lease Overdue Previous",
    "dibs.sdk.claim": "AsyncClaim AsyncLeader Claim Leader",
    "dibs.sdk.client": "AsyncClient AsyncSession Client Session",
    "dibs.sdk.default": (
        "claim claim_all claim_any connect claim_job fail_job get_job_owner heartbeat_job list_claimed_jobs release_job"
    ),
    "dibs.sdk.events": "AsyncEvents Events",
    "dibs.sdk.fence": "AsyncFence Fence",
    "dibs.sdk.locks": "AsyncLock Lock RLock exclusive",
}


def __getattr__(name: str) -> object:
    module = next((module for module, names in _PLACES.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__"])


del TYPE_CHECKING  # it would be offered as if it were ours
