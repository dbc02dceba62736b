"""What the rules can answer. "Somebody else has it" is an answer, not an exception.

Each outcome is a row of the one table in `wire/codes.py`: HTTP status, exit code, exception and sentence.
"""

from __future__ import annotations

from dibs.core.record import Record
from dibs.core.records import Done, Ending, FreezeMark, Holder, LockRecord, SessionRecord, Ticket

TYPE_CHECKING = False


class Granted(Record):
    """The job is the caller's. `again` when the caller had been told so before; `held_before` when that was in answer
    to another request, and not to a repeat of this one. `skipped` holds, for each name of an AcquireAny that stood
    before this one, the outcome it would have had."""

    now_ms: int
    name: str
    lease: Holder
    previous: Ending | None = None
    again: bool = False
    skipped: tuple[Outcome, ...] = ()
    held_before: bool = False


class GrantedAll(Record):
    """Every one of several jobs is the caller's."""

    now_ms: int
    grants: tuple[Granted, ...]


class Blocker(Record):
    """A claim in the way. In a tree it may be on another name than the one asked for."""

    name: str
    holder: Holder


class SessionLease(Record):
    """One lease of a session. A session may hold jobs of several namespaces."""

    ns: str
    name: str
    holder: Holder


class Held(Record):
    """Somebody else has it. `blockers` is empty when it is only others in the line that come first; `first` is then the
    one whose turn it is."""

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
    blockers: tuple[Blocker, ...] = ()
    delay_until_ms: int = 0


class Refused(Record):
    """None of several could be claimed, or not all: one outcome a name, in the order asked."""

    now_ms: int
    outcomes: tuple[Outcome, ...]


class Deadlock(Record):
    """Waiting would never end. `cycle` alternates owner and job, beginning with the asker."""

    now_ms: int
    name: str
    cycle: tuple[str, ...]


class Differs(Record):
    """The job is held in another way than asked: `what` is slots or mode."""

    now_ms: int
    name: str
    what: str
    has: str
    asked: str


class Parked(Record):
    """Too many owners lost the job; an operator must free it."""

    now_ms: int
    name: str
    failures: int
    ending: Ending | None = None


class Freed(Record):
    now_ms: int
    name: str
    was_parked: bool


class Left(Record):
    """No longer in the line. `was_in` is False when that was so before. `elsewhere`: the caller waits, or was told, at
    another server, and nothing was changed."""

    now_ms: int
    name: str
    was_in: bool
    elsewhere: bool = False


class PlacesKept(Record):
    """Places kept."""

    now_ms: int
    gone: tuple[tuple[str, str, int], ...] = ()


class Transferred(Record):
    """Handed over. `lease` is the new owner's."""

    now_ms: int
    name: str
    lease: Holder


class SessionState(Record):
    """How a session stands. `holds` are the leases that are really its own now."""

    now_ms: int
    session: SessionRecord
    holds: tuple[SessionLease, ...] = ()
    live: bool = True


class SessionUnknown(Record):
    """There is no such session, or it is somebody else's: the two are not told apart."""

    now_ms: int
    session: str


class SessionOver(Record):
    """The session ended."""

    now_ms: int
    session: SessionRecord


class AlreadyDone(Record):
    """It was finished, and the mark still stands."""

    now_ms: int
    name: str
    done: Done


class Delayed(Record):
    """Nobody has it, and it rests after a loss or until a failure's retry time."""

    now_ms: int
    name: str
    until_ms: int
    delay_ms: int
    ending: Ending | None = None


class Renewed(Record):
    now_ms: int
    name: str
    lease: Holder


class Released(Record):
    """Let go. `again` when it had been released before: saying so twice is fine."""

    now_ms: int
    name: str
    ending: Ending
    again: bool = False


class Failed(Record):
    """Let go as failed. `again` when it had been before. `until_ms`: nobody is granted the job sooner."""

    now_ms: int
    name: str
    ending: Ending
    failures: int
    parked: bool = False
    until_ms: int = 0
    again: bool = False


class CheckpointTooLong(Record):
    """The owners of one job share the room for checkpoints, and this one does not fit. Nothing was noted or renewed."""

    now_ms: int
    name: str
    owners: int
    room: int  # how long it might have been, in bytes


class NotCurrent(Record):
    """The lease shown is not one that holds the job now. `ending` says how it ended, where that is remembered."""

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
    """The job has an access list already, and another one was given."""

    now_ms: int
    name: str


class AclSet(Record):
    now_ms: int
    name: str
    acl: tuple[str, ...]


class NotFound(Record):
    """There is no such job on record."""

    now_ms: int
    name: str


class QuotaExceeded(Record):
    """The caller's credential holds as many jobs as it may."""

    now_ms: int
    name: str


class Broken(Record):
    """What was taken away. Nothing, when nobody held it."""

    now_ms: int
    name: str
    holders: tuple[Holder, ...] = ()


class Status(Record):
    """How a job stands. `lock` is as the rules see it now: expired holds are gone from it."""

    now_ms: int
    name: str
    lock: LockRecord
    seen: bool  # False when the store has no record of the job
    waiting: int = 0  # how many are in the line
    overlapping: tuple[Blocker, ...] = ()  # in a tree: other claims that stand in its way


class Swept(Record):
    now_ms: int
    key: str
    expired: int = 0
    forgotten: bool = False


class BeatRecorded(Record):
    """`frozen`: a gap could not be accounted for, because nothing in the store may change now. Beat again."""

    now_ms: int
    outage_ms: int = 0
    frozen: bool = False


class Frozen(Record):
    """The store is frozen: nothing was changed. It is being moved, or is not complete yet."""

    now_ms: int
    mark: FreezeMark


class FreezeNoted(Record):
    """The store is frozen from now on."""

    now_ms: int
    mark: FreezeMark


class Thawed(Record):
    """The store may be used. `was_frozen` is False when it could be before."""

    now_ms: int
    was_frozen: bool


class Identified(Record):
    """Which store this is."""

    now_ms: int
    store_id: str


class Raised(Record):
    """The floor under all fencing tokens, as it is now."""

    now_ms: int
    floor: int


_Outcome = (
    Granted
    | GrantedAll
    | Held
    | Queued
    | Refused
    | Deadlock
    | Differs
    | Parked
    | Freed
    | Left
    | PlacesKept
    | Transferred
    | SessionState
    | SessionUnknown
    | SessionOver
    | AlreadyDone
    | Delayed
    | Renewed
    | Released
    | Failed
    | CheckpointTooLong
    | NotCurrent
    | KeySpent
    | Forbidden
    | AclDiffers
    | AclSet
    | NotFound
    | QuotaExceeded
    | Broken
    | Status
    | Swept
    | BeatRecorded
    | Frozen
    | FreezeNoted
    | Thawed
    | Raised
    | Identified
)

if TYPE_CHECKING:
    from dibs.core.credentials import TokenState

    Outcome = _Outcome | TokenState
else:
    Outcome = _Outcome
