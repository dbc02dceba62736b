"""Finds deadlocks: claims whose wait would never end. The promise `deadlock`.

Who waits for whom is in `wait_graph.py`. A session waits for the jobs in whose queues it has places, and for its last
claim that was refused while it held something else (`SessionRecord.want`), for at most WANT_MS. Such a want waits only
for those whom the claim met: a later owner took a job that the session could have had, and a later place is met by its
next claim. A place waits for the owners of the job, for all places ahead, and for what their sessions will hold then.

A node has needs. A need for U of N slots cannot be met if owners and earlier places that take more than N - U of them
are stuck; any other need cannot be met if one of them is stuck. Remove every node whose needs can be met, until none
can be removed. The rest are deadlocked. The caller is refused if it is among them and a path leads from its claim back
to it.

The check is part of the decision that would add the last edge, and all its records are in the decision's read set. So
if two requests would close a cycle at the same moment, the second is decided again and sees the first.
"""

from __future__ import annotations

from dibs.core.commands import Acquire, AcquireAll
from dibs.core.draft import Draft
from dibs.core.holds.expiry import session_over
from dibs.core.records import SessionRecord, Ticket
from dibs.core.waiting.queue import give_up, may_wait
from dibs.core.waiting.tickets import needed_names, session_tickets
from dibs.core.waiting.wait_graph import LAST, NONE, Need, Node, WaitGraph, Wanted, Words


def find_cycle(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> tuple[str, ...]:
    """Owners and jobs in turn, beginning with the caller, if waiting for `names` would close a cycle; else empty."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is None or not (session.holds or session.waits):
        return ()  # nobody waits for a caller that holds nothing and comes last
    graph = WaitGraph(draft, session)
    place = LAST if may_wait(ask) else NONE
    needed = needed_names(draft, ask, session.id, names)
    asked = [graph.ask(Wanted(draft, ask, name, place, session.id)) for name in needed]
    return _cycle(graph, session, [Need([(node, (name,), 1) for node, name in zip(asked, needed, strict=True)])])


def find_own_cycle(draft: Draft, session: SessionRecord) -> tuple[str, ...]:
    """The cycle of a session that waits and was given another job; else empty. Wants do not count, as below."""
    return _cycle(WaitGraph(draft, session, wants=False), session, [])


def closed_by(draft: Draft, ticket: Ticket) -> tuple[str, ...]:
    """The cycle in which this place of a session waits for that session, or for itself, by way of others who stand in
    queues; empty without one. Wants do not count: a session that polls is refused when it polls again."""
    session = draft.session(ticket.session) if ticket.session is not None else None
    if session is None or session_over(draft, session):
        return ()
    graph = WaitGraph(draft, session, wants=False)
    node = graph.place(ticket)
    return _cycle(graph, session, [Need([(node, (ticket.name,), 1)])], node)


def _cycle(graph: WaitGraph, asker: SessionRecord, asked: list[Need], place: Node | None = None) -> tuple[str, ...]:
    """The shortest path from the claim back to the caller, or to its `place`, along stuck nodes."""
    root: Node = ("session", asker.id)
    needs = graph.reach(root, [*asked, *graph.session_needs(asker)])
    free = _free(needs)
    if root in free:
        return ()
    seen: set[Node | int] = {root}
    way: list[tuple[list[Need], Words]] = [(asked or needs[root], (asker.owner,))]
    for here, path in way:  # grows during the loop
        for need in here:
            if id(need) in seen or not need.in_vain(free):
                continue
            seen.add(id(need))
            for node, words, _ in need.of:
                if node in free:
                    continue
                if node == root or (node == place and len(path) > 1):
                    return path
                if node not in seen:
                    seen.add(node)
                    way.append((needs[node], (*path, *words)))
    return ()


def _free(needs: dict[Node, list[Need]]) -> set[Node]:
    """The nodes whose needs can be met. Every edge is looked at once, however long the chain."""
    spare: dict[int, int] = {}  # for each need, how many slots must still become free, less one; below 0 it is met
    behind: dict[Node, list[tuple[int, int]]] = {}  # the needs that name this node, and how many slots it takes
    whose: dict[int, list[Node]] = {}
    unmet: dict[Node, int] = {}
    for node, own in needs.items():
        unmet[node] = 0
        for need in own:
            at = id(need)
            if at not in spare:
                spare[at] = sum([units for _, _, units in need.of]) - need.count
                for other, _, units in need.of:
                    behind.setdefault(other, []).append((at, units))
            if spare[at] >= 0:
                unmet[node] += 1
                whose.setdefault(at, []).append(node)
    todo = [node for node, count in unmet.items() if not count]
    free = set(todo)
    while todo:
        for at, units in behind.get(todo.pop(), ()):
            left = spare[at]
            spare[at] = left - units
            if left < 0 or spare[at] >= 0:
                continue
            for node in whose[at]:
                unmet[node] -= 1
                if not unmet[node]:
                    free.add(node)
                    todo.append(node)
    return free


# Circles that a loss closes.
#
# A place of a session waits for nothing in the line of a job that the session holds, and for nothing but the
# session's own earlier place in a queue where it has one: when that place is served, the session has the job. When the
# session loses this hold or this earlier place, however that happens, the place waits for everybody ahead of it. A hold
# that its owner shares is lost for a place that wants the job alone: it waits for its own session, too. So a loss can
# close a circle, as a new wait (`acquire.py`, `several.py`), a grant that passes a line (`closed_circle`) and a
# transfer (`leases.py`) can. Those three are refused. So can a pool that gets fewer slots. All other changes only take
# away what somebody waits for. `decide.py` finds losses in what a decision writes, whichever rule wrote it.
#
# The place that closes the circle is given up in the same decision. Its owner asks again, and is told of the deadlock.


def leave_circles(draft: Draft, losses: list[tuple[str, str, str]]) -> dict[str, tuple[str, ...]]:
    """Look at the losses of a decision (`decide.py` finds them). A change of a pool may bring many, so those that wait
    for nobody who is stuck are sorted out together, and again after each place that is given up: mostly the others have
    what they wait for then. Returns the cycles of the places that were given up, by the id of the ticket."""
    cycles: dict[str, tuple[str, ...]] = {}
    stuck = {each[0] for each in losses}
    if len(losses) > 1:
        stuck = _stuck(draft, stuck)
    for session_id, ns, name in losses:
        if session_id not in stuck:
            continue
        for ticket in session_tickets(draft, session_id, ns, name):
            cycle = closed_by(draft, ticket) if needed_names(draft, ticket, session_id, (name,)) else ()
            if cycle:
                cycles[ticket.lease_id] = cycle
                give_up(draft, ticket, "deadlock")
                if len(stuck) > 1:
                    stuck = _stuck(draft, stuck)
    return cycles


def _stuck(draft: Draft, ids: set[str]) -> set[str]:
    """Those of these sessions whose wait would never end, as far as queues show."""
    sessions = [session for session in map(draft.session, sorted(ids)) if session is not None]
    if not sessions:
        return set()
    graph = WaitGraph(draft, sessions[0], wants=False)
    free = _free(graph.reach(("all",), [Need([(("session", each.id), (), 1) for each in sessions])]))
    return {each.id for each in sessions if ("session", each.id) not in free}
