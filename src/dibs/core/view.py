"""What a decision may look at: the store's time and the records, read as the rules ask for them.

A record that was not loaded raises `Missing`; the coordinator loads it and decides again. So rules that look at several
records stay simple code, and all records that were looked at are known: the write happens only if none of them changed.
Beginning again costs all the work so far, so it is for the first few records, which can then be of one moment. A
decision that needs more goes on with what `load` reads.
"""

from __future__ import annotations

from dibs.base.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dibs.core.events import Event
    from dibs.core.outcomes import Granted, GrantedAll, Outcome
    from dibs.core.records import Stored


ALL_TIME_MS = 2**60


class Missing(Exception):
    """The decision needs these keys; load them and decide again."""

    def __init__(self, *keys: str) -> None:
        super().__init__(*keys)
        self.keys = keys


class View:
    """Records by key at one instant. `None` is a record known to be absent. `seen` are the keys looked at. `load`, if
    there is one, adds records instead of `Missing`. Nobody vouches for the time after `vouched_ms`: a deadline after it
    counts as not reached (`expiry.py`)."""

    __slots__ = ("load", "now_ms", "records", "seen", "vouched_ms")

    def __init__(self, now_ms: int, records: dict[str, Stored | None] | None = None) -> None:
        self.now_ms = now_ms
        self.vouched_ms = ALL_TIME_MS
        self.records: dict[str, Stored | None] = {} if records is None else records
        self.seen: set[str] = set()
        self.load: Callable[[Iterable[str]], None] | None = None

    def get(self, key: str) -> Stored | None:
        self.seen.add(key)
        try:
            return self.records[key]
        except KeyError:
            self._load((key,))
        return self.records[key]

    def need(self, keys: Iterable[str]) -> None:
        missing = [key for key in keys if key not in self.records]
        if missing:
            self._load(missing)

    def _load(self, keys: Iterable[str]) -> None:
        if self.load is None:
            raise Missing(*keys) from None
        self.load(keys)

    def apply(self, decision: Decision) -> None:
        """Show the next decision of the same batch what this one is about to write."""
        self.records.update(decision.writes)


class HandedOver(Record):
    """A job given to a waiter, so that this waiter can be told without asking again."""

    ns: str
    name: str
    number: int
    outcome: Granted | GrantedAll


class Decision(Record):
    """The answer, the records to write, and what to report: events, and the waiters that got a job. A write of None
    deletes."""

    outcome: Outcome
    writes: dict[str, Stored | None] = {}  # noqa: RUF012 - never mutated; a fresh dict is passed to write
    events: tuple[Event, ...] = ()
    handed: tuple[HandedOver, ...] = ()
