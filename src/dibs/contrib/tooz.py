"""A coordination driver for tooz: locks, groups, members and leaders as claims. docs/how-to/one-owner-elsewhere.md has
the URLs and options.

A member is a claim, with its capabilities as metadata. A leader is a claim. A group is a claim, too, but of nobody: its
metadata is the request key that gives its lease to everybody, and every member renews it. Joining and deleting pass a
gate, which many may hold to join and only one to delete: so nobody joins a group while it is deleted.
"""

from __future__ import annotations

import base64
import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import quote, unquote_to_bytes

from tooz import ToozError, coordination, locking, utils
from tooz.coordination import Characteristics, ToozConnectionError

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, JobHeld, LeaseLost, Unavailable
from dibs.base.ids import new_id
from dibs.base.logger import log
from dibs.sdk.answers import JobStatus, Lease
from dibs.sdk.client import Client

Capabilities = dict[str, Any]

GROUP_TTL = "24h"
GROUP_RENEW_MS = 3600 * 1000
GATE_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0


@contextmanager
def as_tooz_errors() -> Iterator[None]:
    try:
        yield
    except (Unavailable, BadReply) as error:
        raise ToozConnectionError(error.details) from error
    except DibsError as error:
        raise ToozError(error.details) from error


class KeptLeases:
    """The leases of one coordinator, whose heartbeat renews all that are neither lost nor given back."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._guard = threading.Lock()
        self._leases: dict[str, tuple[Lease, int]] = {}  # by lease id, and until when it is certain

    def take(self, name: str, *, ttl: float, **wanted: Any) -> Lease | None:
        """The lease, or None if somebody else has the job."""
        sent_ms = steady_ms()
        with as_tooz_errors():
            try:
                lease = self._client.acquire(name, ttl=ttl, again=True, **wanted)
            except JobHeld:
                return None
        with self._guard:
            self._leases[lease.lease_id] = lease, sent_ms + round(ttl * 1000)
        try:
            # Its time is counted from before the wait, so a lease that was waited for is renewed at once.
            is_ours = steady_ms() <= sent_ms + ttl * 500 or self.renew(lease)
        except BaseException:  # nobody is told of it, so nobody would give it back, and it would be renewed for ever
            with suppress(ToozError):
                self.drop(lease)
            raise
        return lease if is_ours else None

    def _forget(self, lease: Lease) -> bool:
        with self._guard:
            return self._leases.pop(lease.lease_id, None) is not None

    def has(self, lease: Lease | None) -> bool:
        """Tell whether it is certainly still ours, by this machine's clock."""
        with self._guard:
            return lease is not None and steady_ms() < self._leases.get(lease.lease_id, (lease, 0))[1]

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
                self._leases[lease.lease_id] = lease, sent_ms + renewed.remaining_ms
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
            return [lease for lease, _ in self._leases.values()]


def job_of(kind: str, *ids: bytes) -> str:
    """A space separates the parts, and no part has one."""
    return " ".join(["tooz", kind, *(quote(part, safe="") for part in ids)])


P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


def binary(text: bytes | str) -> bytes:
    return utils.to_binary(text, encoding="utf-8")


def answered(method: Callable[Concatenate[D, P], T]) -> Callable[Concatenate[D, P], coordination.CoordinatorResult[T]]:
    """The method runs at once; what it returns or raises is in its answer."""

    @functools.wraps(method)
    def call(self: D, /, *args: P.args, **kwargs: P.kwargs) -> coordination.CoordinatorResult[T]:
        ended: Future[T] = Future()
        try:
            with as_tooz_errors():
                ended.set_result(method(self, *args, **kwargs))
        except ToozError as error:
            ended.set_exception(error)
        return coordination.CoordinatorResult(ended)

    return call


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
        waits, longest = utils.convert_blocking(blocking, timeout)
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


def url_of(parsed: Any, options: dict[str, Any]) -> str | None:
    """The URL for dibs. None: the environment decides."""
    if "url" in options:
        return str(options["url"])
    if parsed.netloc:
        return f"{'https' if parsed.scheme.endswith('+https') else 'http'}://{parsed.netloc}"
    return f"sqlite://{parsed.path}" if parsed.path.strip("/") else None


def _packed(capabilities: Capabilities | None) -> str:
    return base64.b64encode(utils.dumps(capabilities)).decode()


