"""Finds deadlocks: claims whose wait would never end. The promise `deadlock`.

A session connects the jobs that it holds with those that it waits for, so sessions are nodes of the wait-for graph.
Places in a line are nodes, too: a place waits for the owners of the job, for all places ahead, and for what their
sessions will hold then. A session waits for the jobs in whose lines it has places, and for its last claim that was
refused while it held something else (`SessionRecord.want`), for at most WANT_MS. Such a want waits only for those whom
the claim met: a later owner took a job that the session could have had, and a later place is met by its next claim.

A node has needs. A need for U of N slots cannot be met if owners and earlier places that take more than N - U of them
are stuck; any other need cannot be met if one of them is stuck. Remove every node whose needs can be met, until none
can be removed. The rest are deadlocked. The caller is refused if it is among them and a path leads from its claim back
to it.

The check is part of the decision that would add the last edge, and all its records are in the decision's read set. So
if two requests would close a cycle at the same moment, the second is decided again and sees the first.
"""

from __future__ import annotations

from dibs.core.exclusion import are_kin, blockers, covered, misfit, own_hold, owners_of, slots_of, without_kin
from dibs.core.expiry import session_over, ticket_over
from dibs.core.names import covers, in_tree, overlaps
from dibs.core.queue import give_up, may_wait
from dibs.core.records import EXCLUSIVE, SHARED, lock_key, session_key, ticket_key, tree_key
from dibs.core.tickets import parts_of, session_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.core.commands import Acquire, AcquireAll
    from dibs.core.draft import Draft
    from dibs.core.records import Holder, LockRecord, SessionRecord, Ticket, Want

    Node = tuple[str, ...]
    Words = tuple[str, ...]


