"""Several jobs in one command: the first free one, or all or none. The promise `all-or-nothing`."""

from __future__ import annotations

from dibs.base.cheap import Sequence
from dibs.core import outcomes
from dibs.core.claims.acquire import (
    ABOUT_THE_ASK,
    check_ask,
    closed_circle,
    grant_again,
    judge,
    never_parked,
    other_units,
    waits_otherwise,
    was_held_before,
)
from dibs.core.commands import AcquireAll, AcquireAny
from dibs.core.draft import Draft
from dibs.core.holds.capacity import own_hold
from dibs.core.holds.endings import remembered
from dibs.core.holds.grants import grant
from dibs.core.holds.proof import same
from dibs.core.holds.quota import over_held, over_waiting
from dibs.core.names import in_tree
from dibs.core.overlap import above, overlaps
from dibs.core.records import SHARED, Holder, Ticket, lock_key
from dibs.core.waiting import groups
from dibs.core.waiting.queue import give_up, join_queue, may_wait, refresh, serve_own, ticket_of
from dibs.core.waiting.tickets import forget_want, keep, note_want


def acquire_any(draft: Draft, command: AcquireAny) -> outcomes.Outcome:
    """Claim the first of the names that can be claimed now; with a `count`, that many of them or none. A repeat with
    the same request key gets the same jobs. Jobs that the caller's session holds are skipped, so a new request gets the
    next ones, and so is one that would close a circle."""
    circles: dict[str, outcomes.Deadlock] = {}
    while isinstance(outcome := _acquire_any(draft, command, circles), outcomes.Deadlock):
        circles[outcome.name] = outcome
    return outcome


def _acquire_any(draft: Draft, command: AcquireAny, circles: dict[str, outcomes.Deadlock]) -> outcomes.Outcome:
    draft.need(*[lock_key(command.ns, name) for name in command.names])
    refused = never_parked(draft, command, command.names) or check_ask(draft, command, min(command.names))
    if refused is not None:
        return refused
    repeated = _answer_again(draft, command)
    if repeated is not None:
        return repeated
    answers: list[outcomes.Outcome] = []
    grants: list[outcomes.Granted] = []
    for name in command.names:
        lock = refresh(draft, command.ns, name, command.mode)
        verdict = circles.get(name) or judge(draft, command, lock)
        own = own_hold(draft, lock, command.session, command.mode)
        if verdict is None and own is not None:  # one of several owners already
            verdict = outcomes.Held(now_ms=draft.now_ms, name=name, blockers=(outcomes.Blocker(name=name, holder=own),))
        if verdict is None:
            grants.append(grant(draft, command, lock, command.fresh_lease_id))
            if (circle := closed_circle(draft, command, (name,))) is not None:
                return circle
            if len(grants) < command.count:
                continue
            if command.session is not None:
                serve_own(draft, command.ns, command.session)
            if command.count:
                return outcomes.GrantedAll(now_ms=draft.now_ms, grants=tuple(grants))
            return grants[0].replace(skipped=tuple(answers))
        if isinstance(verdict, Holder):
            return grant_again(draft, command, name, verdict)
        answers.append(verdict)
    if grants:  # too few are free
        draft.discard()
    forget_want(draft, command)  # AcquireAny waits for no particular job
    return outcomes.Refused(now_ms=draft.now_ms, outcomes=tuple(answers), count=command.count, free=len(grants))


def _answer_again(draft: Draft, command: AcquireAny) -> outcomes.Outcome | None:
    """The answer to a repeat: the jobs that this request key or this same command got before, even if one was lost
    since. A name earlier in the list may be free now, and must not become a second lease."""
    names = [name for name in command.names if _got(draft, command, name)]
    if not names:
        return None
    for name in names:
        refresh(draft, command.ns, name, command.mode)
    if not command.count:
        names = names[:1]
    bad, mine = _judged(draft, command, names)
    if len(mine) == len(names) >= command.count:  # fewer: the end of one that was lost is forgotten
        grants = [grant_again(draft, command, name, mine[name]) for name in names]
        return outcomes.GrantedAll(now_ms=draft.now_ms, grants=tuple(grants)) if command.count else grants[0]
    if not command.count:
        return bad[0] if bad else None
    forget_want(draft, command)
    return _refused(draft, command, bad, mine)


def _got(draft: Draft, command: AcquireAny, name: str) -> bool:
    lock = draft.lock(command.ns, name)
    known = [(hold.principal, hold.lease_id, hold.request_key) for hold in lock.holders]
    recent = remembered(lock.endings, draft.now_ms)
    known += [(end.principal, end.lease_id, end.request_key) for end in recent]
    for principal, lease_id, key in known:
        same_key = command.request_key is not None and key == command.request_key
        if principal == command.principal and (same_key or lease_id == command.fresh_lease_id):
            return True
    return False


