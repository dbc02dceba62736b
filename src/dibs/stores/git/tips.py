"""Remembers what this process last saw of each ref. A read always looks at the refs. A commit begins with what was
read, and looks again when git says that a ref has moved. History, tidying and the probe use the same view as the store.
"""

from __future__ import annotations

import os
import time
from _thread import RLock
from collections.abc import Mapping, Sequence

from dibs.core.limits import GIT_TOKENS_KEPT, GIT_TORN_TRIES_MAX
from dibs.core.records import LOCK_PREFIX, META_KEY, LockRecord, Meta, shifted
from dibs.stores.git.entries import BadEntry, Entry, ForeignEntry, parse, tail_of
from dibs.stores.git.location import GitLocation
from dibs.stores.git.refs import Refs
from dibs.stores.git.repository import file_lock, load_json, save_json
from dibs.stores.git.times import LOCK, Clocks, StoreTime
from dibs.stores.port import ABSENT, Puts, RecordCorrupt, Versioned

# The highest fencing numbers that this clone has seen, kept in the clone.
#
# A remote can be restored from a backup, or emptied by `git push --mirror` from a clone that has no claims. Its
# numbers would then begin again, and a system that compares them would accept an old owner. A clone that has seen
# higher numbers continues above them, and says so. Numbers that no clone has seen are lost.


