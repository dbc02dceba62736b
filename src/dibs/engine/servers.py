"""Which servers use this store, known from their pulses (`core/outages.py`), and which of them sweeps what."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from dibs.core.keys import LOCK_PREFIX, PULSE_KEY, SESSION_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT, SWEEP_GRACE_MS
from dibs.core.outages import accounted_ms, gone_servers, live_servers
from dibs.core.records import LockRecord, Pulse, SessionRecord
from dibs.core.view import ALL_TIME_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Beat
    from dibs.core.records import Stored
    from dibs.stores.port import Store


def pulses_of(store: Store) -> list[Pulse]:
    """All pulses, including that of a server of an older version."""
    found = store.scan(PULSE_KEY, limit=LIST_PAGE_DEFAULT)
    return [versioned.record for _, versioned in found if isinstance(versioned.record, Pulse)]


def after_gap(store: Store, beat: Beat, ended_ms: int) -> Beat:
    """The beat of a server whose gap ended then, with what the store knows about that time."""
    others = [pulse for pulse in pulses_of(store) if pulse.server != beat.server]
    return beat.replace(
        alive_since_ms=ended_ms,
        heard_ms=accounted_ms(others),
        idle=is_idle(store, ended_ms),
        gone=gone_servers(others, ended_ms),
    )


def is_idle(store: Store, since_ms: int = ALL_TIME_MS) -> bool:
    """Whether nobody who was there before that time holds anything, waits, or has a session. Servers write no pulse
    while nobody does, so a missing pulse means nothing then."""
    for prefix in (LOCK_PREFIX, SESSION_PREFIX):
        after, limit = "", 1
        while page := store.scan(prefix, after, limit, live=True):
            if any(_could_lose(found.record, since_ms) for _, found in page):
                return False
            after, limit = page[-1][0], min(8 * limit, LIST_PAGE_DEFAULT)
    return True


def _could_lose(record: Stored | None, since_ms: int) -> bool:
    if isinstance(record, LockRecord):  # one that is parked is live, too; nobody can lose it
        return bool(record.line) or any(holder.since_ms < since_ms for holder in record.holders)
    return isinstance(record, SessionRecord) and record.since_ms < since_ms


class SweepShare:
    """Which of the due keys this server sweeps: its own part at once, and another server's part when that one is late.

    A key belongs to one of the live servers by its hash. The next server takes over after SWEEP_GRACE_MS, the one after
    it after twice as long, so that two servers do not both begin at once."""

    def __init__(self, server: str, steady: Callable[[], int]) -> None:
        self._server = server
        self._steady = steady
        self._servers = [server]
        self._left_ms: dict[str, int] = {}  # keys left to others, and since when

    def know(self, store: Store) -> None:
        """Take note of the live servers."""
        self._servers = sorted({self._server, *live_servers(pulses_of(store), store.read(()).now_ms)})

    def know_nobody(self) -> None:
        self._servers = [self._server]

    def left(self) -> int:
        """How many keys are left to others for the moment."""
        return len(self._left_ms)

    def of(self, keys: list[str]) -> list[str]:
        """Those of `keys` that are to be swept here and now. `keys` are all due keys."""
        count = len(self._servers)
        if count == 1:
            self._left_ms = {}
            return keys
        me, now_ms = self._servers.index(self._server), self._steady()
        mine: list[str] = []
        left_ms: dict[str, int] = {}
        for key in keys:
            distance = (me - crc32(key.encode())) % count
            since_ms = self._left_ms.get(key, now_ms)
            if now_ms - since_ms >= distance * SWEEP_GRACE_MS:
                mine.append(key)
            else:
                left_ms[key] = since_ms
        self._left_ms = left_ms
        return mine
