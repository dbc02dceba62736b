"""A lock of tooz as a claim."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tooz import locking
from tooz.utils import convert_blocking

from dibs.contrib.tooz.errors import as_tooz_errors

if TYPE_CHECKING:
    from dibs.contrib.tooz.kept_leases import KeptLeases
    from dibs.sdk.answers import Lease
    from dibs.sdk.client import Client


class DibsLock(locking.Lock):
    """Any thread may release it. Not reentrant, but it may be acquired several times as a shared lock."""

    def __init__(self, name: bytes, job: str, client: Client, kept: KeptLeases, ttl: float) -> None:
        super().__init__(name)
        self._job = job
        self._client = client
        self._kept = kept
        self._ttl = ttl
        self._held: list[Lease] = []

    def acquire(self, blocking: Any = True, shared: bool = False, timeout: float | None = None) -> bool:
        waits, longest = convert_blocking(blocking, timeout)
        wait = (math.inf if longest is None else longest) if waits else None
        lease = self._kept.take(self._job, ttl=self._ttl, wait=wait, shared=shared)
        if lease is None:
            return False
        self._held.append(lease)
        return True

    def release(self) -> bool:
        """False if it is not held here, or was lost."""
        try:
            lease = self._held.pop()
        except IndexError:
            return False
        return self._kept.drop(lease)

    def is_still_owner(self) -> bool:
        """Asks the store. Raises ToozConnectionError if the store does not answer."""
        return self.heartbeat()

    def heartbeat(self) -> bool:
        """Renew it now. False if it is not held here, or lost."""
        renewed = [self._kept.renew(lease) for lease in list(self._held)]
        return bool(renewed) and all(renewed)

    def break_(self) -> bool:
        """At a server this needs the token of an operator."""
        with as_tooz_errors():
            if not self._client.owner(self._job).held:
                return False
            self._client.break_claim(self._job, "broken by a tooz coordinator")
            return True

    @property
    def acquired(self) -> bool:
        """Whether it is certainly held here, by this machine's clock."""
        return any(self._kept.has(lease) for lease in list(self._held))
