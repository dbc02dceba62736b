"""Elections for callers without a token: who such a caller is, and the bounds on what all of them may do."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dibs.base.clock import steady_ms
from dibs.base.errors import AuthenticationRequired, DibsError
from dibs.core.identity import AGENT, Caller, Limits
from dibs.core.limits import OVERLOAD_RETRY_MS, PUBLIC_FULL_RETRY_MS
from dibs.engine.auth import RateLimited
from dibs.server.http.admission import ClientWindows

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.server.settings import PublicElections

# Public elections have a namespace of their own, so nothing in them can be in the way of a job.
PUBLIC_NAMESPACE = "public-elections"
PUBLIC_PRINCIPAL = "public"


class RoomsFull(DibsError):
    """As many public elections have a leader as may."""

    code = "capacity_exceeded"
    retry_after_ms = PUBLIC_FULL_RETRY_MS


class PublicRooms:
    """For one event loop. `settings` None: there are no public elections. Clients are counted as for connections."""

    def __init__(self, settings: PublicElections | None, steady: Callable[[], int] = steady_ms) -> None:
        self.settings = settings
        most = 0 if settings is None else settings.requests
        self._requests = ClientWindows(most, "ids and campaigns", steady)
        self._streams: Counter[str] = Counter()

    def caller(self) -> Caller:
        """Anybody. The number of rooms is counted in the store, for all servers together."""
        if self.settings is None:
            raise AuthenticationRequired("Bearer token required")
        limits = Limits(held=self.settings.rooms)
        return Caller(principal=PUBLIC_PRINCIPAL, role=AGENT, namespace=PUBLIC_NAMESPACE, limits=limits)

    def charge(self, client: str) -> None:
        """Count one request of a client; raises RateLimited if it is one too many."""
        self._requests.charge(client)

    def enter_stream(self, client: str) -> Callable[[], None]:
        """Count one more stream; raises if it is one too many. Call what it returns at the end of the stream."""
        if self.settings is None:
            return lambda: None
        if self._streams[client] >= self.settings.streams_per_client:
            raise RateLimited(
                f"One client may watch {self.settings.streams_per_client} public elections at a time.",
                PUBLIC_FULL_RETRY_MS,
            )
        if self._streams.total() >= self.settings.streams:
            raise RateLimited(
                f"This server has {self.settings.streams} streams of public elections, which is its limit.",
                OVERLOAD_RETRY_MS,
            )
        self._streams[client] += 1
        return lambda: self._leave_stream(client)

    def _leave_stream(self, client: str) -> None:
        self._streams[client] -= 1
        if not self._streams[client]:
            del self._streams[client]
