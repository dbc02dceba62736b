"""A coordination driver for tooz: locks, groups and leaders as claims. docs/how-to/one-owner-elsewhere.md has the URLs
and options."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tooz import coordination, locking, utils
from tooz.coordination import Characteristics
from tooz.utils import convert_blocking

from dibs.contrib.tooz.groups import Groups, KeptLeases, as_tooz_errors, binary, job_of
from dibs.sdk.client import Client

if TYPE_CHECKING:
    from dibs.sdk.answers import Lease


class DibsLock(locking.Lock):
    """A lock of tooz as a claim. Any thread may release it. Only a shared one may be acquired several times."""

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
        """Tell whether it is certainly held here, by this machine's clock."""
        return any(self._kept.has(lease) for lease in list(self._held))


TIMEOUT_SECONDS = 30.0


def url_of(parsed: Any, options: dict[str, Any]) -> str | None:
    """The URL for dibs. None: the environment decides."""
    if "url" in options:
        return str(options["url"])
    if parsed.netloc:
        return f"{'https' if parsed.scheme.endswith('+https') else 'http'}://{parsed.netloc}"
    return f"sqlite://{parsed.path}" if parsed.path.strip("/") else None


# Tooz says that a group has a leader; its own drivers answer None, too.
class DibsDriver(Groups, coordination.CoordinationDriverCachedRunWatchers):  # type: ignore[misc]
    """Everything that a coordinator has is a lease. `heartbeat()` renews all of them."""

    CHARACTERISTICS = (
        Characteristics.DISTRIBUTED_ACROSS_THREADS,
        Characteristics.DISTRIBUTED_ACROSS_PROCESSES,
        Characteristics.DISTRIBUTED_ACROSS_HOSTS,
        Characteristics.LINEARIZABLE,
    )

    def __init__(self, member_id: bytes, parsed_url: Any, options: dict[str, Any]) -> None:
        super().__init__(binary(member_id), parsed_url, options)
        given = utils.collapse(options)
        self._timeout = float(given.get("timeout", TIMEOUT_SECONDS))
        self._lock_timeout = float(given.get("lock_timeout", self._timeout))
        self._where = url_of(parsed_url, given), given.get("token")
        self._namespace = given.get("namespace")

    def _start(self) -> None:
        with as_tooz_errors():
            owner = self._member_id.decode(errors="backslashreplace")[:256]
            client = Client(*self._where, owner, self._namespace, exact=True)
            client.owner(job_of("group", b"-"))  # is anybody there?
        self._begin(client)

    def _stop(self) -> None:
        self._kept.drop_all()
        self._client.close()
        self._parts = None

    def heartbeat(self) -> float:
        """Tooz waits for half of what this returns, so a lease is renewed three times in its life."""
        self._kept.renew_all()
        with as_tooz_errors():
            self._renew_groups()
        return min(self._timeout, self._lock_timeout) * 2 / 3

    def get_lock(self, name: bytes) -> DibsLock:
        return DibsLock(name, job_of("lock", binary(name)), self._client, self._kept, self._lock_timeout)

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        return [*super().run_watchers(timeout), *self._elect()]

    def run_elect_coordinator(self) -> None:
        self._elect()

    def _elect(self) -> list[Any]:
        found: list[Any] = []
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            if self._lead(binary(group_id)):
                found += hooks.run(coordination.LeaderElected(group_id, self._member_id))
        return found
