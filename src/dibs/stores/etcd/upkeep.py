"""Drops the beginning of the log. First the key `floor` is raised, which hides the old events from all readers at once.
Then the keys below it are deleted, the oldest first, on a separate thread, because the thread that prunes also decides
claims. If the process ends or etcd is away, the rest is deleted after the next prune.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from dibs.base.errors import DibsError, StoreUnavailable
from dibs.core.events import Event
from dibs.stores.codec import events_of
from dibs.stores.etcd.client import STATUS, EtcdClient
from dibs.stores.etcd.errors import NO_ROOM
from dibs.stores.etcd.location import EtcdLocation, revision_of, seq_of, shown_endpoint
from dibs.stores.etcd.log import EventLog, LoggedCommit, rows_in
from dibs.stores.etcd.messages import StatusAnswer, delete_op, put_if, txn
from dibs.stores.etcd.transaction import packed
from dibs.stores.port import Store, can_be_written, checked

LOOKS_MAX = 200  # how many chapters of unknown size are counted in one prune
COMMITS_AT_ONCE = 200
DELETES_AT_ONCE = 100


class Pruner:
    """Remembers the size of ended chapters, so that each is counted once. One prune at a time."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._counts: dict[int, int] = {}
        self._deleting: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        self._closed = True

    def prune(self, *, keep: int, before_ms: int) -> int:
        last, floor = self._log.look()
        kept_from = max(self._by_count(keep, floor, last), self._by_age(before_ms, floor))
        dropped = 0
        if kept_from > floor:
            dropped = self._between(floor, kept_from)
            if dropped and not self._raise_floor(floor, kept_from):
                return 0  # another server prunes
            floor = kept_from if dropped else floor
        if floor and (self._deleting is None or not self._deleting.is_alive()):
            self._deleting = threading.Thread(
                target=self._delete_below, args=(floor,), name="dibs-etcd-prune", daemon=True
            )
            self._deleting.start()
        return dropped

    def wait(self, timeout_s: float) -> bool:
        """Wait until the pruned keys are deleted."""
        if self._deleting is not None:
            self._deleting.join(timeout_s)
        return self._deleting is None or not self._deleting.is_alive()

    def _chapters(self, floor: int) -> range:
        return range(self._log.chapter_of(revision_of(floor)), max(self._log.starts) + 1)

    def _entries(self, chapter: int, floor: int) -> list[LoggedCommit]:
        """The commits of a chapter that have events that are not pruned."""
        return [entry for entry in self._log.entries(chapter) if entry.end_seq() > floor]

    def _by_count(self, keep: int, floor: int, last: int) -> int:
        """The number of the first of the newest `keep` events. 0: keep all, or not known yet."""
        if keep <= 0:
            return last + 1
        left, looks = keep, 0
        for chapter in reversed(self._chapters(floor)):
            known = self._counts.get(chapter)
            if known is not None and known < left:
                left -= known
                continue
            looks += 1
            if looks > LOOKS_MAX:
                return 0
            entries = self._entries(chapter, floor)
            count = sum([entry.count for entry in entries])
            if chapter < max(self._log.starts) and not any(seq_of(entry.revision, 0) < floor for entry in entries):
                self._counts[chapter] = count
            if count < left:
                left -= count
                continue
            for entry in reversed(entries):
                if entry.count >= left:
                    return seq_of(entry.revision, entry.count - left)
                left -= entry.count
        return 0

    def _by_age(self, before_ms: int, floor: int) -> int:
        """The number of the first event that is not older; 0: keep all."""
        found = 0
        for chapter in self._chapters(floor):
            for entry in self._entries(chapter, floor):
                if entry.first_ms >= before_ms:
                    return found
                found = entry.end_seq()
                if entry.last_ms >= before_ms:
                    return next((event.seq for event in self._read(entry) if event.at_ms >= before_ms), found)
        return found

    def _read(self, entry: LoggedCommit) -> list[Event]:
        kvs = self._log.client.range(entry.key)
        return events_of(lambda _: rows_in(kvs[0]), entry.count, {}) if kvs else []

    def _between(self, floor: int, end: int) -> int:
        count = 0
        for chapter in self._chapters(floor):
            for entry in self._entries(chapter, floor):
                first = max(floor, seq_of(entry.revision, 0))
                if first >= end:
                    return count
                count += min(entry.end_seq(), end) - first
        return count

    def _raise_floor(self, floor: int, to: int) -> bool:
        key = self._log.layout.floor
        kvs = self._log.client.range(key)
        revision, held = (kvs[0].mod_revision, int(kvs[0].value)) if kvs else (0, 0)
        return held == floor and self._log.client.write(put_if(key, revision, b"%d" % to)).succeeded

    def _delete_below(self, floor: int) -> None:
        try:
            while commits := self._gone(floor):
                # The commit's own key comes last: it says which keys of jobs there are.
                keys = [key for commit in commits for key in (*self._job_keys(commit), commit.key)]
                for at in range(0, len(keys), DELETES_AT_ONCE):
                    if self._closed:
                        return
                    self._delete(keys[at : at + DELETES_AT_ONCE])
            self._forget_chapters(self._log.chapter_of(revision_of(floor)))
        except DibsError:
            pass  # etcd is away; the next prune continues

    def _forget_chapters(self, until: int) -> None:
        """Delete the marks of chapters that nobody reads any more."""
        if until > 1:
            keys = self._log.layout
            self._log.client.write(txn([delete_op(keys.chapters, keys.chapter_mark(until))]))
        for chapter in [each for each in self._counts if each < until]:
            del self._counts[chapter]

    def _gone(self, floor: int) -> list[LoggedCommit]:
        """Some commits whose events are all below the floor. None: all are deleted."""
        chapter = self._log.chapter_of(revision_of(floor))
        keys = self._log.layout
        kvs = self._log.client.range(keys.log, keys.log_of(chapter + 1), limit=COMMITS_AT_ONCE, keys_only=True)
        found = [commit for commit in map(LoggedCommit, kvs) if commit.end_seq() <= floor]
        if not found and len(kvs) == COMMITS_AT_ONCE:
            return [commit for commit in self._log.entries(chapter) if commit.end_seq() <= floor]
        return found

    def _job_keys(self, commit: LoggedCommit) -> set[bytes]:
        chapter = int(commit.key[len(self._log.layout.log) :].partition(b"/")[0])
        name = commit.key.rpartition(b".")[2]
        jobs = {(event.ns, event.job) for event in self._read(commit) if event.job}
        return {self._log.layout.job_log(*job, chapter) + name for job in jobs}

    def _delete(self, keys: list[bytes]) -> None:
        self._log.client.write(txn(packed([delete_op(key) for key in keys], 0, 0)))


# What `dibs doctor` finds out about a store on etcd: every member, the rights of the user, the clock.

VERSION_MIN = (3, 4)


def probe(location: EtcdLocation, store: Store) -> list[dict[str, Any]]:
    """One line for each member, one for writing, one for the clock."""
    found = [
        checked(shown_endpoint(each), partial(_member, location.replace(endpoints=(each,))))
        for each in location.endpoints
    ]

    def read_clock() -> str:
        store.read(())
        return "runs like etcd's"

    return [*found, checked("write", lambda: can_be_written(store)), checked("clock", read_clock)]


def _member(location: EtcdLocation) -> str:
    client = EtcdClient(location)
    try:
        status = client.read(STATUS, b"", StatusAnswer)
    finally:
        client.close()
    version = status.version
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < VERSION_MIN:
        raise StoreUnavailable(f"is etcd {version}; dibs needs 3.4 or newer")
    if any("NOSPACE" in each for each in status.errors):
        raise StoreUnavailable(f"is etcd {version} and takes no writes: {NO_ROOM}")
    return f"etcd {version}, {status.size_bytes // 1024} KiB"
