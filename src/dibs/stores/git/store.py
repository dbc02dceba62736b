"""The port's methods on git.

`_tips` is what this process last saw of each ref. A read looks anew, always. A commit begins with what was read, and
looks anew when git says that a ref has moved: if versions are as expected all the same (somebody only touched it), it
tries again, and if not it is a Conflict.
"""

from __future__ import annotations

import time
from _thread import RLock

from dibs import clock
from dibs.core.limits import GIT_KEYS_MAX, GIT_TORN_TRIES_MAX, GIT_TRIES_MAX
from dibs.core.records import LOCK_PREFIX, META_KEY, LockRecord, Meta, shifted
from dibs.errors import NotAllowed, StoreCorrupt, StoreUnavailable
from dibs.ids import new_fraction
from dibs.stores.git import history, private
from dibs.stores.git.entries import BadEntry, parse, tail_of
from dibs.stores.git.highwater import HighWater
from dibs.stores.git.plan import CommitPlan, home_of
from dibs.stores.git.refs import LocalRefs, RemoteRefs
from dibs.stores.git.times import Clocks, StoreTime
from dibs.stores.port import ABSENT, Capabilities, Conflict, Due, Maintenance, Snapshot, Store, Versioned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.git.branch_push import BranchUpdate
    from dibs.stores.git.entries import Entry
    from dibs.stores.git.location import GitLocation

_NO_ORDER = "number the events of different jobs in one order: every claim would have to wait for every other"
_NO_CREDIT = "give credit for an outage: there is no server to notice one"
_CLOCK = "each machine's own; a record counts as put when it was first seen, or by the remote's clock less 15 minutes"

NEW_MS = 60_000
NEVER_MS = 2**62
_META = tail_of(META_KEY)

LOCAL = Capabilities(
    name="git",
    clock=_CLOCK,
    reach="host",
    watch="polling",
    durable=True,
    commit_keys_max=GIT_KEYS_MAX,
    one_log=False,
    serves=False,
    poll_ms=200,
    cannot=(_NO_ORDER, _NO_CREDIT, "stand behind a server: SQLite is the faster by far"),
)
REMOTE = LOCAL.replace(
    name="git remote",
    reach="network",
    poll_ms=5_000,
    cannot=(
        _NO_ORDER,
        _NO_CREDIT,
        "hand a job over within a second: who waits looks every 5 seconds (every second on a `file://` remote)",
        "stand behind a server: its beats would be several pushes a second",
        "outlive a power cut better than the remote's own git does",
    ),
)


