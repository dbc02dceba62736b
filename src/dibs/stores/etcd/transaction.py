"""Transactions for etcd's gateway, within the server's limits.

etcd allows 128 compares and 128 operations in a transaction (`--max-txn-ops`). An operation may itself be a
transaction. It may have what its parent left of the 128 (128 minus the larger of its parent's two counts), and so may
each of its neighbours. So many writes are put into several inner transactions, on as many levels as needed. Compares
stay in the outer one, because only those decide about the whole. Commits that compare more records are in `wide.py`.

etcd's quota counts the puts of the outer transaction alone. A commit without any would be taken by an etcd that is
full, so every commit has one (`seen_by_quota`).
"""

from __future__ import annotations

from dibs.core.limits import ETCD_REQUEST_BYTES_MAX
from dibs.stores.etcd.gateway import b64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dibs.stores.etcd.gateway import Document, EtcdGateway


OPS_MAX = 128
COMPARES_MAX = 100  # of one transaction; the rest of the 128 is for the levels of its operations
WIDTH = 40  # how many inner transactions a transaction with few compares has on its first level
OVERHEAD_BYTES = 32  # bytes of each operation, beyond its key and value


def compare_revision(key: bytes, revision: int) -> Document:
    """0: the key is absent."""
    return {"key": b64(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}


def compare_value(key: bytes, result: str, value: bytes) -> Document:
    return {"key": b64(key), "target": "VALUE", "result": result, "value": b64(value)}


def put_op(key: bytes, value: bytes) -> Document:
    return {"request_put": {"key": b64(key), "value": b64(value)}}


def delete_op(key: bytes, end: bytes | None = None) -> Document:
    request = {"key": b64(key)} if end is None else {"key": b64(key), "range_end": b64(end)}
    return {"request_delete_range": request}


def range_op(key: bytes, **options: Any) -> Document:
    return {"request_range": range_request(key, **options)}


def range_request(
    key: bytes,
    end: bytes | None = None,
    *,
    limit: int = 0,
    keys_only: bool = False,
    revision: int = 0,
    since: int = 0,
    by_revision: str = "",
) -> Document:
    """`since`: only keys written at that revision or later. `by_revision`: "ASCEND" or "DESCEND"; without it, in the
    order of keys. Both make etcd read the whole range."""
    request: Document = {"key": b64(key)}
    if end is not None:
        request["range_end"] = b64(end)
    if limit:
        request["limit"] = str(limit)
    if keys_only:
        request["keys_only"] = True
    if revision:
        request["revision"] = str(revision)
    if since:
        request["min_mod_revision"] = str(since)
    if by_revision:
        request |= {"sort_order": by_revision, "sort_target": "MOD"}
    return request


def read_range(gateway: EtcdGateway, key: bytes, end: bytes | None = None, **options: Any) -> list[Document]:
    """The keys and values of a range."""
    kvs: list[Document] = gateway.read("/v3/kv/range", range_request(key, end, **options)).get("kvs") or []
    return kvs


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. The prefix must not end with 0xff; none of ours does."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def put_if(key: bytes, revision: int, value: bytes) -> Document:
    """The transaction that puts a key if it is still at that revision."""
    return {"compare": [compare_revision(key, revision)], "success": [put_op(key, value)]}


def inner(success: Sequence[Document], compare: Sequence[Document] = ()) -> Document:
    return {"request_txn": {"compare": list(compare), "success": list(success)}}


def packed(ops: list[Document], compares: int, others: int) -> list[Document]:
    """`ops` in as many inner transactions as needed, beside `others`, which stay outside, and up to COMPARES_MAX
    `compares`. One level is always left for `others`, which may be transactions, too."""
    if max(compares, others + len(ops)) < OPS_MAX:
        return ops
    width = max(WIDTH, compares - others)
    return _grouped(ops, width, OPS_MAX - others - width)


def _grouped(ops: list[Document], groups: int, room: int) -> list[Document]:
    size = -(-len(ops) // groups)
    return [inner(_nested(ops[at : at + size], room)) for at in range(0, len(ops), size)]


def _nested(ops: list[Document], room: int) -> list[Document]:
    """`ops` in a transaction that may have `room` operations, together with all levels below it."""
    if len(ops) <= room:
        return ops
    levels = next(levels for levels in range(2, room) if (room // levels) ** levels >= len(ops))
    return _grouped(ops, room // levels, room - room // levels)


def seen_by_quota(ops: list[Document], room: bytes) -> list[Document]:
    """`ops`, with a put of the key `room` if there is none yet on the outer level."""
    if any("request_put" in op for op in ops):
        return ops
    return [put_op(room, b""), *ops]


def size_of(op: Document) -> int:
    """About how many bytes a put, a deletion or a compare takes in a request."""
    request = op.get("request_put") or op.get("request_delete_range") or op
    return (len(request["key"]) + len(request.get("value", ""))) * 3 // 4 + OVERHEAD_BYTES


def fits(ops: list[Document]) -> bool:
    """Return whether one request can carry all of these. Found out before sending: otherwise it would be sent in
    vain."""
    return sum([size_of(op) for op in ops]) <= ETCD_REQUEST_BYTES_MAX
