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

from dibs.base.cheap import Iterable
from dibs.core.commands import Acquire, AcquireAll
from dibs.core.draft import Draft
from dibs.core.holds.exclusion import are_related, blockers, covered, misfit, owners_of, slots_of, without_related
from dibs.core.holds.expiry import session_over, ticket_over
from dibs.core.names import covers, in_tree, overlaps
from dibs.core.records import (
    EXCLUSIVE,
    SHARED,
    Holder,
    LockRecord,
    SessionRecord,
    Ticket,
    Want,
    lock_key,
    session_key,
    ticket_key,
    tree_key,
)
from dibs.core.waiting.queue import give_up, may_wait
from dibs.core.waiting.tickets import needed_names, needed_parts, parts_of, session_tickets

Node = tuple[str, ...]
Words = tuple[str, ...]


def find_cycle(draft: Draft, ask: Acquire | AcquireAll, names: tuple[str, ...]) -> tuple[str, ...]:
    """Owners and jobs in turn, beginning with the caller, if waiting for `names` would close a cycle; else empty."""
    session = draft.session(ask.session) if ask.session is not None else None
    if session is None or not (session.holds or session.waits):
        return ()  # nobody waits for a caller that holds nothing and comes last
    graph = _Graph(draft, session)
    place = _LAST if may_wait(ask) else _NONE
    needed = needed_names(draft, ask, session.id, names)
    asked = [graph.ask(_Wanted(draft, ask, name, place, session.id)) for name in needed]
    return graph.cycle([_Need([(node, (name,), 1) for node, name in zip(asked, needed, strict=True)])])


def find_own_cycle(draft: Draft, session: SessionRecord) -> tuple[str, ...]:
    """The cycle of a session that waits and was given another job; else empty. Wants do not count, as below."""
    return _Graph(draft, session, wants=False).cycle([])


def closed_by(draft: Draft, ticket: Ticket) -> tuple[str, ...]:
    """The cycle in which this place of a session waits for that session, or for itself, by way of others who stand in
    lines; else empty. Wants do not count: whoever polls is told of the circle when it polls again."""
    session = draft.session(ticket.session) if ticket.session is not None else None
    if session is None or session_over(draft, session):
        return ()
    graph = _Graph(draft, session, wants=False)
    node = graph.place(ticket)
    return graph.cycle([_Need([(node, (ticket.name,), 1)])], node)


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
    """A need that cannot be met if nodes with `count` of its slots are stuck; else one stuck node is enough. Each node
    has the words that lead to it in a cycle, and how many slots it takes. Nodes may share a need."""

    __slots__ = ("count", "of")

    def __init__(self, of: list[tuple[Node, Words, int]], count: int = 1) -> None:
        self.of, self.count = of, count

    def in_vain(self, free: set[Node]) -> bool:
        return sum([units for node, _, units in self.of if node not in free]) >= self.count


class _Tickets:
    """The tickets of one line from its head, as far as they were loaded, and whose they are."""

    __slots__ = ("_at", "_children", "_draft", "_graph", "_ns", "_of", "_places", "busy", "tickets")

    def __init__(self, graph: _Graph, draft: Draft, ns: str, places: list[tuple[str, int]]) -> None:
        self._graph, self._draft, self._ns, self._places = graph, draft, ns, places
        self._at = {place: at for at, place in enumerate(places)}
        self._of: dict[str, list[int]] = {}  # places of a session
        self._children: dict[str, list[int]] = {}  # places of those whose parent it is
        self.tickets: list[Ticket | None] = []
        self.busy: list[int] = []  # places whose sessions wait for something else, too

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
                if self._graph.waits(session.id, ticket):
                    self.busy.append(at)
        self.tickets += tickets

    def related(self, ticket: Ticket) -> list[int]:
        """The places of the parent and of the children of this ticket's session."""
        session = self._draft.session(ticket.session) if ticket.session is not None else None
        if session is None:
            return []
        parents = self._of.get(session.parent, []) if session.parent is not None else []
        return parents + self._children.get(session.id, [])


