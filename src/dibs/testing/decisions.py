"""Checks of every decision, whatever was asked: its answer says what it writes. The promise `answer`.

A lease in an answer is in the records, as the answer says. A place in an answer is in all its queues, at that position.
A refusal changes nothing but what was due: holds whose time is over, places that nobody asks for or that can never
be served, those who are served then, and what a session wants (`tickets.note_want`).

`dibs simulate` checks every decision in this way, and so do the tests (`tests/conftest.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from dibs.core import decide as decide_module
from dibs.core import events as kinds
from dibs.core import lease_outcomes, outcomes
from dibs.core.claims.acquire import ABOUT_THE_ASK
from dibs.core.commands import Command
from dibs.core.draft import Decision, Draft, Missing, View
from dibs.core.holds.expiry import live_now, shown, ticket_over
from dibs.core.holds.path_claims import unclaimed
from dibs.core.names import in_tree
from dibs.core.outcomes import Granted, GrantedAll, Outcome, Queued
from dibs.core.records import Holder, LockRecord, SessionRecord, Stored, Ticket, lock_key
from dibs.core.waiting.deadlock import find_own_cycle
from dibs.core.waiting.queue import queued
from dibs.core.waiting.tickets import parts_of

# Outcomes that say "no". Every other says what was done (`tests/core/test_decisions.py` holds both lists together).
REFUSALS = (
    *(outcomes.Held, outcomes.Refused, outcomes.Superseded, outcomes.Deadlock, outcomes.Differs, outcomes.Parked),
    *(outcomes.SessionUnknown, outcomes.SessionOver, outcomes.AlreadyDone, outcomes.Delayed, outcomes.Closed),
    *(outcomes.NotCurrent, outcomes.KeySpent, outcomes.Forbidden, outcomes.AclDiffers, outcomes.QuotaExceeded),
    *(outcomes.TooMany, lease_outcomes.Frozen, lease_outcomes.NotAJob, lease_outcomes.NoteTooLong),
    *(lease_outcomes.EffectRefused, lease_outcomes.NotFound, lease_outcomes.NotClosed, lease_outcomes.NumberTaken),
)
# Why a place may leave its queue whatever is asked: it is not the asker's doing.
DUE = ("stopped asking", "session ended", "done", "parked", "forbidden", "pool changed", "deadlock")


def wrong(view: View, command: Command, decision: Decision) -> str | None:
    """Return what the answer says that the writes do not, or the other way round, as a sentence. None: they agree."""
    before, after = _draft(view, {}), _draft(view, decision.writes)
    with suppress(Missing):  # what the decision did not look at cannot be said
        for each in (*_leases(decision.outcome), *[lease for one in decision.handed for lease in _leases(one.outcome)]):
            ns = getattr(command, "ns", None) or _ns_of(decision, each.lease)
            if (says := _not_held(after, ns, each.name, each.lease)) is not None:
                return says
    with suppress(Missing):
        if isinstance(decision.outcome, Queued) and (says := _not_in_queue(after, decision.outcome)) is not None:
            return says
    with suppress(Missing):
        if (says := _waits_for_itself(before, after, decision)) is not None:
            return says
    if isinstance(decision.outcome, REFUSALS):
        with suppress(Missing):
            return _changed(before, command, decision)
    return None


def check(view: View, command: Command, decision: Decision) -> None:
    says = wrong(view, command, decision)
    assert says is None, f"{type(command).__name__}: {type(decision.outcome).__name__}: {says}"


@contextmanager
def checked(look: Callable[[View, Command, Decision], None] = check) -> Iterator[None]:
    """Meanwhile `look` checks every decision of this process, and nothing else does. So a simulated world takes the
    same course in a test, where other checks would raise."""
    before = decide_module.CHECKS.copy()
    decide_module.CHECKS[:] = [look]
    try:
        yield
    finally:
        decide_module.CHECKS[:] = before


def _draft(view: View, writes: dict[str, Stored | None]) -> Draft:
    """The records before or after a decision. Nothing is loaded, and the decision's own reads stay as they are."""
    copy = View(view.now_ms, view.records | writes)
    copy.vouched_ms = view.vouched_ms
    return Draft(copy)


def _leases(outcome: Outcome) -> Iterable[Granted | lease_outcomes.Renewed | lease_outcomes.Transferred]:
    if isinstance(outcome, GrantedAll):
        return outcome.grants
    if isinstance(outcome, Granted | lease_outcomes.Renewed | lease_outcomes.Transferred):
        return (outcome,)
    return outcome.left if isinstance(outcome, outcomes.Refused) else ()


def _ns_of(decision: Decision, lease: Holder) -> str:
    return next((each.ns for each in decision.events if each.token == lease.token and each.owner == lease.owner), "")


def _not_held(after: Draft, ns: str, name: str, lease: Holder) -> str | None:
    lock = after.lock(ns, name)
    found = next((each for each in lock.holders if each.lease_id == lease.lease_id), None)
    if found is None:
        return f"{lease.owner} is told that it has {name}, and does not have it."
    if _but(shown(after, found), lease, "wanted", "delays_release") != lease:
        return f"{lease.owner} is told that its lease of {name} is {lease}, and it is {found}."
    session = after.session(lease.session) if lease.session is not None else None
    if session is not None and lock_key(ns, name) not in session.holds:
        return f"The session of {lease.owner} does not know that it has {name}."
    if in_tree(name) and found in unclaimed(after, lock):
        return f"{lease.owner} has {name}, and its tree does not know it."
    return None


# Fields that change with the session, with those who wait, and with the contract of the claim, which no answer shows.
_SHOWN = ("expires_ms", "heard_ms", "active_ms", "wanted", "delays_release")


