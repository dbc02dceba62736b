"""Outcomes: the answers of the rules. "Somebody else has it" is an answer, not an exception.

Each outcome is a row of the one table in `wire/codes.py`: HTTP status, exit code, exception and sentence.

Here are those that a claim can have. A process that claims makes each class that it imports, so the others are apart:
`lease_outcomes.py` (held jobs, sessions, operators' commands, the store itself).
"""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.base.record import Record
from dibs.core.records import (
    DONE,
    HELD,
    PARKED,
    Closure,
    Done,
    EffectState,
    Ending,
    Holder,
    LockRecord,
    SessionRecord,
    Ticket,
)


class Outcome(Record):
    """Base of all outcomes. `now_ms` is the store's time of the decision."""

    now_ms: int


class JobOutcome(Outcome):
    name: str


class Granted(JobOutcome):
    """The job is the caller's. `again`: it was granted before. `held_before`: and by another ask than this one.
    `skipped`: the outcomes of the names that an AcquireAny skipped."""

    lease: Holder
    previous: Ending | None = None
    again: bool = False
    skipped: tuple[Outcome, ...] = ()
    held_before: bool = False
    effects: tuple[EffectState, ...] = ()  # what earlier owners noted of their steps


class GrantedAll(Outcome):
    grants: tuple[Granted, ...]


class Blocker(Record):
    """A claim that blocks another. In a tree its name may differ from the claimed one."""

    name: str
    holder: Holder


class Held(JobOutcome):
    """Somebody else has it. `blockers` are those that end first, and `unnamed` more are in the way. Without any, others
    in the queue come first; `first` is the next of them."""

    blockers: tuple[Blocker, ...] = ()
    unnamed: int = 0
    waiting: int = 0  # how many are in the queue
    first: Ticket | None = None
    paused: bool = False  # its pool has no slots


class Queued(Outcome):
    """In the queue, at `position` (1: next). `blockers` and `unnamed` as in `Held`, of all jobs that it needs."""

    ns: str
    name: str
    ticket: int
    ticket_id: str
    position: int
    blockers: tuple[Blocker, ...] = ()
    unnamed: int = 0
    delay_until_ms: int = 0
    closure: Closure | None = None
    paused: bool = False  # the pool of one of its jobs has no slots


class Refused(Outcome):
    """None of several jobs could be claimed: one outcome per name, in the order given. `all_of`: how many were wanted
    together; the outcomes are of those not available. `count`: how many were wanted, of which `free` could be had.
    `left`: what this claim got before and still has. Only its owner knows whether it read that answer: only it gives
    them back.
    """

    outcomes: tuple[Outcome, ...]
    left: tuple[Granted, ...] = ()
    all_of: int = 0
    count: int = 0
    free: int = 0


def refused_status(statuses: Sequence[str], all_of: int) -> str:
    """The status of several jobs of which none was claimed: `done` if all are, `parked` if none comes free unless
    somebody frees one, else `held`: waiting may help. One that is parked is in the way of all."""
    if PARKED in statuses and (all_of or all(status in (PARKED, DONE) for status in statuses)):
        return PARKED
    return DONE if len(statuses) >= all_of and all(status == DONE for status in statuses) else HELD


class Superseded(JobOutcome):
    """A newer claim of the same group took a place in the queue, and the caller's is gone. `by`: its owner, if
    known."""

    group: str
    by: str = ""


class Deadlock(JobOutcome):
    """Waiting would deadlock. `cycle` alternates owner and job, beginning with the caller."""

    cycle: tuple[str, ...]


class Differs(JobOutcome):
    """The job is held with other slots or in another mode, or the caller holds it with other units: `what` says which.
    `slots`: nobody need hold it, because it never has what was asked for."""

    what: str
    has: str
    asked: str
    slots: int = 0


class Parked(JobOutcome):
    """Too many owners failed at the job or were lost; an operator must free it."""

    failures: int
    ending: Ending | None = None


class Left(JobOutcome):
    """The place was given up. `was_in` is False if it was gone before."""

    was_in: bool


class Withdrawn(Outcome):
    """The claim is undone, and late copies of it are refused. `left`: its place in the queue was given up. `released`:
    the jobs that it had and has no more. `kept`: those that others may rely on."""

    left: bool = False
    released: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class TicketsKept(Outcome):
    """Places kept. Those in `gone` are lost, or their job was opened: their owners ask again."""

    gone: tuple[tuple[str, str, int], ...] = ()


class SessionUnknown(Outcome):
    """There is no such session, or it is somebody else's; the answer is the same."""

    session: str


class SessionOver(Outcome):
    session: SessionRecord


class AlreadyDone(JobOutcome):
    done: Done


class Delayed(JobOutcome):
    """Nobody has it, and nobody gets it yet: a lock delay after a loss, or the retry time after a failure."""

    until_ms: int
    delay_ms: int
    ending: Ending | None = None


class Closed(JobOutcome):
    """Nobody is granted the job now, whoever has it: an operator closed it."""

    closure: Closure


class NotCurrent(JobOutcome):
    """The lease does not hold the job now. `ending` says how it ended, if that is remembered."""

    holders: tuple[Holder, ...] = ()
    ending: Ending | None = None


class KeySpent(JobOutcome):
    """The request key belongs to a lease that has ended, or (None) its claim was withdrawn: a late copy must not become
    a lease that nobody knows of."""

    ending: Ending | None


class Forbidden(JobOutcome):
    """The job's access list does not name the caller, or the caller may not change it."""


class AclDiffers(JobOutcome):
    """The job has another access list than the one given."""


class QuotaExceeded(JobOutcome):
    """The caller's credential holds as many jobs as its limit allows. `most` 0: the server's own bound."""

    most: int = 0


class TooMany(JobOutcome):
    """The principal has as many places in the queue, or open sessions, as it may. `name` is the job, if it is about
    one."""

    what: str
    most: int


class Status(JobOutcome):
    """The state of a job. `lock` is the present one, without holds that have ended."""

    lock: LockRecord
    seen: bool  # False when the store has no record of the job
    waiting: int = 0  # how many are in the queue
    overlapping: tuple[Blocker, ...] = ()  # in a tree: other claims that block it, those that end first
    unnamed: int = 0  # how many more there are
    closure: Closure | None = None
    frozen: bool = False  # the store is