class _Graph:
    """The part of the wait-for graph that can be reached from one session. It does not follow who waits for nothing."""

    def __init__(self, draft: Draft, asker: SessionRecord, *, wants: bool = True) -> None:
        self._draft = draft
        self._asker = asker
        self._wants = wants
        self._root: Node = ("session", asker.id)
        self._wanted: dict[Node, list[_Wanted]] = {}
        self._lines: dict[str, _Tickets] = {}
        self._owners: dict[str, list[Holder]] = {}  # those of a job that may be stuck
        self._parents: dict[str, set[str | None]] = {}  # of a job's owners
        self._alike: dict[tuple[str, int], _Need] = {}  # needs that all who wait for a job have

    def ask(self, wanted: _Wanted) -> Node:
        node = ("ask", wanted.ns, wanted.name, wanted.session or "")
        self._wanted[node] = [wanted]
        return node

    def place(self, ticket: Ticket) -> Node:
        first = parts_of(ticket)[0]
        node = ("place", ticket.ns, first.name, str(first.number))
        if node not in self._wanted:
            self._wanted[node] = [
                _Wanted(self._draft, ticket, part.name, part.number, ticket.session)
                for part in needed_parts(self._draft, ticket)
            ]
        return node

    def cycle(self, asked: list[_Need], place: Node | None = None) -> tuple[str, ...]:
        """The shortest path from the claim back to the caller, or to its `place`, along stuck nodes."""
        needs = self.reach(self._root, [*asked, *self._session_needs(self._asker)])
        free = _free(needs)
        if self._root in free:
            return ()
        seen: set[Node | int] = {self._root}
        way: list[tuple[list[_Need], Words]] = [(asked or needs[self._root], (self._asker.owner,))]
        for here, path in way:  # grows during the loop
            for need in here:
                if id(need) in seen or not need.in_vain(free):
                    continue
                seen.add(id(need))
                for node, words, _ in need.of:
                    if node in free:
                        continue
                    if node == self._root or (node == place and len(path) > 1):
                        return path
                    if node not in seen:
                        seen.add(node)
                        way.append((needs[node], (*path, *words)))
        return ()

    def reach(self, root: Node, first: list[_Need]) -> dict[Node, list[_Need]]:
        """All nodes that can be reached, with their needs, in the order in which they were found."""
        needs = {root: first}
        todo = list(first)
        known: set[int] = set()
        while todo:
            need = todo.pop()
            if id(need) in known:
                continue
            known.add(id(need))
            for node, _, _ in need.of:
                if node not in needs:
                    needs[node] = self._needs(node)
                    todo += needs[node]
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
        found: list[tuple[Node, Words, int]] = [
            (self.place(ticket), (ticket.name,), 1)
            for ticket in tickets
            if ticket is not None and not ticket_over(draft, ticket)
        ]
        want = self._want(session)
        if want is not None:
            for name in needed_names(draft, want, session.id, (want.name, *want.more)):
                node = self.ask(_Wanted(draft, want, name, _NONE, session.id, want.at_ms))
                found.append((node, (name,), 1))
        return [_Need(found)] if found else []

    def _want(self, session: SessionRecord) -> Want | None:
        """The refused claim of a session that counts. Of the caller, only its present claim does."""
        want = session.want if self._wants and session.id != self._asker.id else None
        return want if want is not None and self._draft.now_ms < want.until_ms else None

    def waits(self, session_id: str | None, besides: Ticket | None = None) -> bool:
        """Return whether a session may be stuck: it waits for something, `besides` a place that is looked at anyway."""
        session = self._draft.session(session_id) if session_id is not None else None
        if session is None or session.id == self._asker.id or self._want(session) is not None:
            return session is not None
        if besides is None:
            return bool(session.waits)
        own = {(besides.ns, part.name, part.number) for part in parts_of(besides)}
        return any((wait.ns, wait.name, wait.number) not in own for wait in session.waits)

    def _wanted_needs(self, wanted: _Wanted) -> list[_Need]:
        draft = self._draft
        lock = draft.lock(wanted.ns, wanted.name)
        if not wanted.fits:
            return []
        own = self._own_ticket(wanted)
        if own is not None:
            return [_Need([(self.place(own), (own.owner, own.name), 1)])]
        ahead: list[Ticket] = []
        later: list[Ticket] = []
        if wanted.number != _NONE or not covered(draft, lock, wanted.mode, wanted.session):
            ahead = list(self._ahead(wanted, lock))
            later = self._later(wanted, lock, ahead)
        of_slots = wanted.slots > 1 or lock.pooled
        alone = [(each.session, each.owner) for each in later if not (of_slots and _alike(lock, each, wanted))]
        if in_tree(lock.name):
            in_way = blockers(draft, lock, wanted.mode, wanted.slots, wanted.session, wanted.units)
            others = [each.holder for each in in_way if each.name != lock.name and wanted.met(each.holder)]
            alone += [(each.session, each.owner) for each in others if self.waits(each.session)]
        needs = [_Need([(self.place(each), (each.owner, each.name), 1) for each in ahead] + _sessions(alone))]
        counted = [each for each in later if of_slots and _alike(lock, each, wanted)]
        stuck = wanted.slots - wanted.units + 1
        if not (of_slots and lock.slots == wanted.slots):
            if self._is_blocked(wanted, lock):
                needs += self._owners_need(wanted, lock, [], 1)
            # Once those who have it otherwise have left, the slots are those of the places ahead.
            return [*needs, _slots_need(_taken(counted), stuck)] if counted else needs
        if lock.pooled and owners_of(draft, lock).bare:  # an owner without a slot must leave
            bare = [each for each in self._owners_of(wanted, lock) if not each.slot_numbers]
            needs.append(_Need(_sessions([(each.session, each.owner) for each in bare])))
        # A pool that is paused is not for its owners to free.
        return [*needs, *self._owners_need(wanted, lock, counted, stuck)] if stuck > 0 else needs

    def _owners_need(self, wanted: _Wanted, lock: LockRecord, counted: list[Ticket], stuck: int) -> list[_Need]:
        """The need for the slots of a job's owners, and of places that will have theirs before."""
        owners = self._owners_of(wanted, lock)
        key = lock_key(lock.ns, lock.name)
        is_alike = not counted and owners is self._owners[key]
        if is_alike and (key, stuck) in self._alike:
            return [self._alike[key, stuck]]
        held: dict[str | None, tuple[str, int]] = {}
        for each in owners:
            units = len(each.slot_numbers) or int(not lock.pooled)
            held[each.session] = each.owner, units + held.get(each.session, ("", 0))[1]
        need = _slots_need({**_taken(counted), **held}, stuck)
        if is_alike:
            self._alike[key, stuck] = need
        return [need]

    def _owners_of(self, wanted: _Wanted, lock: LockRecord) -> list[Holder]:
        """The owners that may be stuck, and whom this claim met. Kin is not in its way, but for the slots of a pool."""
        key = lock_key(lock.ns, lock.name)
        if key not in self._owners:
            live = owners_of(self._draft, lock).live
            self._owners[key] = [holder for holder in live if self.waits(holder.session)]
        found = self._owners[key]
        if wanted.at_ms is not None:
            found = [holder for holder in found if wanted.met(holder)]
        if self._has_related(wanted, lock):
            found = [holder for holder in found if not are_related(self._draft, wanted.session, holder.session)]
        return found

    def _is_blocked(self, wanted: _Wanted, lock: LockRecord) -> bool:
        owners = owners_of(self._draft, lock)
        if owners.fits(lock, wanted.mode, wanted.slots, wanted.units):
            return False
        if not self._has_related(wanted, lock):
            return True
        return not without_related(self._draft, owners, wanted.session).fits(
            lock, wanted.mode, wanted.slots, wanted.units
        )

    def _has_related(self, wanted: _Wanted, lock: LockRecord) -> bool:
        """Return whether the session's parent or a child of it is among the owners."""
        session = self._draft.session(wanted.session) if wanted.session is not None else None
        if session is None or lock.pooled or not lock.holders:
            return False
        owners = owners_of(self._draft, lock).of
        key = lock_key(lock.ns, lock.name)
        if key not in self._parents:
            found = [self._draft.session(each) for each in owners if each is not None]
            self._parents[key] = {each.parent for each in found if each is not None}
        return session.id in self._parents[key] or (session.parent is not None and session.parent in owners)

    def _later(self, wanted: _Wanted, lock: LockRecord, ahead: list[Ticket]) -> list[Ticket]:
        """Places ahead whose sessions may not let go once they have the job, nearest first: they wait for something
        else, too. What a session will hold blocks others, never itself, its parent or its child. Whoever counts slots
        counts all of them; else a place that is ahead waits for those further ahead."""
        if (wanted.slots > 1 or lock.pooled) and not in_tree(lock.name):
            line = self._line(lock, wanted.number)
            before = line.before(lock.name, wanted.number)
            busy = [line.tickets[at] for at in reversed(line.busy) if at < before]
            ahead = [each for each in busy if each is not None and self._comes_before(each, wanted)]
        else:
            ahead = [each for each in ahead if self.waits(each.session, each)]
        found = [each for each in ahead if each.session != wanted.session and not _both_shared(each, wanted)]
        if lock.pooled:
            return found
        return [each for each in found if not are_related(self._draft, wanted.session, each.session)]

    def _own_ticket(self, wanted: _Wanted) -> Ticket | None:
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
        in_turn = not tree and (wanted.slots != 1 or lock.pooled)  # see `_later`
        for at in range(line.before(lock.name, wanted.number) - 1, -1, -1):
            ticket = line.tickets[at]
            if ticket is None or not self._comes_before(ticket, wanted):
                continue
            yield ticket
            # This place waits for those further ahead, unless it can have the job beside them, or its session has the
            # job, or will have it by an earlier place: they come after that. In a tree it may wait for fewer.
            alone = ticket.mode == EXCLUSIVE and ticket.slots <= 1
            passes_on = wanted.slots == 1 and (alone or _both_shared(ticket, wanted))
            passes_on = passes_on and (not tree or ticket.name == lock.name or covers(ticket.name, lock.name))
            if (passes_on or in_turn) and not self._has_or_will(ticket):
                # It does not wait for what its session's parent or child will hold.
                related = [line.tickets[each] for each in line.related(ticket) if each < at]
                yield from [each for each in related if each is not None and self._comes_before(each, wanted)]
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
            self._lines[key] = _Tickets(self, self._draft, lock.ns, places)
        line = self._lines[key]
        line.load(line.before(lock.name, number))
        return line

    def _has_or_will(self, ticket: Ticket) -> bool:
        """Return whether this place is served by what its session has or gets otherwise, and not in its turn."""
        if not needed_names(self._draft, ticket, ticket.session, (ticket.name,)):
            return True
        wanted = _Wanted(self._draft, ticket, ticket.name, ticket.number, ticket.session)
        return self._own_ticket(wanted) is not None


