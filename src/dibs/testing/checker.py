"""Checks every commit of a simulated store, and every answer, against the promises.

It keeps a dumb model of its own, made from events and answers alone: who lives, who waits, what was answered to each
client. It knows the promises and none of the rules, and says what it found in a list: code under test may swallow
errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dibs.core import events as kinds
from dibs.core.caller_rights import Limits
from dibs.core.commands import (
    AcquireAll,
    AcquireAny,
    AcquireTerms,
    Break,
    Command,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Renew,
    ReturnNumber,
    TakeNumber,
    Transfer,
    Withdraw,
)
from dibs.core.events import Event
from dibs.core.holds.endings import remembered
from dibs.core.holds.expiry import SESSION_ENDED
from dibs.core.lease_outcomes import Numbered, Renewed, Transferred
from dibs.core.limits import FREED_MAX, OUTAGE_MS_MIN, PULSE_LATE_MS
from dibs.core.outcomes import Granted, GrantedAll, Held, KeySpent, NotCurrent, Queued, Refused, SessionOver, Status
from dibs.core.records import (
    EXCLUSIVE,
    EXPIRED,
    LOST,
    SHARED,
    USAGE_PREFIX,
    Ending,
    Holder,
    LockRecord,
    SessionRecord,
    Stored,
    Ticket,
    lock_key,
    session_key,
    ticket_key,
)
from dibs.core.session_outcomes import SessionState
from dibs.engine.coordinator import Result
from dibs.stores.port import Versioned
from dibs.testing.outside import Outside
from dibs.testing.queue_checker import NS, QueueChecker, QueueRecords, covers, overlap

Puts = Mapping[str, Stored | None]

LIMITED, LIMITS = "few", Limits(held=4, waiting=2, sessions=2)  # a principal, and the most that it may have


class Finding(NamedTuple):
    """A promise that was broken, and at which step of which operation it showed; the calls about it if no single one
    shows it."""

    promise: str
    says: str
    operation: int
    step: int
    calls: tuple[str, ...] = ()


class Reported(NamedTuple):
    """The last answer to the owner of a lease."""

    client: str
    until_ms: int  # 0: as long as its session


class Checker:
    """`say` takes a promise and a sentence. `records` are those of the store. `denies_outage` says
    why there was none between two moments, if there was none. `before` is the one of a store that an older copy has
    replaced: what was handed out stays known, and what was true there is not expected here."""

    def __init__(
        self,
        say: Callable[[str, str], None],
        records: Mapping[str, Versioned],
        denies_outage: Callable[[int, int], str],
        before: Checker | None = None,
    ) -> None:
        self._say = say
        self._denies_outage = denies_outage
        self._records = records
        self._live: defaultdict[str, dict[int, Event]] = defaultdict(dict)
        self._over_ms: dict[tuple[str, int], int] = {}  # when the end of each lease was written, by token
        self.waits = QueueChecker(say, self._now)
        self.outside = Outside(say)
        self._tokens: dict[str, int] = {}
        self._commits = 0
        self._made: dict[str, str] = {}  # every id of a lease or place that was ever written, and its job
        self._by_key: dict[tuple[str, str], Holder] = {}  # the last lease of each request key, by job
        self._ends: defaultdict[str, list[Ending]] = defaultdict(list)  # of leases, oldest first
        self._reported: dict[tuple[str, str], Reported] = {}
        self._free_ms: dict[str, int] = {}
        self._granted_ms: dict[str, int] = {}  # when its last grant was written, which is later than it says
        self._let_go: set[tuple[str, str]] = set()
        self._ended_by: set[tuple[str, str]] = set()  # leases that somebody ended, or that ended with their session
        self._withdrawn: set[str | None] = set()  # keys of claims that their clients have withdrawn
        self._breaks: dict[str, int] = {}  # by reason: in which commit
        self.asking: set[str] = set()  # the asks whose callers are there, by their fresh ids
        self._stood: defaultdict[tuple[str, int], set[str]] = defaultdict(set)  # which asks were given a place
        self._sessions: dict[
            str, int
        ] = {}  # by the last answer to its worker: until when it lasts; 0: the worker ends it
        self._few: dict[str, tuple[int, int, int]] = {}  # by record: what LIMITED holds, waits for, and has open in it
        self._pools: dict[str, int] = {}
        self._slots: dict[str, int] = {}  # as many as the first of its owners asked for
        self._closed: dict[str, int] = {}  # names, and until when
        self._ceilings: dict[str, int] = {}  # of leases
        self._alive_ms = self._since_ms = 0
        self._recorded: list[int] = []  # when each outage ended that a server recorded
        self._outages: list[tuple[int, int]] = []  # true ones: no server had an answer of the store for long
        if before is not None:
            self._tokens, self._made, self._let_go = before._tokens, before._made, before._let_go
            self._withdrawn = before._withdrawn
            self.outside.goes_on_from(before.outside)
            self.asking, self._alive_ms = before.asking, before._alive_ms

    def learn(self, events: Sequence[Event], now_ms: int) -> None:
        """The store has these events and records already. What was sent before may be answered from the other."""
        self._since_ms = now_ms
        self.outside.learn(events)
        for event in events:
            if event.kind == kinds.OUTAGE:
                self._recorded.append(event.at_ms)
            elif event.kind in _SETTINGS:
                _SETTINGS[event.kind](self, event)
            elif event.job:
                self._follow(event, now_ms)
        locks = [found.record for found in self._records.values() if isinstance(found.record, LockRecord)]
        self._slots = {lock.name: lock.slots for lock in locks}
        few = {key: _few_of(found.record) for key, found in self._records.items()}
        self._few = {key: counts for key, counts in few.items() if any(counts)}

    def _follow(self, event: Event, now_ms: int) -> None:
        """Change what lives and waits."""
        self.waits.follow(event, now_ms)
        if event.kind == kinds.ACQUIRED:
            self._live[event.job][event.token] = event
        elif event.kind in kinds.OWNERSHIP_ENDS:
            self._live[event.job].pop(event.token, None)
        elif event.kind == kinds.SHARED and event.token in self._live[event.job]:
            self._live[event.job][event.token] = self._live[event.job][event.token].replace(mode=SHARED)

    # What clients know

    def sends(self, command: Command, now_ms: int) -> None:
        """A client sends this: it may end something."""
        if isinstance(command, AcquireTerms | Leave | Withdraw):
            self.waits.sends(command)
        if isinstance(command, AcquireTerms):
            self.asking.add(command.fresh_lease_id)
        elif isinstance(command, Release | Transfer):
            self._let_go.add((command.name, command.lease_id or ""))
        elif isinstance(command, Leave):
            self._let_go.add((command.name, command.ticket_id))
        elif isinstance(command, Withdraw):
            self._withdrawn.add(command.request_key)
            self._let_go.update([(name, command.ticket_id or "") for name in command.names])
        elif isinstance(command, ReturnNumber):
            self.outside.gives_back(command.name, command.number, command.request_key or "")
        elif isinstance(command, OpenSession):  # a repeat does not renew it
            self._sessions.setdefault(command.fresh_id, now_ms + command.ttl_ms)
        elif isinstance(command, EndSession):
            self._sessions[command.session] = 0
            self._let_go.update(
                [(job, hold.lease_id) for job, hold in self._leases() if hold.session == command.session]
            )

    def _is_let_go(self, job: str, made: Holder | Ticket) -> bool:
        is_withdrawn = made.request_key is not None and made.request_key in self._withdrawn
        return is_withdrawn or (job, made.lease_id) in self._let_go

    def ends(self, command: Command) -> None:
        """Its client does not listen any more."""
        if isinstance(command, AcquireTerms):
            self.asking.discard(command.fresh_lease_id)

    def heard(self, client: str, command: Command, result: Result, sent_ms: int, now_ms: int) -> None:
        """A client reads this answer."""
        if sent_ms < self._since_ms:
            return
        if isinstance(command, AcquireTerms):
            self.waits.heard(client, command, result)
        if isinstance(result, Granted | Renewed | Transferred):
            self._note_lease(client, result.name, result.lease)
        elif isinstance(result, GrantedAll):
            for each in result.grants:
                self._note_lease(client, each.name, each.lease)
        elif isinstance(result, Refused) and isinstance(command, AcquireAll | AcquireAny) and command.request_key:
            for each in result.left:
                self._note_lease(client, each.name, each.lease)
            spent = [each.ending for each in result.outcomes if isinstance(each, KeySpent)]
            if len(spent) == len(result.outcomes) and all(each is not None and each.how in LOST for each in spent):
                key = command.request_key  # of other jobs it was another claim's
                own = [each for each in self._leases() if each[1].request_key == key and each[0] in command.names]
                left = [job for job, hold in own if (job, hold.lease_id) not in self._reported]
                if left:
                    self._say("all-or-nothing", f"{client} was told that its claim is lost, and has {left}.")
        elif isinstance(result, Numbered) and isinstance(command, TakeNumber):
            is_next = not (result.again or command.at_least or command.number)
            self.outside.numbered(result.name, result.number, result.owner, command.request_key, is_next=is_next)
        elif isinstance(result, NotCurrent) and isinstance(command, Renew | Release):
            self._lost(client, command, now_ms)
        elif isinstance(result, NotCurrent) and isinstance(command, Transfer):
            if command.fresh_lease_id in [hold.lease_id for _, hold in self._leases()]:
                said = f"{client} handed {command.name} over, and its repeat was told that it had not."
                self._say("idem:fresh-id", said)
        elif isinstance(command, KeepSession):
            until_ms = self._sessions.get(command.session, 0)
            if isinstance(result, SessionState) and until_ms:
                self._sessions[command.session] = max(until_ms, sent_ms + result.session.ttl_ms)
            elif isinstance(result, SessionOver) and now_ms < until_ms:
                self._say("session", f"{client}'s session was over while it was kept.")

    def _lost(self, client: str, command: Renew | Release, now_ms: int) -> None:
        """A client that was given a lease, and is told now that it has none: somebody ended it, or its time is over."""
        mine = command.name, command.lease_id or ""
        known = self._reported.get(mine)
        if known is not None and now_ms < known.until_ms and mine not in self._let_go and mine not in self._ended_by:
            early_ms = known.until_ms - now_ms
            said = f"{client} was told that its lease of {command.name} is lost, {early_ms} ms before its end"
            self._say("lease:never-early", f"{said}, and nobody had ended it.")

    def _note_lease(self, client: str, job: str, lease: Holder) -> None:
        # Without credit for outages. The answer's own deadline may be earlier: that of its session, or a ceiling.
        until_ms = min(lease.renewed_ms + lease.ttl_ms, lease.expires_ms) if lease.ttl_ms else 0
        self._reported[job, lease.lease_id] = Reported(client, until_ms)
        if self._granted_ms.get(job, 0) < self._free_ms.get(job, 0) < lease.renewed_ms:
            self._say("excl", f"{job} was shown as free in the middle of {client}'s lease.")
        if self._tokens.get(job, 0) < lease.token:
            self._say("token:rises", f"{client} was told of token {lease.token} of {job}, which no event has.")

    def _locks(self) -> Iterator[LockRecord]:
        """Those of all jobs of which an event told. Most records are sessions that have ended."""
        for job in self.waits.queues:
            lock = self._now(lock_key(NS, job), {})
            if isinstance(lock, LockRecord):
                yield lock

    def _leases(self) -> Iterator[tuple[str, Holder]]:
        """The job and the hold of each lease in the store."""
        return ((lock.name, each) for lock in self._locks() for each in lock.holders)

    def _tickets(self) -> Iterator[Ticket]:
        """Each place in the queues."""
        for lock in self._locks():
            for number in lock.line:
                ticket = self._now(ticket_key(NS, lock.name, number), {})
                if isinstance(ticket, Ticket):
                    yield ticket

    def _has_something(self, lease_id: str) -> bool:
        """Return whether there is a lease or a place with this id. A place that was given up does not count."""
        if lease_id not in self._made:
            return False
        made: list[Holder | Ticket] = [*[hold for _, hold in self._leases()], *self._tickets()]
        return lease_id in [each.lease_id for each in made]

    def answered(self, command: Command, result: Result) -> None:
        """A server has this result for a command."""
        is_denied = isinstance(result, BaseException) and not getattr(result, "unknown", False)
        if isinstance(command, Break) and is_denied and command.reason in self._breaks:
            self._say("idem:acquire", f"A break of {command.name} was written and reported as not done: {result}")
        if isinstance(result, Status) and not result.lock.holders:
            self._free_ms[result.name] = result.now_ms
        if not isinstance(command, AcquireTerms):
            return
        if isinstance(result, Held | Queued):
            for blocker in result.blockers:
                over_ms = self._over_ms.get((blocker.name, blocker.holder.token))
                if over_ms is not None and over_ms < result.now_ms:
                    said = f"{command.owner} was told that {blocker.holder.owner} has {blocker.name}"
                    self._say("excl", f"{said}, whose lease had ended {result.now_ms - over_ms} ms before.")
        if isinstance(result, Queued):
            self._stood[result.name, result.ticket].add(command.fresh_lease_id)
        if isinstance(result, Granted | GrantedAll):
            for each in result.grants if isinstance(result, GrantedAll) else (result,):
                if each.lease.lease_id not in self._made:
                    self._say("excl", f"A server answered with a lease of {each.name} that was never written.")
        elif is_denied and not getattr(command, "ticket", 0) and self._has_something(command.fresh_lease_id):
            job = self._made[command.fresh_lease_id]
            self._say("idem:acquire", f"A claim of {job} was written and reported as not done: {result}")

    def look(self, now_ms: int, well_since_ms: int | None) -> None:
        """From time to time: nobody waits for what is free."""
        self.waits.look(QueueRecords(self._locks(), self._tickets(), self._closed), now_ms, well_since_ms)

    def alive(self, now_ms: int) -> None:
        """The store answers a server."""
        if now_ms - self._alive_ms > OUTAGE_MS_MIN + PULSE_LATE_MS:
            self._outages.append((self._alive_ms, now_ms))
        self._alive_ms = now_ms

    # What a commit writes

    def committed(self, puts: Puts, events: Sequence[Event], now_ms: int) -> None:
        """These are about to be written."""
        self._commits += 1
        for event in events:
            if event.kind == kinds.ACQUIRED:
                self._granted_ms[event.job] = now_ms
            if event.kind in _SETTINGS:
                _SETTINGS[event.kind](self, event)
            elif event.job:
                self.outside.follow(event)
                self._job_event(event, events, puts, now_ms)
        for key, record in puts.items():
            if isinstance(record, LockRecord):
                self._lock(key, record, puts, now_ms)
            elif isinstance(record, SessionRecord) and record.ended_ms:
                self._session_over(key, record, puts, now_ms)
            elif isinstance(record, Ticket):
                self._made.setdefault(record.lease_id, record.name)
                if record.number not in self.waits.queue(record.name):
                    self._say("queue:fifo", f"Place {record.number} of {record.name} is in no queue.")
            few = _few_of(record)
            if any(few):
                self._few[key] = few
            else:
                self._few.pop(key, None)
        if self._few and any(key.startswith(USAGE_PREFIX) for key in puts):
            held, waiting, sessions = map(sum, zip(*self._few.values(), strict=True))
            if held + waiting > LIMITS.held or waiting > LIMITS.waiting or sessions > LIMITS.sessions:
                self._say("quota", f"{LIMITED} holds {held}, waits for {waiting} and has {sessions} sessions.")

    def _pool_set(self, event: Event) -> None:
        said = event.reason or ""  # such as "3 slots"
        if said == "no pool":
            self._pools.pop(event.job, None)
        else:
            self._pools[event.job] = 0 if said == "paused" else int(said.partition(" ")[0])

    def _job_event(self, event: Event, commit: Sequence[Event], puts: Puts, now_ms: int) -> None:
        job, live, queue = event.job, self._live[event.job], self.waits.queue(event.job)
        if event.kind == kinds.ACQUIRED:
            if event.token <= self._tokens.get(job, 0):
                self._say("token:rises", f"Token {event.token} of {job} came after {self._tokens[job]}.")
            self._tokens[job] = max(event.token, self._tokens.get(job, 0))
            is_moved = any(each.kind == kinds.TRANSFERRED and each.job == job for each in commit)  # its owner decides
            related = self._related(event, live, puts) if live else []
            is_related = bool(live) and all(related)
            written = self._now(lock_key(NS, job), puts)
            if not live and isinstance(written, LockRecord):
                self._slots[job] = written.slots
            if live and not is_related and not self._fits(event, live, is_moved=is_moved):
                owners = " and ".join(sorted(each.owner for each in live.values()))
                self._say("excl", self._too_many(event, live, owners))
            if not is_moved:
                if any(until_ms > event.at_ms and covers(name, job) for name, until_ms in self._closed.items()):
                    self._say("closed", f"{event.owner} was given {job}, which is closed.")
                if not any(related):  # its family keeps others out anyway
                    self._in_turn(event, {number: arrival.mode for number, arrival in queue.items()}, puts)
                self._may(event, commit, written)
        elif event.kind in kinds.OWNERSHIP_ENDS:
            if event.token not in live:
                self._say("audit", f"{event.kind} ends token {event.token} of {job}, which was not live.")
            written = self._now(lock_key(NS, job), puts)
            ends = written.endings if isinstance(written, LockRecord) else ()
            self._ends[job] += [each for each in ends if each.token == event.token]
            self._over_ms[job, event.token] = now_ms
            self._ended(event)
        elif event.kind == kinds.QUEUED:
            self.waits.takes(event)
        elif event.kind == kinds.LEFT:
            ticket = self._now(ticket_key(NS, job, event.ticket), {})
            is_own = isinstance(ticket, Ticket) and self._is_let_go(job, ticket)
            if event.reason == "left" and not is_own and not self.asking.isdisjoint(self._stood[job, event.ticket]):
                self._say("queue:fifo", f"{event.owner}'s place for {job} was given up while it waited.")
            if event.reason == SESSION_ENDED and isinstance(ticket, Ticket) and ticket.session is not None:
                self._session_had_ended(event, session_key(ticket.session), puts)
        self._follow(event, now_ms)

    def _too_many(self, event: Event, live: dict[int, Event], owners: str) -> str:
        slots = self._pools.get(event.job, self._slots.get(event.job, 1))
        if event.job not in self._pools and slots == 1:
            return f"{event.owner} was given {event.job}, which {owners} has."
        units, taken = len(event.slot_numbers), sum([len(each.slot_numbers) for each in live.values()])
        return f"{event.owner} was given {units} units of {event.job}: {owners} had {taken} of its {slots} slots."

    def _fits(self, event: Event, live: dict[int, Event], *, is_moved: bool) -> bool:
        """Return whether a new owner is allowed beside those who are there."""
        if is_moved and event.slot_numbers:
            return True
        units = [len(each.slot_numbers) for each in (event, *live.values())]
        if event.job in self._pools:
            return all(units) and sum(units) <= self._pools[event.job]
        if all(units):
            return sum(units) <= self._slots[event.job]
        return not any(EXCLUSIVE in (event.mode, each.mode) for each in live.values())

    def _related(self, event: Event, live: dict[int, Event], puts: Puts) -> list[bool]:
        """Of each owner, whether it is of the parent or a child of the new one's session."""
        records = [self._now(lock_key(NS, event.job), each) for each in ({}, puts)]
        # One that begins and ends in the same commit is known by its end.
        locks = [each for each in records if isinstance(each, LockRecord)]
        sessions = {each.token: each.session for lock in locks for each in lock.endings}
        sessions |= {each.token: each.session for lock in locks for each in lock.holders}
        return [self._are_related(sessions.get(event.token), sessions.get(token), puts) for token in live]

    def _are_related(self, one: str | None, other: str | None, puts: Puts) -> bool:
        for young, old in ((one, other), (other, one)):
            child = self._now(session_key(young), puts) if young and old else None
            if isinstance(child, SessionRecord) and child.parent == old:
                return True
        return False

    def _may(self, event: Event, commit: Sequence[Event], written: Stored | None) -> None:
        """A job with an access list goes to those whom the list names. It may be set in the same commit, or gone."""
        before = self._now(lock_key(NS, event.job), {})
        if not isinstance(written, LockRecord) or not isinstance(before, LockRecord) or not before.acl:
            return
        earlier = commit[: commit.index(event)]
        if not written.acl and any((each.kind, each.job) == (kinds.ACCESS_SET, event.job) for each in earlier):
            return
        holder = next((each for each in written.holders if each.token == event.token), None)
        if holder is not None and all(
            f"user:{holder.principal}" not in acl for acl in (before.acl, written.acl) if acl
        ):
            self._say("access", f"{event.owner} was given {event.job}, whose list names {' and '.join(before.acl)}.")

    def _in_turn(self, event: Event, queue: dict[int, str], puts: Puts) -> None:
        """Nobody is overtaken by a later place, or by a newcomer."""
        newcomer = not event.ticket and not event.job.startswith("path:")
        passed = [
            number
            for number, mode in queue.items()
            if (newcomer or number < event.ticket) and EXCLUSIVE in (mode, event.mode)
        ]
        if passed:
            self._say("queue:fifo", f"{event.owner} was given {event.job} before places {passed}.")
        if event.job.startswith("path:"):
            self._in_turn_of_tree(event, puts)

    def _in_turn_of_tree(self, event: Event, puts: Puts) -> None:
        """Nor by whoever waits for, or asks for, an overlapping name."""
        record = self._now(lock_key(NS, event.job), puts)
        holders = record.holders if isinstance(record, LockRecord) else ()
        session = next((each.session for each in holders if each.token == event.token), None)

        def has_some(session: str | None) -> bool:
            names = [name for name, live in self._live.items() if live and overlap(name, event.job)]
            locks = [self._now(lock_key(NS, name), each) for name in names for each in (puts, {})]
            found = [(lock.name, each) for lock in locks if isinstance(lock, LockRecord) for each in lock.holders]
            others = [each.session for name, each in found if (name, each.token) != (event.job, event.token)]
            return session is not None and any(
                each == session or self._are_related(each, session, puts) for each in others
            )

        def is_related(other: str) -> bool:
            return other == session or self._are_related(other, session, puts) or has_some(other)

        passed = "" if has_some(session) else self.waits.passed_over(event, puts, is_related)
        if passed:
            self._say("queue:fifo", f"{event.owner} was given {event.job} before {passed} and came first.")

    def _ended(self, event: Event) -> None:
        record = self._now(lock_key(NS, event.job), {})
        holders = record.holders if isinstance(record, LockRecord) else ()
        before = next((holder for holder in holders if holder.token == event.token), None)
        if before is None:  # it began in the same commit
            return
        known = self._reported.get((event.job, before.lease_id))
        is_broken = event.kind == kinds.BROKEN and event.reason is not None
        if is_broken and self._breaks.setdefault(event.reason or "", self._commits) != self._commits:
            self._say("idem:acquire", f"One break of {event.job} was done twice.")
        if event.kind == kinds.EXPIRED and before.session is None and event.at_ms < before.expires_ms:
            early_ms = before.expires_ms - event.at_ms
            self._say("lease:never-early", f"{before.owner}'s lease of {event.job} ended {early_ms} ms early.")
        if event.kind == kinds.EXPIRED and before.session is None and not 0 < before.ends_ms <= event.at_ms:
            self._had_its_chance(f"{before.owner} lost {event.job}", before, event.at_ms)
        if event.kind != kinds.EXPIRED or before.session is not None or 0 < before.ends_ms <= event.at_ms:
            self._ended_by.add((event.job, before.lease_id))
        is_own = self._is_let_go(event.job, before) or self._sessions.get(before.session or "") == 0
        if event.kind != kinds.RELEASED or known is None or is_own:
            return
        self._say("excl", f"{known.client}'s lease of {event.job} was given back, but not by {known.client}.")

    def _had_its_chance(self, loss: str, before: Holder | SessionRecord, now_ms: int) -> None:
        """A lease that was live while nobody could serve has time to renew afterwards: once since its last renewal."""
        for began_ms, ended_ms in self._outages:
            is_live = before.renewed_ms < began_ms < before.expires_ms - PULSE_LATE_MS
            if not is_live or any(before.renewed_ms < each < began_ms for each in self._recorded):
                continue
            if now_ms < ended_ms + min(before.ttl_ms, 5_000) // 2:
                self._say("lease:outage-credit", f"{loss} in an outage.")

    def _session_had_ended(self, event: Event, key: str, puts: Puts) -> None:
        """A place goes with its session: an end that is on record, or its time is up."""
        before, after = self._now(key, {}), self._now(key, puts)
        if not isinstance(before, SessionRecord) or not isinstance(after, SessionRecord) or after.ended_ms:
            return
        if event.at_ms < before.expires_ms:
            early_ms = before.expires_ms - event.at_ms
            said = f"{event.owner}'s place for {event.job} went with its session, which lasts for {early_ms} ms more."
            self._say("lease:never-early", said)
        self._had_its_chance(f"{event.owner} lost its place for {event.job}", before, event.at_ms)

    def _outage(self, event: Event) -> None:
        began_ms = event.began_ms or 0
        self._recorded.append(event.at_ms)
        why = self._denies_outage(began_ms, event.at_ms)
        if why:
            self._say("lease:outage-credit", f"An outage of {event.at_ms - began_ms} ms was recorded, and {why}.")

    def _lock(self, key: str, lock: LockRecord, puts: Puts, now_ms: int) -> None:
        job = lock.name
        self.outside.written(lock)
        if {holder.token for holder in lock.holders} != self._live[job].keys():
            self._say("audit", f"{job} is held by {[each.owner for each in lock.holders]}, and events say otherwise.")
        queue = sorted(self.waits.queue(job))
        if list(lock.line) != queue or len(lock.marks) != 8 * len(lock.line):
            self._say("queue:fifo", f"The queue of {job} is {lock.line}, and events say {queue}.")
        for holder in lock.holders:
            self._holder(key, job, holder, puts)
            self._has_one_lease(job, holder, now_ms)
        before = self._records.get(key)
        old = before.record if before is not None else None
        is_same = isinstance(old, LockRecord) and (old.line, old.holders) == (lock.line, lock.holders)
        # A job that was opened is free until its server asks for it. Meanwhile it may get a number.
        if lock.line and not (is_same or lock.holders or lock.delay_until_ms or lock.parked or lock.done):
            head = self._now(ticket_key(NS, job, lock.line[0]), puts)
            stays = job in self._pools or job.startswith("path:") or any(covers(each, job) for each in self._closed)
            if isinstance(head, Ticket) and not (head.whole or head.stopped or stays):
                said = f"{job} is free, and {head.owner}, who is first in line, was not given it: a lost wake-up."
                self._say("queue:fifo", said)
        if lock.groups and len(lock.line) > 1:
            tickets = [self._now(ticket_key(NS, job, number), puts) for number in lock.line]
            groups = [each.replaces for each in tickets if isinstance(each, Ticket) and each.replaces]
            if len(groups) > len(set(groups)):
                self._say("queue:newest", f"{len(groups)} of one group wait for {job}.")
        taken = [number for holder in lock.holders for number in holder.slot_numbers]
        if len(taken) > len(set(taken)):
            self._say("slot:number", f"Two owners of {job} have one slot: {taken}.")

    def _now(self, key: str, puts: Puts) -> Stored | None:
        if key in puts:
            return puts[key]
        found = self._records.get(key)
        return found.record if found is not None else None

    def _holder(self, key: str, job: str, holder: Holder, puts: Puts) -> None:
        self._made.setdefault(holder.lease_id, job)
        known = self._reported.get((job, holder.lease_id))
        is_own = (job, holder.lease_id) in self._let_go
        lasts = holder.session is not None and not holder.ttl_ms  # as long as its session
        if known is not None and holder.expires_ms < known.until_ms and not lasts and not is_own:
            cut_ms = known.until_ms - holder.expires_ms
            self._say("lease:never-early", f"{known.client}'s lease of {job} was cut by {cut_ms} ms.")
        ends_ms = self._ceilings.setdefault(holder.lease_id, holder.ends_ms)
        if holder.ends_ms != ends_ms or 0 < ends_ms < max(holder.renewed_ms, holder.expires_ms):
            self._say("max-hold", f"{holder.owner}'s lease of {job} goes on after its ceiling.")
        if holder.session is not None:
            session = self._now(session_key(holder.session), puts)
            if isinstance(session, SessionRecord) and not session.ended_ms and key not in session.holds:
                self._say("session", f"{holder.session} holds {job} and does not know it.")
        if job.startswith("path:"):
            for other, live in self._live.items():
                if other != job and overlap(other, job):
                    self._apart(job, holder, other, live, puts)

    def _has_one_lease(self, job: str, holder: Holder, now_ms: int) -> None:
        """A request key has one lease of a job, until the end of that is forgotten."""
        if holder.request_key is None:
            return
        before = self._by_key.get((holder.request_key, job), holder)
        self._by_key[holder.request_key, job] = holder
        if before.lease_id != holder.lease_id:
            known = [each.token for each in remembered(tuple(reversed(self._ends[job])), now_ms)]
            if before.token in (*known, *self._live[job]):
                self._say("idem:acquire", f"Request key {holder.request_key} has two leases of {job}.")

    def _apart(self, job: str, holder: Holder, other: str, live: dict[int, Event], puts: Puts) -> None:
        record = self._now(lock_key(NS, other), puts)
        for each in record.holders if live and isinstance(record, LockRecord) else ():
            if EXCLUSIVE in (each.mode, holder.mode) and (each.session is None or each.session != holder.session):
                self._say("tree", f"{each.owner} has {other} and {holder.owner} has {job}.")

    def _session_over(self, key: str, session: SessionRecord, puts: Puts, now_ms: int) -> None:
        """All that a session had is given back in the same step; of very many jobs, the rest follows."""
        before = self._now(key, {})
        holds = before.holds if isinstance(before, SessionRecord) else ()
        if isinstance(before, SessionRecord) and not before.ended_ms and session.how == EXPIRED:
            self._had_its_chance(f"{session.owner} lost its session", before, now_ms)
        for held in holds if len(holds) <= FREED_MAX else ():
            lock = self._now(held, puts)
            if isinstance(lock, LockRecord) and any(each.session == session.id for each in lock.holders):
                self._say("session", f"{session.owner}'s session has ended, and still has {lock.name}.")
        if session.waits:
            self._say("session", f"{session.owner}'s session has ended, and still waits.")


def _few_of(record: Stored | None) -> tuple[int, int, int]:
    """Count what the principal with limits holds, waits for, and has open in one record."""
    if isinstance(record, LockRecord):
        return sum([each.principal == LIMITED for each in record.holders]), 0, 0
    if getattr(record, "principal", "") != LIMITED:
        return 0, 0, 0
    return 0, int(isinstance(record, Ticket)), int(isinstance(record, SessionRecord) and not record.ended_ms)


# Events that change what is allowed.
_SETTINGS: dict[str, Callable[[Checker, Event], object]] = {
    kinds.OUTAGE: Checker._outage,
    kinds.POOL_SET: Checker._pool_set,
    kinds.CLOSED: lambda checker, event: checker._closed.update({event.job: event.until_ms or 0}),
    kinds.OPENED: lambda checker, event: checker._closed.pop(event.job, None),
}
