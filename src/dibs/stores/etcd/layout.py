"""Which key of etcd holds what. All keys begin with the prefix and two slashes.

    r/KEY                      a record, as JSON; its version is the key's mod revision
    d/DUE/KEY                  when the record under KEY is due: 16 digits, so that the order of keys is that of times
    l/KEY                      the record under KEY is live
    e/CHAPTER/FIRST.LAST.COUNT.ID   the events of one commit, one JSON text a line
    h/NAMESPACE/JOB NUL CHAPTER/ID  those about one job, each after its place in the commit
    c/CHAPTER                  the mark of a chapter, written when it began
    chapter                    the chapter that commits write to, and what is added to all numbers (log.py)
    last                       written with every commit that has events: its mod revision is that of the newest event
    floor                      the lowest number of an event that is not pruned
    room                       written by commits that etcd's quota would not see otherwise, see transaction.py
    time, stopwatch, boot/ID   see clock.py
    time.wide, w/ID/NUMBER     a commit that is too large for one transaction, see wide.py

Keys are UTF-8, whose order is the order of code points.
"""

from __future__ import annotations

from dibs.base.errors import InvalidInput

SEQ_BITS = 10
COMMIT_EVENTS_MAX = 1 << SEQ_BITS  # how many events one commit may have


class Layout:
    def __init__(self, prefix: str) -> None:
        self.root = f"{prefix}//".encode()
        self.chapter = self.root + b"chapter"
        self.last = self.root + b"last"
        self.floor = self.root + b"floor"
        self.time = self.root + b"time"
        self.stopwatch = self.root + b"stopwatch"
        self.room = self.root + b"room"
        self.wide = self.root + b"time.wide"  # beside `time`: one range reads both
        self.records = self.root + b"r/"
        self.live = self.root + b"l/"
        self.dues = self.root + b"d/"
        self.log = self.root + b"e/"
        self.chapters = self.root + b"c/"

    def record(self, key: str) -> bytes:
        return self.records + _bytes(key)

    def live_mark(self, key: str) -> bytes:
        return self.live + _bytes(key)

    def due(self, due_ms: int, key: str) -> bytes:
        return b"%s%016d/%s" % (self.dues, max(0, due_ms), _bytes(key))

    def split_due(self, raw: bytes) -> tuple[int, str]:
        """The time, and the key of the record."""
        rest = raw[len(self.dues) :]
        return int(rest[:16]), rest[17:].decode()

    def log_of(self, chapter: int) -> bytes:
        return b"%s%012d/" % (self.log, chapter)

    def job(self, ns: str, name: str) -> bytes:
        return self.root + b"h/" + _bytes(ns) + b"/" + _bytes(name) + b"\0"

    def job_log(self, ns: str, name: str, chapter: int) -> bytes:
        return b"%s%012d/" % (self.job(ns, name), chapter)

    def chapter_mark(self, chapter: int) -> bytes:
        return b"%s%012d" % (self.chapters, chapter)

    def wide_part(self, wide_id: bytes, number: int) -> bytes:
        return b"%sw/%s/%06d" % (self.root, wide_id, number)

    def boot(self, boot_id: str) -> bytes:
        return self.root + b"boot/" + _bytes(boot_id)


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. The prefix must not end with 0xff; none of ours does."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def seq_of(revision: int, index: int) -> int:
    """The number of an event, made from the revision of its commit and its place in it. It stays below 2**53 for
    decades. The place after the last of COMMIT_EVENTS_MAX events is the first of the next revision."""
    return (revision << SEQ_BITS) + index


def revision_of(seq: int) -> int:
    return seq >> SEQ_BITS


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput("Text must be valid Unicode; this holds half of a surrogate pair.") from None
