"""Time that moves when a test says so."""

from __future__ import annotations


class ManualClock:
    """A machine's clocks: a steady one, a wall clock that can be stepped, and boots.

    Calling it gives the time of a store that was anchored when the clock was made, for `MemoryStore`; `steady_ms`,
    `wall_ms` and `boot_id` are what `SqliteStore` takes.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, steady_ms: int = 5_000_000) -> None:
        self._wall_ms = wall_ms
        self._steady_ms = steady_ms
        self._offset_ms = wall_ms - steady_ms
        self._boots = 1

    def __call__(self) -> int:
        return self._offset_ms + self._steady_ms

    def steady_ms(self) -> int:
        return self._steady_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def advance(self, ms: int) -> None:
        """Let time pass, suspend included."""
        assert ms >= 0, "time does not run backwards; step_wall does"
        self._steady_ms += ms
        self._wall_ms += ms

    def step_wall(self, ms: int) -> None:
        """Set the wall clock, forwards or back."""
        self._wall_ms += ms

    def reboot(self, *, steady_ms: int = 1_000) -> None:
        """Restart the machine: steady time begins anew. Step the wall clock as well if the test needs it."""
        self._boots += 1
        self._offset_ms += self._steady_ms - steady_ms
        self._steady_ms = steady_ms
