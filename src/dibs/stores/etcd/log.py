"""The log of events: one key for each commit that has any, in chapters.

A commit does not know its revision before it is made, so the revision cannot be in the key. Events are ordered by the
mod revision of the key. **Chapters** make reading cheap: a commit with events compares the key `chapter` and writes
below its number, so everything in a chapter was written between the marks of that chapter and of the next. To find
events after a number, one reads one chapter and those after it, and not all history. A new chapter begins about every
CHAPTER_COMMITS commits. For a commit to the old chapter the compare then fails, and it is tried again at once.

`last` is written with every commit that has events. Its mod revision is that of the newest event. Its version counts
the commits, which shows when a chapter is full.

A chapter has a **base**, which is added to its numbers when they leave the store. It is 0 until an import raises it
above the numbers of another store: that begins a chapter, whose mark holds the base, and events from before keep the
numbers that they had. Numbers in this file and in `upkeep.py` are without the base.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence

from dibs.base.generators import in_parts
from dibs.base.ids import new_token
from dibs.core.events import Event
from dibs.stores.codec import encode as encode_event
from dibs.stores.codec import text_of
from dibs.stores.etcd.client import EtcdClient
from dibs.stores.etcd.location import Layout, revision_of, seq_of
from dibs.stores.etcd.messages import ASCEND, DESCEND, KeyValue, compare_revision, put_op, range_op, txn
from dibs.stores.etcd.transaction import end_of
from dibs.stores.port import Job

CHAPTER_COMMITS = 256
# One part of a wide commit. Events are written twice, with names.
PART_EVENTS = 500
PART_EVENTS_BYTES = 300_000
POSITION_DIGITS = 4  # of an event in its commit, which has COMMIT_EVENTS_MAX at most
Row = tuple[int, str]


class LoggedCommit:
    """The key of one commit's events. Its name holds counts and times, so the value need not be read for them."""

    __slots__ = ("count", "first_ms", "key", "last_ms", "revision")

    def __init__(self, kv: KeyValue) -> None:
        self.key = kv.key
        self.revision = kv.mod_revision
        first, last, count, _ = self.key.rpartition(b"/")[2].split(b".")
        self.first_ms, self.last_ms, self.count = int(first), int(last), int(count)

    def end_seq(self) -> int:
        """The first number after its events."""
        return seq_of(self.revision, self.count)


