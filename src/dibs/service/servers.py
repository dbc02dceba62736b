"""Which servers use this store, known from their pulses (`core/outages.py`), and which of them sweeps what."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from dibs.core.keys import LOCK_PREFIX, PULSE_KEY, SESSION_PREFIX
from dibs.core.limits import LIST_PAGE_DEFAULT, SWEEP_GRACE_MS
from dibs.core.outages import accounted_ms, gone_servers, live_servers
from dibs.core.records import Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Beat
    from dibs.stores.port import Store


def pulses_of(store: Store) -> list[Pulse]:
    """All pulses, including that of a server of an older version."""
    found = store.scan(PULSE_KEY, limit=LIST_PAGE_DEFAULT)
    return [versioned.record for _, versioned in found if isinstance(versioned.record, Pulse)]


def after_gap(store: Store, beat: Beat) -> Beat:
    """The beat of a server after a gap, with what the store knows about that time."""
    pulses = pulses_of(store)
    return beat.replace(
        heard_ms=accounted_ms(pulses),
        idle=_is_idle(store),
        gone=gone_servers([pulse for pulse in pulses if pulse.server != beat.server], beat.alive_since_ms),
    )


def _is_idle(store: Store) -> bool:
    """Servers write no pulse while nobody holds or waits for anything, so a missing pulse means nothing then."""
    return not any(store.scan(prefix, limit=1, live=True) for prefix in (LOCK_PREFIX, SESSION_PREFIX))


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

    def of(self, keys: list[str]) -> list[str]:
        """Those of `keys` that are to be swept here and now. `keys` are all due keys."""
        count = len(self._servers)
        if count == 1:
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
