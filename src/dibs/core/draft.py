"""A decision in progress: the view, and on top of it what the decision has written so far.

Rules read and write through it, so a command can change a lock, its queue, a session and a tree in straight code.
Nothing is visible outside: `decide` returns its writes as a value, and the view does not change. It knows no rules.
"""

from __future__ import annotations

from dibs.base.cheap import Any, Callable, Iterable
from dibs.base.record import Record
from dibs.core.events import Event
from dibs.core.outcomes import Granted, GrantedAll, Outcome
from dibs.core.records import (
    META_KEY,
    Holder,
    LockRecord,
    Meta,
    Pulse,
    SessionRecord,
    Stored,
    Ticket,
    Tree,
    lock_key,
    pulse_key,
    session_key,
    ticket_key,
    tree_key,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    from dibs.core.path_index import Overlap, TreeQueue

    Found = TypeVar("Found", bound=Stored)


# What a decision may look at: the store's time and the records, read as the rules ask for them.
#
# A record that was not loaded raises `Missing`; the coordinator loads it and decides again. So rules that look at
# several records stay simple code, and all records that were looked at are known: the write happens only if none of
# them changed. Beginning again costs all the work so far, so it is for the first few records, which can then be of
# one moment. A decision that needs more goes on with what `load` reads.

ALL_TIME_MS = 2**60


class Missing(Exception):
    """The decision needs these keys; load them and decide again."""

    def __init__(self, *keys: str) -> None:
        super().__init__(*keys)
        self.keys = keys


class View:
    """Records by key; None: known to be absent. `seen` are the keys looked at. `load` adds records instead of
    `Missing`. Deadlines after `vouched_ms` count as not reached (`expiry.py`)."""

    __slots__ = ("is_of_one_moment", "load", "now_ms", "records", "seen", "vouched_ms")

    def __init__(self, now_ms: int, records: dict[str, Stored | None] | None = None) -> None:
        self.now_ms = now_ms
        self.vouched_ms = ALL_TIME_MS
        self.records: dict[str, Stored | None] = {} if records is None else records
        self.seen: set[str] = set()
        self.load: Callable[[Iterable[str]], None] | None = None
        self.is_of_one_moment = True

    def need(self, keys: Iterable[str]) -> None:
        missing = [key for key in keys if key not in self.records]
        if missing:
            if self.load is None:
                raise Missing(*missing)
            self.load(missing)


class HandedOver(Record):
    """A job given to a waiter, so that this waiter can be notified without asking again."""

    ns: str
    name: str
    number: int
    ticket_id: str
    outcome: Granted | GrantedAll


class Decision:
    """The answer, the records to write (None deletes), the events, and the waiters that got a job."""

    __slots__ = ("events", "handed", "outcome", "writes")

    def __init__(
        self,
        *,
        outcome: Outcome,
        writes: dict[str, Stored | None],
        events: tuple[Event, ...] = (),
        handed: tuple[HandedOver, ...] = (),
    ) -> None:
        self.outcome = outcome
        self.writes = writes
        self.events = events
        self.handed = handed


NO_META = Meta()


class Draft:
    """The view, and what the decision has written so far. `now_ms` is the view's. Deadlines are compared with
    `vouched_ms`, which may be earlier."""

    __slots__ = (
        *("_blanks", "_tree_queues", "_meta", "_overlaps", "_view"),
        *("events", "handed", "left", "now_ms", "owners", "vouched_ms", "writes"),
    )

    def __init__(self, view: View) -> None:
        self._view = view
        self.now_ms = now_ms = view.now_ms
        self.vouched_ms = now_ms if now_ms < view.vouched_ms else view.vouched_ms
        self.writes: dict[str, Stored | None] = {}
        self.events: list[Event] = []
        self.handed: list[HandedOver] = []
        self.left = 0  # how many places `queue.advance` has taken out of their queues
        self.owners: dict[int, Any] = {}  # `exclusion.Owners`, for `exclusion.owners_of`
        self._meta: Meta | None = None  # as `meta` found it: every rule asks for it several times
        self._blanks: dict[str, LockRecord] = {}
        self._overlaps: dict[tuple[str, int], Overlap] = {}
        self._tree_queues: dict[str, TreeQueue] = {}

    def view(self) -> View:
        """The records at the time of the decision. The view's own time goes on when more is read in the middle. If
        they may be of several moments, only those that were looked at: a commit does not compare the others."""
        records, looked = self._view.records, self._view.seen.union(self.writes)
        if not self._view.is_of_one_moment:
            records = {key: record for key, record in records.items() if key in looked}
        view = View(self.now_ms, records)
        view.vouched_ms = self.vouched_ms
        return view

    def get(self, key: str) -> Stored | None:
        if self.writes and key in self.writes:
            return self.writes[key]
        view = self._view
        records = view.records
        view.seen.add(key)
        if key not in records:
            view.need((key,))
        return records[key]

    def before(self, key: str) -> Stored | None:
        """The record that the decision found under a key, whatever it has written since."""
        return self._view.records.get(key)

    def find(self, key: str, kind: type[Found]) -> Found | None:
        """The record of this kind under `key`, if there is one."""
        found = self.get(key)
        return found if isinstance(found, kind) else None

    def need(self, *keys: str) -> None:
        """Load all of these at once, if any is missing."""
        self._view.need([key for key in keys if key not in self.writes])

    def write(self, key: str, record: Stored | None) -> None:
        self.writes[key] = record
        self._meta = None

    def knows(self, ns: str, name: str) -> bool:
        return self.get(lock_key(ns, name)) is not None

    def lock(self, ns: str, name: str) -> LockRecord:
        """The lock as its kind has it, or a blank one."""
        key = lock_key(ns, name)
        found = self.get(key)
        if found is not None:
            lock: LockRecord = found  # type: ignore[assignment]  # a key's prefix fixes its class
            return lock.by_kind()
        if key not in self._blanks:
            self._blanks[key] = LockRecord(ns=ns, name=name)
        return self._blanks[key]

    def ticket(self, ns: str, name: str, number: int) -> Ticket | None:
        found = self.get(ticket_key(ns, name, number))
        return found if isinstance(found, Ticket) else None

    def session(self, session_id: str) -> SessionRecord | None:
        found = self.get(session_key(session_id))
        return found if isinstance(found, SessionRecord) else None

    def tree(self, ns: str, page: int = 0) -> Tree:
        found = self.get(tree_key(ns, page))
        return found if isinstance(found, Tree) else Tree(ns=ns, page=page)

    def overlap(self, ns: str, page: int = 0) -> Overlap:
        """The claims that a tree or its page has itself, sorted once for the whole decision."""
        claims = self.tree(ns, page).claims
        known = self._overlaps.get((ns, page))
        if known is None or known.claims is not claims:
            from dibs.core.path_index import Overlap  # most jobs are in no tree

            known = self._overlaps[ns, page] = Overlap(claims)
        return known

    def tree_queue(self, ns: str) -> TreeQueue:
        """The places of a tree, sorted once for the whole decision."""
        line = self.tree(ns).line
        known = self._tree_queues.get(ns)
        if known is None or known.line is not line:
            from dibs.core.path_index import TreeQueue

            known = self._tree_queues[ns] = TreeQueue(line)
        return known

    def meta(self) -> Meta:
        meta = self._meta
        if meta is None:
            found = self.get(META_KEY)
            meta = self._meta = found if isinstance(found, Meta) else NO_META
        return meta

    def pulse(self, server: str) -> Pulse | None:
        found = self.get(pulse_key(server))
        return found if isinstance(found, Pulse) else None

    def put(self, record: LockRecord | Ticket | SessionRecord | Tree | Meta | Pulse) -> None:
        key = _key(record)
        self.writes[key] = record
        if key == META_KEY:
            self._meta = None

    def drop(self, record: LockRecord | Ticket | SessionRecord | Tree | Pulse) -> None:
        self.writes[_key(record)] = None

    def discard(self) -> None:
        """Discard all writes and events: the command is refused after all."""
        self.writes.clear()
        self._meta = None
        self.events.clear()
        self.handed.clear()
        self.owners.clear()

    def emit(self, kind: str, ns: str = "", job: str = "", **more: Any) -> None:
        """Note an event of this moment. `more` are other fields of Event."""
        self.events.append(Event(at_ms=self.now_ms, kind=kind, ns=ns, job=job, **more))

    def emit_for_hold(
        self,
        kind: str,
        lock: LockRecord,
        holder: Holder,
        *,
        ttl_ms: int | None = None,
        metadata: str | None = None,
        checkpoint: str | None = None,
        result: str | None = None,
        done_until_ms: int | None = None,
        retry_ms: int | None = None,
        by: str | None = None,
        reason: str | None = None,
        ticket: int = 0,
        began_ms: int | None = None,
        until_ms: int | None = None,
        uncounted: bool = False,
        effect_key: str | None = None,
    ) -> None:
        """Note an event of this moment about one hold. By plain keywords: a compiled call with `**` is a slow one."""
        self.events.append(
            Event(
                at_ms=self.now_ms,
                kind=kind,
                ns=lock.ns,
                job=lock.name,
                owner=holder.owner,
                principal=holder.principal,
                token=holder.token,
                mode=holder.mode,
                attempt=holder.attempt,
                slots=lock.slots,
                slot_numbers=holder.slot_numbers,
                ttl_ms=ttl_ms,
                metadata=metadata,
                checkpoint=checkpoint,
                result=result,
                done_until_ms=done_until_ms,
                retry_ms=retry_ms,
                by=by,
                reason=reason,
                ticket=ticket,
                began_ms=began_ms,
                until_ms=until_ms,
                uncounted=uncounted,
                effect_key=effect_key,
            )
        )


def _key(record: LockRecord | Ticket | SessionRecord | Tree | Meta | Pulse) -> str:
    if isinstance(record, LockRecord):
        return lock_key(record.ns, record.name)
    if isinstance(record, Ticket):
        return ticket_key(record.ns, record.name, record.number)
    if isinstance(record, SessionRecord):
        return session_key(record.id)
    if isinstance(record, Tree):
        return tree_key(record.namespace(), record.page)
    return META_KEY if isinstance(record, Meta) else pulse_key(record.server)
