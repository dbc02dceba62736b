"""The records that stores keep.

A record has two methods for its store, `due_ms()` and `is_live()`. Everything else in a record is for the rules.
Instants are store time in milliseconds (`now_ms` of a view), never a client's clock.
"""

from __future__ import annotations

from dibs.base.cheap import Any, TypeVar
from dibs.base.record import Record
from dibs.core.limits import FAILING_RECORD_MS, IDLE_RECORD_MS, REMEMBERED_MS, SESSION_TOMBSTONE_MS
from dibs.core.names import is_resource

Moved = TypeVar("Moved", bound=Record)

EXCLUSIVE = "exclusive"
SHARED = "shared"
# How a job stands, in one word: `claims/inspect.py` says which. CLOSED, PAUSED and FROZEN are what operators did to it.
HELD = "held"
PARKED = "parked"
DONE = "done"
DELAYED = "delayed"
CLOSED = "closed"
PAUSED = "paused"
FROZEN = "frozen"
FREE = "free"
STATES = (HELD, PARKED, DONE, DELAYED, CLOSED, PAUSED, FROZEN, FREE)
UNUSED = (CLOSED, PAUSED, FROZEN, FREE)  # no claim of it, live or earlier, keeps others from it

# How a hold on a job can end.
RELEASED = "released"
FAILED = "failed"  # released by its owner, whose work failed
EXPIRED = "expired"
BROKEN = "broken"
TRANSFERRED = "transferred"
ENDINGS = (RELEASED, FAILED, EXPIRED, BROKEN, TRANSFERRED)
LOST = frozenset((EXPIRED, BROKEN))
UNSUCCESSFUL = frozenset((FAILED, *LOST))  # these count as attempts
MAX_HOLD = "max_hold"  # the reason of an expiry at the ceiling of a hold, whatever was renewed

# The keys that records are kept under. Which class lives under which key is `class_of`.
META_KEY = "meta"
PULSE_PREFIX = "pulse/"
LOCK_PREFIX = "lock/"
SESSION_PREFIX = "session/"
TREE_PREFIX = "tree/"
CREDENTIAL_PREFIX = "credential/"
REGISTER_KEY = "credentials"
USAGE_PREFIX = "usage/"
WEBHOOK_PREFIX = "webhook/"
WEBHOOK_REGISTER_KEY = "webhooks"
WEBHOOK_DUTY_KEY = "webhook-duty"


def pulse_key(server: str) -> str:
    return f"{PULSE_PREFIX}{server}"


def lock_key(ns: str, name: str) -> str:
    """A namespace contains no slash, so the name begins after the first slash that follows it."""
    return f"lock/{ns}/{name}"  # LOCK_PREFIX, written out: no other key is made as often


def ticket_key(ns: str, name: str, number: int) -> str:
    return f"{ticket_prefix(ns)}{number}/{name}"


def ticket_prefix(ns: str) -> str:
    return f"ticket/{ns}/"


def session_key(session_id: str) -> str:
    return f"{SESSION_PREFIX}{session_id}"


def tree_key(ns: str, page: int = 0) -> str:
    return f"{TREE_PREFIX}{ns}/{page}" if page else f"{TREE_PREFIX}{ns}"


def split_lock_key(key: str) -> tuple[str, str]:
    _, ns, name = key.split("/", 2)
    return ns, name


def webhook_key(webhook_id: str) -> str:
    return f"{WEBHOOK_PREFIX}{webhook_id}"


def progress_key(webhook_id: str) -> str:
    return f"webhook-progress/{webhook_id}"


def dead_letters_key(webhook_id: str) -> str:
    return f"webhook-dead/{webhook_id}"


class Kept(Record):
    def due_ms(self) -> int | None:
        """Return when a sweep should look at it again. None: never."""
        return None

    def is_live(self) -> bool:
        """Return whether anybody holds, waits for or has something by it. A hold may have expired unnoticed."""
        return False


