"""The commands that the rules decide. A command brings its fresh ids, so a decision needs no randomness."""

from __future__ import annotations

from dibs.base.record import Record
from dibs.core.records import Stored, Terms


class ClaimPolicy(Record):
    """The wishes of another contract than dibs' own about a claim. A compatibility layer hands them in."""

    # The delay of a claim also follows a release.
    delays_release: bool = False
    # The fencing token is above all tokens of the store, whatever the job.
    one_counter: bool = False


class AcquireTerms(Terms):
    fresh_lease_id: str  # the lease's id if this is granted; names this command, also after a lost reply of its commit
    over_quota: bool = False
    payer: str | None = None  # whose usage record this counts in; None: the caller has no limit
    held_max: int = 0  # 0: no limit
    waiting_max: int = 0
    audited: bool = False  # a refusal is an event, too
    bound: str | None = None  # the only namespace of the caller's credential; None: any
    # What another contract wants otherwise, of a claim that does not wait. None: dibs' own rules.
    policy: ClaimPolicy | None = None
    ticket_id: str | None = None  # proof of the caller's place in the queue
    lease_id: str | None = None  # proof that the caller has a lease on the one job that it claims


class Acquire(AcquireTerms):
    name: str
    acl: tuple[str, ...] | None = None
    # Get in the queue, and stay for the answer; with a ticket, it is a place in the queue in any case.
    wait: bool = False
    ticket: int = 0  # the caller's place in the queue


class AcquireAny(AcquireTerms):
    """Claim the first of several jobs that can be claimed now, or the first `count` of them."""

    names: tuple[str, ...]
    count: int = 0  # this many of them or none; 0: one, and the answer is about that one


class AcquireAll(AcquireTerms):
    """Claim all of several jobs or none, at once or by waiting in all their queues while holding nothing."""

    names: tuple[str, ...]  # sorted, so that all claims look in the same order
    wait: bool = False
    ticket: int = 0  # in the queue of the first name


class PlainCommand(Record):
    """A command that is no claim. Those about tokens and webhooks are in `credentials.py` and `webhooks.py`."""


class JobCommand(PlainCommand):
    ns: str
    name: str


class Leave(JobCommand):
    principal: str
    ticket: int
    ticket_id: str


class Withdraw(PlainCommand):
    """Undo a claim that its caller does not want any more, or whose answer reached nobody (`withdraw.py`)."""

    ns: str
    principal: str
    names: tuple[str, ...]  # the jobs of the claim
    request_key: str | None = None  # names the ask
    fresh_lease_id: str | None = None  # names an ask without a key: that of its command
    ticket_id: str | None = None  # proof of a place: it ends, and nothing else does
    ticket: int = 0  # its number


class KeepTickets(PlainCommand):
    """Keep the places of these waiters: a server sends this for the callers that wait at it."""

    tickets: tuple[tuple[str, str, int], ...]  # namespace, job, ticket


class EffectNote(Record):
    """That a step which changes something outside begins, or how it ended (`effects.py`)."""

    key: str
    id: str | None  # of this try: the same when it begins and when it ends. None: the end of the try under this lease
    state: str  # EFFECT_BEGUN, EFFECT_DONE, EFFECT_FAILED or EFFECT_IN_DOUBT
    result: str | None = None
    reason: str | None = None


class Renew(JobCommand):
    """Heartbeat. May carry progress."""

    principal: str | None  # None: an admin, for whom the lease id is enough proof
    lease_id: str | None = None
    session: str | None = None  # instead of the lease id
    ttl_ms: int | None = None  # None keeps the lease's own
    metadata: str | None = None
    checkpoint: str | None = None
    mode: str | None = None  # SHARED: share the job from now on. None keeps the lease's own
    audited: bool = False  # it is an event even without a checkpoint
    payer: str | None = None  # a hold from before the caller had a limit is counted from now on
    effect: EffectNote | None = None


class Release(JobCommand):
    principal: str | None  # None: an admin, for whom the lease id is enough proof
    lease_id: str | None = None
    session: str | None = None
    done_ms: int = 0
    result: str | None = None
    checkpoint: str | None = None
    failed: bool = False  # it counts as an attempt
    reason: str | None = None  # why it failed
    retry_ms: int = 0  # how long nobody gets the job
    uncounted: bool = False  # neither a success nor a failure: the count of attempts does not change


class Transfer(JobCommand):
    principal: str | None  # None: an admin, for whom the lease id is enough proof
    fresh_lease_id: str
    lease_id: str | None = None
    session: str | None = None
    to_owner: str | None = None
    to_session: str | None = None
    ttl_ms: int | None = None
    checkpoint: str | None = None


class Break(JobCommand):
    """Take a job away from its owners; with `token` only from the one that has it by that fencing token. The caller's
    right to do so was checked before."""

    principal: str
    reason: str
    token: int | None = None


class Free(JobCommand):
    """Let a parked job be claimed again. The caller's right to do so was checked before."""

    principal: str