def acquire_all(draft: Draft, command: AcquireAll) -> outcomes.Outcome | Ticket:
    """Claim all of the names or none, at once or by waiting in all their queues while holding nothing."""
    draft.need(*[lock_key(command.ns, name) for name in command.names])
    refused = never_parked(draft, command, command.names) or check_ask(draft, command, min(command.names))
    if refused is not None:
        return refused
    for name in command.names:
        refresh(draft, command.ns, name, command.mode)
    ticket = ticket_of(draft, command, command.names) if may_wait(command) else None
    bad, mine = _judged(draft, command, command.names)
    new = tuple([name for name in command.names if name not in mine])  # if none is bad
    waitable = all(isinstance(verdict, outcomes.Held | outcomes.Delayed | outcomes.Closed) for verdict in bad)
    if ticket is not None:
        if bad and waitable:
            differs = other_units(draft, command, ticket)
            if differs is not None:
                return _refused(draft, command, (differs,), mine)
            return keep(draft, ticket, command)
        if ticket.lease_id != command.ticket_id and any(isinstance(verdict, ABOUT_THE_ASK) for verdict in bad):
            forget_want(draft, command)
            return _refused(draft, command, bad, mine)
        give_up(draft, ticket, "answered")
    if command.replaces is not None and waitable and new and may_wait(command):
        newer = groups.superseded(draft, command, command.names)
        if newer is not None:
            return newer
    if not bad and (over := over_held(draft, command, command.names[0], len(new))) is not None:
        bad = (over,)
    elif not bad:
        grants = [
            grant_again(draft, command, name, mine[name])
            if name in mine
            else grant(draft, command, draft.lock(command.ns, name), command.fresh_lease_id)
            for name in command.names
        ]
        if (circle := closed_circle(draft, command, new)) is not None:
            note_want(draft, command, new)
            return circle
        if command.session is not None:
            serve_own(draft, command.ns, command.session)
        if command.replaces is not None and new:
            groups.replace_older(draft, command, command.names)
        return outcomes.GrantedAll(now_ms=draft.now_ms, grants=tuple(grants))
    elif waitable:
        others = [each for name in command.names if (each := waits_otherwise(draft, command, name)) is not None]
        if not others:
            return _wait_for_all(draft, command, bad, mine)
        bad = tuple(others)
    forget_want(draft, command)
    return _refused(draft, command, bad, mine)


def _judged(
    draft: Draft, command: AcquireAll | AcquireAny, names: Sequence[str]
) -> tuple[tuple[outcomes.JobOutcome, ...], dict[str, Holder]]:
    """The refusals, and the holds that the caller has. What is in neither can be granted."""
    verdicts = {name: judge(draft, command, draft.lock(command.ns, name)) for name in names}
    mine = {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Holder)}
    return tuple([verdict for verdict in verdicts.values() if isinstance(verdict, outcomes.JobOutcome)]), mine


def _refused(
    draft: Draft, command: AcquireAll | AcquireAny, bad: tuple[outcomes.JobOutcome, ...], mine: dict[str, Holder]
) -> outcomes.Refused:
    """A refusal takes nothing away, and names what an earlier answer to this claim gave and is still there."""
    left = [
        grant_again(draft, command, name, each)
        for name, each in mine.items()
        if not was_held_before(command, each) and not each.used
    ]
    all_of = command.count if isinstance(command, AcquireAny) else len(command.names)
    return outcomes.Refused(now_ms=draft.now_ms, outcomes=bad, left=tuple(left), all_of=all_of)


def _wait_for_all(
    draft: Draft, command: AcquireAll, bad: tuple[outcomes.JobOutcome, ...], mine: dict[str, Holder]
) -> outcomes.Outcome | Ticket:
    """Wait in all queues: not all jobs are free now, but all may become free."""
    from dibs.core.waiting.deadlock import find_cycle  # only for one who waits

    refused = tuple([verdict.name for verdict in bad])
    cycle = find_cycle(draft, command, command.names)
    if cycle:
        note_want(draft, command, refused)
        return outcomes.Deadlock(now_ms=draft.now_ms, name=cycle[1], cycle=cycle)
    # Who has a part by this very ask had all of it, and lost the others. In the queue it would wait for itself, and get
    # a second lease of the part if that ended there.
    if not may_wait(command) or not all(_of_another_ask(command, each) for each in mine.values()):
        note_want(draft, command, refused)
        return _refused(draft, command, bad, mine)
    if command.replaces is not None:
        return groups.join_as_newest(draft, command, command.names)
    over = over_waiting(draft, command, command.names[0], len(command.names))
    if over is not None:
        forget_want(draft, command)
        return over
    return join_queue(draft, command, command.names)


def _of_another_ask(command: AcquireAll, hold: Holder) -> bool:
    """Return whether the session has it by another ask."""
    return same(hold.session, command.session) and was_held_before(command, hold)


def overlapping_pair(names: tuple[str, ...], mode: str) -> tuple[str, str] | None:
    """Two of the names that exclude each other, so that claiming both can never succeed."""
    tree_names = [name for name in names if in_tree(name)]
    among = set(tree_names)
    is_plain = len(among) == len(tree_names) and not any(
        name.startswith("repo:") or name.endswith("/") for name in tree_names
    )
    # Of a hundred names a look at the folders of each is much less than one at each pair.
    if mode == SHARED or (is_plain and all(among.isdisjoint(above(name)) for name in tree_names)):
        return None
    for index, one in enumerate(tree_names):
        for other in tree_names[index + 1 :]:
            if overlaps(one, other):
                return one, other
    return None
