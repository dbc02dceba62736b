"""The graph of waits: who waits for whom. `deadlock.py` looks for circles in it.

A session connects the jobs that it holds with those that it waits for, so sessions are nodes. Claims that are asked for
now, refused claims that count as waiting (`SessionRecord.want`) and places in a queue are nodes, too.

A node has **needs**: other nodes that must let go before it gets what it waits for. These are the needs of a place or a
claim for one job, each with a function of its own below:

    own place   an earlier place of the same session for the job: when that is served, this has what it wants, too
    line        the places ahead of it
    successors  the sessions at these places: they will have the job first, and may not let it go
    tree        the owners of names that overlap the job's
    owners      the owners of the job, all of them; or, of N slots, so many that too few are left

Only what may be stuck is a node: a session that waits for nothing lets go some day.
"""

from __future__ import annotations

from dibs.base.cheap import Iterable
from dibs.core.commands import Acquire, AcquireAll
from dibs.core.draft import Draft
from dibs.core.holds.capacity import misfit, owners_of, slots_of
from dibs.core.holds.exclusion import blockers, covered
from dibs.core.holds.expiry import session_over, ticket_over
from dibs.core.holds.related import are_related, without_related
from dibs.core.names import in_tree
from dibs.core.overlap import covers, overlaps
from dibs.core.records import (
    EXCLUSIVE,
    SHARED,
    Holder,
    SessionRecord,
    Ticket,
    Want,
    lock_key,
    session_key,
    ticket_key,
    tree_key,
)
from dibs.core.waiting.tickets import needed_names, needed_parts, parts_of

Node = tuple[str, ...]
Words = tuple[str, ...]

LAST = 0  # the number of a place that is not there yet: it will be the last
NONE = -1  # of a claim that polls and takes no place: what its session covers is granted at once


class Need:
    """A need that cannot be met if nodes with `count` of its slots are stuck; else one stuck node is enough. Each node
    has the words that lead to it in a cycle, and how many slots it takes. Nodes may share a need."""

    __slots__ = ("count", "of")

    def __init__(self, of: list[tuple[Node, Words, int]], count: int = 1) -> None:
        self.of, self.count = of, count

    def in_vain(self, free: set[Node]) -> bool:
        return sum([units for node, _, units in self.of if node not in free]) >= self.count


class Wanted:
    """One job that a node waits for, and how. `number` is its place in the queue, or one of the two above."""

    __slots__ = (
        *("at_ms", "fits", "in_tree", "lock", "mode", "name", "ns", "number", "of_slots", "session", "slots", "units"),
    )

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
        self.lock = lock = draft.lock(ask.ns, name)
        self.slots = slots_of(lock, ask.slots)
        self.of_slots = self.slots > 1 or lock.pooled
        self.in_tree = in_tree(name)
        # Else it waits for nobody: it would be refused. So would a claim of what its session has in another mode; a
        # place of it waits for its own session.
        has_otherwise = at_ms is not None and session in owners_of(draft, lock).of
        self.fits = not has_otherwise and misfit(lock, ask, draft.now_ms) is None
        self.number, self.session = number, session
        self.at_ms = at_ms  # None: it claims at this moment

    def met(self, other: Holder | Ticket) -> bool:
        """A want waits only for those whom the claim met."""
        return self.at_ms is None or other.since_ms <= self.at_ms

    def too_few(self) -> int:
        """So many slots must be stuck that too few are left. 0 or less of a pool that is paused."""
        return self.slots - self.units + 1

    def counts(self, ticket: Ticket) -> bool:
        """Return whether a place ahead of this one waits for slots of the same job."""
        alike = (ticket.name, ticket.mode) == (self.name, EXCLUSIVE)
        return self.of_slots and alike and slots_of(self.lock, ticket.slots) == self.slots

    def shares_with(self, ticket: Ticket) -> bool:
        return ticket.mode == self.mode == SHARED