def _unpacked(text: str | None) -> Capabilities | None:
    found: Capabilities | None = utils.loads(base64.b64decode(text)) if text else None
    return found


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
        self._parts: tuple[Client, KeptLeases] | None = None

    def _start(self) -> None:
        with as_tooz_errors():
            owner = self._member_id.decode(errors="backslashreplace")[:256]
            client = Client(*self._where, owner, self._namespace, exact=True)
            client.owner(job_of("group", b"-"))  # is anybody there?
        self._parts = client, KeptLeases(client)
        self._joined: dict[bytes, Lease] = {}
        self._led: dict[bytes, Lease] = {}
        self._renewed_ms: dict[bytes, int] = {}

    def _stop(self) -> None:
        self._kept.drop_all()
        self._client.close()
        self._parts = None

    def heartbeat(self) -> float:
        """Tooz waits for half of what this returns, so a lease is renewed three times in its life."""
        self._kept.renew_all()
        with as_tooz_errors():  # the groups that this coordinator is in, once an hour
            for group in list(self._joined):
                if steady_ms() > self._renewed_ms.get(group, -GROUP_RENEW_MS) + GROUP_RENEW_MS:
                    try:
                        lease = self._lease_of(group)
                        self._client.renew(lease.name, lease.lease_id)
                    except (coordination.GroupNotCreated, LeaseLost):
                        continue
                    self._renewed_ms[group] = steady_ms()
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

    # Groups

    @property
    def _client(self) -> Client:
        return self._running()[0]

    @property
    def _kept(self) -> KeptLeases:
        return self._running()[1]

    def _running(self) -> tuple[Client, KeptLeases]:
        if self._parts is None:
            raise ToozError("The coordinator is not started. Call start() first.")
        return self._parts

    @answered
    def create_group(self, group_id: bytes) -> None:
        key = new_id()
        job = job_of("group", binary(group_id))
        try:
            self._client.acquire(job, ttl=GROUP_TTL, request_key=key, metadata=key, again=True)
        except JobHeld:
            raise coordination.GroupAlreadyExist(binary(group_id)) from None

    @answered
    def get_groups(self) -> list[bytes]:
        prefix = job_of("group") + " "
        return [unquote_to_bytes(found.name.removeprefix(prefix)) for found in self._client.list(prefix)]

    @answered
    def delete_group(self, group_id: bytes) -> None:
        group = binary(group_id)
        with self._gate(group, shared=False):
            lease = self._lease_of(group)
            if self._members(group):
                raise coordination.GroupNotEmpty(group)
            self._client.release(lease.name, lease.lease_id)

    @answered
    def join_group(self, group_id: bytes, capabilities: Capabilities | None = None) -> None:
        group = binary(group_id)
        with self._gate(group, shared=True):
            self._check(group)
            job = job_of("member", group, self._member_id)
            lease = self._kept.take(job, ttl=self._timeout, metadata=_packed(capabilities))
            if lease is None:
                raise coordination.MemberAlreadyExist(group, self._member_id)
            self._joined[group] = lease
        self._joined_groups.add(group_id)

    @answered
    def leave_group(self, group_id: bytes) -> None:
        """Whoever has the same member id may end its membership; at a server with a token of an operator."""
        self._joined_groups.discard(group_id)
        group = binary(group_id)
        lease = self._joined.pop(group, None)
        if lease is not None and self._kept.drop(lease):
            return
        status = self._status(group, self._member_id)
        self._client.break_claim(status.name, "left by a coordinator with the same member id")

    @answered
    def update_capabilities(self, group_id: bytes, capabilities: Capabilities) -> None:
        group = binary(group_id)
        lease = self._joined.get(group)
        if lease is None or not self._kept.renew(lease, metadata=_packed(capabilities)):
            self._check(group)
            raise coordination.MemberNotJoined(group, self._member_id)

    @answered
    def get_members(self, group_id: bytes) -> set[bytes]:
        return set(self._checked_members(group_id))

    @answered
    def get_members_with_capabilities(self, group_id: bytes) -> dict[bytes, Capabilities | None]:
        return {member: _unpacked(status.metadata) for member, status in self._checked_members(group_id).items()}

    @answered
    def get_member_capabilities(self, group_id: bytes, member_id: bytes) -> Capabilities | None:
        return _unpacked(self._status(binary(group_id), binary(member_id)).metadata)

    @answered
    def get_member_info(self, group_id: bytes, member_id: bytes) -> dict[str, Any]:
        return {"capabilities": _unpacked(self._status(binary(group_id), binary(member_id)).metadata)}

    @answered
    def get_leader(self, group_id: bytes) -> bytes | None:  # type: ignore[override]  # tooz says that there is one
        """None, as tooz's own drivers answer it, if there is no leader."""
        status = self._client.owner(job_of("leader", binary(group_id)))
        return unquote_to_bytes(status.metadata or "") if status.held else None

    def _lead(self, group: bytes) -> bool:
        """True if this coordinator has become the leader just now."""
        if self._kept.has(self._led.get(group)):
            return False
        lease = self._kept.take(job_of("leader", group), ttl=self._timeout, metadata=quote(self._member_id, safe=""))
        if lease is None:
            return False
        self._led[group] = lease
        return True

    def stand_down_group_leader(self, group_id: bytes) -> bool:
        lease = self._led.pop(binary(group_id), None)
        return lease is not None and self._kept.drop(lease)

    @contextmanager
    def _gate(self, group: bytes, *, shared: bool) -> Iterator[None]:
        gate = job_of("gate", group)
        wanted = self._client.claim(
            gate, shared=shared, ttl=GATE_SECONDS, wait=GATE_SECONDS, again=True, fail_on_error=False
        )
        with wanted:
            yield

    def _check(self, group: bytes) -> JobStatus:
        status = self._client.owner(job_of("group", group))
        if not status.held:
            raise coordination.GroupNotCreated(group)
        return status

    def _lease_of(self, group: bytes) -> Lease:
        status = self._check(group)
        return self._client.acquire(status.name, ttl=GROUP_TTL, request_key=status.metadata, again=True)

    def _members(self, group: bytes) -> dict[bytes, JobStatus]:
        prefix = job_of("member", group) + " "
        return {unquote_to_bytes(each.name.removeprefix(prefix)): each for each in self._client.list(prefix)}

    def _checked_members(self, group_id: bytes) -> dict[bytes, JobStatus]:
        found = self._members(binary(group_id))
        self._check(binary(group_id))
        return found

    def _status(self, group: bytes, member: bytes) -> JobStatus:
        status = self._client.owner(job_of("member", group, member))
        if not status.held:
            self._check(group)
            raise coordination.MemberNotJoined(group, member)
        return status
