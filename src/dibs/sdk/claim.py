"""A claim as a `with` block: taken at its start, renewed while it runs, released at its end."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, TypeVar

from dibs.base.errors import DibsError, Unavailable
from dibs.client.queueing import drive
from dibs.sdk.claim_state import (
    GIVE_UP_MS,
    ClaimState,
    LeaderState,
    begin_claim,
    begin_hold,
    end_claim,
    end_hold,
    finish_hold,
    is_refusal,
    raise_if_lost_at_exit,
    release_at_exit,
    take,
)
from dibs.sdk.heart import Grip, SafeEvent, beat_once, in_own_thread
from dibs.sdk.hold import LeaseHold
from dibs.sdk.methods import explained, given

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.base.errors import LeaseLost
    from dibs.client.pool import Doors
    from dibs.client.queueing import PendingClaim
    from dibs.sdk.answers import Lease
    from dibs.sdk.claim_state import Ending
    from dibs.sdk.hold import SessionHold

log = logging.getLogger("dibs")
T = TypeVar("T")


class LostEvent(SafeEvent):
    """Set when the claim is lost. Also looks at the clock, so that it agrees with `check()`."""

    def __init__(self, hold: LeaseHold) -> None:
        super().__init__()
        self._hold = weakref.ref(hold)
        hold.listen(lambda _: self.set())

    def is_set(self) -> bool:
        hold = self._hold()
        if hold is not None and hold.was_lost:
            self.set()
        return super().is_set()


def given_up(doors: Doors, request: PendingClaim, session: SessionHold | None = None) -> None:
    """Give the claim back. If that fails now, its session does it later; without a session it expires."""
    settled = False
    try:
        with doors.one(GIVE_UP_MS) as door:
            settled = drive(door, request.give_up())
    except DibsError:
        pass
    finally:
        if session is not None and not settled:
            session.owe(request)


class Claim(ClaimState["Doors"]):
    """`with client.claim(name) as claim:`. Its attributes are valid inside the block.

    When the claim is lost, `lost` is set, `on_lost` is called once with the LeaseLost, and `check()` and the end of
    the block raise it. A lost claim is never taken again automatically."""

    _grip: Grip | None = None
    _lost: LostEvent | None = None

    @property
    def lost(self) -> LostEvent:
        """Set when the claim is lost: a `threading.Event` to check or wait for."""
        if self._lost is None:
            self._lost = LostEvent(self._hold)
        return self._lost

    def __enter__(self) -> Claim:
        request = self._begun()
        span = begin_claim()
        try:
            hold = self._taken(request)
            end_claim(span, hold)
            self._keep(hold)
            self._span = begin_hold(hold)
        except BaseException as error:  # not claimed; or no thread, or an interrupt: nothing would renew it
            if self._held is None:
                end_claim(span, None, error)
            else:
                self._held.let_go()
                given_up(self._doors, request, self._session)
            raise
        return self

    def _keep(self, hold: LeaseHold) -> None:
        if self._on_lost is not None:
            hold.listen(in_own_thread(self._on_lost))
        if self._session is None:
            self._grip = Grip(hold, self._doors)

    def _taken(self, request: PendingClaim) -> LeaseHold:
        try:
            with self._doors.one() as door:
                hold = self._held = drive(door, take(request, self._session))
                return hold
        except BaseException as error:
            if not is_refusal(error):
                given_up(self._doors, request, self._session)
            raise
        finally:
            if self._session is not None:
                self._session.answered(request)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._leave(error)
        except DibsError:
            raise
        except BaseException:  # an interrupt: stop renewing in any case
            self._abandon(error)
            raise
        finally:
            end_hold(self._span, self._hold, error)

    def _abandon(self, error: BaseException | None) -> None:
        hold = self._hold
        hold.let_go()
        if hold.is_ours and not hold.was_lost:
            try:
                with self._doors.one(GIVE_UP_MS) as door:
                    drive(door, release_at_exit(hold, error, fail_on_error=self._fail_on_error))
            except DibsError:
                pass  # it expires

    def _leave(self, error: BaseException | None) -> None:
        hold = self._hold
        if not hold.is_ours:
            return  # a forked child does not touch the parent's claim
        if not hold.was_lost and hold.let_go():
            lost = self._released(hold, error)
            if lost is not None and error is None:
                raise lost
            return
        raise_if_lost_at_exit(hold, error)

    def _released(self, hold: LeaseHold, error: BaseException | None) -> LeaseLost | None:
        try:
            with self._doors.one() as door:
                return drive(door, release_at_exit(hold, error, fail_on_error=self._fail_on_error))
        except Unavailable as trouble:  # the client was closed inside the block
            log.warning("%s could not be released and will expire: %s", hold.name, trouble.details)
            return None

    @explained
    def checkpoint(self, text: str, *, metadata: str | None = None) -> None:
        """Store progress for the next owner, now. If that fails, it is sent with the next heartbeat."""
        self.check()
        self._hold.note(text, metadata)
        if self._grip is not None:
            self._grip.heart.beat()
        else:
            beat_once(self._hold, self._doors)
        self.check()

    @given(ClaimState._done)
    def done(self, ending: Ending[None]) -> None:
        self._finish(ending)

    @given(ClaimState._release)
    def release(self, ending: Ending[None]) -> None:
        self._finish(ending)

    @given(ClaimState._fail)
    def fail(self, ending: Ending[None]) -> None:
        self._finish(ending)

    @given(ClaimState._transfer)
    def transfer(self, ending: Ending[Lease]) -> Lease:
        return self._finish(ending)[0]

    def _finish(self, ending: Ending[T]) -> list[T]:
        with self._doors.one() as door:
            return drive(door, finish_hold(self._hold, ending))


class Leader(LeaderState["Doors"], Claim):
    """`with client.leader(name) as leader:`. A loss is told as that of a claim: by `lost`, `on_lost`, `check()`, and at
    the end of the block."""

    def __enter__(self) -> Leader:
        super().__enter__()
        return self

    def resign(self) -> None:
        """Lead no more, before the block ends."""
        self.release()
