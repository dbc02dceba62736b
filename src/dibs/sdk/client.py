"""The client for threads. One client may be shared by all threads of a program, and survives a fork."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.errors import DibsError, InvalidInput, NotClaimed
from dibs.client.pool import Doors
from dibs.client.queueing import drive
from dibs.sdk import operations
from dibs.sdk.claim import Claim, Leader, given_up
from dibs.sdk.claims import ClientFace, SessionClaims
from dibs.sdk.events import Events
from dibs.sdk.heart import Grip, in_own_thread
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import asks, given

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.client.pool import Doors
    from dibs.client.queueing import Flow, PendingClaim
    from dibs.client.settings import Settings
    from dibs.sdk.answers import Lease


# A session as a `with` block: one run of one worker. Its claims end when it ends or falls silent.

log = logging.getLogger("dibs")
T = TypeVar("T")


class Session(SessionClaims[Claim, Doors]):
    """Claims made through it need no heartbeats of their own: the session has one for all of them."""

    _claim_type = Claim
    _grip: Grip | None = None

    def __enter__(self) -> Session:
        self._check_first()
        try:
            self._open()
        except BaseException:  # no thread could start, or an interrupt: nothing would renew it
            self._abandon()
            raise
        return self

    def _open(self) -> None:
        with self._doors.one() as door:
            hold = self._held = drive(door, self._opening())
        if self._on_lost is not None:
            hold.listen(in_own_thread(self._on_lost))
        self._grip = Grip(hold, self._doors)

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
        if not hold.was_lost and hold.let_go():
            self._end(hold)
        elif hold.was_lost and error is None:
            hold.check()

    def _abandon(self) -> None:
        hold = self._held
        if hold is None or not hold.is_ours:
            return
        hold.let_go()
        if not hold.was_lost:
            self._end(hold)

    def _end(self, hold: SessionHold) -> None:
        try:
            with self._doors.one() as door:
                drive(door, operations.end_session(hold.session_id))
        except DibsError as trouble:
            log.warning("A session could not be ended and will expire: %s", trouble.details)


class Client(ClientFace[Claim, Session, Leader, Events, Doors]):
    """A client of a server (`http://`, `https://`, `unix://`) or of a store (`sqlite:///`, `memory://`, …).

    Without a URL: DIBS_URL, else your own store, the same that the `dibs` command uses. Nothing is opened before the
    first request. `timeout` limits one request, in seconds, without the time spent waiting in line."""

    _claim_type = Claim
    _session_type = Session
    _leader_type = Leader

    def _open(self, settings: Settings) -> None:
        self._doors = Doors(settings, self._timeout_ms)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close files and connections. Claims stay held: leave their blocks first."""
        self._closed = True
        self._doors.close()

    def _run(self, flow: Flow[T]) -> T:
        with self._doors.one() as door:
            return drive(door, flow)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> Events:
        one = None if name is None else self._one_name(name)
        return Events(self._doors.own, prefix, one, *where)

    @given(ClientFace._to_acquire)
    def acquire(self, request: PendingClaim) -> Lease:
        try:
            return self._run(operations.acquire(request))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request.own_key:  # a caller with its own key can repeat the request
                given_up(self._doors, request)
            raise

    renew = asks("renew", operations.renew)
    release = asks("release", operations.release)
    fail = asks("fail", operations.fail)
    transfer = asks("transfer", operations.transfer)
    owner = asks("owner", operations.inspect)
    list = asks("list", operations.list_jobs)
    history = asks("history", operations.history)
    break_claim = asks("break_claim", operations.break_claim)
    free = asks("free", operations.free)
