"""Claiming: who owns a job. The promises `excl`, `proof`, `idem` and `token:rises` live here.

Can two owners overlap? Only `grants.grant` makes a holder (and `transfer` replaces one by another). A newcomer reaches
it through `judge`, which refuses while anything blocks the claim; a waiter through `queue.advance`, which checks the
same. `proof.py` alone decides what proves a claim.
"""

from __future__ import annotations

from dibs.core import events, outcomes
from dibs.core.commands import Acquire, AcquireTerms
from dibs.core.draft import Draft
from dibs.core.holds.access import allowed, other_list, put_list
from dibs.core.holds.capacity import is_paused, misfit, other_slots
from dibs.core.holds.endings import remembered, was_withdrawn
from dibs.core.holds.exclusion import blockers, covered, named
from dibs.core.holds.expiry import own_deadline_ms, shown
from dibs.core.holds.grants import apply_policy, for_session, grant, swap
from dibs.core.holds.max_hold import capped_ms
from dibs.core.holds.proof import ended, held_by, not_current, own_claim, own_session, same, session_hold, session_owner
from dibs.core.holds.quota import over_held, over_waiting
from dibs.core.limits import REGRANT_MS
from dibs.core.names import in_tree, is_resource
from dibs.core.outcomes import Blocker, JobOutcome, Outcome
from dibs.core.records import Ending, Holder, LockRecord, SessionRecord, Ticket
from dibs.core.waiting.queue import ahead, first_ahead, give_up, join_queue, may_wait, refresh, serve_own, ticket_of
from dibs.core.waiting.tickets import forget_want, keep, note_want, session_tickets

# Tuples, made once: `isinstance(outcome, Held | Delayed)` makes a union at every call, which every claim pays for.
_PASSES = (outcomes.Held, outcomes.Delayed, outcomes.Closed)  # refusals that time may change
_WANTS = (outcomes.Held, outcomes.Delayed, outcomes.Closed, outcomes.Deadlock)
_SERVED = (outcomes.Granted, Ticket)
_WANT_STAYS = (outcomes.Granted, Ticket, outcomes.SessionOver)
_FINAL = (outcomes.Forbidden, outcomes.KeySpent, outcomes.NotCurrent)
# Refusals about the ask. They take away no place that another ask of the same caller may wait at. Who comes with the
# ticket waits there itself: with its last answer the place goes, or nobody would be there when it is served.
ABOUT_THE_ASK = (outcomes.KeySpent, outcomes.NotCurrent, outcomes.Differs)


def acquire(draft: Draft, command: Acquire) -> Outcome | Ticket:
    """The answer to a claim, or the place in line that it has now."""
    if command.max_attempts and (refused := never_parked(draft, command, (command.name,))) is not None:
        return refused
    outcome = check_ask(draft, command, command.name) or _answer(_Claim(draft, command))
    if command.session is not None:
        if isinstance(outcome, _WANTS):
            note_want(draft, command, (command.name,))
        elif not isinstance(outcome, _WANT_STAYS):
            forget_want(draft, command)
    if command.audited and not isinstance(outcome, _SERVED):
        _note_refusal(draft, command, outcome)
    return outcome


def _answer(claim: _Claim) -> Outcome | Ticket:
    """The steps of a claim that may be looked at (`check_ask`). Each answers it, or leaves it to the next."""
    verdict = claim.verdict
    if verdict is not None and isinstance(verdict, Holder):
        return _has_it(claim, verdict)
    in_line = (_stays_in_line(claim) or _leaves_line(claim)) if claim.ticket is not None else None
    return in_line or _is_never_granted(claim) or _is_granted(claim) or _would_never_be_served(claim) or _waits(claim)


class _Claim:
    """A claim on a job whose expired holds are ended, with the caller's place in line and the verdict on a newcomer."""

    __slots__ = ("command", "draft", "lock", "ticket", "verdict")

    def __init__(self, draft: Draft, command: Acquire) -> None:
        self.draft, self.command = draft, command
        self.lock = refresh(draft, command.ns, command.name, command.mode)
        self.ticket: Ticket | None = None
        if may_wait(command):
            self.ticket = ticket_of(draft, command, (command.name,))
            self.lock = draft.lock(command.ns, command.name)
        self.verdict = judge(draft, command, self.lock)


def _has_it(claim: _Claim, mine: Holder) -> outcomes.Granted:
    """The caller has the job already: the same lease again. What it waits for besides is answered, too."""
    draft, command = claim.draft, claim.command
    granted = grant_again(draft, command, command.name, mine)
    if claim.ticket is not None:
        give_up(draft, claim.ticket, "answered")
    return granted


