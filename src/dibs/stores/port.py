"""The store port: what dibs needs from a store, and the contract of each call.

A store keeps records under string keys, each with a version, and a log of events. It compares and swaps; it never looks
inside a record except to ask `record.due_ms()` and `record.is_live()`, and it never decides anything.
`dibs.testing.contract` is the suite that every store passes, the ones shipped here and yours.

A store must have eight methods: `read`, `commit`, `scan`, `due`, `events`, `watch`, `prune`, `close`. Eight more have a
default that a store may replace: `recall`, `at_once`, `newest_seq`, `until_gone`, `on_gone`, `notices`, `trouble`,
`damaged`.
`Maintenance` is optional.

Five things hold for every method:

1. Calls are synchronous and may come from any thread. A store serialises them itself.
2. Errors of the driver never leave the store. They become one of `dibs.base.errors` (StoreUnavailable, StoreFull,
   StoreReplaced, StoreCorrupt, StoreTooNew; StoreDenied if it does not let this program in, NotAllowed if its user may
   not write) in one place of the store.
3. `StoreUnavailable(unknown=True)` means "the write may have happened". It is allowed only from `commit`.
   Every other error means that nothing was changed.
4. Time comes from the store: one clock for everybody who shares the store, in milliseconds. It never runs backwards.
5. Keys are text of any printable characters; their order is the order of their code points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from dibs.base.cheap import AbstractContextManager, Any, Callable, Iterable, Mapping, Sequence, TypeVar
from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput, StoreCorrupt, StoreUnavailable
from dibs.base.record import Record
from dibs.core.events import Event
from dibs.core.limits import COMMIT_BATCH_MAX
from dibs.core.records import Stored

Job = tuple[str, str]  # namespace and name
Puts = Mapping[str, Stored | None]  # records to be written; None deletes one
Page = list[tuple[str, "Versioned"]]  # records with their keys, in the order of these
Method = TypeVar("Method", bound=Callable[..., object])


class Conflict(Exception):
    """A record in `expect` is not at the version that was read. Nothing was written; read again and decide again."""


class CommitTooLarge(InvalidInput):
    """A record has more text than the store can keep. Nothing was written; the other commands of the batch may fit."""


EVENT_PREFIX = "event/"  # and its number: the key of an event among those that are damaged


class RecordCorrupt(StoreCorrupt):
    """One record or event cannot be read. The store answers."""

    public = "A record that this needs is damaged. Who runs the server finds its key in the log, and sets it aside."

    def __init__(self, details: str, key: str = "") -> None:
        super().__init__(details)
        self.key = key


def concerns_all(error: BaseException) -> bool:
    """Return whether the store itself cannot be used. Otherwise the error is about one record or command."""
    return isinstance(error, DibsError) and not isinstance(error, RecordCorrupt | InvalidInput)


class Busy(StoreUnavailable):
    """Others use the store, and the caller does not wait for them (`Store.at_once`). Nothing was written."""


class Versioned(Record):
    """A record as read. Version 0 with record None: absent."""

    version: int
    record: Stored | None


ABSENT = Versioned(version=0, record=None)
LOOKS_AT_DAMAGE = 100  # a server's health asks often, and a whole file may be damaged


class Snapshot:
    """Records and the store's time, read together: no record in it is newer than `now_ms`."""

    __slots__ = ("is_recalled", "now_ms", "records")

    def __init__(self, *, now_ms: int, records: dict[str, Versioned], is_recalled: bool = False) -> None:
        self.now_ms = now_ms
        self.records = records
        self.is_recalled = is_recalled  # from memory, by `recall`: records may be old, and of different moments


class Due(Record):
    """Keys that are due, and when the first record is due. `next_ms` None: no record is ever due."""

    keys: list[str]
    next_ms: int | None
    has_more: bool = False  # more may be due now than the keys say, even if they are fewer than the limit