class Holder(Record):
    """One owner's hold on a job: the lease."""

    lease_id: str  # the secret proof; only its owner sees it
    owner: str  # the owner's name, shown to everyone; proves nothing
    principal: str  # the principal of the credential
    token: int  # the fencing token
    since_ms: int
    renewed_ms: int
    ttl_ms: int  # 0: no TTL of its own; the hold lasts as long as its session
    expires_ms: int
    mode: str = EXCLUSIVE
    session: str | None = None
    ephemeral: bool = True  # with a session: the session's end ends the hold
    metadata: str | None = None
    checkpoint: str | None = None
    checkpoint_ms: int | None = None
    request_key: str | None = None
    delay_ms: int = 0  # how long nobody gets the job after this hold is lost
    attempt: int = 1
    charge: str | None = None  # where it is counted, for a principal that has a limit (`quota.py`)
    used: bool = False  # others than its own ask may rely on it: no withdrawal ends it (`withdraw.py`)
    wanted: bool = False  # in a tree: somebody waits for it under another name (`tickets.py`)
    told: int = 0  # the last ticket that was reported to its owner
    delays_release: bool = False  # the delay also follows a release
    ends_ms: int = 0  # its ceiling: when it ends, whatever is renewed; 0: it has none
    slot_numbers: tuple[int, ...] = ()  # which slots it has, one for each unit; none: it has no slot
    relied: bool = False  # not ephemeral: it lasts as long as its session, and for its TTL (`grants.for_session`)
    # In answers only, never stored: the last sign of life of its session; and when the worker itself last was at work.
    heard_ms: int = 0
    active_ms: int = 0


class Ending(Record):
    """The end of an earlier hold. The newest has checkpoint and metadata, and is kept; older ones are kept for a while
    to recognise repeats (`withdraw.py`)."""

    lease_id: str
    owner: str
    principal: str
    token: int
    how: str  # RELEASED, FAILED, EXPIRED, BROKEN or TRANSFERRED
    at_ms: int
    checkpoint: str | None = None
    request_key: str | None = None
    session: str | None = None
    by: str | None = None  # who broke it
    reason: str | None = None  # and why; or why it failed
    attempt: int = 1
    done: bool = False  # the work was finished with it: its checkpoint is of the past
    uncounted: bool = False  # it says nothing about the work (`successes.py`)
    metadata: str | None = None


class WithdrawnAsk(Record):
    """A claim that was withdrawn, or a number that was given back: a late copy of that does nothing (`withdraw.py`)."""

    principal: str
    request_key: str
    at_ms: int


# What an owner notes about a step. A step in doubt is kept as failed, with its doubt.
EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED, EFFECT_IN_DOUBT = "begun", "done", "failed", "in_doubt"


class EffectState(Record):
    """The last note of a step that changes something outside (`effects.py`)."""

    key: str
    id: str  # names the try, so that a repeat of its notes is recognised
    earlier: tuple[str, ...] = ()  # ids of tries of this owner before it, whose beginnings may come once more
    state: str
    owner: str  # whose try it is
    token: int  # under which fencing token
    at_ms: int  # when it began, or ended
    result: str | None = None
    reason: str | None = None  # why this try failed, or the one before it; with a doubt, what was said of that
    # The first try of which nobody knows how it ended; token 0: there is none.
    doubt_owner: str = ""
    doubt_token: int = 0
    doubt_ms: int = 0


class Done(Record):
    """The job was finished: until `until_ms`, claims are refused with this."""

    owner: str
    token: int
    at_ms: int
    until_ms: int
    result: str | None = None


class Group(Record):
    """A group of which only the newest waits in a job's queue (`groups.py`)."""

    mark: str  # a digest of its name
    number: int  # of its newest place, which may have left the queue
    at_ms: int  # when that was taken
    replaced: str = ""  # short digests of the asks that were replaced, newest first


class Number(Record):
    """A number of a series that somebody was given, or gave back (`claims/numbers.py`)."""

    number: int
    at_ms: int
    after: int = 0  # the last number of the series before it
    owner: str = ""  # empty: it was given back, and is free
    principal: str = ""
    request_key: str = ""  # names the ask: a repeat of it gets the same number


