"""Groups, members and leaders of tooz as claims, and the leases of one coordinator.

A member is a claim, with its capabilities as metadata. A leader is a claim. A group is a claim, too, but of nobody: its
metadata is the request key that gives its lease to everybody, and every member renews it. Joining and deleting pass a
gate, which many may hold to join and only one to delete: so nobody joins a group while it is deleted.
"""

from __future__ import annotations

import base64
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

from tooz import ToozError, coordination, utils
from tooz.coordination import ToozConnectionError

from dibs.base.clock import steady_ms
from dibs.base.errors import BadReply, DibsError, JobHeld, LeaseLost, Unavailable
from dibs.base.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.sdk.answers import JobStatus, Lease
    from dibs.sdk.client import Client

    Capabilities = dict[str, Any]

log = logging.getLogger("dibs")

GROUP_TTL = "24h"
GROUP_RENEW_MS = 3600 * 1000
GATE_SECONDS = 10.0


@contextmanager
def as_tooz_errors() -> Iterator[None]:
    """Raise errors of dibs as errors of tooz."""
    try:
        yield
    except (Unavailable, BadReply) as error:
        raise ToozConnectionError(error.details) from error
    except DibsError as error:
        raise ToozError(error.details) from error


class KeptLeases:
    """The leases of one coordinator, whose heartbeat renews them all. One that is lost or given back is not kept any
    longer."""

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


def job_of(kind: str, *ids: bytes) -> str:
    """A space separates the parts, and no part has one."""
    return " ".join(["tooz", kind, *(quote(part, safe="") for part in ids)])


class Groups:
    def __init__(self, client: Client, kept: KeptLeases, member: bytes, ttl: float) -> None:
        self._client = client
        self._kept = kept
        self._member = member
        self._ttl = ttl
        self._joined: dict[bytes, Lease] = {}
        self._led: dict[bytes, Lease] = {}
        self._renewed_ms: dict[bytes, int] = {}

    def create(self, group: bytes) -> None:
        key = new_id()
        try:
            self._client.acquire(job_of("group", group), ttl=GROUP_TTL, request_key=key, metadata=key, again=True)
        except JobHeld:
            raise coordination.GroupAlreadyExist(group) from None

    def all(self) -> list[bytes]:
        prefix = job_of("group") + " "
        return [unquote_to_bytes(found.name.removeprefix(prefix)) for found in self._client.list(prefix)]

    def delete(self, group: bytes) -> None:
        with self._gate(group, shared=False):
            lease = self._lease_of(group)
            if self._members(group):
                raise coordination.GroupNotEmpty(group)
            self._client.release(lease.name, lease.lease_id)

    def join(self, group: bytes, capabilities: Capabilities | None) -> None:
        with self._gate(group, shared=True):
            self._check(group)
            job = job_of("member", group, self._member)
            lease = self._kept.take(job, ttl=self._ttl, metadata=_packed(capabilities))
            if lease is None:
                raise coordination.MemberAlreadyExist(group, self._member)
            self._joined[group] = lease

    def leave(self, group: bytes) -> None:
        """Whoever has the same member id may end its membership; at a server with a token of an operator."""
        lease = self._joined.pop(group, None)
        if lease is not None and self._kept.drop(lease):
            return
        status = self._status(group, self._member)
        self._client.break_claim(status.name, "left by a coordinator with the same member id")

    def update(self, group: bytes, capabilities: Capabilities) -> None:
        lease = self._joined.get(group)
        if lease is None or not self._kept.renew(lease, metadata=_packed(capabilities)):
            self._check(group)
            raise coordination.MemberNotJoined(group, self._member)

    def members(self, group: bytes) -> dict[bytes, Capabilities | None]:
        found = self._members(group)
        self._check(group)
        return {member: _unpacked(status.metadata) for member, status in found.items()}

    def capabilities(self, group: bytes, member: bytes) -> Capabilities | None:
        return _unpacked(self._status(group, member).metadata)

    def leader(self, group: bytes) -> bytes | None:
        status = self._client.owner(job_of("leader", group))
        return unquote_to_bytes(status.metadata or "") if status.held else None

    def lead(self, group: bytes) -> bool:
        """True if this coordinator has become the leader just now."""
        if self._kept.has(self._led.get(group)):
            return False
        shown = quote(self._member, safe="")
        lease = self._kept.take(job_of("leader", group), ttl=self._ttl, metadata=shown)
        if lease is None:
            return False
        self._led[group] = lease
        return True

    def stand_down(self, group: bytes) -> bool:
        lease = self._led.pop(group, None)
        return lease is not None and self._kept.drop(lease)

    def heartbeat(self) -> None:
        """Renew the groups that this coordinator is in, once an hour."""
        for group in list(self._joined):
            if steady_ms() > self._renewed_ms.get(group, -GROUP_RENEW_MS) + GROUP_RENEW_MS:
                try:
                    lease = self._lease_of(group)
                    self._client.renew(lease.name, lease.lease_id)
                except (coordination.GroupNotCreated, LeaseLost):
                    continue
                self._renewed_ms[group] = steady_ms()

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

    def _status(self, group: bytes, member: bytes) -> JobStatus:
        status = self._client.owner(job_of("member", group, member))
        if not status.held:
            self._check(group)
            raise coordination.MemberNotJoined(group, member)
        return status


def _packed(capabilities: Capabilities | None) -> str:
    return base64.b64encode(utils.dumps(capabilities)).decode()


def _unpacked(text: str | None) -> Capabilities | None:
    found: Capabilities | None = utils.loads(base64.b64decode(text)) if text else None
    return found
