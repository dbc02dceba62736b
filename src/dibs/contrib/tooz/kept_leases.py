"""The leases of one coordinator. Its heartbeat renews them all."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tooz import ToozError
from tooz.coordination import ToozConnectionError

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, JobHeld, LeaseLost, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.sdk.answers import Lease
    from dibs.sdk.client import Client


# Errors of dibs as errors of tooz.


@contextmanager
def as_tooz_errors() -> Iterator[None]:
    try:
        yield
    except (Unavailable, BadReply) as error:
        raise ToozConnectionError(error.details) from error
    except DibsError as error:
        raise ToozError(error.details) from error


log = logging.getLogger("dibs")


class KeptLeases:
    """A lease that is lost or given back is not kept any longer."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._guard = threading.Lock()
        self._leases: dict[str, Lease] = {}  # by lease id
        self._certain_until_ms: dict[str, int] = {}

    def take(self, name: str, *, ttl: float, **wanted: Any) -> Lease | None:
        """The lease, or None if somebody else has the job."""
        sent_ms = steady_ms()
        with as_tooz_errors():
            try:
                lease = self._client.acquire(name, ttl=ttl, again=True, **wanted)
            except JobHeld:
                return None
        self._keep(lease, sent_ms, ttl)
        # Its time is counted from before the wait, so a lease that was waited for is renewed at once.
        if steady_ms() > sent_ms + ttl * 500 and not self.renew(lease):
            return None
        return lease

    def _keep(self, lease: Lease, sent_ms: int, ttl: float) -> None:
        with self._guard:
            self._leases[lease.lease_id] = lease
            self._certain_until_ms[lease.lease_id] = sent_ms + round(ttl * 1000)

    def _forget(self, lease: Lease) -> bool:
        with self._guard:
            self._certain_until_ms.pop(lease.lease_id, None)
            return self._leases.pop(lease.lease_id, None) is not None

    def has(self, lease: Lease | None) -> bool:
        """Tell whether it is certainly still ours, by this machine's clock."""
        with self._guard:
            return lease is not None and steady_ms() < self._certain_until_ms.get(lease.lease_id, 0)

    def drop(self, lease: Lease) -> bool:
        """Give it back. False if it was not ours any more. If the store does not answer, the lease expires."""
        if not self._forget(lease):
            return False
        with as_tooz_errors():
            try:
                self._client.release(lease.name, lease.lease_id)
            except LeaseLost:
                return False
        return True

    def renew(self, lease: Lease, **changes: Any) -> bool:
        """False if it was lost."""
        sent_ms = steady_ms()
        with as_tooz_errors():
            try:
                renewed = self._client.renew(lease.name, lease.lease_id, **changes)
            except LeaseLost as lost:
                if self._forget(lease):
                    log.warning("%s", lost.details)
                return False
        with self._guard:
            if lease.lease_id in self._leases:
                self._certain_until_ms[lease.lease_id] = sent_ms + renewed.remaining_ms
        return True

    def renew_all(self) -> None:
        """Tries every lease, then raises the first failure."""
        failures = []
        for lease in self._all():
            try:
                self.renew(lease)
            except ToozError as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def drop_all(self) -> None:
        for lease in self._all():
            try:
                self.drop(lease)
            except ToozError as failure:
                log.warning("%s could not be released and will expire: %s", lease.name, failure)

    def _all(self) -> list[Lease]:
        with self._guard:
            return list(self._leases.values())
