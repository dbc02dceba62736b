"""A record as a git commit: empty tree, one readable line, then one line of JSON. Its parent is the one it replaced.

    dibs: lock default/issue-42 acquired by agent-7

    {"dibs":10,"key":"lock/default/issue-42","version":1731628800,"record":{...},"nonce":"...",...}

So `git log` of a job's ref is that job's history. `version` rises with each change. A touch only marks that the record
was looked at; it keeps version, nonce and times. `with` names the keys that were changed in the same step, with their
versions, so that a reader notices a half-seen step. `record` is null for a key that was deleted or never existed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from dibs.base import jsontext
from dibs.base.errors import DibsError, StoreFull, StoreTooNew, StoreTooOld
from dibs.base.ids import new_id
from dibs.core import class_of
from dibs.core.events import Event
from dibs.core.limits import GIT_ITEMS_MAX, GIT_RECORD_BYTES_MAX
from dibs.core.records import Stored
from dibs.stores import formats
from dibs.stores.codec import FORMAT, utf8
from dibs.stores.untrusted_records import key_of, wrong_field

# A bad record makes only its own job unusable.
NUMBER_MAX = 2**62
WHO = "dibs <dibs@localhost>"
_SUBJECT_CHARS_MAX = 120
_HEAD_BYTES_MAX = 1024


class BadEntry(Exception):
    """The commit is not one that dibs wrote."""


class ForeignEntry(BadEntry):
    """Another version of dibs wrote the commit."""


def tail_of(key: str) -> str:
    """The name of a key's ref below the prefix: `lock/<hash>`. Any text can be a key, but few texts can be a ref."""
    return f"{key.split('/', 1)[0]}/{hashlib.sha256(key.encode()).hexdigest()[:40]}"


class Entry:
    """One parsed commit. `stored` is the record in its writer's time."""

    def __init__(self, oid: str, parent: str, body: dict[str, Any]) -> None:
        self.oid = oid
        self.parent = parent
        self.body = body
        self.key: str = body["key"]
        raw = body["record"]
        self.stored: Stored | None = None if raw is None else class_of(self.key).load(raw)
        self.events = [Event.load(each) for each in body.get("events", ())]
        self.past = [Event.load(each) for each in body.get("past", ())]
        self.version: int = body["version"]  # also of a deleted record; 0 if there never was one
        self.nonce: str = body["nonce"]
        self.stamp: dict[str, Any] = body["stamp"]  # the writer's clocks when the record was put
        self.seq: int = body.get("seq", 0)  # the number of the newest event up to this commit
        self.depth: int = body.get("depth", 1)
        self.together: Mapping[str, int] = body.get("with", {})


def parse(oid: str, tail: str | None, kind: str, raw: bytes) -> Entry:
    """The entry in a git object; raises BadEntry if it is invalid. With `tail` it must belong to that ref."""
    if kind != "commit":
        raise BadEntry(f"it points at a {kind}")
    if len(raw) > GIT_RECORD_BYTES_MAX:
        raise BadEntry(f"it has more than {GIT_RECORD_BYTES_MAX} bytes")
    head, _, message = raw.partition(b"\n\n")
    parents = [line[7:].decode() for line in head.split(b"\n") if line.startswith(b"parent ")]
    try:
        body = jsontext.decode(message.decode().partition("\n\n")[2].strip())
        formats.refuse_unread(formats.GIT, body["dibs"], "it")
        entry = Entry(oid, parents[0] if parents else "", body)
        _check(entry)
    except BadEntry:
        raise
    except (StoreTooNew, StoreTooOld) as error:
        raise ForeignEntry(error.details) from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, DibsError) as error:
        raise BadEntry(f"it does not hold a record ({error!r:.200})") from None
    if tail is not None and tail_of(entry.key) != tail:
        raise BadEntry(f"it holds the record of another key, {entry.key!r}")
    return entry


def _check(entry: Entry) -> None:
    """Raise BadEntry or ValueError for values that would break the store or the rules."""
    stamp = entry.stamp
    numbers = [entry.version, entry.seq, entry.depth, *entry.together.values()]
    numbers += [stamp["now_ms"], stamp["wall_ms"], stamp["steady_ms"], stamp.get("remote_ms", 0)]
    if not all(type(number) is int and 0 <= number <= NUMBER_MAX for number in numbers):
        raise BadEntry("its numbers are invalid")
    if not isinstance(entry.body["nonce"], str) or not isinstance(stamp["clock"], str):
        raise BadEntry("it has no nonce or no clock")
    stored = () if entry.stored is None else (entry.stored,)
    for record in (*entry.events, *entry.past, *stored):
        if wrong := wrong_field(record, NUMBER_MAX, GIT_ITEMS_MAX):
            raise BadEntry(f"{type(record).__name__}.{wrong} does not hold what it should")
    if entry.stored is not None and key_of(entry.stored) not in (entry.key, None):
        raise BadEntry("its record is that of another key")


def new_body(key: str, stamp: dict[str, Any], version: int = 0, record: Stored | None = None) -> dict[str, Any]:
    """The JSON of a new entry. Without a record: the key was deleted, or never had one."""
    return {
        "dibs": FORMAT,
        "key": key,
        "version": version,
        "record": None if record is None else record.dump(),
        "nonce": new_id(),
        "stamp": stamp,
    }


def commit_text(body: dict[str, Any], parent: str, tree: str, seconds: int) -> bytes:
    message = utf8(f"{_subject(body)}\n\n{jsontext.encode(body)}\n")
    if len(message) > GIT_RECORD_BYTES_MAX - _HEAD_BYTES_MAX:
        raise StoreFull(
            f"The record of {body['key']!r} would have {len(message)} bytes, and a git store takes "
            f"{GIT_RECORD_BYTES_MAX}. Use fewer owners or waiters, or a server (`dibs serve`)."
        )
    head = [f"tree {tree}"]
    if parent:
        head.append(f"parent {parent}")
    head += [f"author {WHO} {seconds} +0000", f"committer {WHO} {seconds} +0000"]
    return "\n".join(head).encode() + b"\n\n" + message


def _subject(body: dict[str, Any]) -> str:
    kind, _, rest = body["key"].partition("/")
    events = body.get("events")
    if events:
        last = events[-1]
        what = f"{last['kind']} by {last['owner']}" if last.get("owner") else last["kind"]
    elif body.get("touch"):
        what = "looked at"
    else:
        what = "kept" if body["record"] is not None else "put away"
    return f"dibs: {kind} {rest} {what}".replace("\n", " ").replace("  ", " ")[:_SUBJECT_CHARS_MAX]


def oid_of(kind: str, data: bytes, algorithm: str) -> str:
    return hashlib.new(algorithm, f"{kind} {len(data)}".encode() + b"\0" + data).hexdigest()


_TYPES = {"commit": 1, "tree": 2}


def pack(objects: Sequence[tuple[str, bytes]], algorithm: str) -> bytes:
    """A pack of whole objects, to write many with one git process."""
    parts = [b"PACK", (2).to_bytes(4, "big"), len(objects).to_bytes(4, "big")]
    for kind, data in objects:
        parts += [_pack_head(_TYPES[kind], len(data)), zlib.compress(data)]
    made = b"".join(parts)
    return made + hashlib.new(algorithm, made).digest()


def _pack_head(kind: int, size: int) -> bytes:
    first, size = kind << 4 | size & 15, size >> 4
    made = bytearray()
    while size:
        made.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    made.append(first)
    return bytes(made)
