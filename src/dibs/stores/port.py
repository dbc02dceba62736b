"""The store port: what dibs asks of a store, and the contract of each call.

A store keeps records under string keys, each with a version, and a log of events. It compares and swaps; it never looks
inside a record except to ask `record.due_ms()` and `record.is_live()`, and it never decides anything.
`dibs.testing.contract` is the suite that every store passes, the ones shipped here and yours.

A store must have eight methods: `read`, `commit`, `scan`, `due`, `events`, `watch`, `prune`, `close`. Three more have a
default that a store may replace: `until_gone`, `notices`, `trouble`. `Maintenance` is optional.

Five things hold for every method:

1. Calls are synchronous and may come from any thread. A store serialises them itself.
2. An error of the driver beneath never leaves: it becomes one of `dibs.errors` (StoreUnavailable, StoreFull,
   StoreReplaced, StoreCorrupt, StoreTooNew; NotAllowed where the store itself has rules about who may write) at one
   place in the store.
3. `StoreUnavailable(unknown=True)` means "the write may have happened". It is allowed only from `commit`. Everything
   else means that nothing was changed.
4. Time is the store's: one clock for everybody who shares the store, in milliseconds, never running backwards.
5. Keys are text of any printable characters; their order is the order of their code points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from dibs.clock import steady_ms
from dibs.core.record import Record
from dibs.errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.errors import DibsError


class Conflict(Exception):
    """A record in `expect` is not at the version that was read. Nothing was written; read again and decide again."""


class CommitTooLarge(InvalidInput):
    """A commit has more text than the store takes in one write. Nothing was written; fewer commands may fit."""


class Versioned(Record):
    """A record as read. Version 0 with record None: absent."""

    version: int
    record: Stored | None


ABSENT = Versioned(version=0, record=None)


class Snapshot(Record):
    """Records and the store's time, read together: no record in it is newer than `now_ms`."""

    now_ms: int
    records: dict[str, Versioned]


class Due(Record):
    """Keys that are due, and when the first record is due. `next_ms` None: no record is ever due."""

    keys: list[str]
    next_ms: int | None


class Capabilities(Record):
    """What a store is, declared. The contract suite holds it to this; the docs' table is made from it."""

    name: str
    clock: str  # whose clock decides expiry, in a few words
    reach: str  # "process", "host" or "network": who can share it
    watch: str  # "direct", "polling" or "native"
    durable: bool  # what was committed survives kill -9 and power loss
    commit_keys_max: int  # how many keys one commit may compare; it writes none that it does not compare
    # Events of all jobs have one order, and one with a lower `seq` never becomes visible after one with a higher: who
    # read up to a number has read all below it. If not, only each job's own events are in order.
    one_log: bool = True
    # Events are numbered one after another. If not, `seq` rises and leaves numbers out: a gap says nothing.
    gapless: bool = True
    serves: bool = True  # a server may stand on it: it writes several times a second
    poll_ms: int = 0  # how often somebody who waits should look, at most; 0: as often as it likes
    cannot: tuple[str, ...] = ()  # what it cannot do, one reason a line


class Opening(Record):
    """What a store may want to know of who opens it. Fields that are added later have a default, too."""

    serves: bool = False  # a server: it stays, and writes all the time
    # Whether a store of an older format is brought up to this one. None: as its URL says; if it says nothing, yes.
    migrate: bool | None = None