def find_cycle(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> tuple[str, ...]:
    """Owners and jobs in turn, beginning with the caller, if waiting for `names` would close a cycle; else empty."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is None or not (session.holds or session.waits):
        return ()  # nobody waits for a caller that holds nothing and comes last
    graph = _Graph(draft, session)
    place = _LAST if may_wait(ask) else _NONE
    asked = [graph.ask(_Wanted(draft, ask, name, place, session.id)) for name in names]
    return graph.cycle([_Need(1, [(node, (name,))]) for node, name in zip(asked, names, strict=True)])


def find_own_cycle(draft: Draft, session: SessionRecord) -> tuple[str, ...]:
    """The cycle of a session that waits and was given another job; else empty. Wants do not count, as below."""
    return _Graph(draft, session, wants=False).cycle([])


def closes_circle(draft: Draft, ticket: Ticket) -> bool:
    """Return whether this place of a session waits for that session, or for itself, by way of others who stand in
    lines. Wants do not count: whoever polls is told of the circle when it polls again."""
    session = draft.session(ticket.session) if ticket.session is not None else None
    if session is None or session_over(draft, session):
        return False
    graph = _Graph(draft, session, wants=False)
    node = graph.place(ticket)
    return bool(graph.cycle([_Need(1, [(node, (ticket.name,))])], node))


_LAST = 0  # its place will be the last
_NONE = -1  # it polls: what its session covers is granted at once


class _Wanted:
    """One job that a node waits for, and how. `number` is its place in the line, or one of these two."""

    __slots__ = ("at_ms", "fits", "mode", "name", "ns", "number", "session", "slots", "units")

    def __init__(
        self,
        draft: Draft,
        ask: Acquire | AcquireAll | Ticket | Want,
        name: str,
        number: int,
        session: str | None,
        at_ms: int | None = None,
    ) -> None:
        self.ns, self.name, self.mode, self.units = ask.ns, name, ask.mode, ask.units
        lock = draft.lock(ask.ns, name)
        self.slots = slots_of(lock, ask.slots)
        self.fits = misfit(lock, ask, draft.now_ms) is None  # else it waits for nobody: it would be refused
        self.number, self.session = number, session
        self.at_ms = at_ms  # None: it claims at this moment

    def met(self, other: Holder | Ticket) -> bool:
        return self.at_ms is None or other.since_ms <= self.at_ms


class _Need:
    """A need that cannot be met if `count` of these nodes are stuck. Each has the words that lead to it in a cycle."""

    __slots__ = ("count", "of")

    def __init__(self, count: int, of: list[tuple[Node, Words]]) -> None:
        self.count, self.of = count, of

    def in_vain(self, free: set[Node]) -> bool:
        return len([node for node, _ in self.of if node not in free]) >= self.count


class _Tickets:
    """The tickets of one line from its head, as far as they were loaded, and whose they are."""

    __slots__ = ("_at", "_children", "_draft", "_ns", "_of", "_places", "tickets")

    def __init__(self, draft: Draft, ns: str, places: list[tuple[str, int]]) -> None:
        self._draft, self._ns, self._places = draft, ns, places
        self._at = {place: at for at, place in enumerate(places)}
        self._of: dict[str, list[int]] = {}  # places of a session
        self._children: dict[str, list[int]] = {}  # places of those whose parent it is
        self.tickets: list[Ticket | None] = []

    def before(self, name: str, number: int) -> int:
        """Return how many come before this place; without a place, all."""
        return self._at.get((name, number), len(self._places))

    def load(self, count: int) -> None:
        draft, known = self._draft, len(self.tickets)
        places = self._places[known:count]
        if not places:
            return
        draft.need(*[ticket_key(self._ns, name, number) for name, number in places])
        tickets = [draft.ticket(self._ns, name, number) for name, number in places]
        draft.need(*[session_key(ticket.session) for ticket in tickets if ticket and ticket.session])
        for at, ticket in enumerate(tickets, known):
            session = draft.session(ticket.session) if ticket and ticket.session is not None else None
            if session is not None:
                self._of.setdefault(session.id, []).append(at)
                if session.parent is not None:
                    self._children.setdefault(session.parent, []).append(at)
        self.tickets += tickets

    def kin(self, ticket: Ticket) -> list[int]:
        """The places of the parent and of the children of this ticket's session."""
        session = self._draft.session(ticket.session) if ticket.session is not None else None
        if session is None:
            return []
        parents = self._of.get(session.parent, []) if session.parent is not None else []
        return parents + self._children.get(session.id, [])


class _Graph:
    """The part of the wait-for graph that can be reached from one session."""

    def __init__(self, draft: Draft, asker: SessionRecord, *, wants: bool = True) -> None:
        self._draft = draft
        self._asker = asker
        self._wants = wants
        self._root: Node = ("session", asker.id)
        self._wanted: dict[Node, list[_Wanted]] = {}
        self._lines: dict[str, _Tickets] = {}

    def ask(self, wanted: _Wanted) -> Node:
        node = ("ask", wanted.ns, wanted.name, wanted.session or "")
        self._wanted[node] = [wanted]
        return node

    def place(self, ticket: Ticket) -> Node:
        first = parts_of(ticket)[0]
        node = ("place", ticket.ns, first.name, str(first.number))
        self._wanted[node] = [
            _Wanted(self._draft, ticket, part.name, part.number, ticket.session) for part in parts_of(ticket)
        ]
        return node

    def cycle(self, asked: list[_Need], place: Node | None = None) -> tuple[str, ...]:
        """The shortest path from the claim back to the caller, or to its `place`, along stuck nodes."""
        needs = self.reach(self._root, [*asked, *self._session_needs(self._asker)])
        free = _free(needs)
        if self._root in free:
            return ()
        seen = {self._root}
        way: list[tuple[list[_Need], Words]] = [(asked or needs[self._root], (self._asker.owner,))]
        for here, path in way:  # grows during the loop
            for need in here:
                for node, words in need.of if need.in_vain(free) else ():
                    if node == self._root or (node == place and len(path) > 1):
                        return path
                    if node not in free and node not in seen:
                        seen.add(node)
                        way.append((needs[node], (*path, *words)))
        return ()

    def reach(self, root: Node, first: list[_Need]) -> dict[Node, list[_Need]]:
        """All nodes that can be reached, with their needs, in the order in which they were found."""
        needs = {root: first}
        todo = [root]
        while todo:
            for need in needs[todo.pop()]:
                for node, _ in need.of:
                    if node not in needs:
                        needs[node] = self._needs(node)
                        todo.append(node)
        return needs

    def _needs(self, node: Node) -> list[_Need]:
        if node[0] != "session":
            return [need for wanted in self._wanted[node] for need in self._wanted_needs(wanted)]
        session = self._draft.session(node[1])
        return [] if session is None or session_over(self._draft, session) else self._session_needs(session)

    def _session_needs(self, session: SessionRecord) -> list[_Need]:
        draft = self._draft
        draft.need(*[ticket_key(wait.ns, wait.name, wait.number) for wait in session.waits])
        tickets = [draft.ticket(wait.ns, wait.name, wait.number) for wait in session.waits]
        needs = [
            _Need(1, [(self.place(ticket), (ticket.name,))])
            for ticket in tickets
            if ticket is not None and not ticket_over(draft, ticket)
        ]
        want = session.want if self._wants else None
        # For the caller, only its present claim counts, not its earlier ones.
        if want is not None and draft.now_ms < want.until_ms and session.id != self._asker.id:
            names = (want.name, *want.more)
            for name in names:
                node = self.ask(_Wanted(draft, want, name, _NONE, session.id, want.at_ms))
                needs.append(_Need(1, [(node, (name,))]))
        return needs

    def _wanted_needs(self, wanted: _Wanted) -> list[_Need]:
        draft = self._draft
        lock = draft.lock(wanted.ns, wanted.name)
        if not wanted.fits or own_hold(draft, lock, wanted.session, wanted.mode) is not None:
            return []
        own = self._own_place(wanted)
        if own is not None:
            return [_Need(1, [(self.place(own), (own.owner, own.name))])]
        in_way = [
            blocker
            for blocker in blockers(draft, lock, wanted.mode, wanted.slots, wanted.session, wanted.units)
            if wanted.met(blocker.holder)
        ]
        ahead: list[Ticket] = []
        if wanted.number != _NONE or not covered(draft, lock, wanted.mode, wanted.session):
            ahead = list(self._ahead(wanted, lock))
        direct = ahead
        of_slots = wanted.slots > 1 or lock.pooled
        if of_slots and ahead and not (in_tree(lock.name) or self._has_or_will(ahead[0])):
            direct = ahead[:1]  # it waits for the others itself; they are here for what their sessions will hold
        needs = [_Need(1, [(self.place(ticket), (ticket.owner, ticket.name))]) for ticket in direct]
        # What a session will hold blocks others, never itself, its parent or its child.
        later = [ticket for ticket in ahead if not _both_shared(ticket, wanted)]
        later = [ticket for ticket in later if ticket.session != wanted.session]
        if not lock.pooled:
            later = [ticket for ticket in later if not are_kin(draft, wanted.session, ticket.session)]
        taken: dict[str | None, tuple[str, int]] = {}  # a session has a job's slots once, by the first of its places
        if of_slots:
            taken = {each.session: (each.owner, each.units) for each in later if _alike(lock, each, wanted)}
            later = [ticket for ticket in later if not _alike(lock, ticket, wanted)]
            if lock.slots == wanted.slots:
                live = without_kin(draft, owners_of(draft, lock), None if lock.pooled else wanted.session).live
                held = [each for each in live if wanted.met(each) and (each.slot_numbers or not lock.pooled)]
                for holder in held:
                    taken.pop(holder.session, None)
                for holder in held:
                    _, units = taken.get(holder.session, ("", 0))
                    taken[holder.session] = (holder.owner, units + (len(holder.slot_numbers) or 1))
                # In a pool an owner without a slot must leave.
                alone = [blocker for blocker in in_way if lock.pooled and not blocker.holder.slot_numbers]
                in_way = [blocker for blocker in in_way if blocker.name != lock.name] + alone
        owners = [(blocker.holder.session, blocker.holder.owner) for blocker in in_way]
        owners += [(ticket.session, ticket.owner) for ticket in later]
        needs += [_Need(1, [each]) for each in _sessions(owners)]
        slots = [(session, owner) for session, (owner, units) in taken.items() for _ in range(units)]
        stuck = wanted.slots - wanted.units + 1
        # A pool that is paused is not for its owners to free.
        return [*needs, _Need(stuck, _sessions(slots))] if slots and stuck > 0 else needs

    def _own_place(self, wanted: _Wanted) -> Ticket | None:
        """An earlier place of the same session for the same job: when it is served, this place has what it wants. A
        session that polls then has what the place covers, too."""
        session = self._draft.session(wanted.session) if wanted.session is not None else None
        for wait in session.waits if session is not None else ():
            if wait.ns != wanted.ns or not (wait.name == wanted.name or wanted.number == _NONE):
                continue
            ticket = self._draft.ticket(wait.ns, wait.name, wait.number)
            if ticket is None or ticket_over(self._draft, ticket):
                continue
            if ticket.name == wanted.name:
                found = ticket.mode == wanted.mode and not 0 < wanted.number <= ticket.number
            else:
                found = wanted.number == _NONE and ticket.mode in (EXCLUSIVE, wanted.mode)
                found = found and in_tree(wanted.name) and in_tree(ticket.name)
                found = found and covers(ticket.name, wanted.name)
            if found:
                return ticket
        return None

    def _ahead(self, wanted: _Wanted, lock: LockRecord) -> Iterable[Ticket]:
        """Live places ahead of this one, nearest first; only as many as needed."""
        tree = in_tree(lock.name)
        line = self._line(lock, wanted.number)
        for at in range(line.before(lock.name, wanted.number) - 1, -1, -1):
            ticket = line.tickets[at]
            if ticket is None or not self._comes_before(ticket, wanted):
                continue
            yield ticket
            # This place waits for those further ahead, unless all of them are shared, or its session has the job, or
            # will have it by an earlier place: they come after that. In a tree it may wait for fewer.
            passes_on = wanted.slots == 1 and (ticket.mode == EXCLUSIVE or wanted.mode == SHARED)
            passes_on = passes_on and (not tree or ticket.name == lock.name or covers(ticket.name, lock.name))
            if passes_on and not self._has_or_will(ticket):
                # It does not wait for what its session's parent or child will hold.
                kin = [line.tickets[each] for each in line.kin(ticket) if each < at]
                yield from [each for each in kin if each is not None and self._comes_before(each, wanted)]
                return

    def _comes_before(self, ticket: Ticket, wanted: _Wanted) -> bool:
        if not wanted.met(ticket) or ticket_over(self._draft, ticket):
            return False
        if not in_tree(wanted.name):
            return True
        return not _both_shared(ticket, wanted) and overlaps(ticket.name, wanted.name)

    def _line(self, lock: LockRecord, number: int) -> _Tickets:
        """The line that a job is in, loaded as far as this place; without a place, to its end."""
        tree = in_tree(lock.name)
        key = tree_key(lock.ns) if tree else lock_key(lock.ns, lock.name)
        if key not in self._lines:
            places = [(lock.name, each) for each in lock.line]
            if tree:
                places = [(place.name, place.number) for place in self._draft.tree(lock.ns).line]
            self._lines[key] = _Tickets(self._draft, lock.ns, places)
        line = self._lines[key]
        line.load(line.before(lock.name, number))
        return line

    def _has_or_will(self, ticket: Ticket) -> bool:
        """Return whether this place is served by what its session has or gets otherwise, and not in its turn."""
        lock = self._draft.lock(ticket.ns, ticket.name)
        if own_hold(self._draft, lock, ticket.session, ticket.mode) is not None:
            return True
        wanted = _Wanted(self._draft, ticket, ticket.name, ticket.number, ticket.session)
        return self._own_place(wanted) is not None


def _free(needs: dict[Node, list[_Need]]) -> set[Node]:
    """The nodes whose needs can be met. Every edge is looked at once, however long the chain."""
    spare: list[int] = []  # for each need, how many of its nodes must still become free, less one; below 0 it is met
    behind: dict[Node, list[tuple[Node, int]]] = {}  # whose needs name this node, and which of them
    unmet: dict[Node, int] = {}
    for node, own in needs.items():
        vain = [need for need in own if len(need.of) >= need.count]
        unmet[node] = len(vain)
        for need in vain:
            for other, _ in need.of:
                behind.setdefault(other, []).append((node, len(spare)))
            spare.append(len(need.of) - need.count)
    todo = [node for node, count in unmet.items() if not count]
    free = set(todo)
    while todo:
        for node, at in behind.get(todo.pop(), ()):
            spare[at] -= 1
            if spare[at] == -1:
                unmet[node] -= 1
                if not unmet[node]:
                    free.add(node)
                    todo.append(node)
    return free


def _sessions(owners: list[tuple[str | None, str]]) -> list[tuple[Node, Words]]:
    return [(("session", session), (owner,)) for session, owner in owners if session is not None]


def _alike(lock: LockRecord, ticket: Ticket, wanted: _Wanted) -> bool:
    """Return whether both want slots of the same job."""
    same = (ticket.name, ticket.mode) == (wanted.name, EXCLUSIVE)
    return same and slots_of(lock, ticket.slots) == wanted.slots


def _both_shared(ticket: Ticket, wanted: _Wanted) -> bool:
    return ticket.mode == wanted.mode == SHARED


# Circles that a loss closes.
#
# A place of a session waits for nothing in the line of a job that the session holds, and for nothing but the
# session's own earlier place in a line where it has one: when that place is served, the session has the job. When the
# session loses this hold or this earlier place, however that happens, the place waits for everybody ahead of it. So a
# loss can close a circle, as a new wait (`claims.py`, `several.py`) and a transfer (`leases.py`) can. Those two are
# refused. So can a pool that gets fewer slots (`leases.py`). All other changes only take away what somebody waits for.
#
# The place that closes the circle is given up in the same decision. Its owner asks again, and is told of the deadlock.


def leave_circles(draft: Draft) -> None:
    """Look at every loss of this decision. A place that is given up is a loss, too. A change of a pool may bring many,
    so those that wait for nobody who is stuck are sorted out together."""
    while draft.losses:
        losses, draft.losses = draft.losses, []
        stuck = _stuck(draft, {each[0] for each in losses}) if len(losses) > 1 else {losses[0][0]}
        for session_id, ns, name in losses:
            if session_id not in stuck:
                continue
            for ticket in session_places(draft, session_id, ns, name):
                has_job = own_hold(draft, draft.lock(ns, name), session_id, ticket.mode) is not None
                if not has_job and closes_circle(draft, ticket):
                    give_up(draft, ticket, "deadlock")


def _stuck(draft: Draft, ids: set[str]) -> set[str]:
    """Those of these sessions whose wait would never end, as far as lines tell."""
    sessions = [session for session in map(draft.session, sorted(ids)) if session is not None]
    if not sessions:
        return set()
    graph = _Graph(draft, sessions[0], wants=False)
    free = _free(graph.reach(("all",), [_Need(1, [(("session", each.id), ())]) for each in sessions]))
    return {each.id for each in sessions if ("session", each.id) not in free}