class Close(JobCommand):
    """Let nobody be granted a job, or any below a name that ends in "/". The caller's right was checked before."""

    principal: str
    reason: str
    until_ms: int = 0  # 0: `length_ms` from now
    length_ms: int = 0


class Open(JobCommand):
    """End a closure early. The caller's right to do so was checked before."""

    principal: str


class SetAcl(JobCommand):
    """Say who may claim a job. For its owner, or an admin."""

    principal: str
    acl: tuple[str, ...]
    admin: bool = False
    ahead: bool = False  # also of a job that is not on record yet


class SetPool(JobCommand):
    """Say how many slots a job has; None: as its claims say. The caller's right to do so was checked before."""

    principal: str
    slots: int | None


class TakeNumber(JobCommand):
    """Give the caller a number of a series that nobody else gets: the next one from `at_least` on, or just `number`."""

    principal: str
    owner: str
    request_key: str  # names the ask; a repeat gets the same number
    at_least: int = 0
    number: int = 0  # 0: the next one
    badges: tuple[str, ...] = ()
    admin: bool = False


class ReturnNumber(JobCommand):
    """Give a number of a series back. `admin`: also one of somebody else."""

    principal: str
    number: int
    admin: bool = False
    request_key: str | None = None  # names the give-back: a late copy of it frees nothing


class Inspect(JobCommand):
    """Read a job's state, and change nothing."""


class OpenSession(PlainCommand):
    fresh_id: str
    principal: str
    owner: str
    ttl_ms: int
    ns: str  # the namespace it will belong to
    process: str | None = None
    metadata: str | None = None
    payer: str | None = None
    sessions_max: int = 0
    parent: str | None = None  # the caller's session whose part it will be
    bound: str | None = None  # the only namespace that the caller's credential is for


class KeepSession(PlainCommand):
    """Renew a session. `ttl_ms`: its new TTL. `process`: the mark of its worker's process, which is known now, or is
    another one; empty if it is not known any more. `metadata`: what is noted of it from now on. `active`: the worker
    itself asks, and reads the answer."""

    session: str
    principal: str
    ttl_ms: int | None = None
    process: str | None = None
    metadata: str | None = None
    bound: str | None = None  # the only namespace that the caller's credential is for
    payer: str | None = None
    active: bool = False


class EndSession(PlainCommand):
    """End a session: its worker is finished, or (`dead`) a process on the same machine saw that it is dead, or an
    operator (`by`) takes everything from it. The operator's right to do so was checked before. `process`: the mark that
    was seen to be dead; a session that has another one by now goes on."""

    session: str
    principal: str | None  # None: an operator, or a process that saw that the worker is dead
    dead: bool = False
    process: str | None = None
    bound: str | None = None
    by: str | None = None
    reason: str | None = None


class InspectSession(PlainCommand):
    session: str
    principal: str | None
    bound: str | None = None


class Sweep(PlainCommand):
    """Do what is due on one record: an expiry, a lost place, or forgetting an old record."""

    key: str


class Beat(PlainCommand):
    """A server is up. After a gap it also says since when, and what `core/upkeep/outages.py` needs to find outages."""

    server: str
    alive_since_ms: int | None = None  # the end of a gap; None: there was none since its last pulse
    doubt_ms: int | None = None  # the beginning of that gap; None: as far as its own pulses show
    heard_ms: int | None = None  # `accounted_ms` of the other servers' pulses
    idle: bool = False  # nobody held or waited for anything in the gap, so nobody could lose anything
    gone: tuple[str, ...] = ()  # servers whose pulse is to be forgotten


class Identify(PlainCommand):
    """Ask for the id of the store. One that has none yet takes this one."""

    fresh_id: str


class RaiseFloor(PlainCommand):
    """From now on, all new fencing tokens are above `floor`. Never lowers the floor."""

    floor: int


class BeginCount(PlainCommand):
    """Count anew what a principal has. `payer` is the usage record's: "namespace/principal"."""

    payer: str


class CountUsage(PlainCommand):
    """Count what the record under `key` holds against the principal's quota, unless it is counted already."""

    key: str
    payer: str


class Freeze(PlainCommand):
    """From now on nothing in the store changes but by who has `id`."""

    id: str
    over: str | None = None  # the id of the mark that this one replaces; None: the store is not frozen yet
    incomplete: bool = False
    source: str = ""
    adds: bool = False


class Thaw(PlainCommand):
    """The store may be used again. The time since `since_ms` counts as an outage, and no token is at or below `floor`.
    `id` is that of the mark; None: of a store that is complete, whoever froze it."""

    id: str | None
    floor: int = 0
    since_ms: int | None = None  # None: since it was frozen
    fresh_id: str = ""  # its name from now on, if it was being moved away
    moved_from: tuple[str, ...] = ()  # the names of a store that was moved into it
    # The records of an import that the store may have as well, by their keys: they are published with this write.
    brought: tuple[tuple[str, Stored], ...] = ()


# A frozen store decides these: what they write (floor, id, pulse) harms no copy. A beat looks at the mark itself.
UNFROZEN = frozenset((RaiseFloor, Identify, Freeze, Thaw, Beat))

Command = AcquireTerms | PlainCommand