class LockRecord(Kept):
    """Everything about one job. It exists from the first claim until the job has been idle for long."""

    ns: str
    name: str
    token: int = 0  # the highest fencing token ever given for this job
    slots: int = 1
    pooled: bool = False  # an operator says how many `slots` there are; 0: paused
    holders: tuple[Holder, ...] = ()
    # Numbers of the tickets that wait, in order (a tree keeps its own queue), and a mark of each (`tickets.py`).
    line: tuple[int, ...] = ()
    marks: str = ""
    next_ticket: int = 1
    endings: tuple[Ending, ...] = ()  # newest first
    failures: int = 0  # holds failed or lost since the last clean release
    max_attempts: int = 0  # 0: no limit
    parked: bool = False  # too many failures: nobody may claim until an operator frees it
    done: Done | None = None
    # Nobody is granted the job before: a delay after a loss, or a failure's retry time.
    delay_until_ms: int = 0
    acl: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    withdrawn: tuple[WithdrawnAsk, ...] = ()  # newest first
    effects: tuple[EffectState, ...] = ()  # of the work in progress; with a done mark, of the work that was done
    # Of a series: its last number, and whose the newest ones are, newest first. It is never forgotten.
    last_number: int = 0
    numbers: tuple[Number, ...] = ()

    def due_ms(self) -> int | None:
        """The first expiry; without a holder, the end of a delay that somebody waits for, or when to delete it."""
        if self.holders:
            # Without a TTL of its own a hold is found through its session, but for its ceiling.
            timed = [
                each.expires_ms if each.ttl_ms else each.ends_ms for each in self.holders if each.ttl_ms or each.ends_ms
            ]
            if self.line and self.delay_until_ms:  # one of several owners was lost
                timed.append(self.delay_until_ms)
            return min(timed) if timed else None
        if self.line:  # nobody holds it and somebody waits: for a delay to end, or for other jobs of a ticket
            return self.delay_until_ms or None
        if self.acl or self.parked or self.pooled or self.last_number:
            return None
        idle_since_ms = self.endings[0].at_ms if self.endings else 0
        goes_on = (self.effects and self.done is None) or (self.failures and self.max_attempts)
        kept_ms = FAILING_RECORD_MS if goes_on else IDLE_RECORD_MS
        done_until_ms = self.done.until_ms if self.done else 0
        refuses_until_ms = self.withdrawn[0].at_ms + REMEMBERED_MS if self.withdrawn else 0
        if not idle_since_ms and refuses_until_ms:  # there never was an owner
            kept_ms = 0
        return max(idle_since_ms + kept_ms, done_until_ms, self.delay_until_ms, refuses_until_ms)

    def is_live(self) -> bool:
        return bool(self.holders or self.line or self.parked or self.pooled)

    def by_kind(self) -> LockRecord:
        """The record as the rules see it. Versions up to 0.2 marked resources as done, failed or parked (`names.py`).
        Those marks count for nothing; a delay after a loss does, because a lost owner may still be writing."""
        is_marked = self.done is not None or self.parked or self.failures > 0
        if not (is_marked or self.delay_until_ms) or not is_resource(self.name):
            return self
        rests = bool(self.delay_until_ms and not (self.endings and self.endings[0].how == FAILED))
        if rests and not is_marked:
            return self
        return self.replace(done=None, parked=False, failures=0, delay_until_ms=self.delay_until_ms if rests else 0)


class Part(Record):
    """One of the jobs that a ticket for several waits for, and that ticket's number there."""

    name: str
    number: int


class Terms(Record):
    """The terms of a claim, and its caller. A place in the queue keeps them until the job is granted."""

    ns: str
    principal: str
    owner: str  # of a claim empty: the session's
    ttl_ms: int  # 0: as long as the session lives
    metadata: str | None = None
    request_key: str | None = None
    session: str | None = None
    ephemeral: bool = True
    delay_ms: int = 0
    mode: str = EXCLUSIVE
    slots: int = 0  # 0: as the job's pool has them, else 1
    units: int = 1  # how many of the slots it takes
    max_attempts: int = 0
    again: bool = False  # claim even though the job is marked done
    max_hold_ms: int = 0  # how long the hold may last from its grant on, whatever is renewed; 0: no ceiling
    badges: tuple[str, ...] = ()  # the access entries that the caller satisfies, checked whenever it is served
    admin: bool = False
    replaces: str | None = None  # the group of which only the newest waits


