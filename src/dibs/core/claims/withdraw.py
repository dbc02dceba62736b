"""Withdrawing a claim. The promise `idem:withdraw`: whoever gives up leaves nothing behind, and takes nothing away.

**What an ask is.** Whoever claims names the ask: by its request key, which is the same in every repeat, at every
server. A claim without a key has the fresh id of its command for a name, which is the proof in its ticket and its
lease. A place and a hold remember the ask that they were made for, and so does the end of a hold. A session is the
owner of all that its asks get, and is not the ask: another ask of it never ends what this one has.

**Withdraw undoes a claim**, for a client that gives up, a reply that was lost, an interrupt, a server whose caller hung
up, a tool that cannot use what it got. Nothing else does: a release is by an owner who had the job, and says something
of the work; `Leave` is an operation of the HTTP API for one place. It is one command, it may come twice, and at any
time:

    before the claim   a mark refuses the claim when it comes
    while it waits     its place in the queue ends, in all queues of a claim-all, and a mark refuses late copies
    when it was given  its holds end, and say nothing about the work. One that others may rely on stays (`used`),
                       and ends by a release
    when it is over    nothing changes

**What refuses a late copy** is a mark at the first of the claim's names (in the order of the alphabet), or the end of
its hold. Both are remembered for REMEMBERED_MS, and at most REMEMBERED_MAX of each for one job, the oldest forgotten
first; the last end of a job is kept for as long as its record, for the next owner, who sees how the one before ended. A
copy that comes later than that is a new claim: it gets a place, which ends after TICKET_MS, or a lease, which ends
after its TTL.

**Who else may rely on it.** A hold stays if it was reported to another ask of its session, or renewed for the session.
One that was handed over is of no ask. An ask without a key is withdrawn only by the server that has it, when its caller
hangs up. Whoever asks again, with the ticket, the lease id or the session, is unknown to that server: its place and its
hold stay then.

**By a ticket** a place ends and nothing else: copies are not refused, and a hold stays. So a server gives up the place
of a caller that hung up and has a key: it may ask again, and must get what it was given. So does a client whose key was
named by its user, who may ask with it elsewhere.

Marks are kept per principal: a key means nothing to others. A number of a series that is given back leaves such a mark,
too (`numbers.py`). A frozen store takes no withdrawals; who sends them tries again. Closures, pools and done marks
change nothing here: what is given up is given to the next in the queue as ever.
"""

from __future__ import annotations

from dibs.core.commands import Withdraw
from dibs.core.draft import Draft
from dibs.core.holds.endings import end_hold, remembered, was_withdrawn
from dibs.core.holds.proof import same
from dibs.core.limits import REMEMBERED_MAX
from dibs.core.outcomes import Outcome, Withdrawn
from dibs.core.records import RELEASED, Ending, Holder, LockRecord, Ticket, WithdrawnAsk, ticket_key
from dibs.core.waiting.queue import advance, give_up, present_lock
from dibs.core.waiting.tickets import marked, names_of, note_want


def withdraw(draft: Draft, command: Withdraw) -> Outcome:
    ns, names, key = command.ns, command.names, command.request_key
    left = is_over = False
    released: list[str] = []
    kept: list[str] = []
    for name in names:
        ask = key or command.fresh_lease_id
        numbers = marked(draft.lock(ns, name), command.principal, ask) if ask is not None else []
        if command.ticket_id is not None and name == min(names):
            numbers.append(command.ticket)
        draft.need(*[ticket_key(ns, name, number) for number in numbers])
        for number in numbers:
            ticket = draft.ticket(ns, name, number)
            if ticket is None or ticket.principal != command.principal:
                continue
            if same(ticket.lease_id, command.ticket_id) or (_is_named(command, ticket) and not ticket.used):
                note_want(draft, ticket, names_of(ticket))
                give_up(draft, ticket, "left")
                left = True
    for name in names:
        if any(_is_meant(command, each) for each in draft.lock(ns, name).holders):
            lock = present_lock(draft, ns, name)
            for mine in [each for each in lock.holders if _is_meant(command, each)]:
                if mine.used or not _is_named(command, mine):
                    kept.append(name)
                else:
                    end_hold(draft, lock, mine, how=RELEASED, at_ms=draft.now_ms, uncounted=True)
                    released.append(name)
                    advance(draft, ns, (name,))
                    lock = draft.lock(ns, name)
        endings = remembered(draft.lock(ns, name).endings, draft.now_ms)
        is_over = is_over or any(_is_named(command, each) for each in endings)
    if key is not None and not is_over and not kept:
        refuse_copies(draft, draft.lock(ns, min(names)), command.principal, key)
    return Withdrawn(now_ms=draft.now_ms, left=left, released=tuple(released), kept=tuple(kept))


def _is_named(command: Withdraw, made: Holder | Ticket | Ending) -> bool:
    """Return whether it was made for this ask."""
    if made.principal != command.principal:
        return False
    if made.request_key is not None:
        return made.request_key == command.request_key
    return same(made.lease_id, command.fresh_lease_id)


def _is_meant(command: Withdraw, mine: Holder) -> bool:
    return _is_named(command, mine) or (mine.principal == command.principal and same(mine.lease_id, command.ticket_id))


def refuse_copies(draft: Draft, lock: LockRecord, principal: str, ask: str) -> None:
    if was_withdrawn(draft, lock, principal, ask):
        return
    mark = WithdrawnAsk(principal=principal, request_key=ask, at_ms=draft.now_ms)
    older = remembered(lock.withdrawn[: REMEMBERED_MAX - 1], draft.now_ms)
    draft.put(lock.replace(withdrawn=(mark, *older)))
