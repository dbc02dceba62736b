"""Tokens on record: made, replaced, limited, revoked, forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events
from dibs.core.caller_rights import LEAST_ROLE, ROLES, Limits, may
from dibs.core.commands import Sweep
from dibs.core.limits import CREDENTIAL_CHANGES_KEPT, CREDENTIAL_TOMBSTONE_MS
from dibs.core.records import REGISTER_KEY
from dibs.core.service.credentials import (
    CreateToken,
    Credential,
    CredentialRegister,
    LimitToken,
    RevokeToken,
    RotateToken,
    TokenState,
    credential_key,
)
from dibs.engine.coordinator import Coordinator
from dibs.stores.codec import decode, encode
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from dibs.core.commands import PlainCommand

OLD, NEW = "a" * 64, "b" * 64
DAY_MS = 24 * 3600 * 1000


class Registry:
    """A store with tokens, and a clock that the test moves."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = MemoryStore(self.clock)
        self._coordinator = Coordinator(self.store)

    def run(self, command: PlainCommand) -> Any:
        return self._coordinator.one(command)

    def create(self, **changes: Any) -> Credential:
        made = self.run(CreateToken(digest=OLD, name="ci", by="ops").replace(**changes))
        assert isinstance(made, TokenState)
        assert made.credential is not None
        return made.credential

    def find(self, digest: str) -> Credential | None:
        record = self.store.read((credential_key(digest),)).records[credential_key(digest)].record
        return record if isinstance(record, Credential) else None

    def valid(self) -> list[str]:
        return [digest[0] for digest in (OLD, NEW) if (c := self.find(digest)) and not c.is_over(self.clock())]

    @property
    def register(self) -> CredentialRegister:
        record = self.store.read((REGISTER_KEY,)).records[REGISTER_KEY].record
        assert isinstance(record, CredentialRegister)
        return record

    def kinds(self) -> list[str]:
        return [event.kind for event in self.store.events(0, 100)]


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_may_all_that_the_roles_before_it_may(role: str) -> None:
    mine = {verb for verb in LEAST_ROLE if may(role, verb)}
    below = ROLES[: ROLES.index(role)]
    assert all({verb for verb in LEAST_ROLE if may(other, verb)} < mine for other in below)
    assert (mine == LEAST_ROLE.keys()) is (role == ROLES[-1])


def test_a_token_is_made_once_and_a_repeat_changes_nothing(registry: Registry) -> None:
    made = registry.create(role="viewer", namespace="acme", life_ms=DAY_MS, limits=Limits(held=3))
    assert made.expires_ms == registry.clock() + DAY_MS
    registry.clock.advance(5)
    assert registry.create(role="admin") == made
    assert registry.register.changes == 1
    assert registry.kinds() == [events.TOKEN_CREATED]


@pytest.mark.parametrize(
    ("after_ms", "valid"),
    [(0, ["a", "b"]), (599_999, ["a", "b"]), (600_000, ["b"]), (DAY_MS, [])],
)
def test_a_rotated_token_goes_on_for_its_grace_and_the_new_one_for_as_long_as_the_old_was_made_for(
    registry: Registry, after_ms: int, valid: list[str]
) -> None:
    registry.create(life_ms=DAY_MS, role="operator", limits=Limits(rate=5))
    registry.clock.advance(DAY_MS // 2)
    rotated = registry.run(RotateToken(digest=OLD, fresh_digest=NEW, by="ops", grace_ms=600_000)).credential
    assert (rotated.name, rotated.role, rotated.limits) == ("ci", "operator", Limits(rate=5))
    registry.clock.advance(after_ms)
    assert registry.valid() == valid


def test_a_rotation_without_grace_ends_the_old_token_at_once(registry: Registry) -> None:
    registry.create()
    command = RotateToken(digest=OLD, fresh_digest=NEW, by="ops", grace_ms=0)
    first = registry.run(command)
    assert registry.valid() == ["b"]
    assert registry.run(command) == first.replace(again=True)  # its reply was lost
    assert registry.kinds() == [events.TOKEN_CREATED, events.TOKEN_REVOKED, events.TOKEN_CREATED]


def test_a_grace_never_makes_a_token_last_longer(registry: Registry) -> None:
    registry.create(life_ms=1_000)
    registry.run(RotateToken(digest=OLD, fresh_digest=NEW, by="ops", grace_ms=600_000))
    registry.clock.advance(1_000)
    assert registry.valid() == []


@pytest.mark.parametrize("end", ["revoked", "expired", "unknown"])
def test_a_token_that_is_over_has_no_successor(registry: Registry, end: str) -> None:
    if end != "unknown":
        registry.create(life_ms=1_000)
    if end == "revoked":
        registry.run(RevokeToken(digest=OLD, by="ops"))
    registry.clock.advance(1_000)
    assert registry.run(RotateToken(digest=OLD, fresh_digest=NEW, by="ops", grace_ms=0)).credential is None
    assert registry.find(NEW) is None


@pytest.mark.promise("auth:revoked")
def test_a_revoked_token_stays_revoked_and_is_forgotten_after_a_while(registry: Registry) -> None:
    registry.create()
    assert registry.store.due(10).next_ms is None
    registry.run(RevokeToken(digest=OLD, by="ops"))
    changes = registry.register.changes
    assert registry.run(RevokeToken(digest=OLD, by="ops")).again
    assert registry.create().ended_ms  # making it again, as an import of an old file would, lets nobody in
    assert registry.register.changes == changes
    registry.clock.advance(CREDENTIAL_TOMBSTONE_MS - 1)
    registry.run(Sweep(key=credential_key(OLD)))
    assert registry.find(OLD) is not None
    registry.clock.advance(1)
    assert registry.store.due(10).keys == [credential_key(OLD)]
    registry.run(Sweep(key=credential_key(OLD)))
    assert registry.find(OLD) is None


def test_limits_are_changed_and_the_same_again_is_no_change(registry: Registry) -> None:
    registry.create()
    command = LimitToken(digest=OLD, by="ops", limits=Limits(held=2, waiting=1))
    assert registry.run(command).credential.limits == Limits(held=2, waiting=1)
    assert registry.run(command).again
    assert registry.kinds() == [events.TOKEN_CREATED, events.TOKEN_LIMITED]
    assert registry.run(command.replace(digest=NEW)).credential is None


def test_the_register_names_the_last_changes_and_no_more(registry: Registry) -> None:
    digests = [f"{number:064x}" for number in range(CREDENTIAL_CHANGES_KEPT + 3)]
    for digest in digests:
        registry.create(digest=digest)
    assert registry.register.changes == len(digests)
    assert registry.register.recent == tuple(digests[3:])


def test_what_is_kept_of_a_token_reads_back_as_it_was(registry: Registry) -> None:
    made = registry.create(limits=Limits(held=1, rate=2), namespace="acme")
    assert decode(credential_key(OLD), encode(made)) == made
    assert decode(REGISTER_KEY, encode(registry.register)) == registry.register