def _but(record: Stored | Holder, other: Stored | Holder, *fields: str) -> object:
    return record.replace(**{field: getattr(other, field) for field in fields})


def _not_in_queue(after: Draft, answer: Queued) -> str | None:
    ticket = after.ticket(answer.ns, answer.name, answer.ticket)
    if ticket is None or ticket.lease_id != answer.ticket_id:
        return f"Place {answer.ticket} of {answer.name} is in the answer, and there is none."
    for part in parts_of(ticket):
        if part.number not in after.lock(answer.ns, part.name).line:
            return f"Place {part.number} is not in the queue of {part.name}."
        if in_tree(part.name) and not after.tree_queue(answer.ns).has(part.number):
            return f"Place {part.number} of {part.name} is not in the queue of its tree."
    now = queued(after, ticket)
    for field in ("position", "delay_until_ms", "paused", "closure"):
        if getattr(now, field) != getattr(answer, field):
            said = getattr(answer, field)
            return f"The {field} of place {answer.ticket} of {answer.name} is {said} in the answer: {now}."
    if [each.holder.lease_id for each in now.blockers] != [each.holder.lease_id for each in answer.blockers]:
        return f"Place {answer.ticket} of {answer.name} waits for others than the answer says."
    return None


def _waits_for_itself(before: Draft, after: Draft, decision: Decision) -> str | None:
    """A session that got a job may wait for somebody who waits for it. Such a grant should be refused."""
    for new in decision.writes.values():
        if not isinstance(new, LockRecord) or not new.holders:
            continue
        known = {each.lease_id for each in before.lock(new.ns, new.name).holders}
        for holder in new.holders:
            session = after.session(holder.session) if holder.session and holder.lease_id not in known else None
            if session is not None and session.waits and (cycle := find_own_cycle(after, session)):
                return f"{holder.owner} got {new.name}, and closed a circle: {', '.join(cycle)}."
    return None


# A refusal


def _changed(before: Draft, command: Command, decision: Decision) -> str | None:
    served = {each.lease.lease_id for one in decision.handed for each in _leases(one.outcome)}
    served |= {each.lease.lease_id for each in _leases(decision.outcome)}  # what it still has, and is answered again
    for event in decision.events:
        if event.kind not in _DUE_EVENTS:
            return f"A refusal brought the event {event.kind} of {event.job}."
    for key, new in decision.writes.items():
        old = before.get(key)
        if isinstance(old, LockRecord):
            says = _changed_lock(before, old, new, served)
        elif isinstance(old, Ticket):
            says = _changed_ticket(before, command, decision, old, new, served)
        elif isinstance(old, SessionRecord):
            kept = ("want", "waits", "holds", "wanted")
            says = None if isinstance(new, SessionRecord) and _but(old, new, *kept) == new else f"{key} changed."
        elif key.startswith(("tree/", "usage/")):
            says = None  # they follow the others
        else:
            says = None if old == new else f"{key} changed."
        if says is not None:
            return f"A refusal changed something. {says}"
    return None


_DUE_EVENTS = (kinds.LEFT, kinds.ACQUIRED, kinds.ACCESS_SET, kinds.REFUSED, kinds.PARKED, *kinds.OWNERSHIP_ENDS)


def _changed_lock(before: Draft, old: LockRecord, new: Stored | None, served: set[str]) -> str | None:
    if not isinstance(new, LockRecord):
        return f"{old.name} was forgotten."
    now = {each.lease_id: each for each in new.holders}
    for holder in live_now(before, old):
        kept = now.get(holder.lease_id)
        if kept is None:
            return f"{holder.owner} lost {old.name} before its time."
        if holder.lease_id not in served and _but(kept, holder, *_SHOWN) != holder:
            return f"The lease of {holder.owner} of {old.name} was {holder} and is {kept}."
    known = {each.lease_id for each in old.holders}
    got = [each for each in new.holders if each.lease_id not in known]
    if any(each.lease_id not in served for each in got):
        return f"{got[0].owner} got {old.name} without a place."
    numbers = set(old.line)
    if any(number not in numbers for number in new.line) or list(new.line) != sorted(new.line):
        return f"The queue of {old.name} was {old.line} and is {new.line}."
    settings = ("groups", "pooled", "next_ticket") + (() if got else ("acl", "done", "slots", "max_attempts"))
    changed = [field for field in settings if getattr(old.by_kind(), field) != getattr(new, field)]
    return f"{changed[0]} of {old.name} changed." if changed else None


def _changed_ticket(
    before: Draft, command: Command, decision: Decision, old: Ticket, new: Stored | None, served: set[str]
) -> str | None:
    if new is not None:
        return None if _but(old, new, "stopped") == new else f"Place {old.number} of {old.name} changed."
    if old.lease_id in served or ticket_over(before, old):
        return None
    left = [each for each in decision.events if each.kind == kinds.LEFT and each.ticket == old.number]
    reasons = [each.reason for each in left if each.job == old.name]
    if "answered" in reasons and old.principal == getattr(command, "principal", None):
        # With its own ticket it is its last answer. Otherwise it is another ask, which only the job can end.
        own = old.lease_id == getattr(command, "ticket_id", None)
        about = decision.outcome.outcomes if isinstance(decision.outcome, outcomes.Refused) else (decision.outcome,)
        if own or not all(isinstance(each, ABOUT_THE_ASK) for each in about):
            return None
    if "granted otherwise" in reasons or (reasons and all(reason in DUE for reason in reasons)):
        return None
    return f"Place {old.number} of {old.name} left the queue: {', '.join(map(str, reasons))}."