class Capabilities(Record):
    """A store's declaration about itself. The contract suite checks it; the table in the docs is made from it."""

    name: str
    clock: str  # whose clock decides expiry, in a few words
    reach: str  # "process", "host" or "network": who can share it
    watch: str  # "direct", "polling" or "native"
    durable: bool  # what was committed survives kill -9 and power loss
    # Events of all jobs have one order, and an event with a lower `seq` never becomes visible after one with a higher.
    # So a reader that has read up to a number has read all below it. If not, only each job's own events are in order.
    one_log: bool = True
    # Events are numbered without gaps. If not, `seq` rises but may skip numbers: a gap means nothing.
    gapless: bool = True
    serves: bool = True  # a server may use it: servers write several times a second
    # How many commands are best decided in one commit. It must take any number.
    batch_max: int = COMMIT_BATCH_MAX
    poll_ms: int = 0  # a waiter should look at most this often; 0: as often as it likes
    cannot: tuple[str, ...] = ()  # what it cannot do, with the reason; one per line


class Opening(Record):
    """The opener of a store, and its wishes. Fields that are added later have a default, too."""

    serves: bool = False  # a server: it stays, and writes all the time
    # Whether a store of an older format is upgraded. None: as its URL says; the default is yes.
    migrate: bool | None = None


class Store(ABC):
    """The port. What applies to all methods is said at the top of this file."""

    capabilities: Capabilities

    @abstractmethod
    def read(self, keys: Iterable[str]) -> Snapshot:
        """Every key asked for, absent ones as ABSENT, and the time. With no keys it returns only the time. Sees
        everything that anyone committed before the call began."""

    def recall(self, keys: Iterable[str]) -> Snapshot:
        """Like `read`, but a store may answer with the records that it remembers, without a look whether others have
        changed them. Each is at a version that it has now or had before; a record that is not remembered may be
        reported as absent, which it was before it was written. If `is_recalled` is not set, the answer is that of
        `read`. The time is always the time now.

        It is for decisions. A commit compares the versions, so a decision by an old record ends in Conflict; a caller
        that writes nothing must compare the versions with those of a `read`. A store that cannot tell the time without
        a question to its server gains nothing by it, and keeps this default."""
        return self.read(keys)

    @abstractmethod
    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        """Write all or nothing, if every key in `expect` is still at its version (0: absent); else raise Conflict.

        `puts` writes records (None deletes; deleting an absent key is fine). Every key in `puts` is in `expect`.
        `events` are appended in order and get rising `seq` numbers, without gaps if `gapless`. Returns the `seq` of the
        last event in the store after this commit. If the store is not `gapless`: of the last one of `events`, or
        without `events`, of the last one that this connection knows. When it returns, the write is durable (if
        `capabilities.durable`) and visible to everyone. Versions of a key never repeat, even after it was deleted and
        written again. It takes any number of keys and events. A record beyond a store's limit raises CommitTooLarge."""

    def at_once(self) -> AbstractContextManager[object] | None:
        """For a thread that must not be kept waiting, such as that of an event loop. Inside this context its calls
        raise Busy if they would wait for other processes or threads for more than some milliseconds. They still take as
        long as the disk does. Only one thread at a time may use it. None, the default: every call may take long,
        because it is answered by another machine, say."""
        return None

    @abstractmethod
    def scan(self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False) -> Page:
        """Up to `limit` records whose key begins with `prefix` and comes after `after`, in key order; with `live` only
        those whose `is_live()` is true. Fewer mean that there are no more. The cost depends on what it returns, not on
        the size of the store. A record that cannot be read is left out, and `damaged` has it from then on."""

    @abstractmethod
    def due(self, limit: int) -> Due:
        """Up to `limit` keys whose record's `due_ms()` is at or before the store's time, the longest due first.

        `next_ms` is the earliest `due_ms()` of all records, due or not: a sweeper sleeps until then. A store may say an
        earlier time. It may also return fewer keys than there are, and set `has_more`: then the sweeper calls it
        again at once, and each call must come further. `due(0)` returns no keys."""

    @abstractmethod
    def events(self, after: int, limit: int, job: Job | None = None, *, newest: bool = False) -> list[Event]:
        """The first `limit` events with `seq` above `after`, in order; with `job` only those of (namespace, name).
        Fewer mean that there are no more.

        With `one_log`, no event with a number up to that of the last returned event becomes visible later. Numbers may
        be missing if the store is not `gapless`. With `newest` the last events instead of the first, still in order. An
        empty list is not an error, even if the events after `after` have been pruned. An event that cannot be read is
        left out, as if it had been pruned, and `damaged` has it from then on."""

    def newest_seq(self) -> int:
        """The number of the last event, even if it was pruned. Readers ask often, so a store that has to write to know
        it should have its own; this default writes if there are no events."""
        newest = self.events(0, 1, newest=True)
        return newest[-1].seq if newest else self.commit({}, {}, ())

    @abstractmethod
    def watch(self, after: int, timeout_ms: int) -> bool:
        """Wait until the store holds an event with `seq` above `after`, or the time is over. True if it does."""

    def until_gone(self, key: str, timeout_ms: int) -> bool:
        """Wait until there is no record under `key`, or the time is over. True if there is none. StoreWaiters use it: a
        ticket is deleted when the job is handed over. A store for many waiters should wake only the one that a commit
        concerns; this default wakes all of them."""
        until_ms = steady_ms() + timeout_ms
        while True:
            newest = self.events(0, 1, newest=True)
            if self.read((key,)).records[key].record is None:
                return True
            left_ms = until_ms - steady_ms()
            if left_ms <= 0:
                return False
            self.watch(newest[-1].seq if newest else 0, left_ms)

    def on_gone(self, notify: Callable[[Sequence[str]], None]) -> None:
        """While somebody watches, have `notify` called on any thread with the marks (`waiters.mark_of`) of records that
        a commit has deleted, wherever it was made. It is a hint, and may be wrong; this default gives none."""
        return

    @abstractmethod
    def prune(self, *, keep: int, before_ms: int) -> int:
        """Drop events that are older than `before_ms`, and the oldest beyond `keep`. Returns how many were dropped.
        Events are written in the order of their times, so always the beginning of the log is dropped. Sequence numbers
        are not used again, even if all events were dropped."""

    def notices(self) -> list[str]:
        """Messages for people about the store, noticed during its use: one sentence or two each."""
        return []

    def expect_new(self) -> str | None:
        """Do not say in the notices that the store is a new one: whoever opened it may want that. Returns its place, if
        it was made when it was opened."""
        return None

    def trouble(self) -> DibsError | None:
        """A failure of the store that was noticed during its use and is not known to be over: damage that was read, a
        write that failed because the disk is full (StoreFull). That one is over when a commit needed room and got it. A
        commit of nothing must find that out, too: a server tries one when it is asked for its health. Errors that every
        call raises at once need not be remembered here."""
        return None

    def damaged(self) -> list[str]:
        """The keys of the records and events that calls of this store found unreadable, and that still are. A store
        that is not made of text has none."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Close connections and files. Calling it again does nothing."""


