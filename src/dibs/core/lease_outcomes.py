"""Outcomes about held jobs and operators' commands. A claim needs none, and does not import them."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.outcomes import Blocker, JobOutcome, Outcome
from dibs.core.records import Closure, EffectState, Ending, FreezeMark, Holder, Number, Ticket

# Outcomes about the store itself: sweeping, servers' pulses, counting, freezing. No claim needs them.


class Counted(Outcome):
    """Everything that was to be counted against the quota is counted."""


class Swept(Outcome):
    key: str
    expired: int = 0
    forgotten: bool = False
    unfinished: bool = False  # there was more to do than one decision does; sweep it again
    frozen: bool = False  # nothing was done, because the store is frozen


class BeatRecorded(Outcome):
    """`frozen`: a gap could not be recorded, because the store is frozen. Beat again."""

    outage_ms: int = 0
    frozen: bool = False


class Frozen(Outcome):
    """The store is frozen: nothing was changed. It is being moved, or is not complete yet."""

    mark: FreezeMark


class FreezeNoted(Outcome):
    mark: FreezeMark


class Thawed(Outcome):
    """The store may be used. `was_frozen` is False when it could be before."""

    was_frozen: bool


class Identified(Outcome):
    store_id: str
    moved_from: tuple[str, ...] = ()


class Raised(Outcome):
    floor: int


class Freed(JobOutcome):
    was_parked: bool


class Transferred(JobOutcome):
    """Handed over. `lease` is the new owner's."""

    lease: Holder


class Renewed(JobOutcome):
    """Renewed. `waiting`: how many wait for it; `new`: how many of them are reported to its owner for the first
    time."""

    lease: Holder
    waiting: int = 0
    new: int = 0
    effect: EffectState | None = None  # the step that a note was about


class EffectRefused(JobOutcome):
    """A note about a step was refused (`effects.py`). The lease was not renewed, and nothing was changed."""

    key: str
    why: str
    known: EffectState | None = None  # what is on record of the step


class Released(JobOutcome):
    """Released. `again`: it was released before."""

    ending: Ending
    again: bool = False


class Failed(JobOutcome):
    """Released as failed. `again`: it was before. `until_ms`: nobody gets the job sooner."""

    ending: Ending
    failures: int
    parked: bool = False
    until_ms: int = 0
    again: bool = False


class NotAJob(JobOutcome):
    """A resource is held, and nothing else: only jobs are done, fail, or are parked. `what` of the command says
    otherwise. Nothing was changed."""

    what: str


class NoteTooLong(JobOutcome):
    """Checkpoint or metadata do not fit beside those of the job's other owners. Nothing was changed."""

    what: str
    owners: int
    most: int  # how long those of all owners may be together, in bytes
    room: int  # how long this one may be


class AclSet(JobOutcome):
    acl: tuple[str, ...]


class PoolSet(JobOutcome):
    """The number of slots that the pool has now; None: the job is no pool."""

    slots: int | None
    was: int | None
    taken: int = 0  # slots
    waiting: int = 0  # how many are in the queue


class Numbered(JobOutcome):
    """A number that nobody else has. `again`: this ask got it before."""

    number: int
    owner: str
    again: bool = False


class NumberTaken(JobOutcome):
    """Somebody has this number, or may have it; `taken` says who, if that is still known. Nothing was changed."""

    number: int
    following: int  # the next one that is free
    taken: Number | None = None


class NumberReturned(JobOutcome):
    """`was_taken`: whether anybody had it. Then it is free, and the last one if it was the last."""

    number: int
    was_taken: bool
    last_number: int = 0


class NotFound(JobOutcome):
    """There is no such job on record."""


class Broken(JobOutcome):
    """The hold that was broken; none if nobody held the job."""

    holders: tuple[Holder, ...] = ()


class ClosureSet(JobOutcome):
    closure: Closure


class NotClosed(JobOutcome):
    """The end or the number of closures is out of bounds. Nothing was changed."""

    why: str


class Opened(JobOutcome):
    """The closure of this name is over. `closure`: another one, by which the job is still closed."""

    was_closed: bool
    closure: Closure | None = None


# What is read of many records, and no outcome of a command.


class TicketState(Record):
    """Somebody who waits now, with some of the claims in its way. Without any, `state` of the job says why, or it waits
    for its first in line."""

    ticket: Ticket
    position: int
    blockers: tuple[Blocker, ...]
    state: str
    closure: Closure | None = None


class TicketPage(Record):
    """Tickets in no useful order. `next_after` is None on the last page."""

    now_ms: int
    tickets: tuple[TicketState, ...]
    next_after: str | None
