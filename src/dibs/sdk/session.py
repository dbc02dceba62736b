"""A session as a `with` block: one run of one worker. Its claims end when it ends or falls silent."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.errors import DibsError, InvalidInput
from dibs.client.queueing import drive
from dibs.sdk import operations
from dibs.sdk.claim import Claim
from dibs.sdk.claims import SessionClaims
from dibs.sdk.heart import WATCHDOG, Grip, Heart, in_own_thread
from dibs.sdk.hold import SessionHold
from dibs.system.session_mark import process_mark

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.client.pool import Doors
    from dibs.core.durations import Duration
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import ClaimRequest

log = logging.getLogger("dibs")


class Session(SessionClaims[Claim]):
    """Claims made through it need no heartbeats of their own: the session has one for all of them."""

    def __init__(
        self,
        doors: Doors,
        owner: str | None,
        ttl: Duration | None,
        metadata: str | None,
        on_lost: OnLost | None,
    ) -> None:
        super().__init__(owner)
        self._doors = doors
        self._ttl = ttl
        self._metadata = metadata
        self._on_lost = on_lost
        self._heart: Heart | None = None
        self._grip: Grip | None = None

    def __enter__(self) -> Session:
        begun, self._begun = self._begun, True
        if begun:
            raise InvalidInput("A session is for one block. Ask the client for another one.")
        try:
            self._open()
        except BaseException:  # no thread could start, or an interrupt: nothing would renew it
            self._abandon()
            raise
        return self

    def _open(self) -> None:
        sent_ms = steady_ms()
        with self._doors.one() as door:
            flow = operations.open_session(self._owner, self._ttl, self._metadata, process_mark(os.getpid()))
            hold = self._held = SessionHold(drive(door, flow), sent_ms)
        if self._on_lost is not None:
            hold.listen(in_own_thread(self._on_lost))
        heart = self._heart = Heart(hold, self._doors)
        self._grip = Grip(heart)
        WATCHDOG.watch(heart)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        except DibsError:
            raise
        except BaseException:  # after an interrupt nothing is renewed any longer
            self._abandon()
            raise

    def _leave(self, error: BaseException | None) -> None:
        hold = self._hold
        if not hold.is_ours:
            return
        if self._heart is not None:
            self._heart.stop()
        if not hold.was_lost and hold.let_go():
            self._end(hold)
        elif hold.was_lost and error is None:
            hold.check()

    def _abandon(self) -> None:
        hold = self._held
        if hold is None or not hold.is_ours:
            return
        hold.let_go()
        if self._heart is not None:
            self._heart.stop()
        if not hold.was_lost:
            self._end(hold)

    def _end(self, hold: SessionHold) -> None:
        try:
            with self._doors.one() as door:
                drive(door, operations.end_session(hold.session_id))
        except DibsError as trouble:
            log.warning("A session could not be ended and will expire: %s", trouble.details)

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> Claim:
        return Claim(self._doors, request, on_lost, self._hold)
