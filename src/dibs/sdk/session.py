"""A session as a `with` block: one run of one worker. What is claimed in it is let go when it ends, or falls silent."""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

from dibs.client.embedded import process_mark
from dibs.client.places import drive
from dibs.clock import steady_ms
from dibs.errors import DibsError, InvalidInput
from dibs.sdk import operations
from dibs.sdk.claim import Claim
from dibs.sdk.claims import Claims
from dibs.sdk.heart import WATCHDOG, Heart, telling
from dibs.sdk.hold import SessionHold

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.client.pool import Doors
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import Wish

log = logging.getLogger("dibs")


class Session(Claims[Claim]):
    """Claims made through it need no heartbeats of their own: the session has one for all of them."""

    def __init__(
        self,
        doors: Doors,
        owner: str | None,
        ttl: float | None,
        metadata: str | None,
        on_lost: OnLost | None,
    ) -> None:
        self._doors = doors
        self._owner = owner
        self._ttl = ttl
        self._metadata = metadata
        self._on_lost = on_lost
        self._held: SessionHold | None = None
        self._heart: Heart | None = None

    def __enter__(self) -> Session:
        if self._held is not None:
            raise InvalidInput("A session is for one block. Ask the client for another one.")
        sent_ms = steady_ms()
        with self._doors.one() as door:
            flow = operations.opening(self._owner, self._ttl, self._metadata, process_mark(os.getpid()))
            hold = self._held = SessionHold(drive(door, flow), sent_ms)
        if self._on_lost is not None:
            hold.listen(telling(self._on_lost))
        heart = self._heart = Heart(hold, self._doors)
        weakref.finalize(self, _dropped, heart, hold)
        heart.start()
        WATCHDOG.watch(hold)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        hold = self._hold
        if not hold.is_ours:
            return
        if self._heart is not None:
            self._heart.stop()
        if not hold.was_lost and hold.let_go():
            try:
                with self._doors.one() as door:
                    drive(door, operations.ending(hold.session_id))
            except DibsError as trouble:
                log.warning("A session could not be ended and goes with its TTL: %s", trouble.details)
        elif hold.was_lost and error is None:
            hold.check()

    @property
    def _hold(self) -> SessionHold:
        if self._held is None:
            raise InvalidInput("The session is not open: use it as a `with` block.")
        return self._held

    @property
    def session_id(self) -> str:
        """Its secret. As DIBS_SESSION in a child's environment it lets the child work in this session."""
        return self._hold.session_id

    def remaining(self) -> float:
        """Seconds until it must be taken for lost, if no more heartbeats get through."""
        return self._hold.left_ms() / 1000 if self._hold.is_ours else 0.0

    def check(self) -> None:
        """Raise LeaseLost unless the session surely still lives."""
        self._hold.check()

    def _begin(self, wish: Wish, on_lost: OnLost | None) -> Claim:
        return Claim(self._doors, wish, on_lost, self._hold)

    def _common(self, ttl: float | None, owner: str | None) -> dict[str, Any]:
        self.check()
        if ttl is not None:
            raise InvalidInput("A claim in a session lives as long as the session: leave ttl out.")
        return {"owner": owner or self._owner, "session_id": self.session_id}


def _dropped(heart: Heart, hold: SessionHold) -> None:
    if hold.is_ours:
        hold.let_go()
        heart.stop()
