"""A coordination driver for tooz: locks, groups and leaders as claims. docs/how-to/one-owner-elsewhere.md has the URLs
and options."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from tooz import ToozError, coordination, locking, utils
from tooz.coordination import Characteristics
from tooz.utils import convert_blocking

from dibs.contrib.tooz.groups import Groups, KeptLeases, as_tooz_errors, job_of
from dibs.sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.contrib.tooz.groups import Capabilities
    from dibs.sdk.answers import Lease


class DibsLock(locking.Lock):
    """A lock of tooz as a claim. Any thread may release it. Not reentrant, but it may be acquired several times as a
    shared lock."""

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


D = TypeVar("D")
P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_SECONDS = 30.0


class EndedCall(coordination.CoordAsyncResult[T], Generic[T]):
    """The result of a call that has ended already."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._error: ToozError | None = None
        try:
            with as_tooz_errors():
                self._value = call()
        except ToozError as error:
            self._error = error

    def get(self, timeout: float | None = None) -> T:
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        return True


def answered(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], EndedCall[T]]:
    """The method runs at once; what it returns or raises is in its answer."""

    @functools.wraps(method)
    def call(self: D, /, *args: P.args, **kwargs: P.kwargs) -> EndedCall[T]:
        return EndedCall(functools.partial(method, self, *args, **kwargs))

    return call


def url_of(parsed: Any, options: dict[str, Any]) -> str | None:
    """The URL for dibs. None: the environment decides."""
    if "url" in options:
        return str(options["url"])
    if parsed.netloc:
        return f"{'https' if parsed.scheme.endswith('+https') else 'http'}://{parsed.netloc}"
    return f"sqlite://{parsed.path}" if parsed.path.strip("/") else None


def binary(text: bytes | str) -> bytes:
    return utils.to_binary(text, encoding="utf-8")


class DibsDriver(coordination.CoordinationDriverCachedRunWatchers):
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
        self._parts: tuple[Client, KeptLeases, Groups] | None = None

    def _start(self) -> None:
        with as_tooz_errors():
            owner = self._member_id.decode(errors="backslashreplace")[:256]
            client = Client(*self._where, owner, self._namespace, exact=True)
            client.owner(job_of("group", b"-"))  # is anybody there?
        kept = KeptLeases(client)
        self._parts = client, kept, Groups(client, kept, self._member_id, self._timeout)

    def _stop(self) -> None:
        client, kept, _ = self._started_parts
        kept.drop_all()
        client.close()
        self._parts = None

    @property
    def _started_parts(self) -> tuple[Client, KeptLeases, Groups]:
        if self._parts is None:
            raise ToozError("The coordinator is not started. Call start() first.")
        return self._parts

    @property
    def _groups(self) -> Groups:
        return self._started_parts[2]

    def heartbeat(self) -> float:
        """Tooz waits for half of what this returns, so a lease is renewed three times in its life."""
        _, kept, groups = self._started_parts
        kept.renew_all()
        with as_tooz_errors():
            groups.heartbeat()
        return min(self._timeout, self._lock_timeout) * 2 / 3

    def get_lock(self, name: bytes) -> DibsLock:
        client, kept, _ = self._started_parts
        return DibsLock(name, job_of("lock", binary(name)), client, kept, self._lock_timeout)

    @answered
    def create_group(self, group_id: bytes) -> None:
        self._groups.create(binary(group_id))

    @answered
    def get_groups(self) -> list[bytes]:
        return self._groups.all()

    @answered
    def delete_group(self, group_id: bytes) -> None:
        self._groups.delete(binary(group_id))

    @answered
    def join_group(self, group_id: bytes, capabilities: Capabilities | None = None) -> None:
        self._groups.join(binary(group_id), capabilities)
        self._joined_groups.add(group_id)

    @answered
    def leave_group(self, group_id: bytes) -> None:
        self._joined_groups.discard(group_id)
        self._groups.leave(binary(group_id))

    @answered
    def get_members(self, group_id: bytes) -> set[bytes]:
        return set(self._groups.members(binary(group_id)))

    @answered
    def get_members_with_capabilities(self, group_id: bytes) -> dict[bytes, Capabilities | None]:
        return self._groups.members(binary(group_id))

    @answered
    def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> Capabilities | None:
        return self._groups.capabilities(binary(group_id), binary(member_id))

    @answered
    def get_member_info(self, group_id: bytes, member_id: bytes) -> dict[str, Any]:
        return {"capabilities": self._groups.capabilities(binary(group_id), binary(member_id))}

    @answered
    def update_capabilities(self, group_id: bytes, capabilities: Capabilities) -> None:
        self._groups.update(binary(group_id), capabilities)

    # Tooz's own drivers answer None, too, if there is no leader.
    @answered
    def get_leader(  # type: ignore[override]
        self, group_id: bytes
    ) -> bytes | None:
        return self._groups.leader(binary(group_id))

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        return self._groups.stand_down(binary(group_id))

    def run_watchers(self, timeout: float | None = None) -> list[Any]:
        return [*super().run_watchers(timeout), *self._elect()]

    def run_elect_coordinator(self) -> None:
        self._elect()

    def _elect(self) -> list[Any]:
        found: list[Any] = []
        for group_id, hooks in list(self._hooks_elected_leader.items()):
            if self._groups.lead(binary(group_id)):
                found += hooks.run(coordination.LeaderElected(group_id, self._member_id))
        return found
