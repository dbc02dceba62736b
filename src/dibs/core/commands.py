"""What can be asked of the rules. Fresh ids come in with the command, so that a decision needs no randomness."""

from __future__ import annotations

from dibs.core.record import Record
from dibs.core.records import EXCLUSIVE


class Acquire(Record):
    """Claim one job, or say who has it."""

    ns: str
    name: str
    principal: str
    owner: str
    ttl_ms: int
    fresh_lease_id: (
        str  # becomes the lease's id if this command is granted; also recognises our own lost commit
    )
    metadata: str | None = None
    request_key: str | None = None
    lease_id: str | None = None  # proof that a lease on this job is the caller's already
    delay_ms: int = 0
    mode: str = EXCLUSIVE
    slots: int = 1
    again: bool = False  # claim even though the job is marked done
    acl: tuple[str, ...] | None = None
    badges: tuple[str, ...] = ()  # the access entries this caller satisfies
    admin: bool = False
    over_quota: bool = False


class Renew(Record):
    """Heartbeat. May carry progress."""

    ns: str
    name: str
    principal: str
    lease_id: str
    ttl_ms: int | None = None  # None keeps the lease's own
    metadata: str | None = None
    checkpoint: str | None = None


class Release(Record):
    """Let go, perhaps saying that the work is done."""

    ns: str
    name: str
    principal: str
    lease_id: str
    done_ms: int = 0
    result: str | None = None
    checkpoint: str | None = None


class Break(Record):
    """Take a job away from its owner. The caller's right to do so was checked before."""

    ns: str
    name: str
    principal: str
    reason: str


class SetAcl(Record):
    """Say who may claim a job. For its owner, or an admin."""

    ns: str
    name: str
    principal: str
    acl: tuple[str, ...]
    admin: bool = False


class Inspect(Record):
    """Look, and change nothing."""

    ns: str
    name: str


class Sweep(Record):
    """Turn what is due on one job into events: an expiry, or the forgetting of a long idle record."""

    ns: str
    name: str


class Beat(Record):
    """A server says it is up, and since when it has been without a gap. Finds and records outages."""

    alive_since_ms: int


Command = Acquire | Renew | Release | Break | SetAcl | Inspect | Sweep | Beat
