"""Outcomes about sessions. An agent's hook, which renews its session and claims files, needs no other that is not a
claim's."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.outcomes import Outcome
from dibs.core.records import Holder, SessionRecord


class SessionLease(Record):
    """One lease of a session. A session may hold jobs of several namespaces."""

    ns: str
    name: str
    holder: Holder
    waiting: int = 0


class WaitedFor(Record):
    """A job of a session that others wait for. `new` of them were not reported to its owner before."""

    ns: str
    name: str
    waiting: int
    new: int


class SessionState(Outcome):
    """The state of a session. `holds` are its present leases. `wanted` are those for which somebody new waits."""

    session: SessionRecord
    holds: tuple[SessionLease, ...] = ()
    live: bool = True
    wanted: tuple[WaitedFor, ...] = ()
