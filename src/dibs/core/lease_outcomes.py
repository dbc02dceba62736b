"""Outcomes about held jobs, sessions and operators' commands. A claim needs none of them (`outcomes.py` has those it
needs), and does not import them.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.records import Ending, FreezeMark, Holder, SessionRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeAlias

# Outcomes about the store itself: sweeping, servers' pulses, counting, freezing. No claim needs them.


class Counted(Record):
    """What was to be charged is."""

    now_ms: int


class Swept(Record):
    now_ms: int
    key: str
    expired: int = 0
    forgotten: bool = False
    unfinished: bool = False  # there was more to do than one decision does; sweep it again
    frozen: bool = False  # nothing was done, because the store is frozen


class BeatRecorded(Record):
    """`frozen`: a gap could not be recorded, because the store is frozen. Beat again."""

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


class SessionLease(Record):
    """One lease of a session. A session may hold jobs of several namespaces."""

    ns: str
    name: str
    holder: Holder
    waiting: int = 0


class WaitedFor(Record):
    """A job of a session that others wait for. `new` of them its owner was not told of before."""

    ns: str
    name: str
    waiting: int
    new: int


class Freed(Record):
    now_ms: int
    name: str
    was_parked: bool


class Transferred(Record):
    """Handed over. `lease` is the new owner's."""

    now_ms: int
    name: str
    lease: Holder


class SessionState(Record):
    """The state of a session. `holds` are its present leases. `wanted` are those for which somebody new waits."""

    now_ms: int
    session: SessionRecord
    holds: tuple[SessionLease, ...] = ()
    live: bool = True
    wanted: tuple[WaitedFor, ...] = ()


class Renewed(Record):
    """Renewed. `waiting`: how many wait for it; `new`: how many of them its owner is told of for the first time."""

    now_ms: int
    name: str
    lease: Holder
    waiting: int = 0
    new: int = 0


class Released(Record):
    """Released. `again`: it was released before."""

    now_ms: int
    name: str
    ending: Ending
    again: bool = False


class Failed(Record):
    """Released as failed. `again`: it was before. `until_ms`: nobody gets the job sooner."""

    now_ms: int
    name: str
    ending: Ending
    failures: int
    parked: bool = False
    until_ms: int = 0
    again: bool = False


class NoteTooLong(Record):
    """The checkpoint or the metadata does not fit beside those of the job's other owners. Nothing was stored or
    renewed."""

    now_ms: int
    name: str
    what: str
    owners: int
    most: int  # how long those of all owners may be together, in bytes
    room: int  # how long this one may be


class AclSet(Record):
    now_ms: int
    name: str
    acl: tuple[str, ...]


class NotFound(Record):
    """There is no such job on record."""

    now_ms: int
    name: str


class Broken(Record):
    """The hold that was broken; none if nobody held the job."""

    now_ms: int
    name: str
    holders: tuple[Holder, ...] = ()


if TYPE_CHECKING:
    UpkeepOutcome: TypeAlias = Counted | Swept | BeatRecorded | Frozen | FreezeNoted | Thawed | Identified | Raised
    LeaseOutcome: TypeAlias = (
        Freed | Transferred | SessionState | Renewed | Released | Failed | NoteTooLong | AclSet | NotFound | Broken
    )
