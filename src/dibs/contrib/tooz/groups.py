"""Groups, members and leaders of tooz as claims.

A member is a claim, with its capabilities as metadata. A leader is a claim. A group is a claim, too, but of nobody: its
metadata is the request key that gives its lease to everybody, and every member renews it. Joining and deleting pass a
gate, which many may hold to join and only one to delete: so nobody joins a group while it is deleted."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

from tooz import coordination, utils

from dibs.base.clock import steady_ms
from dibs.base.errors import JobHeld, LeaseLost
from dibs.base.ids import new_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dibs.contrib.tooz.kept_leases import KeptLeases
    from dibs.sdk.answers import JobStatus, Lease
    from dibs.sdk.client import Client

    Capabilities = dict[str, Any]

GROUP_TTL = "24h"
GROUP_RENEW_MS = 3600 * 1000
GATE_SECONDS = 10.0


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
