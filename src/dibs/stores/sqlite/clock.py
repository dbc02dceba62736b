"""The lease clock of one file: steady time, tied to wall time by an anchor in the file, one for each steady clock.

    now = anchor_wall + (steady - anchor_steady)

A steady clock is named by the boot it counts from (`base/clock.py`). Every process of the machine reads the same
anchor and the same steady clock, so they agree to the millisecond; a wall clock that is stepped moves nothing, and time
spent suspended counts. Steady time means nothing across two boots, nor on the machine a file was copied from: for a
clock that the file does not know, an anchor is made that is not before the last time the file knows of, and those of
other clocks stay as they are. That time may be UNWRITTEN_MS behind the last renewal, so a wall clock that came up in
the past begins that much later. A wall clock within that very second is taken as it is: time may then be less than a
second behind the last renewal. So a wall clock that came up in the past only makes leases last longer.
"""

from __future__ import annotations

from dibs.stores.sqlite.rows import UNWRITTEN_MS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class LeaseClock:
    """Tells the store's time once it has been anchored."""

    __slots__ = ("_boot_id", "_last_ms", "_offset_ms", "_steady_ms", "_wall_ms")

    def __init__(self, steady_ms: Callable[[], int], wall_ms: Callable[[], int], boot_id: Callable[[], str]) -> None:
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms
        self._boot_id = boot_id
        self._offset_ms = 0
        self._last_ms = 0

    def name(self) -> str:
        """Return which steady clock this is: what its anchor is kept under."""
        return self._boot_id()

    def follow(self, anchor: tuple[int, int] | None, last_ms: int) -> bool:
        """Take this clock's anchor, wall and steady time, if there is one; `last_ms` is the latest time the file
        knows of."""
        self._last_ms = max(self._last_ms, last_ms)
        if anchor is None:
            return False
        self._offset_ms = anchor[0] - anchor[1]
        return True

    def new_anchor(self) -> tuple[int, int]:
        """Wall time and steady time of an anchor for this clock. Takes effect through `follow`."""
        wall_ms = self._wall_ms()
        if wall_ms < self._last_ms:
            wall_ms = self._last_ms + UNWRITTEN_MS
        return wall_ms, self._steady_ms()

    def now_ms(self) -> int:
        """The store's time. Never less than it was."""
        now_ms = self._offset_ms + self._steady_ms()
        if now_ms < self._last_ms:
            return self._last_ms
        self._last_ms = now_ms
        return now_ms
