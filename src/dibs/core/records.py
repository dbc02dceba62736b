"""What dibs remembers: the records that stores keep, and the keys they are kept under.

A record answers one question for its store, `due_ms()`: when should somebody look at it again. Everything else about
a record is for the rules. Instants are store time in milliseconds (`now_ms` of a view), never a client's clock.
"""

from __future__ import annotations

from dibs.core.limits import IDLE_RECORD_MS
from dibs.core.record import Record

EXCLUSIVE = "exclusive"

# How a hold on a job can end.
RELEASED = "released"
EXPIRED = "expired"
BROKEN = "broken"


class Holder(Record):
    """One owner's hold on a job: the lease."""

    lease_id: str  # the secret proof; shown to its owner and to nobody else
    owner: str  # who, as shown to everyone; proves nothing
    principal: str  # whose credential it was taken with
    token: int  # the fencing token
    since_ms: int
    renewed_ms: int
    ttl_ms: int
    expires_ms: int
    mode: str = EXCLUSIVE
    session: str | None = None
    metadata: str | None = None
    checkpoint: str | None = None
    checkpoint_ms: int | None = None
    request_key: str | None = None
    delay_ms: int = 0  # how long the job rests if this hold is lost and not released
    attempt: int = 1


class Ending(Record):
    """How an earlier hold ended. The newest carries the checkpoint; older ones are only there to be recognised."""

    lease_id: str
    owner: str
    principal: str
    token: int
    how: str  # RELEASED, EXPIRED or BROKEN
    at_ms: int
    checkpoint: str | None = None
    request_key: str | None = None
    by: str | None = None  # who broke it
    reason: str | None = None  # and why


class Done(Record):
    """The job was finished: until `until_ms`, claiming it again is answered with this."""

    owner: str
    token: int
    at_ms: int
    until_ms: int
    result: str | None = None


class Lock(Record):
    """Everything about one job. Present from its first claim until it has been idle for long."""

    ns: str
    name: str
    token: int = 0  # the highest fencing token ever given for this job
    slots: int = 1
    holders: tuple[Holder, ...] = ()
    line: tuple[int, ...] = ()  # numbers of the tickets that wait, first come first
    endings: tuple[Ending, ...] = ()  # newest first
    failures: int = 0  # holds lost, not released, since the last clean release
    done: Done | None = None
    delay_until_ms: int = 0
    acl: tuple[str, ...] = ()

    def due_ms(self) -> int | None:
        """The first expiry; with no holder, the time at which the record may be forgotten."""
        if self.holders:
            return min([holder.expires_ms for holder in self.holders])
        if self.line or self.acl:
            return None
        idle_since_ms = self.endings[0].at_ms if self.endings else 0
        done_until_ms = self.done.until_ms if self.done else 0
        return max(idle_since_ms + IDLE_RECORD_MS, done_until_ms, self.delay_until_ms)


class Outage(Record):
    """A time in which no server could take a renewal."""

    began_ms: int
    ended_ms: int


class Meta(Record):
    """What concerns every job of the store."""

    token_floor: int = 0  # no job's next token is at or below this; rises when an idle job is forgotten
    outages: tuple[Outage, ...] = ()  # oldest first

    def due_ms(self) -> int | None:
        return None


class Pulse(Record):
    """The last time at which some server said it was up."""

    at_ms: int

    def due_ms(self) -> int | None:
        return None


Stored = Lock | Meta | Pulse

META_KEY = "meta"
PULSE_KEY = "pulse"
LOCK_PREFIX = "lock/"
_CLASSES: dict[str, type[Lock | Meta | Pulse]] = {"lock": Lock, META_KEY: Meta, PULSE_KEY: Pulse}


def lock_key(ns: str, name: str) -> str:
    """A namespace holds no slash, so the first one after it begins the name, whatever the name holds."""
    return f"{LOCK_PREFIX}{ns}/{name}"


def split_lock_key(key: str) -> tuple[str, str]:
    _, ns, name = key.split("/", 2)
    return ns, name


def class_of(key: str) -> type[Lock | Meta | Pulse]:
    """The record class that lives under a key: what a store needs to read its bytes back."""
    return _CLASSES[key.split("/", 1)[0]]