def terms_of(ask: Terms) -> dict[str, Any]:
    return {field: getattr(ask, field) for field in Terms._fields}


class Ticket(Terms):
    """A place in a job's queue, with everything needed to grant the job to its owner."""

    name: str
    number: int
    lease_id: str  # proof of the place; the lease's id after the grant
    since_ms: int
    renewed_ms: int  # when its owner last asked
    expires_ms: int  # when it loses its place if its owner does not ask again
    acl: tuple[str, ...] | None = None
    whole: tuple[Part, ...] = ()  # all the jobs it wants at once; empty for one alone
    charge: str | None = None  # where it is counted, for a principal that has a limit
    used: bool = False  # it has no key, and was reported to another command than the one that made it
    stopped: bool = False  # it was its turn, but the job was closed (`closures.py`)

    @property
    def payer(self) -> str | None:
        """Return whose count it is in, and the hold that it becomes."""
        return None if self.charge is None else self.charge.partition("/")[2]

    def due_ms(self) -> int | None:
        return self.expires_ms

    def is_live(self) -> bool:
        return False


class Want(Record):
    """A job that a session claimed and was refused: an edge in the wait-for graph, until the session does something
    else. It leads to the owners at `at_ms`: a later owner took a job that the session could have had."""

    ns: str
    name: str
    until_ms: int
    mode: str = EXCLUSIVE
    slots: int = 0
    units: int = 1
    at_ms: int = 0
    more: tuple[str, ...] = ()  # the other jobs of the same claim that were refused


class Wait(Record):
    ns: str
    name: str
    number: int


class SessionRecord(Kept):
    """One run of one worker. Its holds and places end with it."""

    id: str
    principal: str
    owner: str
    ttl_ms: int
    since_ms: int
    renewed_ms: int
    expires_ms: int
    ns: str  # the namespace it belongs to
    holds: tuple[str, ...] = ()  # keys of locks; may include a lost one, never misses a held one
    waits: tuple[Wait, ...] = ()
    want: Want | None = None
    # Boot, pid and start time of the worker, where a neighbour on the machine can look.
    process: str | None = None
    metadata: str | None = None
    ended_ms: int = 0  # when it ended; remembered for a while, for the answer to a late call
    how: str | None = None
    charge: str | None = None  # where it is counted, for a principal that has a limit
    parent: str | None = None  # the session whose part it is: they do not exclude each other (`related.py`)
    active_ms: int = 0  # when the worker itself last did something, not only its heartbeat
    wanted: tuple[str, ...] = ()  # keys of locks that somebody waits for who was not reported to it yet
    by: str | None = None  # the operator who ended it
    reason: str | None = None  # and why

    def due_ms(self) -> int | None:
        if self.ended_ms:
            return self.ended_ms if self.holds or self.waits else self.ended_ms + SESSION_TOMBSTONE_MS
        return self.expires_ms

    def is_live(self) -> bool:
        return not self.ended_ms


class TreeClaim(Record):
    """A live claim in a tree: which name, and whose. The lock itself holds the rest."""

    name: str
    lease_id: str
    mode: str = EXCLUSIVE


class TreeEntry(Record):
    name: str
    number: int
    mode: str = EXCLUSIVE


class Tree(Kept):
    """The `path:` and `repo:` claims of a namespace, and their queue; or one page of many claims
    (`holds/path_claims.py`)."""

    ns: str = ""  # empty in a tree with pages: 0.2.0 does not know them, and must not take it for a tree without claims
    ns_of_pages: str = ""
    page: int = 0  # its number; 0: the tree itself
    claims: tuple[TreeClaim, ...] = ()
    line: tuple[TreeEntry, ...] = ()
    listed: tuple[str, ...] = ()  # names with an access list, which also applies to overlapping names
    next_ticket: int = 1  # numbers rise along the whole queue, so that one number shows which places are newer
    unserved: tuple[str, ...] = ()  # names whose places a sweep must look at (`queue.py`)
    unserved_ms: int = 0  # since when
    # The pages: from which name on each of them has the claims, rising, and its number. The first has those below, too.
    firsts: tuple[str, ...] = ()
    pages: tuple[int, ...] = ()
    next_page: int = 1

    def namespace(self) -> str:
        return self.ns or self.ns_of_pages

    def due_ms(self) -> int | None:
        return self.unserved_ms or None


