"""The client for threads. One client may be shared by all threads of a program, and survives a fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from dibs.base.errors import InvalidInput, NotClaimed
from dibs.client.pool import Doors
from dibs.client.queueing import drive
from dibs.sdk import operations
from dibs.sdk.claim import Claim, given_up
from dibs.sdk.claims import ClientFace
from dibs.sdk.events import Events
from dibs.sdk.leader import Leader
from dibs.sdk.methods import asks, given
from dibs.sdk.session import Session

if TYPE_CHECKING:
    from types import TracebackType

    from dibs.client.queueing import Flow
    from dibs.client.settings import Settings
    from dibs.core.durations import Duration
    from dibs.sdk.answers import Lease
    from dibs.sdk.claims import OnLost
    from dibs.sdk.operations import ClaimRequest

T = TypeVar("T")


class Client(ClientFace[Claim, Session, Leader, Events]):
    """A client of a server (`http://`, `https://`, `unix://`) or of a store (`sqlite:///`, `memory://`, …).

    Without a URL: DIBS_URL, else your own store, the same that the `dibs` command uses. Nothing is opened before the
    first request. `timeout` limits one request, in seconds, without the time spent waiting in line."""

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

    def _begin(self, request: ClaimRequest, on_lost: OnLost | None) -> Claim:
        return Claim(self._doors, request, on_lost)

    def _new_session(self, owner: str, ttl: Duration | None, metadata: str | None, on_lost: OnLost | None) -> Session:
        session = Session(self._doors, owner, ttl, metadata, on_lost)
        session._names, session._tracker = self._names, self._tracker
        return session

    def _new_leader(self, request: ClaimRequest, on_lost: OnLost | None) -> Leader:
        return Leader(self._doors, request, on_lost)

    def _new_events(self, prefix: str, name: str | None, *where: Any) -> Events:
        one = None if name is None else self._one_name(name)
        return Events(self._doors.own, prefix, one, *where)

    @given(ClientFace._to_acquire)
    def acquire(self, request: ClaimRequest) -> Lease:
        try:
            return self._run(operations.acquire(request))[0]
        except (NotClaimed, InvalidInput):
            raise
        except BaseException:
            if request.has_own_key:  # a caller with its own key can repeat the request
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