def _free(needs: dict[Node, list[_Need]]) -> set[Node]:
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


def _sessions(owners: list[tuple[str | None, str]]) -> list[tuple[Node, Words, int]]:
    return [(("session", session), (owner,), 1) for session, owner in owners if session is not None]


def _taken(counted: list[Ticket]) -> dict[str | None, tuple[str, int]]:
    """A session has a job's slots once, by the first of its places, unless some were handed to it."""
    return {each.session: (each.owner, each.units) for each in counted}


def _slots_need(takers: dict[str | None, tuple[str, int]], stuck: int) -> _Need:
    return _Need([(("session", session or ""), (owner,), units) for session, (owner, units) in takers.items()], stuck)


def _alike(lock: LockRecord, ticket: Ticket, wanted: _Wanted) -> bool:
    same = (ticket.name, ticket.mode) == (wanted.name, EXCLUSIVE)
    return same and slots_of(lock, ticket.slots) == wanted.slots


def _both_shared(ticket: Ticket, wanted: _Wanted) -> bool:
    return ticket.mode == wanted.mode == SHARED


# Circles that a loss closes.
#
# A place of a session waits for nothing in the line of a job that the session holds, and for nothing but the
# session's own earlier place in a line where it has one: when that place is served, the session has the job. When the
# session loses this hold or this earlier place, however that happens, the place waits for everybody ahead of it. A hold
# that its owner shares is lost for a place that wants the job alone: it waits for its own session, too. So a loss can
# close a circle, as a new wait (`claims.py`, `several.py`), a grant that passes a line (`closed_circle`) and a transfer
# (`leases.py`) can. Those three are refused. So can a pool that gets fewer slots. All other changes only take away what
# somebody waits for. `decide.py` finds losses in what a decision writes, whichever rule wrote it.
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
    """Those of these sessions whose wait would never end, as far as lines tell."""
    sessions = [session for session in map(draft.session, sorted(ids)) if session is not None]
    if not sessions:
        return set()
    graph = _Graph(draft, sessions[0], wants=False)
    free = _free(graph.reach(("all",), [_Need([(("session", each.id), (), 1) for each in sessions])]))
    return {each.id for each in sessions if ("session", each.id) not in free}
