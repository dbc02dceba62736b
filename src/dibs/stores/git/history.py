"""History from the refs' logs: the events in each commit, back to the start of its chain."""

from __future__ import annotations

from dibs.base.errors import NotAllowed
from dibs.core.keys import lock_key
from dibs.core.limits import GIT_TRIES_MAX
from dibs.stores.git.entries import BadEntry, parse, tail_of
from dibs.stores.git.plan import CommitPlan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.events import Event
    from dibs.stores.git.entries import Entry
    from dibs.stores.git.tips import Tips


def of_chain(tips: Tips, tip: Entry) -> list[Event]:
    """All events of one ref, in order."""
    return _told(tips, [tip])


def of_job(tips: Tips, after: int, limit: int, job: tuple[str, str], *, newest: bool) -> list[Event]:
    """See the port."""
    key = lock_key(*job)
    tail = tail_of(key)
    tips.look([tail])
    tip = tips.entry(key)
    told = _told(tips, [tip]) if tip is not None and tip.seq > after else []
    return _page([event for event in told if (event.ns, event.job) == job], after, limit, newest=newest)


def of_all(tips: Tips, entries: Iterable[Entry], after: int, limit: int, *, newest: bool) -> list[Event]:
    """See the port."""
    moved = [entry for entry in entries if entry.seq > after]
    if newest:  # each of the newest refs has at least one event
        moved = sorted(moved, key=lambda tip: tip.seq)[-limit:] if limit > 0 else []
    return _page(_told(tips, moved), after, limit, newest=newest)


def _page(told: list[Event], after: int, limit: int, *, newest: bool) -> list[Event]:
    found = [event for event in told if event.seq > after]
    return found[max(0, len(found) - max(0, limit)) :] if newest else found[: max(0, limit)]


def _told(tips: Tips, entries: list[Entry]) -> list[Event]:
    oids = tips.refs.chain([entry.oid for entry in entries])
    told: list[Event] = []
    for oid, (kind, raw) in tips.refs.objects(oids).items():
        try:
            entry = parse(oid, None, kind, raw)
        except BadEntry:
            continue  # somebody changed the chain by hand; the commits of dibs still count
        told += [*entry.past, *entry.events]
    return sorted(told, key=_order)


def _order(event: Event) -> tuple[int, str, str]:
    """Sort by number. Events of different jobs may share a number, and all clones must see the same order."""
    return event.seq, event.ns, event.job


def prune(tips: Tips, *, keep: int, before_ms: int) -> int:
    """Restart the chains that hold events to be dropped; the new chains keep the others. See the port."""
    for _ in range(GIT_TRIES_MAX):
        entries = tips.look([""])
        told = {tail: _told(tips, [entry]) for tail, entry in entries.items() if entry.seq}
        every = sorted([event for events in told.values() for event in events], key=_order)
        young = [event for event in every if event.at_ms >= before_ms]
        kept = set(young[max(0, len(young) - keep) :])
        if len(kept) == len(every):
            return 0
        plan = CommitPlan(tips.refs, tips.time, entries, None)
        for tail, events in told.items():
            staying = [event for event in events if event in kept]
            if len(staying) != len(events):
                tip = entries[tail]
                body = {name: value for name, value in tip.body.items() if name not in ("events", "past")}
                plan.begin_anew(tip, body, staying)
                plan.put(tip, "", body)
        tips.refs.keep(plan.commits)
        try:
            if tips.refs.swap(plan.swaps):
                return len(every) - len(kept)
        except NotAllowed:
            return 0  # the remote accepts only fast-forward changes, so history stays
    return 0
