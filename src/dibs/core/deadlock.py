"""Would waiting ever end? The promise `deadlock`.

Sessions are the nodes: only what one worker holds and waits for can be tied together. A session waits for a job when it
has a ticket in its line, or when it polled for it and was refused within the last WANT_MS while it held something else.
Waiting for one of N slots is stuck only when all N owners are; every other wait is stuck as soon as one of those in the
way is. The question is asked inside the decision that would add the last edge, over records that are all in its read
set: of two requests that would close a cycle at the same moment, the second is decided again and sees the first.
"""

from __future__ import annotations

from dibs.core.exclusion import blockers
from dibs.core.expiry import session_over
from dibs.core.records import EXCLUSIVE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.core.draft import Draft
    from dibs.core.outcomes import Blocker
    from dibs.core.records import Session


class _Edge:
    """One job that a session waits for, and how."""

    __slots__ = ("mode", "name", "ns", "number", "slots")

    def __init__(self, ns: str, name: str, mode: str, slots: int, number: int) -> None:
        self.ns, self.name, self.mode, self.slots, self.number = ns, name, mode, slots, number


def find_cycle(
    draft: Draft, session_id: str | None, ns: str, name: str, mode: str, slots: int
) -> tuple[str, ...]:
    """Owners and jobs in turn, beginning with the asker, if waiting for `name` would close a cycle; else empty."""
    if session_id is None:
        return ()
    asker = draft.session(session_id)
    if asker is None:
        return ()
    return _Search(draft, asker).through(_Edge(ns, name, mode, slots, 0), asker, (asker.owner,))


def find_own_cycle(draft: Draft, session_id: str | None) -> tuple[str, ...]:
    """The cycle that a session is in with what it waits for already, after it was handed something; else empty."""
    session = draft.session(session_id) if session_id is not None else None
    if session is None:
        return ()
    search = _Search(draft, session)
    for edge in search.edges(session):
        cycle = search.through(edge, session, (session.owner,))
        if cycle:
            return cycle
    return ()


class _Search:
    """A walk along the wait-for graph from one asker."""

    def __init__(self, draft: Draft, asker: Session) -> None:
        self._draft = draft
        self._asker = asker
        self._known: dict[
            str, tuple[str, ...]
        ] = {}  # what a session was found to lead to; empty while it is looked at

    def through(self, edge: _Edge, waiter: Session, path: tuple[str, ...]) -> tuple[str, ...]:
        """The cycle that `waiter` waiting for this edge's job leads to, or empty."""
        path = (*path, edge.name)
        lock = self._draft.lock(edge.ns, edge.name)
        in_way = blockers(self._draft, lock, edge.mode, edge.slots, waiter.id)
        found = [self._behind(blocker, path) for blocker in in_way]
        if edge.slots > 1 and edge.mode == EXCLUSIVE and lock.slots == edge.slots:
            return found[0] if found and all(found) else ()
        reserved = self._reserved(edge, waiter, path)
        return next((cycle for cycle in [*found, reserved] if cycle), ())

    def _behind(self, blocker: Blocker, path: tuple[str, ...]) -> tuple[str, ...]:
        session_id = blocker.holder.session
        if session_id is None:
            return ()
        if session_id == self._asker.id:
            return path
        return self._stuck(session_id, (*path, blocker.holder.owner))

    def _reserved(self, edge: _Edge, waiter: Session, path: tuple[str, ...]) -> tuple[str, ...]:
        """The head of the line may be a ticket for several, for which the job is kept: in the way like an owner."""
        line = self._draft.lock(edge.ns, edge.name).line
        if not line or line[0] == edge.number:
            return ()
        head = self._draft.ticket(edge.ns, edge.name, line[0])
        if head is None or not head.whole or head.session is None or head.session == waiter.id:
            return ()
        if head.session == self._asker.id:
            return path
        return self._stuck(head.session, (*path, head.owner))

    def _stuck(self, session_id: str, path: tuple[str, ...]) -> tuple[str, ...]:
        if session_id in self._known:
            return self._known[session_id]
        self._known[session_id] = ()
        session = self._draft.session(session_id)
        if session is None or session_over(self._draft, session):
            return ()
        for edge in self.edges(session):
            cycle = self.through(edge, session, path)
            if cycle:
                self._known[session_id] = cycle
                return cycle
        return ()

    def edges(self, session: Session) -> list[_Edge]:
        edges = []
        for wait in session.waits:
            ticket = self._draft.ticket(wait.ns, wait.name, wait.number)
            if ticket is not None:
                edges.append(_Edge(wait.ns, wait.name, ticket.mode, ticket.slots, wait.number))
        want = session.want
        if want is not None and self._draft.now_ms < want.until_ms:
            edges.append(_Edge(want.ns, want.name, want.mode, want.slots, 0))
        return edges
