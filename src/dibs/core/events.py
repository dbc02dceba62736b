"""What happened, in order. Every change of ownership is an event, written in the same commit as the change.

A heartbeat alone changes no ownership and is no event; one that brings a checkpoint or new metadata is `progress`.
Events never carry a lease id: whoever may read history could otherwise act as the owner.
"""

from __future__ import annotations

from dibs.core.record import Record

ACQUIRED = "acquired"
PROGRESS = "progress"
RELEASED = "released"
EXPIRED = "expired"
BROKEN = "broken"
FORGOTTEN = "forgotten"  # an idle job's record was collected; its number lives on in the floor
OUTAGE = "outage"

OWNERSHIP_ENDS = frozenset((RELEASED, EXPIRED, BROKEN))


class Event(Record):
    """One line of history."""

    at_ms: int
    kind: str
    ns: str = ""
    job: str = ""
    owner: str = ""
    principal: str = ""
    token: int = 0
    seq: int = 0  # given by the store, rising without end
    mode: str = "exclusive"
    attempt: int = 1
    ttl_ms: int | None = None
    metadata: str | None = None
    checkpoint: str | None = None
    result: str | None = None
    done_until_ms: int | None = None
    by: str | None = None
    reason: str | None = None
    began_ms: int | None = None  # of an outage