class WaitGraph:
    """The part of the graph that can be reached from one session. It does not follow who waits for nothing."""

    def __init__(self, draft: Draft, asker: SessionRecord, *, wants: bool = True) -> None:
        self._draft = draft
        self._asker = asker
        self._wants = wants
        self._wanted: dict[Node, list[Wanted]] = {}
        self._lines: dict[str, _Queue] = {}
        self._owners: dict[str, list[Holder]] = {}  # those of a job that may be stuck
        self._parents: dict[str, set[str | None]] = {}  # of a job's owners
        self._alike: dict[tuple[str, int], Need] = {}  # needs that all who wait for a job have

    def ask(self, wanted: Wanted) -> Node:
        node = ("ask", wanted.ns, wanted.name, wanted.session or "")
        self._wanted[node] = [wanted]
        return node

    def place(self, ticket: Ticket) -> Node:
        first = parts_of(ticket)[0]
        node = ("place", ticket.ns, first.name, str(first.number))
        if node not in self._wanted:
            self._wanted[node] = [
                Wanted(self._draft, ticket, part.name, part.number, ticket.session)
                for part in needed_parts(self._draft, ticket)
            ]
        return node

    def reach(self, root: Node, first: list[Need]) -> dict[Node, list[Need]]:
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

    def _needs(self, node: Node) -> list[Need]:
        if node[0] != "session":
            return [need for wanted in self._wanted[node] for need in self._job_needs(wanted)]
        session = self._draft.session(node[1])
        return [] if session is None or session_over(self._draft, session) else self.session_needs(session)

    # A session: its places, and its last claim that was refused.

    def session_needs(self, session: SessionRecord) -> list[Need]:
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
                node = self.ask(Wanted(draft, want, name, NONE, session.id, want.at_ms))
                found.append((node, (name,), 1))
        return [Need(found)] if found else []

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

    # A place or a claim: what one of its jobs needs.

    def _job_needs(self, wanted: Wanted) -> list[Need]:
        if not wanted.fits:
            return []
        own = self._own_ticket(wanted)
        if own is not None:
            return [self._places_need([own])]
        ahead, successors = self._line_of(wanted)
        counted = [each for each in successors if wanted.counts(each)]
        return [
            self._places_need(ahead),
            _sessions_need([(each.session, each.owner) for each in successors if not wanted.counts(each)]),
            *self._tree_needs(wanted),
            *(self._slot_needs(wanted, counted) if self._has_slots(wanted) else self._job_free_needs(wanted, counted)),
        ]

    def _places_need(self, tickets: list[Ticket]) -> Need:
        return Need([(self.place(each), (each.owner, each.name), 1) for each in tickets])

    def _own_ticket(self, wanted: Wanted) -> Ticket | None:
        """An earlier place of the same session for the same job: when it is served, this place has what it wants. A
        session that polls then has what the place covers, too."""
        session = self._draft.session(wanted.session) if wanted.session is not None else None
        for wait in session.waits if session is not None else ():
            if wait.ns != wanted.ns or not (wait.name == wanted.name or wanted.number == NONE):
                continue
            ticket = self._draft.ticket(wait.ns, wait.name, wait.number)
            if ticket is None or ticket_over(self._draft, ticket):
                continue
            if _serves(ticket, wanted):
                return ticket
        return None

    # Who comes first: the queue.

    def _line_of(self, wanted: Wanted) -> tuple[list[Ticket], list[Ticket]]:
        """The places ahead, and those of them whose sessions may not let go once they have the job."""
        if wanted.number == NONE and covered(self._draft, wanted.lock, wanted.mode, wanted.session):
            return [], []  # it is granted past the queue
        line = self._line(wanted)
        ahead = list(self._ahead(wanted, line))
        return ahead, self._successors(wanted, line, ahead)

    def _ahead(self, wanted: Wanted, line: _Queue) -> Iterable[Ticket]:
        """Live places ahead of this one, nearest first; only as many as needed: the last of them waits for the others.
        But it does not wait for what its session's parent or child will hold, so their places follow it."""
        for at in range(line.before(wanted.name, wanted.number) - 1, -1, -1):
            ticket = line.tickets[at]
            if ticket is None or not self._comes_before(ticket, wanted):
                continue
            yield ticket
            if self._waits_for_others(ticket, wanted):
                related = [line.tickets[each] for each in line.related(ticket) if each < at]
                yield from [each for each in related if each is not None and self._comes_before(each, wanted)]
                return

    def _waits_for_others(self, ticket: Ticket, wanted: Wanted) -> bool:
        """Return whether a place waits for all further ahead for whom this one waits. It does not if it can have the
        job beside them. Nor if its session has the job, or will have it by an earlier place: they come after that."""
        if wanted.in_tree or not wanted.of_slots:  # else it stands behind them, and `_successors` counts them all
            has_it_alone = ticket.mode == EXCLUSIVE and ticket.slots <= 1
            if wanted.slots != 1 or not (has_it_alone or wanted.shares_with(ticket)):
                return False
            # In a tree it may wait for fewer: a place below this one overlaps less.
            if wanted.in_tree and ticket.name != wanted.name and not covers(ticket.name, wanted.name):
                return False
        return not self._has_or_will(ticket)

    def _successors(self, wanted: Wanted, line: _Queue, ahead: list[Ticket]) -> list[Ticket]:
        """Places ahead whose sessions may not let go once they have the job, nearest first: they wait for something
        else, too. What a session will hold blocks others, never itself, its parent or its child. Whoever counts slots
        counts all of them; else a place that is ahead waits for those further ahead."""
        if wanted.of_slots and not wanted.in_tree:
            before = line.before(wanted.name, wanted.number)
            busy = [line.tickets[at] for at in reversed(line.busy) if at < before]
            ahead = [each for each in busy if each is not None and self._comes_before(each, wanted)]
        else:
            ahead = [each for each in ahead if self.waits(each.session, each)]
        found = [each for each in ahead if each.session != wanted.session and not wanted.shares_with(each)]
        if wanted.lock.pooled:
            return found
        return [each for each in found if not are_related(self._draft, wanted.session, each.session)]

    def _comes_before(self, ticket: Ticket, wanted: Wanted) -> bool:
        if not wanted.met(ticket) or ticket_over(self._draft, ticket):
            return False
        if not wanted.in_tree:
            return True
        return not wanted.shares_with(ticket) and overlaps(ticket.name, wanted.name)

    def _has_or_will(self, ticket: Ticket) -> bool:
        """Return whether this place is served by what its session has or gets otherwise, and not in its turn."""
        if not needed_names(self._draft, ticket, ticket.session, (ticket.name,)):
            return True
        wanted = Wanted(self._draft, ticket, ticket.name, ticket.number, ticket.session)
        return self._own_ticket(wanted) is not None

    def _line(self, wanted: Wanted) -> _Queue:
        """The line that a job is in, loaded as far as this place; without a place, to its end."""
        lock = wanted.lock
        key = tree_key(lock.ns) if wanted.in_tree else lock_key(lock.ns, lock.name)
        if key not in self._lines:
            places = [(lock.name, each) for each in lock.line]
            if wanted.in_tree:
                places = [(place.name, place.number) for place in self._draft.tree(lock.ns).line]
            self._lines[key] = _Queue(self, self._draft, lock.ns, places)
        line = self._lines[key]
        line.load(line.before(lock.name, wanted.number))
        return line

    # Who has it: owners of other names, of the whole job, of its slots.

    def _tree_needs(self, wanted: Wanted) -> list[Need]:
        """The owners of names that overlap this one."""
        if not wanted.in_tree:
            return []
        in_way = blockers(self._draft, wanted.lock, wanted.mode, wanted.slots, wanted.session, wanted.units)
        others = [each.holder for each in in_way if each.name != wanted.name and wanted.met(each.holder)]
        return [_sessions_need([(each.session, each.owner) for each in others if self.waits(each.session)])]

    def _has_slots(self, wanted: Wanted) -> bool:
        """Return whether the job has as many slots as the claim names. Otherwise its owners have it in another way:
        alone, shared, or in another number of slots."""
        return wanted.of_slots and wanted.lock.slots == wanted.slots

    def _job_free_needs(self, wanted: Wanted, counted: list[Ticket]) -> list[Need]:
        """All owners must leave. Then the slots, if some are wanted, are those of the places ahead."""
        needs = [self._owners_need(wanted, [], 1)] if self._is_blocked(wanted) else []
        return [*needs, _slots_need(_taken(counted), wanted.too_few())] if counted else needs

    def _slot_needs(self, wanted: Wanted, counted: list[Ticket]) -> list[Need]:
        """Enough slots must become free, of the owners and of the places that will have theirs before."""
        needs = []
        if wanted.lock.pooled and owners_of(self._draft, wanted.lock).bare:  # an owner without a slot must leave
            bare = [each for each in self._owners_of(wanted) if not each.slot_numbers]
            needs.append(_sessions_need([(each.session, each.owner) for each in bare]))
        if wanted.too_few() > 0:  # a pool that is paused is not for its owners to free
            needs.append(self._owners_need(wanted, counted, wanted.too_few()))
        return needs

    def _owners_need(self, wanted: Wanted, counted: list[Ticket], too_few: int) -> Need:
        """The need for the slots of a job's owners, and of places that will have theirs before. Those who need the
        same share it: a pool may have thousands of owners, and as many who wait."""
        lock = wanted.lock
        owners = self._owners_of(wanted)
        key = lock_key(lock.ns, lock.name)
        is_alike = not counted and owners is self._owners[key]
        if is_alike and (key, too_few) in self._alike:
            return self._alike[key, too_few]
        held: dict[str | None, tuple[str, int]] = {}
        for each in owners:
            units = len(each.slot_numbers) or int(not lock.pooled)
            held[each.session] = each.owner, units + held.get(each.session, ("", 0))[1]
        need = _slots_need({**_taken(counted), **held}, too_few)
        if is_alike:
            self._alike[key, too_few] = need
        return need

    def _owners_of(self, wanted: Wanted) -> list[Holder]:
        """The owners that may be stuck, and whom this claim met. Related sessions are not in its way, but for the slots
        of a pool."""
        key = lock_key(wanted.ns, wanted.name)
        if key not in self._owners:
            live = owners_of(self._draft, wanted.lock).live
            self._owners[key] = [holder for holder in live if self.waits(holder.session)]
        found = self._owners[key]
        if wanted.at_ms is not None:
            found = [holder for holder in found if wanted.met(holder)]
        if wanted.mode == SHARED:  # beside an owner that has it alone, a child of it may share it
            found = [holder for holder in found if holder.mode != SHARED]
        if self._is_related_to_owner(wanted):
            found = [holder for holder in found if not are_related(self._draft, wanted.session, holder.session)]
        return found

    def _is_blocked(self, wanted: Wanted) -> bool:
        owners = owners_of(self._draft, wanted.lock)
        if owners.fits(wanted.lock, wanted.mode, wanted.slots, wanted.units):
            return False
        if not self._is_related_to_owner(wanted):
            return True
        others = without_related(self._draft, owners, wanted.session)
        return not others.fits(wanted.lock, wanted.mode, wanted.slots, wanted.units)

    def _is_related_to_owner(self, wanted: Wanted) -> bool:
        """Return whether the session's parent or a child of it is among the owners. Each counts by itself in a pool."""
        lock = wanted.lock
        session = self._draft.session(wanted.session) if wanted.session is not None else None
        if session is None or lock.pooled or not lock.holders:
            return False
        owners = owners_of(self._draft, lock).of
        key = lock_key(lock.ns, lock.name)
        if key not in self._parents:
            found = [self._draft.session(each) for each in owners if each is not None]
            self._parents[key] = {each.parent for each in found if each is not None}
        return session.id in self._parents[key] or (session.parent is not None and session.parent in owners)


