"""The client for threads. One may be shared by all threads of a program, and survives a fork."""

from __future__ import annotations

from dibs.base.cheap import Any, TypeVar
from dibs.base.errors import DibsError
from dibs.base.logger import log
from dibs.client.flow import Flow, drive
from dibs.client.pending import PendingClaim
from dibs.client.pool import TransportPool
from dibs.client.settings import Settings
from dibs.sdk import operations
from dibs.sdk.answers import Lease
from dibs.sdk.claim import Claim, Leader, given_up
from dibs.sdk.claim_state import is_refusal
from dibs.sdk.claims import ClientFace, SessionClaims
from dibs.sdk.heart import Grip, in_own_thread
from dibs.sdk.hold import SessionHold
from dibs.sdk.methods import asks, given

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dibs.sdk.events import Events

T = TypeVar("T")
NOT_ENDED = "A session could not be ended and will expire: %s"


class Session(SessionClaims[Claim, TransportPool]):
    """Claims made through it need no heartbeats of their own: the session has one for all of them."""

    _claim_type = Claim
    _grip: Grip | None = None

    def __enter__(self) -> Session:
        self._check_first()
        try:
            with self._transports.one() as transport:
                hold = self._held = drive(transport, self._opening())
            if self._on_lost is not None:
                hold.listen(in_own_thread(self._on_lost))
            self._grip = Grip(hold, self._transports)
        except BaseException:  # no thread could start, or an interrupt: nothing would renew it
            self._abandon()
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        hold = self._hold
        if not hold.is_ours:
            return
        try:
            if not hold.was_lost and hold.let_go():
                self._end(hold)
            elif hold.was_lost and error is None:
                hold.check()
        except DibsError:
            raise
        except BaseException:  # after an interrupt nothing is renewed any longer
            self._abandon()
            raise

    def _abandon(self) -> None:
        hold = self._held
        if hold is None or not hold.is_ours:
            return
        hold.let_go()
        if not hold.was_lost:
            self._end(hold)

    def _end(self, hold: SessionHold) -> None:
        try:
            with self._transports.one() as transport:
                drive(transport, operations.end_session(hold.session_id))
        except DibsError as trouble:
            log.warning(NOT_ENDED, trouble.details)


class Client(ClientFace[Claim, Session, Leader, "Events", TransportPool]):
    """A client of a server (`http://`, `https://`, `unix://`) or of a store (`sqlite:///`, `memory://`, …).

    Without a URL: DIBS_URL, else your own store, the same that the `dibs` command uses. Nothing is opened before the
    first request. `timeout` limits one request, in seconds, without the time spent waiting in line."""

    _claim_type = Claim
    _session_type = Session
    _leader_type = Leader

    def _open(self, settings: Settings) -> None:
        self._transports = TransportPool(settings, self._timeout_ms)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close files and connections. Claims stay held: leave their blocks first."""
        self._closed = True
        self._transports.close()

    def _run(self, flow: Flow[T]) -> T:
        with self._transports.one() as transport:
            return drive(transport, flow)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> Events:
        from dibs.sdk.events import Events

        return Events(self._transports.own, prefix, None if name is None else self._one_name(name), *where)

    @given(ClientFace._acquire)
    def acquire(self, request: PendingClaim) -> Lease:
        try:
            return self._run(operations.acquire(request))[0]
        except BaseException as error:
            if request.own_key and not is_refusal(error):  # a caller with its own key can repeat the request
                given_up(self._transports, request)
            raise

    renew = asks("renew", operations.renew)
    release = asks("release", operations.release)
    fail = asks("fail", operations.fail)
    transfer = asks("transfer", operations.transfer)
    owner = asks("owner", operations.inspect)
    list = asks("list", operations.list_jobs)
    history = asks("history", operations.history)
    overdue = asks("overdue", operations.overdue)
    break_claim = asks("break_claim", operations.break_claim)
    free = asks("free", operations.free)
    close_job = asks("close_job", operations.close_job)
    open_job = asks("open_job", operations.open_job)
    set_pool = asks("set_pool", operations.set_pool)
    next_number = asks("next_number", operations.next_number)
    return_number = asks("return_number", operations.return_number)
    pools = asks("pools", operations.list_pools)
