"""The only entry to the rules: `decide(view, command) -> Decision`.

Pure. Time is `view.now_ms`, fresh ids come with the command, records through the view. The same inputs give the same
decision, so every rule can be tested in microseconds, and replayed. The other files, by the question they answer:

What callers ask for: `claims/`
    acquire.py    one job: the steps of a claim, and the verdict on it
    several.py    the first free of several; all or none
    leases.py     keeping a job and letting it go: renew, release, transfer, break
    effects.py    steps that change something outside: what an owner notes of them, and the next one is told
    withdraw.py   what an ask is, the one way in which a claim is undone, and what refuses its late copies
    sessions.py   one run of one worker, and what ends with it
    numbers.py    a series: numbers that nobody else gets
    job_settings.py  commands about a job: access list, pool, close and open, free
    inspect.py    how a job stands

Who may have it, and until when: `holds/`
    grants.py     the one way in which an owner is made, and how much the owners of one job may note together
    proof.py      what proves "that was me"
    access.py     access lists: who may claim a job, through the tree
    exclusion.py  who stands in whose way: owners and the tree
    capacity.py   how many may own a job at once: modes, slots, units, pools
    related.py    a session, its parent and its children
    closures.py   maintenance stops: jobs that nobody is granted for a while
    path_claims.py  the claims of a tree of paths, in pages
    expiry.py     when a hold is over: its deadline, and that of a session or a place in a queue
    endings.py    the one way in which a hold ends; attempts, parking, delays; which endings are remembered
    outage_credit.py  how much later a deadline is for outages
    max_hold.py   `max_hold`: a deadline that nothing moves
    quota.py      how much a principal has, for those that have a limit

Who waits: `waiting/`
    queue.py      who is served when, and the one way in which a waiter is given the job
    groups.py     of a group only the newest waits
    tickets.py    places in a queue; a refused ask that counts as waiting; the waiters that an owner has heard of
    wait_graph.py who waits for whom
    deadlock.py   would waiting ever end; places that a loss of their session closed a circle with

What time does: `upkeep/`
    sweep.py      what is due on a record although nobody asks; forgetting
    outages.py    when no server could serve: pulses, and how a gap is noted
    freeze.py     a store that is being moved, its name, and the floor of its fencing tokens
    moved.py      a record for another store
    recount.py    counting anew what a principal has

What a service needs beyond claims: `service/`
    credentials.py  making, replacing and revoking tokens
    signed_identity.py  who a machine is by a token that others signed
    webhooks.py   making and removing webhooks, and which server delivers
    delivery.py   what a webhook is sent, in which order, and when it is tried again

Beside this file: `records.py` has what is kept, `commands.py` what is asked, `outcomes.py`, `lease_outcomes.py` and
`session_outcomes.py` what is answered, `events.py` what happened. `draft.py` is a decision in progress. `names.py` says
what a name may be, `overlap.py` which paths overlap, and `path_index.py` finds those quickly. `limits.py` says how
long, how many and how large, `caller_rights.py` who may do what.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable
from dibs.core import commands, records
from dibs.core.claims.acquire import acquire
from dibs.core.commands import Command
from dibs.core.draft import Decision, Draft, View
from dibs.core.holds.expiry import shown
from dibs.core.names import in_tree
from dibs.core.outcomes import Deadlock, Granted, GrantedAll, JobOutcome, Outcome, Refused
from dibs.core.records import Holder, LockRecord, Ticket, ticket_key
from dibs.core.waiting.queue import keep_tickets, leave, queued
from dibs.core.waiting.tickets import note_want, note_wanted

# A rule answers with an outcome, or with the place that its caller has in the queue: `decide` says where that is.
_RULES: dict[type[Any], Callable[[Draft, Any], Outcome | Ticket]] = {
    commands.Acquire: acquire,
    commands.Leave: leave,
    commands.KeepTickets: keep_tickets,
}


def decide(view: View, command: Command) -> Decision:
    """The outcome of `command`, with its writes and events. May raise `Missing`."""
    draft, kind = Draft(view), type(command)
    if kind not in commands.UNFROZEN:
        frozen = draft.meta().frozen
        if frozen is not None:
            from dibs.core.upkeep.freeze import while_frozen  # rare: a store is frozen while it is moved

            refused = while_frozen(draft, command, frozen)
            if refused is not None:
                return Decision(outcome=refused, writes={})
    if kind not in _RULES:
        _load(kind)
    answer = _RULES[kind](draft, command)
    cycles: dict[str, tuple[str, ...]] = {}
    seen: set[str] = set()
    while losses := _losses(draft, seen):  # a place that is given up is a loss, too
        from dibs.core.waiting.deadlock import leave_circles  # rare: most sessions have one place for a job

        cycles.update(leave_circles(draft, losses))
    outcome = _queued_or_refused(draft, command, answer, cycles) if isinstance(answer, Ticket) else answer
    handed = draft.handed
    if handed:  # what somebody was served with may be a lease that was answered before
        held = _held(draft)
        outcome = _present(draft, held, outcome)
        handed = [
            each.replace(outcome=_present(draft, held, each.outcome)) for each in handed if _has(held, each.outcome)
        ]
    decision = Decision(outcome=outcome, writes=draft.writes, events=tuple(draft.events), handed=tuple(handed))
    for check in CHECKS:
        check(draft.view(), command, decision)
    return decision


# What looks at every decision while tests run, and in `dibs simulate` (`testing/decisions.py`). Empty otherwise.
CHECKS: list[Callable[[View, Command, Decision], None]] = []


# What sessions lose. All that a decision takes from anybody is in its writes, so losses are found there, by what was
# read: no rule, of today or to come, says so or can forget it. Which losses matter, and why, is in `deadlock.py`.


def _losses(draft: Draft, seen: set[str]) -> list[tuple[str, str, str]]:
    """Sessions that lost a job, or a place for it, and have another place for that job (namespace, name); and those
    whose place may wait for more owners of a pool than before. `seen` are the losses that were looked at."""
    found: list[tuple[str, str, str]] = []
    for key, new in draft.writes.items():
        old = draft.before(key)
        if old is None:
            continue  # nobody had it
        if isinstance(old, LockRecord):
            now = new if isinstance(new, LockRecord) else old.replace(holders=())
            if old.holders is not now.holders:
                for each in old.holders:
                    if each.session is not None:  # few holds have one; every heartbeat comes here
                        _note_holds(draft, key, old, now, seen, found)
                        break
            if (old.pooled or now.pooled) and _is_smaller(old, now) and key not in seen:
                seen.add(key)
                found += _around(draft, now)
        elif new is None and isinstance(old, Ticket) and old.session is not None and key not in seen:
            seen.add(key)
            _note_loss(draft, old.session, old.ns, old.name, found)
    return found


def _note_holds(
    draft: Draft, key: str, old: LockRecord, new: LockRecord, seen: set[str], found: list[tuple[str, str, str]]
) -> None:
    """A session that has the job in another mode has lost it for a place that wants it as it was (`own_hold`)."""
    kept = frozenset(map(id, new.holders))
    gone = [each for each in old.holders if each.session is not None and id(each) not in kept]
    still = {(each.session, each.mode) for each in new.holders}
    for each in gone:
        mark = f"{key} {each.mode} {each.session}"
        if (each.session, each.mode) not in still and mark not in seen:
            seen.add(mark)
            _note_loss(draft, each.session or "", old.ns, old.name, found)


def _note_loss(draft: Draft, session_id: str, ns: str, name: str, found: list[tuple[str, str, str]]) -> None:
    session = draft.session(session_id)
    for wait in session.waits if session is not None else ():
        if (wait.ns, wait.name) == (ns, name):
            found.append((session_id, ns, name))
            return


def _is_smaller(old: LockRecord, new: LockRecord) -> bool:
    """Return whether a pool has fewer slots, is gone or new, or goes on: a pause was not for its owners to end."""
    was, now = (each.slots if each.pooled else None for each in (old, new))
    return was != now and (not was or now is None or now < was)


def _around(draft: Draft, lock: LockRecord) -> list[tuple[str, str, str]]:
    """All that the owners of a job and those in its queue wait for, if they have something that others may wait for."""
    draft.need(*[ticket_key(lock.ns, lock.name, number) for number in lock.line])
    tickets = [draft.ticket(lock.ns, lock.name, number) for number in lock.line]
    ids = dict.fromkeys([each.session for each in (*lock.holders, *tickets) if each is not None and each.session])
    draft.need(*[records.session_key(each) for each in ids])
    sessions = [session for session in map(draft.session, ids) if session is not None]
    busy = [each for each in sessions if each.holds or len(each.waits) > 1]
    return [(each.id, wait.ns, wait.name) for each in busy for wait in each.waits]


def _queued_or_refused(draft: Draft, command: Command, joined: Ticket, cycles: dict[str, tuple[str, ...]]) -> Outcome:
    """An answer describes the state after all that its decision does. So a place that is gone at its end is not
    reported: it was served, or it closed a circle, and then the claim is refused and changes nothing."""
    ticket = draft.ticket(joined.ns, joined.name, joined.number)
    if ticket is not None and ticket.lease_id == joined.lease_id:
        answer = queued(draft, ticket)
        if draft.before(ticket_key(ticket.ns, ticket.name, ticket.number)) is None:
            note_wanted(draft, answer)
        return answer
    for handed in draft.handed:
        if (handed.ns, handed.name, handed.number) == (joined.ns, joined.name, joined.number):
            return handed.outcome
    cycle = cycles.get(joined.lease_id)
    if cycle is None or not isinstance(command, commands.Acquire | commands.AcquireAll):
        raise AssertionError(f"A rule gave a place for {joined.name} and took it back: tell the authors of dibs.")
    draft.discard()
    names = command.names if isinstance(command, commands.AcquireAll) else (command.name,)
    note_want(draft, command, names)
    return Deadlock(now_ms=draft.now_ms, name=names[-1], cycle=cycle)


def _held(draft: Draft) -> dict[tuple[str, str], Holder]:
    """The leases of the jobs that are written, by name and id. A claim of several has one id for all."""
    locks = [each for each in draft.writes.values() if isinstance(each, LockRecord)]
    return {(lock.name, holder.lease_id): holder for lock in locks for holder in lock.holders}


def _has(held: dict[tuple[str, str], Holder], outcome: Granted | GrantedAll) -> bool:
    """Return whether a waiter that was served still has its lease: its own release may be what came."""
    grants = outcome.grants if isinstance(outcome, GrantedAll) else (outcome,)
    return all((each.name, each.lease.lease_id) in held for each in grants)


def _present(draft: Draft, held: dict[tuple[str, str], Holder], outcome: Outcome) -> Any:
    """The outcome with its leases as they are when all is done: a place of the same session that was served with a
    lease lets it last as long as the session (`for_session`)."""
    if isinstance(outcome, GrantedAll):
        return outcome.replace(grants=tuple([_present(draft, held, each) for each in outcome.grants]))
    if isinstance(outcome, Refused) and outcome.left:
        return outcome.replace(left=tuple([_present(draft, held, each) for each in outcome.left]))
    lease = getattr(outcome, "lease", None)
    found = held.get((outcome.name, lease.lease_id)) if isinstance(outcome, JobOutcome) and lease is not None else None
    if found is None or (now := shown(draft, found)) == lease:
        return outcome
    leased: Any = outcome  # one of the outcomes that have a lease
    presented: Outcome = leased.replace(lease=now)
    return presented


def _load(kind: type[Any]) -> None:
    """Import the rule of a command that comes for the first time, with those of the same file: `dibs claim` should not
    wait for the import of all."""
    if kind in (commands.AcquireAny, commands.AcquireAll):
        from dibs.core.claims import several

        _RULES.update({commands.AcquireAny: several.acquire_any, commands.AcquireAll: several.acquire_all})
    elif kind is commands.Inspect:
        from dibs.core.claims.inspect import inspect

        _RULES[commands.Inspect] = inspect
    elif kind in (commands.Renew, commands.Release, commands.Transfer, commands.Break):
        from dibs.core.claims import leases

        _RULES.update({commands.Renew: leases.renew, commands.Release: leases.release})
        _RULES.update({commands.Transfer: leases.transfer, commands.Break: leases.break_})
    elif kind is commands.Withdraw:
        from dibs.core.claims.withdraw import withdraw

        _RULES[commands.Withdraw] = withdraw
    elif kind in (commands.OpenSession, commands.KeepSession, commands.EndSession, commands.InspectSession):
        from dibs.core.claims import sessions

        _RULES.update({commands.OpenSession: sessions.open_session, commands.KeepSession: sessions.keep_session})
        _RULES.update({commands.EndSession: sessions.end_session, commands.InspectSession: sessions.inspect_session})
    elif kind in (commands.SetAcl, commands.SetPool, commands.Close, commands.Open, commands.Free):
        from dibs.core.claims import job_settings

        _RULES.update({commands.SetAcl: job_settings.set_acl, commands.SetPool: job_settings.set_pool})
        _RULES.update({commands.Close: job_settings.close, commands.Open: job_settings.open_})
        _RULES[commands.Free] = job_settings.free
    elif kind in (commands.TakeNumber, commands.ReturnNumber):
        from dibs.core.claims import numbers

        _RULES.update({commands.TakeNumber: numbers.take_number, commands.ReturnNumber: numbers.return_number})
    elif commands.Sweep not in _RULES:
        _load_upkeep()
    if kind not in _RULES:
        from dibs.core.service import credentials, signed_identity, webhooks

        _RULES.update(credentials.RULES)
        _RULES.update(signed_identity.RULES)
        _RULES.update(webhooks.RULES)


def _load_upkeep() -> None:
    from dibs.core.upkeep import freeze, outages, recount, sweep

    _RULES.update(
        {
            commands.Sweep: sweep.sweep,
            commands.Beat: outages.beat,
            commands.RaiseFloor: freeze.raise_floor,
            commands.Identify: freeze.identify,
            commands.BeginCount: recount.begin_count,
            commands.CountUsage: recount.count,
            commands.Freeze: freeze.freeze,
            commands.Thaw: freeze.thaw,
        }
    )


def keys_of(command: Command) -> list[str]:
    """Keys that the decision will look at: a hint that saves a round trip. `Missing` finds the others."""
    found = [records.META_KEY]
    if isinstance(command, _ONE_JOB):
        found.append(records.lock_key(command.ns, command.name))
        if in_tree(command.name):
            found.append(records.tree_key(command.ns))
    elif isinstance(command, _SEVERAL_JOBS):
        found += [records.lock_key(command.ns, name) for name in command.names]
        if any(in_tree(name) for name in command.names):
            found.append(records.tree_key(command.ns))
    elif isinstance(command, commands.Beat):
        return [records.pulse_key(command.server)]  # nothing that another server writes, unless there was a gap
    elif isinstance(command, commands.Sweep | commands.CountUsage):
        found.append(command.key)
    elif hasattr(command, "digest"):
        found += [records.REGISTER_KEY, records.CREDENTIAL_PREFIX + command.digest]
    payer = getattr(command, "payer", None)
    if payer is not None:
        found.append(records.USAGE_PREFIX + payer)
    session = getattr(command, "session", None)
    if session is not None:
        found.append(records.session_key(session))
    return found


# Made once: a union would be made at every call.
_ONE_JOB = (commands.Acquire, commands.JobCommand)
_SEVERAL_JOBS = (commands.AcquireAny, commands.AcquireAll, commands.Withdraw)
