"""Transactions within the server's limits.

etcd allows 128 compares and 128 operations in a transaction (`--max-txn-ops`). An operation may itself be a
transaction. It may have what its parent left of the 128 (128 minus the larger of its parent's two counts), and so may
each of its neighbours. So many writes are put into several inner transactions, on as many levels as needed. Compares
stay in the outer one, because only those decide about the whole. Commits that compare more records are wide.

etcd's quota counts the puts of the outer transaction alone. A commit without any would be taken by an etcd that is
full. Every commit puts its name there (`naming`).
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, StoreUnavailable
from dibs.base.generators import in_parts
from dibs.base.ids import new_token
from dibs.core.limits import ETCD_REQUEST_BYTES_MAX
from dibs.stores.etcd import messages
from dibs.stores.etcd.client import EtcdClient
from dibs.stores.etcd.errors import TOO_LARGE
from dibs.stores.etcd.location import Layout
from dibs.stores.etcd.messages import KeyValue, TxnAnswer
from dibs.stores.port import CommitTooLarge, Conflict

OPS_MAX = 128
COMPARES_MAX = 100  # of one transaction; the rest of the 128 is for the levels of its operations
WIDTH = 40  # how many inner transactions a transaction with few compares has on its first level
OVERHEAD_BYTES = 32  # of each operation, in the levels above it and in etcd's log


def end_of(prefix: bytes) -> bytes:
    """The first key after all that begin with `prefix`. The prefix must not end with 0xff; none of ours does."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def packed(ops: list[bytes], compares: int, others: int) -> list[bytes]:
    """`ops` in as many inner transactions as needed, beside `others`, which stay outside, and up to COMPARES_MAX
    `compares`. One level is always left for `others`, which may be transactions, too."""
    if max(compares, others + len(ops)) < OPS_MAX:
        return ops
    width = max(WIDTH, compares - others)
    return _grouped(ops, width, OPS_MAX - others - width)


