"""The messages of etcd's API that the store uses, in protobuf's encoding, with the fields that it needs.

Requests are bytes from the start: an operation is encoded once, its length says what it costs, and a list of operations
is their concatenation. Answers are read into small classes; fields that are not known are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

NUMBER_BITS_MAX = 64
NO_MESSAGE = (ValueError, LookupError, TypeError, RecursionError)  # raised for what is not an answer of etcd


def message(*values: int | bytes) -> bytes:
    """The fields 1, 2, 3 and so on. 0 and b"" are left out: they are the defaults."""
    return b"".join([_field(number, value) for number, value in enumerate(values, 1) if value])


def _field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return bytes((number << 3,)) + _varint(value)
    size = len(value)
    return (bytes((number << 3 | 2, size)) if size < 0x80 else bytes((number << 3 | 2,)) + _varint(size)) + value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _all(number: int, values: Iterable[bytes]) -> bytes:
    """A repeated field. Its empty values are written, too, because each of them counts; a single field leaves them
    out."""
    return b"".join([_field(number, value) for value in values])


def fields(data: bytes) -> dict[int, list[Any]]:
    """The values of each field: int or bytes. Raises one of NO_MESSAGE if it is none."""
    found: dict[int, list[Any]] = {}
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        value = data[at + 1]
        at += 2
        if tag > 0x7F:
            raise ValueError("a field with a high number")
        if value > 0x7F:
            value, at = _long(data, at - 1)
        kind = tag & 7
        if kind == 2:
            if at + value > end:
                raise ValueError("a message that is cut")
            found.setdefault(tag >> 3, []).append(data[at : at + value])
            at += value
        elif kind == 0:
            found.setdefault(tag >> 3, []).append(value)
        else:
            raise ValueError("a field of a kind that etcd does not use")
    return found


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A number of more than seven bits, and where it ends."""
    value = shift = 0
    while data[at] > 0x7F:
        if shift > NUMBER_BITS_MAX:
            raise ValueError("a number without end")
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def one(found: dict[int, list[Any]], number: int, default: Any = 0) -> Any:
    values = found.get(number)
    if not values:
        return default
    if type(values[-1]) is not type(default):
        raise ValueError("a field of another kind")
    return values[-1]


# Requests.

EQUAL, LESS = 0, 2
_MOD, _VALUE = 2, 3
ASCEND, DESCEND = 1, 2
_BY_MOD = 3


def compare_revision(key: bytes, revision: int) -> bytes:
    """0: the key is absent."""
    return message(EQUAL, _MOD, key, 0, 0, revision)


def compare_value(key: bytes, result: int, value: bytes) -> bytes:
    return message(result, _VALUE, key, 0, 0, 0, value)


def range_request(
    key: bytes,
    end: bytes = b"",
    *,
    limit: int = 0,
    keys_only: bool = False,
    revision: int = 0,
    since: int = 0,
    by_revision: int = 0,
) -> bytes:
    """`since`: only keys written at that revision or later. `by_revision`: ASCEND or DESCEND; without it, in the order
    of keys. Both make etcd read the whole range."""
    return message(key, end, limit, revision, by_revision, by_revision and _BY_MOD, 0, keys_only, 0, since)


def range_op(key: bytes, end: bytes = b"", **options: Any) -> bytes:
    return _field(1, range_request(key, end, **options))


def put_op(key: bytes, value: bytes) -> bytes:
    return _field(2, message(key, value))


def delete_op(key: bytes, end: bytes = b"") -> bytes:
    return _field(3, message(key, end))


def inner(success: Sequence[bytes], compare: Sequence[bytes] = ()) -> bytes:
    return _field(4, txn(success, compare))


def txn(success: Sequence[bytes], compare: Sequence[bytes] = (), failure: Sequence[bytes] = ()) -> bytes:
    return _all(1, compare) + _all(2, success) + _all(3, failure)


def put_if(key: bytes, revision: int, value: bytes) -> bytes:
    return txn([put_op(key, value)], [compare_revision(key, revision)])


def watch_request(key: bytes, end: bytes = b"", *, only_deleted: bool = False) -> bytes:
    create = message(key, end) + (b"\x2a\x01\x00" if only_deleted else b"")  # the filter NOPUT, which is number 0
    return _field(1, create)


def operations(data: bytes) -> list[bytes]:
    return fields(data).get(2, [])


# Answers.

_WRITTEN = (b"\x12", b"\x1a")  # how the answer to a put, or to a delete, begins: it is the only field of its message


def token(data: bytes) -> str:
    return str(one(fields(data), 2, b""), "ascii")


class KeyValue:
    __slots__ = ("key", "mod_revision", "value", "version")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.key: bytes = one(found, 1, b"")
        self.mod_revision: int = one(found, 3)
        self.version: int = one(found, 4)
        self.value: bytes = one(found, 5, b"")


class RangeAnswer:
    __slots__ = ("count", "kvs")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.kvs = [KeyValue(each) for each in found.get(2, ())]
        self.count: int = one(found, 4)

    @property
    def first(self) -> KeyValue | None:
        return self.kvs[0] if self.kvs else None


class TxnAnswer:
    """`ranges` are the answers to all ranges in order, also to those in inner transactions. What is answered to a write
    is passed over."""

    __slots__ = ("ranges", "revision", "succeeded")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.revision: int = one(fields(one(found, 1, b"")), 3)
        self.succeeded = bool(one(found, 2))
        self.ranges: list[RangeAnswer] = []
        for each in found.get(3, ()):
            if each[:1] in _WRITTEN:
                continue
            answer = fields(each)
            self.ranges += map(RangeAnswer, answer.get(1, ()))
            for txn_answer in map(TxnAnswer, answer.get(4, ())):
                self.ranges += txn_answer.ranges


class LeaseAnswer:
    """Of a grant, or of a look at what is left of a lease. `left_s` None: there is no such lease."""

    __slots__ = ("granted_s", "id", "left_s", "term")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.term: int = one(fields(one(found, 1, b"")), 4)
        self.id: int = one(found, 2)
        left_s: int = one(found, 3)
        self.left_s = None if left_s >> 63 else left_s  # -1, in 64 bits
        self.granted_s: int = one(found, 4)


class StatusAnswer:
    __slots__ = ("errors", "is_leader", "member", "size_bytes", "version")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.member: int = one(fields(one(found, 1, b"")), 2)
        self.version: str = one(found, 2, b"?").decode()
        self.is_leader: bool = one(found, 4) == self.member
        self.errors: list[str] = [each.decode(errors="replace") for each in found.get(8, ())]
        self.size_bytes: int = one(found, 9) or one(found, 3)


class WatchAnswer:
    __slots__ = ("canceled", "created", "kvs")

    def __init__(self, data: bytes) -> None:
        found = fields(data)
        self.created = bool(one(found, 3))
        self.canceled = bool(one(found, 4))
        self.kvs = [KeyValue(one(fields(each), 2, b"")) for each in found.get(11, ())]