def read_sound(store: Store, keys: Iterable[str]) -> Snapshot:
    """Like `Store.read`, but a record that cannot be read is reported as absent. For callers that can do without it; no
    rule may use this."""
    left, damaged = list(keys), []
    while True:
        try:
            found = store.read(left)
        except RecordCorrupt as error:
            if error.key not in left:
                raise
            left.remove(error.key)
            damaged.append(error.key)
            continue
        records = {**found.records, **dict.fromkeys(damaged, ABSENT)}
        return Snapshot(now_ms=found.now_ms, records=records)


def still_damaged(store: Store, found: dict[str, RecordCorrupt]) -> list[str]:
    """The keys of `found` that still cannot be read. The others are dropped from it, a few each time."""
    for key in list(found)[:LOOKS_AT_DAMAGE]:
        if key.startswith(EVENT_PREFIX):
            found.pop(key, None)
            store.events(int(key.removeprefix(EVENT_PREFIX)) - 1, 1)  # notes it again
            continue
        try:
            store.read((key,))
        except RecordCorrupt:
            continue
        found.pop(key, None)
    return sorted(found)


class StoreMoment(ABC):
    """A store as it was at one moment, however long reading takes. `now_ms` is the store's time at that moment."""

    now_ms: int

    @abstractmethod
    def scan(self, prefix: str, after: str = "", limit: int = 1000) -> Page:
        """Like `Store.scan`, without `live`."""

    @abstractmethod
    def events(self, after: int, limit: int) -> list[Event]:
        """Like `Store.events`."""

    def damaged(self) -> list[str]:
        """The keys of what `scan` and `events` left out."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Free its resources. Calling it again does nothing."""