class EventLog:
    """Writes the log, and knows the chapters for writing and reading. For any thread."""

    def __init__(self, client: EtcdClient, layout: Layout) -> None:
        self.client = client
        self.layout = layout
        self.chapter_op = range_op(layout.chapter)  # for the failure branch of a commit: whether a chapter ended
        self._lock = allocate_lock()
        self._id = new_token()  # in the keys of events: two processes never write the same one
        self._written = 0
        self._chapter: tuple[int, int, int] | None = None  # revision, number, commits before it
        self._commits = 0  # as far as we know
        self.base = 0  # of the newest chapter
        self.first_base = 0  # of chapters whose mark holds none
        self.starts: dict[int, int] = {0: 0}  # chapter: the revision at which it began
        self._raised: list[tuple[int, int]] = []  # where another base began: the revision, and that base

    def forget(self) -> None:
        """Forget the chapters: they are those of another history. It may be a call of this log that found that out."""
        self._chapter, self._commits, self.starts, self._raised = None, 0, {0: 0}, []

    def appending(self, events: Sequence[Event], *, is_wide: bool = False) -> tuple[bytes, list[bytes]]:
        """Return the compare and the operations that add to the log. `events` are COMMIT_EVENTS_MAX at most. `is_wide`:
        they are one of several parts that belong to one chapter, so it does not end here."""
        with self._lock:
            revision, chapter, before = self._chapter or self._asked()
            self._written += 1
            name = b"%s-%d" % (self._id.encode(), self._written)
            is_full = self._commits - before >= CHAPTER_COMMITS and not is_wide
        texts = [encode_event(event.replace(seq=0)) for event in events]
        times = [event.at_ms for event in events]
        log_key = b"%s%d.%d.%d.%s" % (self.layout.log_of(chapter), min(times), max(times), len(events), name)
        pairs = [(log_key, _joined(texts)), (self.layout.last, b"%d" % len(events))]
        jobs: dict[tuple[str, str], list[str]] = {}
        for index, event in enumerate(events):
            if event.job:
                jobs.setdefault((event.ns, event.job), []).append(f"{index} {texts[index]}")
        pairs += [(self.layout.job_log(*job, chapter) + name, _joined(lines)) for job, lines in jobs.items()]
        if is_full:
            pairs += self._turning(chapter + 1, self._commits, self.base)
        return compare_revision(self.layout.chapter, revision), [put_op(key, value) for key, value in pairs]

    def _turning(self, chapter: int, commits: int, base: int) -> list[tuple[bytes, bytes]]:
        """The writes that begin a chapter. The first base is left out while it is the only one: 0.2.0 cannot read
        two."""
        value, mark = b"%d %d %d" % (chapter, commits, base), b""
        if base != self.first_base:
            value, mark = b"%b %d" % (value, self.first_base), b"%d" % base
        return [(self.layout.chapter, value), (self.layout.chapter_mark(chapter), mark)]

    def appending_wide(self, events: Sequence[Event]) -> list[list[bytes]]:
        """The operations for a wide commit, in parts. No other commit is under way, so no chapter ends meanwhile."""
        with self._lock:
            self._asked()
        parts = in_parts(events, PART_EVENTS, lambda event: len(encode_event(event).encode()), PART_EVENTS_BYTES)
        return [self.appending(part, is_wide=True)[1] for part in parts]

    def has_turned(self, kvs: list[KeyValue]) -> bool:
        """Takes the answer to `chapter_op`. True if another chapter has begun since."""
        with self._lock:
            before = self._chapter
            self._learn(kvs)
            return before != self._chapter

    def appended(self, last: KeyValue) -> None:
        """After a commit: `last` as it is now."""
        with self._lock:
            self._commits = max(self._commits, last.version)

    def _asked(self) -> tuple[int, int, int]:
        return self._learn(self.client.range(self.layout.chapter))

    def _learn(self, kvs: list[KeyValue]) -> tuple[int, int, int]:
        number, before, self.base, self.first_base = _chapter_in(kvs)
        self._chapter = (kvs[0].mod_revision if kvs else 0, number, before)
        self._commits = max(self._commits, before)
        return self._chapter

    def number_from(self, seq: int) -> bool:
        """Let all numbers from now on be above `seq`. Commits under way with the old base fail, because another chapter
        has begun. False: somebody else wrote that at the same moment."""
        with self._lock:
            seen = self.client.txn([range_op(self.layout.chapter)])
            revision, chapter, before = self._learn(seen.ranges[0].kvs)
            base = seq - seq_of(seen.revision, 0)  # whatever comes has a later revision
            if base <= self.base:
                return True
            writes = self._turning(chapter + 1, max(before, self._commits), base)
            changes = [put_op(key, value) for key, value in writes]
            is_written = self.client.write(txn(changes, [compare_revision(self.layout.chapter, revision)])).succeeded
            self._asked()
            return is_written

    def base_at(self, revision: int) -> int:
        """The base of the commit with this revision."""
        return max([(start, base) for start, base in self._raised if start < revision], default=(0, self.first_base))[1]

    def without_base(self, number: int) -> int:
        """The number without base after which the events above `number` come. Between two bases are numbers that no
        event has."""
        found, ends = number - self.first_base, [seq_of(start + 1, 0) - 1 for start, _ in self._raised]
        for index, (_, base) in enumerate(self._raised):
            if ends[index] + base < number:
                found = number - base
            else:
                return min(found, ends[index])
        return found

    def last_seq(self, kvs: list[KeyValue]) -> int:
        """The number of the newest event, from the key `last`; 0: there was never an event."""
        return seq_of(kvs[0].mod_revision, int(kvs[0].value) - 1) if kvs else 0

    def last_number(self, kvs: list[KeyValue]) -> int:
        """The same as it leaves the store."""
        with self._lock:
            if self._chapter is None:
                self._asked()
        return self.last_seq(kvs) + self.base if kvs else 0

    def look(self) -> tuple[int, int]:
        """The number of the newest event, and the lowest that is not pruned. Updates the chapters."""
        keys = self.layout
        after = keys.chapter_mark(max(self.starts)) + b"\0"
        ops = [range_op(keys.last), range_op(keys.floor), range_op(keys.chapter)]
        ops.append(range_op(after, end_of(keys.chapters)))
        last, floor, chapter, chapters = [each.kvs for each in self.client.txn(ops).ranges]
        _, _, self.base, self.first_base = _chapter_in(chapter)
        starts, raised = dict(self.starts), list(self._raised)
        for each in chapters:
            starts[int(each.key[len(keys.chapters) :])] = each.mod_revision
            if each.value and int(each.value) != (raised[-1][1] if raised else self.first_base):
                raised.append((each.mod_revision, int(each.value)))
        lowest = int(floor[0].value) if floor else 0
        self.starts, self._raised = starts, raised  # new ones: other threads may be reading the old ones
        oldest = self.chapter_of(revision_of(lowest))
        self.starts = {number: start for number, start in starts.items() if number >= oldest}
        return self.last_seq(last), lowest

    def chapter_of(self, revision: int) -> int:
        """The chapter of the commit with this revision. One that begins a chapter is in the chapter before."""
        return max([number for number, start in self.starts.items() if start < revision], default=0)

    def entries(self, chapter: int) -> list[LoggedCommit]:
        """The keys of a chapter, in the order of their commits."""
        prefix = self.layout.log_of(chapter)
        kvs = self.client.range(prefix, end_of(prefix), keys_only=True)
        return sorted([LoggedCommit(kv) for kv in kvs], key=lambda entry: entry.revision)


