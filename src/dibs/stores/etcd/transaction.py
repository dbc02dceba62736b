"""Transactions for etcd's gateway, within the server's limits.

etcd allows 128 compares and 128 operations in a transaction (`--max-txn-ops`). An operation may itself be a
transaction. It may have what its parent left of the 128 (128 minus the larger of its parent's two counts), and so may
each of its neighbours. So many writes are put into several inner transactions. Compares stay in the outer one, because
only those decide about the whole.
"""

from __future__ import annotations

from dibs.core.limits import ETCD_REQUEST_BYTES_MAX
from dibs.stores.etcd.errors import TOO_LARGE
from dibs.stores.etcd.gateway import b64
from dibs.stores.port import CommitTooLarge

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Document = dict[str, Any]

OPS_MAX = 128
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


def inner(success: Sequence[Document], compare: Sequence[Document] = ()) -> Document:
    return {"request_txn": {"compare": list(compare), "success": list(success)}}


def packed(ops: list[Document], compares: int, others: int) -> list[Document]:
    """`ops` in as many inner transactions as needed, beside `others`, which stay outside, and `compares`. Raises
    CommitTooLarge if they do not fit."""
    if max(compares, others + len(ops)) <= OPS_MAX:
        return ops
    for parts in range(1, OPS_MAX - others + 1):
        room = OPS_MAX - max(compares, others + parts)
        if room > 0 and parts * room >= len(ops):
            size = -(-len(ops) // parts)
            return [inner(ops[at : at + size]) for at in range(0, len(ops), size)]
    raise too_large()


def check_size(keys_and_values: int, operations: int) -> None:
    """Check the size before sending: otherwise a transaction that is too large would be sent in vain."""
    if keys_and_values + operations * OVERHEAD_BYTES > ETCD_REQUEST_BYTES_MAX:
        raise too_large()


def too_large() -> CommitTooLarge:
    return CommitTooLarge(TOO_LARGE)