class Maintenance:
    """Optional methods for operators. A store that has any of them inherits this class as well."""

    def moment(self) -> StoreMoment | None:
        """The store as it is now, to be read page by page while others write. None: the store cannot do that."""
        return None

    def size_bytes(self) -> int:
        """About how large the store is. 0: not known."""
        return 0

    def tidy(self) -> dict[str, Any]:
        """Remove internal data that the store no longer needs. Returns what it did, for people."""
        return {}

    def number_from(self, seq: int) -> None:
        """Let the next event have a number above `seq`: the very next one, if the store is `gapless` and has not come
        further. Events that are there keep theirs. An import uses it, so that positions in the other store's events
        stay good or are seen to be gone. Without it the store's own numbers begin anew, and readers may miss events."""

    def migrated(self) -> tuple[int, int] | None:
        """The version of the format on opening (0: there was no store), and now. None: it has no versions."""
        return None

    def set_aside(self, key: str, keep: Callable[[str], None]) -> bool:
        """Remove the record or event under `key`, which cannot be read, after `keep` was given its text. False, and
        nothing is changed, if there is none, it can be read, or somebody has just changed it."""
        return False

    def probe(self) -> list[dict[str, Any]]:
        """Test what the store's location allows, and leave nothing behind. Each test: `check`, `ok` and `says`."""
        return []


def checked(check: str, look: Callable[..., str], *given: object) -> dict[str, Any]:
    """One test of `Maintenance.probe`: what `look` says of what it is given, or the error that it raises."""
    try:
        return {"check": check, "ok": True, "says": look(*given)}
    except DibsError as error:
        return {"check": check, "ok": False, "says": error.details}


def can_be_written(store: Store) -> str:
    """For `checked`: try a commit of nothing."""
    store.commit({}, {}, ())
    return "can be written"


def maintenance_of(store: Store) -> Maintenance:
    """The store itself if it has these methods, or the defaults."""
    return store if isinstance(store, Maintenance) else Maintenance()


def beyond(
    keep: int, last: int, first_above: Callable[[int], int | None], last_up_to: Callable[[int], int | None]
) -> int:
    """The number of the newest event that is too many if `keep` are kept; 0: none is. For stores whose numbers count
    events, but for those that a copy skips (`number_from`): counts by numbers, one run of events after the other."""
    at = last_up_to(last)
    while at is not None and keep > 0:
        first = first_above(at - keep)
        if first is None or first > at:  # others prune, too
            return 0
        keep -= at - first + 1
        at = last_up_to(first - 1)
    return at or 0


def _forwarded(method: Method) -> Method:
    def forward(self: StoreProxy, *values: Any, **named: Any) -> Any:
        return getattr(self.inner, method.__name__)(*values, **named)

    return forward  # type: ignore[return-value]  # it takes what the method takes


def _asked(method: Method) -> Method:
    def ask(self: StoreProxy, *values: Any, **named: Any) -> Any:
        return self._ask(getattr(self.inner, method.__name__), *values, **named)

    return ask  # type: ignore[return-value]  # it takes what the method takes


class StoreProxy(Store):
    """A store in front of another: every call goes to `inner` unless a subclass says otherwise, also the methods that
    have a default in the port, because the inner store may have its own. Two keep the default. `recall` is `read`, so
    that a subclass replaces both when it replaces `read`. `at_once` is None: a subclass may take long."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities

    def _ask(self, call: Callable[..., Any], *values: Any, **named: Any) -> Any:
        """Reads and commits come here, for a subclass that does the same around each."""
        return call(*values, **named)

    read = _asked(Store.read)
    commit = _asked(Store.commit)
    scan = _asked(Store.scan)
    due = _asked(Store.due)
    events = _asked(Store.events)
    newest_seq = _forwarded(Store.newest_seq)
    watch = _forwarded(Store.watch)
    until_gone = _forwarded(Store.until_gone)
    on_gone = _forwarded(Store.on_gone)
    prune = _forwarded(Store.prune)
    notices = _forwarded(Store.notices)
    expect_new = _forwarded(Store.expect_new)
    trouble = _forwarded(Store.trouble)
    damaged = _forwarded(Store.damaged)
    close = _forwarded(Store.close)