class GitStore(Store, Maintenance):
    """Records as refs of a clone or of a remote. See the package's text."""

    def __init__(self, location: GitLocation, clocks: Clocks | None = None) -> None:
        self.location = location
        self.capabilities = (LOCAL if location.is_local else REMOTE).replace(poll_ms=location.poll_ms)
        self.broken: dict[str, str] = {}  # refs that cannot be read, and why
        self.refs = LocalRefs(location) if location.is_local else RemoteRefs(location)
        self.time = StoreTime(
            location.folder,
            clocks or Clocks(),
            location.skew_ms,
            stated=location.skew_is_stated,
            remote=self.refs.clock,
        )
        if (
            not location.is_local and new_fraction() < 1 / 256
        ):  # few runs look how large the cache is; it grows slowly
            private.shrink(location)
        self.tokens = HighWater(location.folder)
        self._lock = RLock()
        self._tips: dict[str, Entry | None] = {}
        self._last_seq = 0
        self._riding: tuple[BranchUpdate, Callable[[Mapping[str, Stored | None]], bool]] | None = None
        self._told: dict[str, int] | None = (
            None  # the newest event of each ref, when `events` last told of all
        )

    # -- looking

    def look(self, tails: Sequence[str]) -> dict[str, Entry]:
        """The entries of these refs as they are now, by tail. Those that cannot be read go to `broken`."""
        with self._lock:
            found = self.refs.look(tails)
            known = {(tail, tip.oid): tip for tail, tip in self._tips.items() if tip is not None}
            raw = self.refs.objects({oid for tail, oid in found.items() if (tail, oid) not in known})
            self.broken = {
                tail: why
                for tail, why in self.broken.items()
                if not any(tail.startswith(each) for each in tails)
            }
            entries: dict[str, Entry] = {}
            for tail, oid in found.items():
                try:
                    entries[tail] = known.get((tail, oid)) or parse(oid, tail, *raw[oid])
                except BadEntry as error:
                    self.broken[tail] = str(error)
            self.time.notice(entries.values())
            self._notice_tokens(tails, entries)
            for tail in tails:
                if tail and not tail.endswith("/"):
                    self._tips[tail] = None
            self._tips.update(entries)
            self._last_seq = max([self._last_seq, *[entry.seq for entry in entries.values()]])
            return entries

    def _notice_tokens(self, tails: Sequence[str], entries: Mapping[str, Entry]) -> None:
        """Has the remote been put back? Of refs that were asked for, an absent one counts as 0."""
        asked = [
            tail
            for tail in {*self.tokens.known(), *tails}
            if tail.startswith(LOCK_PREFIX) and not tail.endswith("/") and tail.startswith(tuple(tails))
        ]
        found = dict.fromkeys([*asked, *[tail for tail in entries if tail.startswith(LOCK_PREFIX)]], 0)
        for tail, entry in entries.items():
            if isinstance(entry.stored, LockRecord):
                found[tail] = entry.stored.token
        for tail in self.broken:
            found.pop(tail, None)
        meta = entries.get(_META) or self._tips.get(_META)
        floor = meta.stored.token_floor if meta is not None and isinstance(meta.stored, Meta) else 0
        self.tokens.notice(found, floor, whole=_META in entries or _META in tails or "" in tails)

    def _look_whole(self, tails: Sequence[str]) -> dict[str, Entry]:
        """`look`, with all that changed in one step seen changed or all unchanged.

        A server moves the refs of one push one after the other, so a reader may come in between."""
        entries: dict[str, Entry] = {}
        for attempt in range(GIT_TORN_TRIES_MAX):
            if attempt:
                time.sleep(0.002 * attempt)
            entries = self.look(tails)
            if not self._is_torn(entries, tails):
                break
        return entries  # a server that died in the middle of a push leaves what is there

    def entry(self, key: str) -> Entry | None:
        """What was last seen of a key. One that cannot be read is StoreCorrupt."""
        tail = tail_of(key)
        if tail in self.broken:
            raise StoreCorrupt(
                f"The record of {key!r} cannot be used: {self.refs.name(tail)} was not written by dibs, or by hand: "
                f"{self.broken[tail]}. Look at it with `git log`, then delete that ref; its fencing numbers begin anew."
            )
        return self._tips.get(tail)

    def shown(self, entry: Entry) -> Versioned:
        """An entry as the port has it, in this machine's time."""
        if entry.stored is None:
            return ABSENT
        return Versioned(version=entry.version, record=shifted(entry.stored, self.time.shift_ms(entry)))

    # -- the port

    def read(self, keys: Iterable[str]) -> Snapshot:
        wanted = list(keys)
        with self._lock:
            self._look_whole([tail_of(key) for key in wanted])
            found = {key: self.entry(key) for key in wanted}
            records = {key: ABSENT if each is None else self.shown(each) for key, each in found.items()}
            if META_KEY in records and self.tokens.raised:
                records[META_KEY] = self._raised(records[META_KEY])
            return Snapshot(now_ms=self.time.now_ms(), records=records)

    def _raised(self, meta: Versioned) -> Versioned:
        """`meta` with the floor that numbers must be above since the remote was put back."""
        record = meta.record if isinstance(meta.record, Meta) else Meta()
        floor = max(record.token_floor, self.tokens.raised)
        return Versioned(version=meta.version, record=record.replace(token_floor=floor))

    def commit(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> int:
        with self._lock:
            tails = [tail_of(key) for key in dict.fromkeys([*expect, *[home_of(e, {}) for e in events]])]
            if not (puts or events) or not self._is_whole(tails) or not self._is_as(expect):
                self._look_whole(tails)
            for attempt in range(GIT_TRIES_MAX):
                if attempt:
                    time.sleep(0.005 * attempt * new_fraction())
                    self._look_whole(tails)
                if not self._is_as(expect) or not self._is_above(puts):
                    raise Conflict
                if self._try(expect, puts, events):
                    return self._last_seq
            raise StoreUnavailable(
                f"Others kept getting in the way at {self.location.shown}, though nobody changed what this is about. "
                "Try again; if it stays so, look for lock files that a killed git left there."
            )

    def _try(
        self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]
    ) -> bool:
        plan = self._plan()
        plan.build(expect, puts, events, self._last_seq)
        try:
            return self._swap(plan, puts)
        except NotAllowed:
            if not plan.anew:
                raise
        # The remote takes no ref that does not follow from what it was: then its chain grows on.
        plan = self._plan(anew=False)
        plan.build(expect, puts, events, self._last_seq)
        return self._swap(plan, puts)

    def _plan(self, *, anew: bool = True) -> CommitPlan:
        past = (lambda tip: history.of_chain(self, tip)) if anew else None
        return CommitPlan(self.refs, self.time, self._tips, past)

    def _swap(self, plan: CommitPlan, puts: Mapping[str, Stored | None]) -> bool:
        if not plan.made:
            return True
        self.refs.keep(plan.commits)
        if not self.refs.swap(plan.swaps, self._branch_update(puts)):
            return False
        self._riding = None
        self._tips.update(plan.made)
        self._last_seq = max(self._last_seq, plan.last_seq)
        self._notice_tokens(list(plan.made), plan.made)
        return True

    def _is_above(self, puts: Mapping[str, Stored | None]) -> bool:
        """Whether no fencing number is given out that is not above all that this clone has seen of its job."""
        for key, record in puts.items():
            if isinstance(record, LockRecord):
                tip = self._tips.get(tail_of(key))
                before = tip.stored.token if tip is not None and isinstance(tip.stored, LockRecord) else 0
                if not self.tokens.passes(tail_of(key), before, record.token):
                    return False
        return True

    def _branch_update(self, puts: Mapping[str, Stored | None]) -> BranchUpdate | None:
        return self._riding[0] if self._riding is not None and self._riding[1](puts) else None

    def _is_as(self, expect: Mapping[str, int]) -> bool:
        """Whether what was last seen has the versions expected."""
        found = {tail_of(key): self.entry(key) for key in expect}
        for key, version in expect.items():
            entry = found[tail_of(key)]
            if (entry.shown_version if entry is not None else 0) != version:
                return False
        return True

    def _is_whole(self, tails: Sequence[str]) -> bool:
        """Whether all of these were seen before, and no step shows in one and not in another: they may have been
        looked at one after the other. `meta` is not locked, so this is what keeps it in step with jobs put away."""
        if not all(tail in self._tips for tail in tails):
            return False
        seen = {tail: tip for tail in tails if (tip := self._tips[tail]) is not None}
        return not self._is_torn(seen, tails, new_ms=NEVER_MS)

    def _is_torn(self, entries: Mapping[str, Entry], asked: Sequence[str], new_ms: int = NEW_MS) -> bool:
        """Whether one of these was changed in a step of which another one shows nothing.

        One that was asked for and is not there at all counts while the step is new: later, it was cleared away."""
        for entry in entries.values():
            for tail, version in entry.together.items():
                other = entries.get(tail)
                if other is not None:
                    if other.version < version:
                        return True
                elif tail in asked and self.time.rough_age_ms(entry) < new_ms:
                    return True
        return False

    def _all(self, prefix: str = "") -> list[Entry]:
        kind, slash, _ = prefix.partition("/")
        return list(self._look_whole([f"{kind}/"] if slash else [""]).values())

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        with self._lock:
            found = [
                each
                for each in self._all(prefix)
                if each.stored is not None
                and each.key.startswith(prefix)
                and each.key > after
                and (not live or each.stored.is_live())
            ]
            found.sort(key=lambda each: each.key)
            return [(each.key, self.shown(each)) for each in found[: max(0, limit)]]

    def _dues(self) -> list[tuple[int, str]]:
        shown = [(each.key, self.shown(each).record) for each in self._all()]
        dues = [(record.due_ms(), key) for key, record in shown if record is not None]
        return sorted((due_ms, key) for due_ms, key in dues if due_ms is not None)

    def due(self, limit: int) -> Due:
        with self._lock:
            dues = self._dues()
            now_ms = self.time.now_ms()
            keys = [key for due_ms, key in dues if due_ms <= now_ms][: max(0, limit)]
            return Due(keys=keys, next_ms=dues[0][0] if dues else None)

    def events(
        self, after: int, limit: int, job: tuple[str, str] | None = None, *, newest: bool = False
    ) -> list[Event]:
        with self._lock:
            if job is not None:
                return history.of_job(self, after, limit, job, newest=newest)
            entries = self.look([""])
            self._told = {tail: entry.seq for tail, entry in entries.items()}
            return history.of_all(self, entries.values(), after, limit, newest=newest)

    def watch(self, after: int, timeout_ms: int) -> bool:
        """Looks every `poll_ms`. Numbers go by their writers' clocks, so what counts as news as well is any ref
        that tells more than it did when `events` was last asked."""
        until_ms = clock.steady_ms() + timeout_ms
        while True:
            entries = self.look([""])
            told = self._told
            if any(
                entry.seq > after or (told is not None and entry.seq > told.get(tail, 0))
                for tail, entry in entries.items()
            ):
                return True
            left_ms = until_ms - clock.steady_ms()
            if left_ms <= 0:
                return False
            time.sleep(min(self.location.poll_ms * (0.75 + new_fraction() / 2), left_ms) / 1000)

    def prune(self, *, keep: int, before_ms: int) -> int:
        with self._lock:
            return history.prune(self, keep=keep, before_ms=before_ms)

    def size_bytes(self) -> int:
        found = self.refs.objects(set(self.refs.look([""]).values()))
        return sum(len(content) for _, content in found.values())

    def tidy(self) -> dict[str, Any]:
        from dibs.stores.git.tidy import tidy

        with self._lock:
            return tidy(self)

    def notices(self) -> list[str]:
        if not self.tokens.fallen:
            return []
        tail, (seen, found) = next(iter(self.tokens.fallen.items()))
        return [
            f"{self.location.shown} was put back: the fencing number of {self.refs.name(tail)} was {seen} and is "
            f"{found} now. Claims that were made since are gone. "
            "New numbers begin above the highest that this clone has seen."
        ]

    def probe(self) -> list[dict[str, Any]]:
        from dibs.stores.git.probe import Probe

        with self._lock:
            return Probe(self, clock.steady_ms).run()

    def carry(
        self, branch: str | None, folder: str, when: Callable[[Mapping[str, Stored | None]], bool]
    ) -> dict[str, Any]:
        """Let a branch of the clone at `folder` go with the first commit whose puts satisfy `when`: both, or neither.
        Returns what will be pushed."""
        from dibs.stores.git.branch_push import branch_update_for

        branch_update = branch_update_for(self.location, branch, folder)
        self._riding = (branch_update, when)
        return {
            "branch": branch_update.name.removeprefix("refs/heads/"),
            "before": branch_update.old or None,
            "after": branch_update.new,
        }

    def close(self) -> None:
        """Nothing is kept open."""
