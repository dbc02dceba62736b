"""Events: what happened, in order. Every change of ownership is an event, written in the same commit as the change.

A heartbeat without news is not an event; one with a checkpoint or new metadata is `progress`. A refusal is none. For
`audited` callers both are. Events carry no lease id: a reader of the history could act as the owner.
"""

from __future__ import annotations

from dibs.base.record import Record

ACQUIRED = "acquired"
PROGRESS = "progress"
EFFECT_BEGUN = "effect-begun"  # a step that changes something outside (`effects.py`)
EFFECT_DONE = "effect-done"
EFFECT_FAILED = "effect-failed"
EFFECT_IN_DOUBT = "effect-in-doubt"  # its owner does not know whether it happened
SHARED = "shared"  # an exclusive owner shares the job from now on
RELEASED = "released"
FAILED = "failed"
EXPIRED = "expired"
BROKEN = "broken"
TRANSFERRED = "transferred"
QUEUED = "queued"
LEFT = "left"  # a place in the queue was given up, lost, or became pointless
PARKED = "parked"
REFUSED = "refused"  # a refused claim; only for callers that are `audited`
RENEWED = "renewed"  # a heartbeat without news; only for callers that are `audited`
FREED = "freed"  # an operator freed a parked job
CLOSED = "closed"  # an operator closed a job, or all below a name
OPENED = "opened"  # that is over: by an operator, or by its time
SESSION_OPENED = "session-opened"
SESSION_ENDED = "session-ended"
ACCESS_SET = "access-set"  # somebody changed a job's access list
POOL_SET = "pool-set"  # an operator said how many slots a job has, or that its claims say so again
NUMBERED = "numbered"  # somebody was given a number of a series
NUMBER_RETURNED = "number-returned"
FORGOTTEN = "forgotten"  # an idle job's record was deleted; the floor keeps its fencing token
OUTAGE = "outage"
TOKEN_CREATED = "token-created"
TOKEN_ROTATED = "token-rotated"  # it goes on for a grace; its successor is a `token-created`
TOKEN_REVOKED = "token-revoked"
TOKEN_LIMITED = "token-limited"
IDENTITY_ACCEPTED = "identity-accepted"  # a signed token of a machine; `by` is its issuer, `reason` its subject
WEBHOOK_CREATED = "webhook-created"
WEBHOOK_REMOVED = "webhook-removed"
WEBHOOK_REPLAYED = "webhook-replayed"  # somebody asked for deliveries once more
WEBHOOK_STOPPED = "webhook-stopped"  # the last token of its owner is over
IMPORTED = "imported"  # a copy was brought in: records that no other event reports

KINDS = (
    *(ACQUIRED, PROGRESS, SHARED, RELEASED, FAILED, EXPIRED, BROKEN, TRANSFERRED, QUEUED, LEFT),
    *(PARKED, REFUSED, RENEWED, FREED, ACCESS_SET, POOL_SET, SESSION_OPENED, SESSION_ENDED, FORGOTTEN, OUTAGE),
    *(TOKEN_CREATED, TOKEN_ROTATED, TOKEN_REVOKED, TOKEN_LIMITED, IDENTITY_ACCEPTED),
    *(WEBHOOK_CREATED, WEBHOOK_REMOVED, WEBHOOK_REPLAYED, WEBHOOK_STOPPED),
    *(CLOSED, OPENED, IMPORTED, EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT, NUMBERED, NUMBER_RETURNED),
)
TOKEN_CHANGES = frozenset((TOKEN_CREATED, TOKEN_ROTATED, TOKEN_REVOKED, TOKEN_LIMITED))
WEBHOOK_CHANGES = frozenset((WEBHOOK_CREATED, WEBHOOK_REMOVED, WEBHOOK_REPLAYED, WEBHOOK_STOPPED))
# What an admin is shown as changes of who may do what.
RIGHTS_CHANGES = frozenset((ACCESS_SET, IDENTITY_ACCEPTED, *TOKEN_CHANGES, *WEBHOOK_CHANGES))
OWNERSHIP_ENDS = frozenset((RELEASED, FAILED, EXPIRED, BROKEN, TRANSFERRED))

# The words for changes of who has a job, for those who watch one and for webhooks. Other events are no such change.
LOCK_CHANGES = {
    ACQUIRED: "acquired",
    RENEWED: "renewed",
    PROGRESS: "renewed",
    SHARED: "renewed",
    EXPIRED: "expired",
    **dict.fromkeys((RELEASED, FAILED, BROKEN, TRANSFERRED), "released"),
}


class Event(Record):
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
    retry_ms: int | None = None  # after a failure or a loss: for how long nobody is granted the job
    by: str | None = None
    reason: str | None = None
    began_ms: int | None = None  # when the outage, hold, wait or session began that ends with this event
    ticket: int = 0  # the place in the queue that this is about, or that was handed the job
    slots: int = 1
    slot_numbers: tuple[int, ...] = ()  # which slots the hold has
    until_ms: int | None = None  # when the hold ends without a heartbeat, if `ttl_ms` does not say it; or the closure
    uncounted: bool = False  # of a release: it says nothing about the work
    effect_key: str | None = None  # the key of a step (`effects.py`)
    session: int = 0  # of a session's beginning and end: `session_mark`, which tells two of one owner apart

    def hold_ends_ms(self) -> int | None:
        """Return when the hold ends without a heartbeat. None: it has ended."""
        return self.at_ms + self.ttl_ms if self.ttl_ms and self.until_ms is None else self.until_ms


def session_mark(session_id: str) -> int:
    """A checksum of a session's id: events must not carry the id itself, which proves the session."""
    from binascii import crc32  # imported here, because a claim does not need it

    return crc32(session_id.encode("utf-8", "surrogatepass"))