def _stays_in_line(claim: _Claim) -> Outcome | Ticket | None:
    """The caller waits already, and must wait longer: it keeps its place."""
    if claim.ticket is None or not isinstance(claim.verdict, _PASSES):
        return None
    return other_units(claim.draft, claim.command, claim.ticket) or keep(claim.draft, claim.ticket, claim.command)


def _leaves_line(claim: _Claim) -> Outcome | None:
    """The caller waits, and its wait is over: it is granted now, or would never be. A refusal that is about another ask
    than the one that took the place leaves the place where it is."""
    draft, command, ticket = claim.draft, claim.command, claim.ticket
    if ticket is None:
        return None
    if ticket.lease_id != command.ticket_id:
        if isinstance(claim.verdict, ABOUT_THE_ASK):
            return claim.verdict
        if not isinstance(claim.verdict, _FINAL) and (differs := other_list(draft, command, claim.lock)) is not None:
            return differs
    give_up(draft, ticket, "answered")
    claim.lock = draft.lock(command.ns, command.name)
    return None


def _is_never_granted(claim: _Claim) -> Outcome | None:
    """No wait would help: not this caller, not this ask, not as the job is."""
    draft, command, verdict = claim.draft, claim.command, claim.verdict
    if verdict is not None and isinstance(verdict, _FINAL):
        return verdict
    if command.replaces is not None and may_wait(command):
        from dibs.core.waiting.groups import superseded  # few claims are of a group

        newer = superseded(draft, command, (command.name,))
        if newer is not None:
            return newer
    if command.acl is not None and (differs := other_list(draft, command, claim.lock)) is not None:
        return differs
    if verdict is None:
        return None
    return verdict if isinstance(verdict, JobOutcome) and not isinstance(verdict, _PASSES) else None


def _is_granted(claim: _Claim) -> Outcome | None:
    """Nothing is in its way: the caller becomes the owner."""
    draft, command = claim.draft, claim.command
    if claim.verdict is not None:
        return None
    granted = grant(draft, command, claim.lock, command.fresh_lease_id)
    if command.session is not None and (circle := closed_circle(draft, command, (command.name,))) is not None:
        return circle
    if command.policy is not None:
        apply_policy(draft, command.policy, command.ns, granted)
    if command.acl is not None:
        put_list(draft, draft.lock(command.ns, command.name), command.acl, command.principal)
    if command.session is not None:
        serve_own(draft, command.ns, command.session)
    if command.replaces is not None:
        from dibs.core.waiting.groups import replace_older

        replace_older(draft, command, (command.name,))
    return granted


def _would_never_be_served(claim: _Claim) -> Outcome | None:
    """A wait that cannot end: the session waits for the job otherwise, or for somebody who waits for it."""
    draft, command = claim.draft, claim.command
    if (otherwise := waits_otherwise(draft, command, command.name)) is not None:
        return otherwise
    if command.session is None:
        return None
    from dibs.core.waiting.deadlock import find_cycle  # only a session can be in a cycle

    cycle = find_cycle(draft, command, (command.name,))
    return outcomes.Deadlock(now_ms=draft.now_ms, name=command.name, cycle=cycle) if cycle else None


def _waits(claim: _Claim) -> Outcome | Ticket:
    """A place in line, for who may wait and has room for one; else why the job is not free now."""
    draft, command = claim.draft, claim.command
    if not may_wait(command):
        assert isinstance(claim.verdict, JobOutcome)  # the other verdicts are answered
        return claim.verdict
    if command.replaces is not None:
        from dibs.core.waiting.groups import join_as_newest

        return join_as_newest(draft, command, (command.name,))
    if command.over_quota or command.payer is not None:
        over = over_waiting(draft, command, command.name)
        if over is not None:
            return over
    return join_queue(draft, command, (command.name,))


def _note_refusal(draft: Draft, command: Acquire, outcome: Outcome) -> None:
    reason = type(outcome).__name__.lower()
    if isinstance(outcome, outcomes.Held) and outcome.blockers:
        reason = f"held by {outcome.blockers[0].holder.owner}"
    owner = command.owner or session_owner(draft, command.session)
    draft.emit(events.REFUSED, command.ns, command.name, owner=owner, principal=command.principal, reason=reason)


