"""Outcomes about held jobs, sessions and operators' commands. A claim needs none of them (`outcomes.py` has those it
needs), and does not import them.
"""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.records import Ending, Holder, SessionRecord

TYPE_CHECKING = False


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
    from typing import TypeAlias

    LeaseOutcome: TypeAlias = (
        Freed
        | Transferred
        | SessionState
        | Renewed
        | Released
        | Failed
        | NoteTooLong
        | AclSet
        | NotFound
        | Broken
    )
