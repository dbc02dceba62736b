"""What the rules can answer. "Somebody else has it" is an answer, not an exception.

Each outcome is a row of the one table in `wire/codes.py`: HTTP status, exit code, exception and sentence.
"""

from __future__ import annotations

from dibs.core.record import Record
from dibs.core.records import Done, Ending, Holder, Lock


class Granted(Record):
    """The job is the caller's. `again` when it was before this command, too."""

    now_ms: int
    name: str
    lease: Holder
    previous: Ending | None = None
    again: bool = False


class Held(Record):
    """Somebody else has it."""

    now_ms: int
    name: str
    holders: tuple[Holder, ...]


class AlreadyDone(Record):
    """It was finished, and the mark still stands."""

    now_ms: int
    name: str
    done: Done


class Delayed(Record):
    """Nobody has it, and it rests after a loss."""

    now_ms: int
    name: str
    until_ms: int
    delay_ms: int


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
    lock: Lock
    seen: bool  # False when the store has no record of the job


class Swept(Record):
    now_ms: int
    name: str
    expired: int = 0
    forgotten: bool = False


class Beaten(Record):
    now_ms: int
    outage_ms: int = 0


Outcome = (
    Granted
    | Held
    | AlreadyDone
    | Delayed
    | Renewed
    | Released
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
    | Beaten
)