def closed_circle(draft: Draft, ask: AcquireTerms, names: tuple[str, ...]) -> outcomes.Deadlock | None:
    """Take back a grant that closed a circle. Only a session whose parent or child has a job passes its line: whoever
    stands there waits for this session, too, from now on, and this session may wait for one of them."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is None or not session.waits:
        return None
    if not any(ahead(draft, draft.lock(ask.ns, name), 0, ask.mode) for name in names):
        return None
    from dibs.core.waiting.deadlock import find_own_cycle  # rare

    cycle = find_own_cycle(draft, session)
    if not cycle:
        return None
    draft.discard()
    return outcomes.Deadlock(now_ms=draft.now_ms, name=names[-1], cycle=cycle)


def check_ask(draft: Draft, ask: AcquireTerms, marked: str) -> Outcome | None:
    """Return why an ask is not looked at: its session is not the caller's or has ended, or it was withdrawn, of which
    the job `marked` has the mark. None if it is."""
    if ask.session is not None:
        session = own_session(draft, ask.session, ask.principal, ask.bound)
        if not isinstance(session, SessionRecord):
            return session
    if ask.request_key is None or not was_withdrawn(draft, draft.lock(ask.ns, marked), ask.principal, ask.request_key):
        return None
    return outcomes.KeySpent(now_ms=draft.now_ms, name=marked, ending=None)


def never_parked(draft: Draft, ask: AcquireTerms, names: tuple[str, ...]) -> JobOutcome | None:
    """Refuse a limit of attempts for resources alone. Together with jobs it counts for the jobs."""
    if not ask.max_attempts or not all(is_resource(name) for name in names):
        return None
    from dibs.core.lease_outcomes import NotAJob  # no other claim needs it

    return NotAJob(now_ms=draft.now_ms, name=names[0], what="max_attempts")


def judge(draft: Draft, ask: AcquireTerms, lock: LockRecord) -> JobOutcome | Holder | None:
    """The verdict on a newcomer's claim on a refreshed lock: why it is refused; or the hold that its caller has
    (`grant_again`); None if it can be granted now. It writes nothing: a claim changes only what its answer reports.

    The checks come in the order of the code: does the caller have it, can it ever have it, can it have it now?"""
    mine = own_claim(lock, ask) if lock.holders else None
    spent = _spent(draft, lock, ask) if mine is None and lock.endings else None
    if lock.holders and mine is None and spent is None:
        mine = session_hold(lock, ask)
    if mine is not None:
        return _differs(draft, ask, lock.name, mine.mode, len(mine.slot_numbers) or 1) or mine
    if not allowed(draft, lock, ask):
        return outcomes.Forbidden(now_ms=draft.now_ms, name=lock.name)
    return spent or _why_never(draft, ask, lock) or _why_not_now(draft, ask, lock)


def _why_never(draft: Draft, ask: AcquireTerms, lock: LockRecord) -> JobOutcome | None:
    """Return why the claim is refused however long it waits, as the job is."""
    now_ms, name = draft.now_ms, lock.name
    if ask.lease_id is not None:
        return not_current(draft, lock, ended(lock, ask.lease_id, None, ask.principal))
    if lock.parked:
        return outcomes.Parked(now_ms=now_ms, name=name, failures=lock.failures, ending=_previous(lock))
    if (lock.pooled or ask.units > 1) and (differs := misfit(lock, ask, now_ms)) is not None:
        return differs
    if lock.holders and (differs := other_slots(lock, ask, now_ms)) is not None:
        return differs
    if lock.done is not None and now_ms < lock.done.until_ms and not ask.again:
        return outcomes.AlreadyDone(now_ms=now_ms, name=name, done=lock.done)
    return None


def _why_not_now(draft: Draft, ask: AcquireTerms, lock: LockRecord) -> JobOutcome | None:
    """Return why the claim must wait: the job is closed, held or delayed, or others come first. Or why it may not have
    one more: its principal is at a limit."""
    now_ms, name = draft.now_ms, lock.name
    if draft.meta().closures:
        from dibs.core.holds.closures import closure_of  # rare

        closed = closure_of(draft, lock.ns, name)
        if closed is not None:
            return outcomes.Closed(now_ms=now_ms, name=name, closure=closed)
    in_way: tuple[Blocker, ...] = ()
    waiting, is_in_tree = 0, in_tree(name)
    if lock.holders or is_in_tree:
        in_way = blockers(draft, lock, ask.mode, ask.slots, ask.session, ask.units)
    if lock.line or is_in_tree:
        waiting = ahead(draft, lock, 0, ask.mode)
    if waiting and not in_way and covered(draft, lock, ask.mode, ask.session):
        waiting = waiting if session_tickets(draft, ask.session, ask.ns, name) else 0
    paused = lock.pooled and is_paused(lock)
    if in_way or paused:
        few = named(in_way)
        unnamed = len(in_way) - len(few)
        return outcomes.Held(now_ms=now_ms, name=name, blockers=few, unnamed=unnamed, waiting=waiting, paused=paused)
    if now_ms < lock.delay_until_ms and not (lock.holders and waiting):
        return _delayed(lock, now_ms)
    if waiting:
        return outcomes.Held(now_ms=now_ms, name=name, waiting=waiting, first=first_ahead(draft, lock, ask.mode))
    return over_held(draft, ask, name) if ask.over_quota or ask.payer is not None else None


def _spent(draft: Draft, lock: LockRecord, ask: AcquireTerms) -> outcomes.KeySpent | outcomes.NotCurrent | None:
    """The ask got a hold that has ended: a late repeat must not become a lease that nobody knows of, nor change what
    another ask of its session has."""
    for ending in remembered(lock.endings, draft.now_ms):
        if ending.principal != ask.principal:
            continue
        if ask.request_key is not None and ending.request_key == ask.request_key:
            return outcomes.KeySpent(now_ms=draft.now_ms, name=lock.name, ending=ending)
        if ending.lease_id == ask.fresh_lease_id:
            return not_current(draft, lock, ending)
    return None


def was_held_before(ask: AcquireTerms, mine: Holder) -> bool:
    """Return whether another ask got this hold."""
    return mine.lease_id not in (ask.fresh_lease_id, ask.ticket_id) and not same(mine.request_key, ask.request_key)


def grant_again(draft: Draft, ask: AcquireTerms, name: str, mine: Holder) -> outcomes.Granted:
    """Claiming a held job again gives the same lease, never with a shorter TTL. A caller that shows a lease which was
    renewed a moment ago is answered without a write: so a server asks for a waiter that another server has served."""
    lock = draft.lock(ask.ns, name)
    mine = held_by(lock, mine.lease_id, None, None) or mine  # as it is after what was served since the verdict
    held_before = was_held_before(ask, mine)
    is_fresh = mine.lease_id == ask.lease_id and ask.ttl_ms <= mine.ttl_ms
    is_fresh = is_fresh and draft.now_ms - mine.renewed_ms < min(REGRANT_MS, mine.ttl_ms // 12)
    kept = for_session(draft, ask, mine)
    is_known = held_before if mine.request_key is not None else mine.lease_id != ask.fresh_lease_id
    if is_known and not kept.used:
        kept = kept.replace(used=True)
    until_ms = capped_ms(draft.now_ms + ask.ttl_ms, mine.ends_ms)
    if mine.ttl_ms and ask.ttl_ms and not is_fresh and until_ms > own_deadline_ms(draft, mine):
        ttl_ms = max(mine.ttl_ms, ask.ttl_ms)
        expires_ms = capped_ms(draft.now_ms + ttl_ms, mine.ends_ms)
        kept = kept.replace(renewed_ms=draft.now_ms, ttl_ms=ttl_ms, expires_ms=expires_ms)
    if kept != mine:
        draft.put(swap(lock, kept))
    return outcomes.Granted(
        now_ms=draft.now_ms,
        name=name,
        lease=shown(draft, kept),
        previous=_previous(lock),
        effects=lock.effects,
        again=mine.lease_id not in (ask.fresh_lease_id, ask.ticket_id),
        held_before=held_before,
    )


def waits_otherwise(draft: Draft, ask: AcquireTerms, name: str) -> outcomes.Differs | None:
    """A session that waits for a job in one mode cannot get it in another: it would wait for itself. Nor more units: it
    would be given those that it waits for first."""
    for ticket in session_tickets(draft, ask.session, ask.ns, name):
        if differs := _differs(draft, ask, name, ticket.mode, ticket.units):
            return differs
    return None


def other_units(draft: Draft, ask: AcquireTerms, ticket: Ticket) -> outcomes.Differs | None:
    """A place is for as many units as its first ask said."""
    return _differs(draft, ask, ticket.name, ask.mode, ticket.units)


def _differs(draft: Draft, ask: AcquireTerms, name: str, mode: str, units: int) -> outcomes.Differs | None:
    """Compare a claim with what its caller has, or waits for. One unit is what a claim has that names none."""
    if mode != ask.mode:
        return outcomes.Differs(now_ms=draft.now_ms, name=name, what="mode", has=mode, asked=ask.mode)
    if ask.units in (1, units):
        return None
    return outcomes.Differs(now_ms=draft.now_ms, name=name, what="units", has=str(units), asked=str(ask.units))


def _delayed(lock: LockRecord, now_ms: int) -> outcomes.Delayed:
    ended_ms = lock.endings[0].at_ms if lock.endings else now_ms
    return outcomes.Delayed(
        now_ms=now_ms,
        name=lock.name,
        until_ms=lock.delay_until_ms,
        delay_ms=lock.delay_until_ms - ended_ms,
        ending=_previous(lock),
    )


def _previous(lock: LockRecord) -> Ending | None:
    return lock.endings[0] if lock.endings else None