class Outage(Record):
    """No server could take a renewal. Of old ones, kept as one, `lost_ms` is the sum, `longest_ms` the longest."""

    began_ms: int
    ended_ms: int
    lost_ms: int = 0  # 0: all of it
    longest_ms: int = 0

    def lost(self) -> int:
        return self.lost_ms or self.ended_ms - self.began_ms

    def longest(self) -> int:
        return self.longest_ms or self.lost()


class FreezeMark(Record):
    """The mark of a frozen store: it is being moved away, or an import into it is not complete."""

    at_ms: int
    id: str  # whose mark it is
    incomplete: bool = False  # an import is in progress, so the store must not be used
    source: str = ""  # which records: the checksum of their file
    adds: bool = False  # the store had records of its own before
    from_ms: int = 0  # the instant of the store that stands for the moment of the file


class Closure(Record):
    """A maintenance stop: nobody is granted these jobs before `until_ms` (`closures.py`)."""

    ns: str
    name: str  # a job; one that ends in "/" is also the beginning of names; of a tree, all that overlaps it
    at_ms: int
    until_ms: int
    by: str
    reason: str


class Meta(Kept):
    token_floor: int = 0  # every new token is above this; rises when an idle job's record is deleted
    outages: tuple[Outage, ...] = ()  # oldest first
    store_id: str = ""  # the store's name: tells clients of several servers whether those are servers of one store
    moved_from: tuple[str, ...] = ()  # the names of the stores that this one goes on from, newest first (`moved.py`)
    frozen: FreezeMark | None = None
    closures: tuple[Closure, ...] = ()

    def due_ms(self) -> int | None:
        return min([closure.until_ms for closure in self.closures]) if self.closures else None


class Pulse(Kept):
    """A server's last word that it was up, and since when that has been in doubt."""

    at_ms: int
    server: str  # its name, made anew at each start
    doubt_ms: int = 0


Stored = Kept | Ticket  # a ticket has the terms of a claim for its base, so it cannot have `Kept`, too

CLASSES: dict[str, type[Stored]] = {
    "lock": LockRecord,
    "ticket": Ticket,
    "session": SessionRecord,
    "tree": Tree,
    "meta": Meta,
    "pulse": Pulse,
}

# Moving a record in time: for a store whose machines share no clock.

# Fields that hold an instant; 0 and None mean "never". Every other field in milliseconds is a span.
INSTANTS = frozenset(
    {
        "since_ms",
        "renewed_ms",
        "heard_ms",
        "active_ms",
        "expires_ms",
        "checkpoint_ms",
        "at_ms",
        "until_ms",
        "delay_until_ms",
        "ended_ms",
        "began_ms",
        "doubt_ms",
        "from_ms",
        "unserved_ms",
        "ends_ms",
    }
)


def shifted(record: Moved, by_ms: int, dates_by_ms: int | None = None) -> Moved:
    """`record` with all its instants moved: how a store whose machines share no clock shows it to each of them. What
    ends at a date that people named (closures and done marks) is moved by `dates_by_ms`, if that is given."""
    dates_ms = by_ms if dates_by_ms is None else dates_by_ms
    made: Moved = _moved(record, by_ms, dates_ms) if by_ms or dates_ms else record
    return made


def _shifted(value: Any, by_ms: int, dates_ms: int) -> Any:
    if isinstance(value, tuple):
        return tuple([_shifted(each, by_ms, dates_ms) for each in value])
    return _moved(value, by_ms, dates_ms) if isinstance(value, Record) else value


def _moved(record: Any, by_ms: int, dates_ms: int) -> Any:
    if isinstance(record, Closure | Done):
        by_ms = dates_ms
    changes = {}
    for field in record._fields:
        held = getattr(record, field)
        if field in INSTANTS:
            changes[field] = held + by_ms if held else held
        elif isinstance(held, tuple | Record):
            changes[field] = _shifted(held, by_ms, dates_ms)
    return record.replace(**changes)