class HighWater:
    """The highest fencing numbers that this clone has seen. `raised`: new numbers must be above this, because the
    remote was put back; 0: it was not. `fallen` names the refs that showed it, with the number seen before and the
    number found."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, "tokens.json")
        self.seen: dict[str, int] = self._load()  # by the tails of the jobs' refs
        self.raised = 0
        self.fallen: dict[str, tuple[int, int]] = {}

    def notice(self, found: Mapping[str, int], floor: int, *, whole: bool) -> None:
        """Compare the numbers found, by the tails of their jobs' refs, with those seen before, and remember what is
        higher. `whole`: `floor` was read with them; else it may have risen since, and a lower number means nothing."""
        risen: dict[str, int] = {}
        for tail, token in found.items():
            at, seen = max(token, floor), self.seen.get(tail, 0)
            if at > seen:
                risen[tail] = at
            elif at < seen:
                self.raised = max(self.raised, seen)
                if whole:
                    self.fallen[tail] = (seen, at)
        if risen:
            self._remember(risen)

    def passes(self, tail: str, before: int, after: int) -> bool:
        """Return whether a job's number may go from `before` to `after`. If not, `raised` is what it must be above."""
        seen = self.seen.get(tail, 0)
        if before < after <= seen:
            self.raised = max(self.raised, seen)
            return False
        return True

    def _remember(self, risen: Mapping[str, int]) -> None:
        with file_lock(self._folder, LOCK):
            for tail, token in (*self._load().items(), *risen.items()):
                self.seen[tail] = max(token, self.seen.get(tail, 0))
            if len(self.seen) > GIT_TOKENS_KEPT:  # the lowest go, because the high numbers matter most
                by_token = sorted(self.seen, key=self.seen.__getitem__)
                for tail in by_token[: len(by_token) - GIT_TOKENS_KEPT * 9 // 10]:
                    del self.seen[tail]
            save_json(self._path, self.seen)

    def _load(self) -> dict[str, int]:
        kept = load_json(self._path)
        return {tail: token for tail, token in kept.items() if type(token) is int} if isinstance(kept, dict) else {}


NEW_MS = 60_000
NEVER_MS = 2**62
_META = tail_of(META_KEY)


class Tips:
    """The newest entry of each ref at one location. Hold `lock` to look and then act on the result."""

    def __init__(self, location: GitLocation, refs: Refs, clocks: Clocks | None) -> None:
        self.location = location
        self.refs = refs
        self.lock = RLock()
        self.broken: dict[str, str] = {}  # refs that cannot be read, and why
        self.foreign: set[str] = set()  # those of them that another version of dibs wrote
        self.time = StoreTime(
            location.folder, clocks or Clocks(), location.skew_ms, stated=location.skew_is_stated, remote=refs.clock
        )
        self.tokens = HighWater(location.folder)
        self.known: dict[str, Entry | None] = {}
        self.last_seq = 0

    def look(self, tails: Sequence[str]) -> dict[str, Entry]:
        """The entries of these refs as they are now, by tail. Those that cannot be read go to `broken`."""
        with self.lock:
            found = self.refs.look(tails)
            seen = {(tail, tip.oid): tip for tail, tip in self.known.items() if tip is not None}
            raw = self.refs.objects({oid for tail, oid in found.items() if (tail, oid) not in seen})
            self.broken = {
                tail: why for tail, why in self.broken.items() if not any(tail.startswith(each) for each in tails)
            }
            self.foreign &= self.broken.keys()
            entries: dict[str, Entry] = {}
            for tail, oid in found.items():
                try:
                    entries[tail] = seen.get((tail, oid)) or parse(oid, tail, *raw[oid])
                except BadEntry as error:
                    self.broken[tail] = str(error)
                    if isinstance(error, ForeignEntry):
                        self.foreign.add(tail)
            self.time.notice(tails, entries)
            self._notice_tokens(tails, entries)
            for tail in tails:
                if tail and not tail.endswith("/"):
                    self.known[tail] = None
            self.known.update(entries)
            self.last_seq = max([self.last_seq, *[entry.seq for entry in entries.values()]])
            return entries

    def _notice_tokens(self, tails: Sequence[str], entries: Mapping[str, Entry]) -> None:
        """Check whether the remote was put back. An absent ref that was asked for counts as 0."""
        asked = [
            tail
            for tail in {*self.tokens.seen, *tails}
            if tail.startswith(LOCK_PREFIX) and not tail.endswith("/") and tail.startswith(tuple(tails))
        ]
        found = dict.fromkeys([*asked, *[tail for tail in entries if tail.startswith(LOCK_PREFIX)]], 0)
        for tail, entry in entries.items():
            if isinstance(entry.stored, LockRecord):
                found[tail] = entry.stored.token
        for tail in self.broken:
            found.pop(tail, None)
        meta = entries.get(_META) or self.known.get(_META)
        floor = meta.stored.token_floor if meta is not None and isinstance(meta.stored, Meta) else 0
        self.tokens.notice(found, floor, whole=_META in entries or _META in tails or "" in tails)

    def look_whole(self, tails: Sequence[str]) -> dict[str, Entry]:
        """Like `look`, but all of a step or nothing: a server moves the refs of one push one after the other."""
        entries: dict[str, Entry] = {}
        for attempt in range(GIT_TORN_TRIES_MAX):
            if attempt:
                time.sleep(0.002 * attempt)
            entries = self.look(tails)
            if not self._is_torn(entries, tails):
                break
        return entries  # a server that died during a push leaves such a state for good

    def entry(self, key: str) -> Entry | None:
        """Return what was last seen of a key. Raises RecordCorrupt if it cannot be read."""
        tail = tail_of(key)
        if tail in self.broken:
            name, why = self.refs.name(tail), self.broken[tail]
            if tail in self.foreign:
                raise RecordCorrupt(f"The record of {key!r} cannot be read. {name}: {why}", key)
            raise RecordCorrupt(
                f"The record of {key!r} is invalid: {name} was not written by dibs: {why}.\n"
                f"To set it aside, with its text in a file:  dibs doctor --set-aside {name}",
                key,
            )
        return self.known.get(tail)

    def shown(self, entry: Entry) -> Versioned:
        """An entry in the form of the port, in this machine's time."""
        if entry.stored is None:
            return ABSENT
        shown = shifted(entry.stored, self.time.shift_ms(entry), self.time.dates_shift_ms(entry))
        return Versioned(version=entry.version, record=shown)

    def is_as(self, expect: Mapping[str, int]) -> bool:
        tips = [(self.entry(key), version) for key, version in expect.items()]
        return all((0 if tip is None or tip.stored is None else tip.version) == version for tip, version in tips)

    def is_whole(self, tails: Sequence[str]) -> bool:
        """Return whether all of these were seen before, and no step was seen only in a part of them: they may have been
        read one after the other. `meta` is not locked, so this keeps it consistent with deleted jobs."""
        if not all(tail in self.known for tail in tails):
            return False
        seen = {tail: tip for tail in tails if (tip := self.known[tail]) is not None}
        return not self._is_torn(seen, tails, new_ms=NEVER_MS)

    def _is_torn(self, entries: Mapping[str, Entry], asked: Sequence[str], new_ms: int = NEW_MS) -> bool:
        """Return whether one of these was changed in a step that another one does not show. A ref that does not exist
        counts only while the step is new: later, it may have been deleted."""
        for entry in entries.values():
            for tail, version in entry.together.items():
                other = entries.get(tail)
                if other is not None:
                    if other.version < version:
                        return True
                elif tail in asked and self.time.rough_age_ms(entry) < new_ms:
                    return True
        return False

    def is_above(self, puts: Puts) -> bool:
        """Return whether all new fencing numbers are above those that this clone has seen of their jobs."""
        for key, record in puts.items():
            if isinstance(record, LockRecord):
                tip = self.known.get(tail_of(key))
                before = tip.stored.token if tip is not None and isinstance(tip.stored, LockRecord) else 0
                if not self.tokens.passes(tail_of(key), before, record.token):
                    return False
        return True

    def with_floor(self, meta: Versioned) -> Versioned:
        """`meta` with a raised floor, if the remote was put back."""
        record = meta.record if isinstance(meta.record, Meta) else Meta()
        floor = max(record.token_floor, self.tokens.raised)
        return Versioned(version=meta.version, record=record.replace(token_floor=floor))

    def notices(self) -> list[str]:
        if not self.tokens.fallen:
            return []
        tail, (seen, found) = next(iter(self.tokens.fallen.items()))
        return [
            f"{self.location.shown} was put back: the fencing number of {self.refs.name(tail)} was {seen} and is "
            f"{found} now. Claims that were made since are gone. "
            "New numbers begin above the highest that this clone has seen."
        ]

    def made(self, entries: Mapping[str, Entry], last_seq: int) -> None:
        """Remember the entries that this process itself wrote."""
        self.known.update(entries)
        self.last_seq = max(self.last_seq, last_seq)
        self._notice_tokens(list(entries), entries)
