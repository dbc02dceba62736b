"""Keeping a session alive: when to say so next, and from when on to take it for lost. The promise `loss:told`.

The store counts a session's time from when it heard of it, which is after we began to say so. So whoever counts from
before sending, on a clock that nobody can step, knows of the end before anybody else may own what the session held. How
long it takes to stop the work is taken off as well.
"""

from __future__ import annotations

import threading

from dibs.client.plan import Plan
from dibs.clock import steady_ms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.client.door import Door

__all__ = ("Keeper", "Plan")

NAP_MS = 1_000  # sleep does not count suspend, the clock does: look at it this often


class Keeper(threading.Thread):
    """Says in the background that the session is alive. `on_lost` is called from there, once."""

    def __init__(
        self, open_door: Callable[[], Door], session: str, plan: Plan, on_lost: Callable[[], None]
    ) -> None:
        super().__init__(name="dibs keeper", daemon=True)
        self._open_door = open_door
        self._session = session
        self._plan = plan
        self._on_lost = on_lost
        self._over = threading.Event()
        self._ended = False
        self.why = "no keepalive was answered in time"

    @property
    def is_lost(self) -> bool:
        """The session is over, or must be taken for it."""
        return self._ended or steady_ms() >= self._plan.lost_ms

    def left_ms(self) -> int:
        """Until it must be taken for lost, if nothing more is heard."""
        return max(0, self._plan.lost_ms - steady_ms())

    def stop(self) -> None:
        """No more keepalives. One that is under way may still go through."""
        self._over.set()
        self.join(NAP_MS / 1000)

    def run(self) -> None:
        door: Door | None = None
        try:
            while not self._over.wait(self._nap_seconds()):
                if steady_ms() >= self._plan.next_ms:
                    if door is None:
                        door = self._open_door()
                    if not self._keep(door):
                        self._ended = True
                        self._on_lost()
                        return
        finally:
            if door is not None:
                door.close()

    def _nap_seconds(self) -> float:
        return max(0, min(NAP_MS, self._plan.next_ms - steady_ms())) / 1000

    def _keep(self, door: Door) -> bool:
        """False when the session is over for certain."""
        sent_ms = steady_ms()
        try:
            reply = door.call("session-keep", self._session, {})
        except Exception as error:  # a fault is no reason to go silent: the next attempt may do
            self.why = f"{type(error).__name__}: {error}"
            self._plan.failed(steady_ms())
            return True
        if reply.status < 300:
            self._plan.kept(sent_ms)
            return True
        self.why = str((reply.body or {}).get("details") or f"status {reply.status}")
        self._plan.failed(steady_ms())
        return reply.status not in (404, 410)