class _Queue:
    """The tickets of one line from its head, as far as they were loaded, and whose they are."""

    __slots__ = ("_at", "_children", "_draft", "_graph", "_ns", "_of", "_places", "busy", "tickets")

    def __init__(self, graph: WaitGraph, draft: Draft, ns: str, places: list[tuple[str, int]]) -> None:
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


def _serves(ticket: Ticket, wanted: Wanted) -> bool:
    """Return whether a session whose place is served has what it wants, without another turn."""
    if ticket.name == wanted.name:
        return ticket.mode == wanted.mode and not 0 < wanted.number <= ticket.number
    if wanted.number != NONE or ticket.mode not in (EXCLUSIVE, wanted.mode):
        return False
    return wanted.in_tree and in_tree(ticket.name) and covers(ticket.name, wanted.name)


def _sessions_need(owners: list[tuple[str | None, str]]) -> Need:
    return Need([(("session", session), (owner,), 1) for session, owner in owners if session is not None])


def _taken(counted: list[Ticket]) -> dict[str | None, tuple[str, int]]:
    """A session has a job's slots once, by the first of its places, unless some were handed to it."""
    return {each.session: (each.owner, each.units) for each in counted}


def _slots_need(takers: dict[str | None, tuple[str, int]], too_few: int) -> Need:
    return Need([(("session", session or ""), (owner,), units) for session, (owner, units) in takers.items()], too_few)
