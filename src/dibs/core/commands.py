"""What can be asked of the rules. Fresh ids come in with the command, so that a decision needs no randomness."""

from __future__ import annotations

from dibs.core.record import Record
from dibs.core.records import EXCLUSIVE

TYPE_CHECKING = False


class AcquireTerms(Record):
    """What every way of claiming says: who wants it, and how."""

    ns: str
    principal: str
    owner: str
    ttl_ms: int  # 0: as long as the session lives
    fresh_lease_id: str  # becomes the lease's id if this is granted; also recognises our own lost commit
    metadata: str | None = None
    request_key: str | None = None
    session: str | None = None
    ephemeral: bool = True
    delay_ms: int = 0
    mode: str = EXCLUSIVE
    slots: int = 1
    max_attempts: int = 0
    again: bool = False  # claim even though the job is marked done
    badges: tuple[str, ...] = ()  # the access entries this caller satisfies
    admin: bool = False
    over_quota: bool = False
    audited: bool = False  # a refusal is an event, too
    bound: str | None = None  # the only namespace that the caller's credential is for; None: any
    seat: str | None = None  # the server that keeps the caller waiting from now on; None: who did before


class Acquire(AcquireTerms):
    """Claim one job, or say who has it, or wait in line for it."""

    name: str
    lease_id: str | None = None  # proof that a lease on this job is the caller's already
    acl: tuple[str, ...] | None = None
    wait: bool = False
    ticket: int = 0  # the place in the line that the caller has already
    ticket_id: str | None = None  # and the proof of it


class AcquireAny(AcquireTerms):
    """Claim the first of several that can be claimed now."""

    names: tuple[str, ...]


class AcquireAll(AcquireTerms):
    """Claim all of several or none, at once or by waiting in all their lines with nothing in hand."""

    names: tuple[str, ...]  # sorted: everybody looks in the same order
    wait: bool = False
    ticket: int = 0  # in the line of the first name
    ticket_id: str | None = None


class Leave(Record):
    """Give up a place in the line."""

    ns: str
    name: str
    principal: str
    ticket: int
    ticket_id: str
    seat: str | None = None  # changes nothing if the caller waits at another server by now


class KeepPlaces(Record):
    """Say that these waiters are still asking: what a server does for the callers it keeps waiting."""

    places: tuple[tuple[str, str, int], ...]  # namespace, job, ticket


class Renew(Record):
    """Heartbeat. May carry progress."""

    ns: str
    name: str
    principal: str | None  # None: an admin, to whom the lease id is proof enough
    lease_id: str | None = None
    session: str | None = None  # instead of the lease id
    ttl_ms: int | None = None  # None keeps the lease's own
    metadata: str | None = None
    checkpoint: str | None = None
    audited: bool = False  # it is an event even if it brings nothing
    unless_after_ms: int | None = None  # changes nothing if the lease was renewed after that
    seat: str | None = None  # changes nothing if the owner was told of the lease at another server


class Release(Record):
    """Let go, perhaps saying that the work is done, or that it failed."""

    ns: str
    name: str
    principal: str | None  # None: an admin, to whom the lease id is proof enough
    lease_id: str | None = None
    session: str | None = None
    done_ms: int = 0
    result: str | None = None
    checkpoint: str | None = None
    failed: bool = False  # it counts as an attempt
    reason: str | None = None  # why it failed
    retry_ms: int = 0  # and for how long nobody is to try again
    uncounted: bool = False  # neither success nor failure: the count of attempts stays as it was
    seat: str | None = None  # changes nothing if the owner was told of the lease at another server


class Transfer(Record):
    """Hand a job to another owner, who goes on where this one stopped."""

    ns: str
    name: str
    principal: str | None  # None: an admin, to whom the lease id is proof enough
    fresh_lease_id: str
    lease_id: str | None = None
    session: str | None = None
    to_owner: str | None = None
    to_session: str | None = None
    ttl_ms: int | None = None
    checkpoint: str | None = None


class Break(Record):
    """Take a job away from its owner. The caller's right to do so was checked before."""

    ns: str
    name: str
    principal: str
    reason: str


class Free(Record):
    """Let a parked job be claimed again. The caller's right to do so was checked before."""

    ns: str
    name: str
    principal: str


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


class OpenSession(Record):
    """Begin a run of a worker."""

    fresh_id: str
    principal: str
    owner: str
    ttl_ms: int
    process: str | None = None
    metadata: str | None = None
    ns: str | None = None  # the namespace it will belong to


class KeepSession(Record):
    """The worker is alive. `ttl_ms`: from now on its session lives this long without a sign of life."""

    session: str
    principal: str
    ttl_ms: int | None = None
    bound: str | None = None  # the only namespace that the caller's credential is for


class EndSession(Record):
    """The worker is done, or (`dead`) was seen to be gone by a neighbour."""

    session: str
    principal: str | None  # None: not its owner but an operator, or somebody who saw its process dead
    dead: bool = False
    bound: str | None = None


class InspectSession(Record):
    session: str
    principal: str | None
    bound: str | None = None


class Sweep(Record):
    """Turn what is due on one record into events: an expiry, a lost place, the forgetting of what is long over."""

    key: str


class Beat(Record):
    """A server says it is up, and since when it has been without a gap. Finds and records outages.

    What it must know of others is asked for after a gap only: see `core/outages.py`."""

    alive_since_ms: int
    server: str = ""  # which one; an older version's server has no name
    heard_ms: int | None = None  # `accounted_ms` of all pulses
    idle: bool = False  # nobody has or waits for anything, so nobody could have lost it
    gone: tuple[str, ...] = ()  # servers whose pulse is to be forgotten


class Identify(Record):
    """Which store is this? One that has no id yet takes this one."""

    fresh_id: str


class RaiseFloor(Record):
    """No fencing token of the store is to be at or below `floor` from now on. Never lowers one."""

    floor: int


class Freeze(Record):
    """From now on nothing in the store changes but by who has `id`."""

    id: str
    over: str | None = None  # the id of the mark that this one replaces; None: the store is not frozen yet
    incomplete: bool = False
    source: str = ""
    adds: bool = False


class Thaw(Record):
    """The store may be used again. The time since `since_ms` counts as an outage, and no token is at or below `floor`.
    `id` is that of the mark; None: of a store that is complete, whoever froze it."""

    id: str | None
    floor: int = 0
    since_ms: int | None = None  # None: since it was frozen


_Command = (
    Acquire
    | AcquireAny
    | AcquireAll
    | Leave
    | KeepPlaces
    | Renew
    | Release
    | Transfer
    | Break
    | Free
    | SetAcl
    | Inspect
    | OpenSession
    | KeepSession
    | EndSession
    | InspectSession
    | Sweep
    | Beat
    | RaiseFloor
    | Freeze
    | Thaw
    | Identify
)

if TYPE_CHECKING:
    from dibs.core.credentials import TokenCommand

    Command = _Command | TokenCommand
else:
    Command = _Command  # those about tokens are rare, and are imported by who needs them
