"""Outcomes: the answers of the rules. "Somebody else has it" is an answer, not an exception.

Each outcome is a row of the one table in `wire/codes.py`: HTTP status, exit code, exception and sentence.

Here are those that a claim can have. A process that claims makes each class that it imports, so the others are apart:
`lease_outcomes.py` (held jobs, sessions, operators' commands, the store itself).
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.records import Done, Ending, Holder, LockRecord, SessionRecord, Ticket

TYPE_CHECKING = False


class Granted(Record):
    """The job is the caller's. `again`: it was granted before. `held_before`: it was granted by another request, and
    this is not a repeat of that one. `skipped` has the outcomes of the names that an AcquireAny skipped before this
    one."""

    now_ms: int
    name: str
    lease: Holder
    previous: Ending | None = None
    again: bool = False
    skipped: tuple[Outcome, ...] = ()
    held_before: bool = False


class GrantedAll(Record):
    """All of the jobs are the caller's."""

    now_ms: int
    grants: tuple[Granted, ...]


class Blocker(Record):
    """A claim that blocks another. In a tree its name may differ from the claimed one."""

    name: str
    holder: Holder


class Held(Record):
    """Somebody else has it. `blockers` is empty if nobody holds it but others in line come first; `first` is then the
    next in line."""

    now_ms: int
    name: str
    blockers: tuple[Blocker, ...] = ()
    waiting: int = 0  # how many are in the line
    first: Ticket | None = None


class Queued(Record):
    """In the line, at `position` (1: next)."""

    now_ms: int
    ns: str
    name: str
    ticket: int
    ticket_id: str
    position: int
    seat: str | None = None  # as in the ticket
    blockers: tuple[Blocker, ...] = ()
    delay_until_ms: int = 0


class Refused(Record):
    """None of several jobs could be claimed, or not all of them: one outcome per name, in the order given."""

    now_ms: int
    outcomes: tuple[Outcome, ...]


class Deadlock(Record):
    """Waiting would deadlock. `cycle` alternates owner and job, beginning with the caller."""

    now_ms: int
    name: str
    cycle: tuple[str, ...]


class Differs(Record):
    """The job is held with other slots or in another mode: `what` says which."""

    now_ms: int
    name: str
    what: str
    has: str
    asked: str


class Parked(Record):
    """Too many owners failed at the job or were lost; an operator must free it."""

    now_ms: int
    name: str
    failures: int
    ending: Ending | None = None


class Left(Record):
    """The place was given up, unless another ask has the seat. `was_in` is False if it was gone before."""

    now_ms: int
    name: str
    was_in: bool


class PlacesKept(Record):
    """Places kept."""

    now_ms: int
    gone: tuple[tuple[str, str, int], ...] = ()


class SessionUnknown(Record):
    """There is no such session, or it is somebody else's; the answer is the same."""

    now_ms: int
    session: str


class SessionOver(Record):
    """The session ended."""

    now_ms: int
    session: SessionRecord


class AlreadyDone(Record):
    """The job is marked as done."""

    now_ms: int
    name: str
    done: Done


class Delayed(Record):
    """Nobody has it, and nobody gets it yet: a lock delay after a loss, or the retry time after a failure."""

    now_ms: int
    name: str
    until_ms: int
    delay_ms: int
    ending: Ending | None = None


class NotCurrent(Record):
    """The lease does not hold the job now. `ending` says how it ended, if that is remembered."""

    now_ms: int
    name: str
    holders: tuple[Holder, ...] = ()
    ending: Ending | None = None


class KeySpent(Record):
    """The request key belongs to a lease that has ended: a late repeat must not become a second lease."""

    now_ms: int
    name: str
    ending: Ending


class Forbidden(Record):
    """The job's access list does not name the caller, or the caller may not change it."""

    now_ms: int
    name: str


class AclDiffers(Record):
    """The job has another access list than the one given."""

    now_ms: int
    name: str


class QuotaExceeded(Record):
    """The caller's credential holds as many jobs as its limit allows. `most` 0: the server's own bound."""

    now_ms: int
    name: str
    most: int = 0


class TooMany(Record):
    """The principal has as many places in line, or open sessions, as it may. `name` is the job, if it is about one."""

    now_ms: int
    name: str
    what: str
    most: int


class Status(Record):
    """The state of a job. `lock` is the present one, without holds that have ended."""

    now_ms: int
    name: str
    lock: LockRecord
    seen: bool  # False when the store has no record of the job
    waiting: int = 0  # how many are in the line
    overlapping: tuple[Blocker, ...] = ()  # in a tree: other claims that block it


if TYPE_CHECKING:
    from typing import TypeAlias

    from dibs.core.credentials import TokenState
    from dibs.core.lease_outcomes import LeaseOutcome, UpkeepOutcome
    from dibs.core.webhooks import WebhookOutcome

    ClaimOutcome: TypeAlias = (
        Granted
        | GrantedAll
        | Held
        | Queued
        | Refused
        | Deadlock
        | Differs
        | Parked
        | Left
        | PlacesKept
        | SessionUnknown
        | SessionOver
        | AlreadyDone
        | Delayed
        | NotCurrent
        | KeySpent
        | Forbidden
        | AclDiffers
        | QuotaExceeded
        | TooMany
        | Status
    )
    Outcome: TypeAlias = ClaimOutcome | LeaseOutcome | UpkeepOutcome | TokenState | WebhookOutcome