def read_events(log: EventLog, after: int, limit: int, job: Job | None, *, newest: bool) -> list[Row]:
    """Number and text of events, in order."""
    if limit <= 0:
        return []
    last, floor = log.look()
    first = max(log.without_base(after) + 1, floor)
    if last < first:
        return []
    if job is not None:
        return _of_job(log, job, first, limit, newest=newest)
    chapters = range(log.chapter_of(revision_of(first)), max(log.starts) + 1)
    found: list[Row] = []
    for chapter in reversed(chapters) if newest else chapters:
        prefix = log.layout.log_of(chapter)
        page = _page(log, prefix, end_of(prefix), first, limit - len(found), newest=newest)
        found = page + found if newest else found + page
        if len(found) >= limit:
            break
    return found[-limit:] if newest else found[:limit]


def _page(log: EventLog, begin: bytes, end: bytes, first: int, limit: int, *, newest: bool) -> list[Row]:
    """Events from `first` on in one range of keys, from up to `limit` commits. One more commit is read, because the
    events of the commit with `first` may all come before `first`."""
    order = DESCEND if newest else ASCEND
    kvs = log.client.range(begin, end, limit=limit + 1, since=revision_of(first), by_revision=order)
    found: list[Row] = []
    for kv in reversed(kvs) if newest else kvs:
        base = log.base_at(kv.mod_revision)
        found += [row for row in rows_in(kv, base) if row[0] >= first + base]
    return found


def _of_job(log: EventLog, job: Job, first: int, limit: int, *, newest: bool) -> list[Row]:
    """A job's own keys are ordered by chapter. The newest events are looked for in the last few, then in more."""
    oldest, last = log.chapter_of(revision_of(first)), max(log.starts)
    begin, end = log.layout.job_log(*job, oldest), end_of(log.layout.job(*job))
    if not newest:
        return _page(log, begin, end, first, limit, newest=False)[:limit]
    width = 4
    while True:
        chapter = max(oldest, last - width)
        found = _page(log, log.layout.job_log(*job, chapter), end, first, limit, newest=True)
        if len(found) >= limit or chapter == oldest:
            return found[-limit:]
        width *= 4


def rows_in(kv: KeyValue, base: int = 0) -> list[Row]:
    """The events in one key: all of a commit, or those of one job, each with its position."""
    found = []
    for index, line in enumerate(text_of(kv.value).split("\n")):
        position, _, text = line.partition(" ")
        is_named = position.isdecimal() and len(position) <= POSITION_DIGITS
        at, text = (int(position), text) if is_named else (index, line)
        found.append((seq_of(kv.mod_revision, at) + base, text))
    return found


def _chapter_in(kvs: list[KeyValue]) -> tuple[int, int, int, int]:
    """The value of `chapter`: its number, the commits before it, its base, and that of the first chapters. Without the
    last one all chapters have one base."""
    if not kvs:
        return 0, 0, 0, 0
    number, before, base, *first = [int(each) for each in kvs[0].value.split()]
    return number, before, base, first[0] if first else base


def _joined(texts: list[str]) -> bytes:
    return "\n".join(texts).encode()  # JSON text holds no line break