class Store(ABC):
    """See the module's text for what holds for all methods."""

    capabilities: Capabilities

    @abstractmethod
    def read(self, keys: Iterable[str]) -> Snapshot:
        """Every key asked for, absent ones as ABSENT, and the time. With no keys it just tells the time.

        Sees everything committed before the call began, by anyone."""

    @abstractmethod
    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        """All of it or none, if every key in `expect` is still at its version (0: absent); else raise Conflict.

        `puts` writes records (None deletes; deleting an absent key is fine). Every key in `puts` is in `expect`.
        `events` are appended in order and given rising `seq` numbers, the next ones where `gapless`. Returns the `seq`
        of the last event in the store after this commit; where the store is not `gapless`, of the last one of
        `events`, and if there are none, of the last one that this connection knows of. When it returns, the write is
        durable (if `capabilities.durable`) and visible to everyone. Versions of a key never repeat, also not after it
        was deleted and written anew. `expect` has `commit_keys_max` keys at most. A store that takes only so many bytes
        in one write raises CommitTooLarge for more."""

    @abstractmethod
    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        """Up to `limit` records whose key begins with `prefix` and comes after the key `after`, in key order; with
        `live` only those whose `is_live()` is true. On a large store it costs what it returns."""

    @abstractmethod
    def due(self, limit: int) -> Due:
        """Up to `limit` keys whose record's `due_ms()` is at or before the store's time, the longest due first.

        `next_ms` is the earliest `due_ms()` of all records, due or not: a sweeper sleeps until then. `due(0)` asks for
        that alone."""

    @abstractmethod
    def events(
        self, after: int, limit: int, job: tuple[str, str] | None = None, *, newest: bool = False
    ) -> list[Event]:
        """The first `limit` events with `seq` above `after`, in order; with `job` only those of (namespace, name).
        Fewer mean that there are no more.

        With `one_log`, nothing with a number up to that of the last event returned becomes visible later. Numbers
        between two events may be missing where the store is not `gapless`.

        With `newest` the last ones instead of the first, still in order. An empty list is no error, also when what came
        after `after` has been pruned."""

    @abstractmethod
    def watch(self, after: int, timeout_ms: int) -> bool:
        """Wait until the store holds an event with `seq` above `after`, or the time is over. True if it does."""

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        """Wait until there is no record under `key`, or the time is over. True if there is none.

        What somebody in a line waits for: its ticket goes when the job is handed over. A store that many may wait at
        should wake the one whom a commit concerns, and not all of them, as this does."""
        until_ms = steady_ms() + timeout_ms
        while True:
            newest = self.events(0, 1, newest=True)
            if self.read((key,)).records[key].record is None:
                return True
            left_ms = until_ms - steady_ms()
            if left_ms <= 0:
                return False
            self.watch(newest[-1].seq if newest else 0, left_ms)

    @abstractmethod
    def prune(self, *, keep: int, before_ms: int) -> int:
        """Drop events that are older than `before_ms`, and the oldest beyond `keep`. Returns how many went.

        Events are written in the order of their times, so what goes is always the beginning of the log.

        Sequence numbers are not used again, even when all events are gone."""

    def notices(self) -> list[str]:
        """What people should be told about the store, noticed while it was used: one sentence or two each."""
        return []

    def trouble(self) -> DibsError | None:
        """What its use has shown to be wrong with the store, and has not shown to be over: damage that was read, a
        write that failed for want of room. What a call raises at once need not be remembered for this."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. Calling it again does nothing."""


class StoreMoment(ABC):
    """A store as it was at one moment, however long it is looked at. `now_ms` is the store's time then."""

    now_ms: int

    @abstractmethod
    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, Versioned]]:
        """As the store's own, without `live`."""

    @abstractmethod
    def events(self, after: int, limit: int) -> list[Event]:
        """As the store's own."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it. Calling it again does nothing."""


class Maintenance:
    """What a store may offer to the people who look after it. A store that has any of it inherits this as well."""

    def moment(self) -> StoreMoment | None:
        """The store as it is now, to be read page by page while others write. None: the store cannot do that."""
        return None

    def size_bytes(self) -> int:
        """About how much room the store takes. 0: not known."""
        return 0

    def tidy(self) -> dict[str, Any]:
        """Remove what the store keeps for itself and no longer needs. Returns what it did, for people."""
        return {}

    def migrated(self) -> tuple[int, int] | None:
        """The version of the format that was found on opening (0: there was no store), and the one it is at now. None:
        it has no versions."""
        return None

    def probe(self) -> list[dict[str, Any]]:
        """Try what the store's location allows and leave nothing behind: `check`, `ok` and `says` for each try."""
        return []


def maintenance_of(store: Store) -> Maintenance:
    """The store's own, or the defaults."""
    return store if isinstance(store, Maintenance) else Maintenance()