def _grouped(ops: list[bytes], groups: int, room: int) -> list[bytes]:
    size = -(-len(ops) // groups)
    return [messages.inner(_nested(ops[at : at + size], room)) for at in range(0, len(ops), size)]


def _nested(ops: list[bytes], room: int) -> list[bytes]:
    """`ops` in a transaction that may have `room` operations, together with all levels below it."""
    if len(ops) <= room:
        return ops
    levels = next(levels for levels in range(2, room) if (room // levels) ** levels >= len(ops))
    return _grouped(ops, room // levels, room - room // levels)


def naming(layout: Layout, name: str) -> bytes:
    """The operation that gives a commit its name, on the outer level."""
    return messages.put_op(layout.name, name.encode())


def fits(ops: list[bytes]) -> bool:
    """Return whether one request can carry all of these. Asked before it is sent, because etcd would refuse it."""
    return sum(map(len, ops)) + OVERHEAD_BYTES * len(ops) <= ETCD_REQUEST_BYTES_MAX


# Commits that are too large for one transaction of etcd: they compare too many records, or write too much.
#
# Every commit compares that the key `wide` is absent. A wide commit puts it first, and from then on no other commit
# succeeds. So it may compare its records by reading them: none of them can change any more. It then writes in one
# transaction that compares only the revision of `wide`, and deletes it.
#
# What is too much for one transaction is written in **parts**. First each part is stored beside the records, where
# nobody looks. Then `wide` is put once more and says how many parts there are. That is the moment of the commit:
# before, nothing of it happened; from then on, all of it will. The parts are then written one after another. Whoever
# reads records reads `wide` with them, and lets a decided commit be finished first, so nobody sees half of it.
#
#     time.wide    ID              begun: it may still be given up
#                  ID NEXT COUNT   decided: the parts from NEXT on are to be written
#     w/ID/NUMBER  a part: the operations of one transaction
#
# Each of these steps compares the revision of `wide` and changes it. So two processes never do the same step, and a
# process that was stopped for a while finds out that it was too slow. If `wide` does not change for WIDE_MS, its
# process is taken for dead. Whoever waits then goes on with a decided commit, and gives up one that is only begun.

WIDE_MS = 2_000
PAUSE_S = 0.01

# One part of a wide commit: small enough to be written in much less than WIDE_MS.
PART_OPS = 1_000
PART_BYTES = 500_000


def parts_of(writes: list[bytes], events: list[list[bytes]]) -> list[list[bytes]]:
    """The operations of a wide commit, in as few parts as possible, the events last."""
    whole = [*writes, *(events[0] if events else [])]
    if len(events) < 2 and len(whole) <= PART_OPS and sum(map(len, whole)) <= PART_BYTES:
        return [whole]
    if not all(fits([op]) for op in writes):
        raise CommitTooLarge(TOO_LARGE)
    return [*in_parts(writes, PART_OPS, len, PART_BYTES), *events]


class WideCommit:
    """The key `wide` as it was read or written: whose it is, which parts are to be written, and its revision."""

    __slots__ = ("count", "id", "next", "revision")

    def __init__(self, value: bytes, revision: int) -> None:
        self.id, *parts = value.split()
        self.next, self.count = (int(parts[0]), int(parts[1])) if parts else (0, 0)
        self.revision = revision

    @property
    def is_decided(self) -> bool:
        return self.count > 0


@contextmanager
def _nothing_decided() -> Iterator[None]:
    """Steps that write nothing of the caller's commit: if one fails, its outcome does not matter."""
    try:
        yield
    except StoreUnavailable as error:
        error.unknown = False
        raise


class WideCommits:
    """For any thread. `write` sends a transaction once. `raising` is the operation that raises the store's time."""

    def __init__(
        self, client: EtcdClient, layout: Layout, write: Callable[[bytes], TxnAnswer], raising: Callable[[], bytes]
    ) -> None:
        self._client = client
        self._layout = layout
        self._write = write
        self._raising = raising
        self.absent = messages.compare_revision(layout.wide, 0)  # the compare of every commit
        self.looking = messages.range_op(layout.wide)  # for the failure branch: whether a wide one is the reason

    def found(self, kvs: list[KeyValue]) -> WideCommit | None:
        """The commit under way, in the answer to a range whose last key is `wide`."""
        if not kvs or kvs[-1].key != self._layout.wide:
            return None
        return WideCommit(kvs[-1].value, kvs[-1].mod_revision)

    def begin(self) -> WideCommit:
        """Stop all other commits. The caller must call `finish`, or `give_up`."""
        wide_id = new_token().encode()
        request = messages.txn([messages.put_op(self._layout.wide, wide_id)], [self.absent], [self.looking])
        while True:
            try:
                with _nothing_decided():
                    answer = self._write(request)
            except DibsError:
                self.give_up(wide_id)  # it may have been executed all the same
                raise
            if answer.succeeded:
                return WideCommit(wide_id, answer.revision)
            other = self.found(answer.ranges[0].kvs)
            if other is not None:
                self.wait(other)

    def wait(self, wide: WideCommit, wait_ms: int | None = None) -> None:
        """Wait until this commit of somebody else is over. Finish it or give it up if nobody else does, at first within
        `wait_ms`."""
        left: WideCommit | None = wide
        until_ms = steady_ms() + (WIDE_MS if wait_ms is None else wait_ms)
        while left is not None and left.id == wide.id:
            if left.revision != wide.revision:  # its process is alive
                until_ms = steady_ms() + WIDE_MS
            wide = left
            if steady_ms() < until_ms:
                time.sleep(PAUSE_S)
            elif wide.is_decided:
                with _nothing_decided():
                    self._write_part(wide)
            else:
                self.give_up(wide.id)
            left = self._look()

    def keep(self, wide: WideCommit) -> None:
        """A sign of life. Raises Conflict if it was given up."""
        with _nothing_decided():
            self._step(wide, wide.id, [])

    def give_up(self, wide_id: bytes) -> None:
        """End a commit. Does nothing if it is decided. If etcd does not answer, others give it up later."""
        parts = self._layout.wide_part(wide_id, 0)[: -len(b"000000")]
        ops = [messages.delete_op(self._layout.wide), messages.delete_op(parts, end_of(parts))]
        with suppress(DibsError):
            self._client.txn(ops, [messages.compare_value(self._layout.wide, messages.EQUAL, wide_id)])

    def finish(self, wide: WideCommit, parts: list[list[bytes]]) -> list[KeyValue]:
        """Write all parts, or nothing: then it raises Conflict or an error. Returns the range of the key `last`."""
        if len(parts) == 1:
            return self._step(wide, None, parts[0])
        with _nothing_decided():
            for number, part in enumerate(parts):
                text = zlib.compress(messages.txn(part), 1)
                self._step(wide, wide.id, [messages.put_op(self._layout.wide_part(wide.id, number), text)])
        self._step(wide, b"%s 0 %d" % (wide.id, len(parts)), [])
        wide.count = len(parts)
        try:
            return self._write_parts(wide)
        except StoreUnavailable as error:
            error.unknown = True  # it is decided, and the next reader finishes it
            raise

    def _write_parts(self, wide: WideCommit) -> list[KeyValue]:
        while True:
            last = self._write_part(wide)
            if last is not None and wide.next == wide.count:
                return last
            if last is None:  # another process was first
                left = self._look()
                if left is None or left.id != wide.id:
                    return self._client.range(self._layout.last)
                wide = left

    def _write_part(self, wide: WideCommit) -> list[KeyValue] | None:
        """Write the next part of a commit that is decided. None: another process was first."""
        key = self._layout.wide_part(wide.id, wide.next)
        found = self._client.range(key)
        if not found:
            return None
        ops = messages.operations(zlib.decompress(found[0].value))
        after = wide.next + 1
        left = b"%s %d %d" % (wide.id, after, wide.count) if after < wide.count else None
        try:
            last = self._step(wide, left, [messages.delete_op(key), *ops])
        except Conflict:
            return None
        wide.next = after
        return last

    def _step(self, wide: WideCommit, value: bytes | None, ops: list[bytes]) -> list[KeyValue]:
        """Go on with a wide commit: change `wide` to `value`, or delete it. Returns the range of the key `last`."""
        key, keys = self._layout.wide, self._layout
        moves = messages.delete_op(key) if value is None else messages.put_op(key, value)
        others = [moves, naming(keys, new_token()), self._raising(), messages.range_op(keys.last)]
        success = [*packed(ops, 1, len(others)), *others]
        answer = self._write(messages.txn(success, [messages.compare_revision(key, wide.revision)]))
        if not answer.succeeded:
            raise Conflict
        wide.revision = answer.revision
        return answer.ranges[-1].kvs

    def _look(self) -> WideCommit | None:
        return self.found(self._client.range(self._layout.wide))
