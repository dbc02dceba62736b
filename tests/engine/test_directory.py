"""Who a server lets in by the tokens of its store, and how soon it knows of a change."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import AuthenticationFailed, StoreUnavailable
from dibs.base.ids import proof_key_id
from dibs.core.caller_rights import Caller, Limits
from dibs.core.limits import CREDENTIAL_CHANGES_KEPT, CREDENTIAL_RELOAD_MS, CREDENTIAL_STALE_MS_MAX
from dibs.core.service.credentials import CreateToken, RevokeToken, RotateToken
from dibs.engine.auth import TokenGuard
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import CredentialDirectory, TokensUnchecked
from dibs.stores.memory import MemoryStore
from dibs.stores.port import StoreProxy
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from dibs.core.commands import PlainCommand
    from dibs.stores.port import Snapshot, Versioned


class CountedStore(StoreProxy):
    """Counts what is read, and fails while it is told to."""

    reads = 0
    is_away = False
    on_scan: Callable[[], None] = staticmethod(lambda: None)

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        page = self.inner.scan(prefix, after, limit, live=live)
        self.on_scan()
        return page

    def read(self, keys: Iterable[str]) -> Snapshot:
        self.reads += 1
        if self.is_away:
            raise StoreUnavailable("away")
        return self.inner.read(keys)


class Scene:
    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.store = CountedStore(MemoryStore(self.clock))
        self.directory = CredentialDirectory(self.store, self.clock.steady_ms)
        self.directory.look()

    def run(self, command: PlainCommand) -> None:
        Coordinator(self.store.inner).one(command)

    def create(self, token: str, life_ms: int = 0, **more: Any) -> None:
        self.run(CreateToken(digest=digest(token), name="ci", by="ops", life_ms=life_ms, **more))


def key(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def digest(token: str) -> str:
    return key(token).hex()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.promise("auth:revoked")
def test_a_token_is_let_in_from_the_next_look_on_and_no_longer_from_the_next_after_its_end(
    scene: Scene,
) -> None:
    scene.create("t", role="viewer", namespace="acme")
    assert scene.directory.caller(key("t")) is None
    scene.directory.look()
    badges = ("user:ci", f"token:sha256:{digest('t')}")
    expected = Caller(principal="ci", role="viewer", namespace="acme", badges=badges, limits=Limits())
    assert scene.directory.caller(key("t")) == expected
    scene.run(RevokeToken(digest=digest("t"), by="ops"))
    scene.directory.look()
    with pytest.raises(AuthenticationFailed):
        scene.directory.caller(key("t"))
    assert len(scene.directory) == 0


def test_letting_in_reads_nothing(scene: Scene) -> None:
    scene.create("t")
    scene.directory.look()
    reads = scene.store.reads
    for _ in range(100):
        scene.directory.caller(key("t"))
        scene.directory.caller(key("unknown"))
    assert scene.store.reads == reads


def test_a_look_without_a_change_reads_one_record(scene: Scene) -> None:
    reads = scene.store.reads
    scene.directory.look()
    assert scene.store.reads == reads + 1


@pytest.mark.parametrize("count", [1, CREDENTIAL_CHANGES_KEPT, CREDENTIAL_CHANGES_KEPT + 1, 1_500])
def test_however_many_changes_were_missed_all_are_known_after_one_look(scene: Scene, count: int) -> None:
    for number in range(count):
        scene.create(f"t{number}")
    scene.directory.look()
    assert len(scene.directory) == count
    assert all(scene.directory.caller(key(f"t{number}")) is not None for number in range(count))


def test_a_token_expires_by_the_stores_clock_without_a_look(scene: Scene) -> None:
    scene.create("t", life_ms=1_000)
    scene.directory.look()
    scene.clock.advance(999)
    assert scene.directory.caller(key("t")) is not None
    scene.clock.advance(1)
    with pytest.raises(AuthenticationFailed):
        scene.directory.caller(key("t"))


@pytest.mark.promise("auth:revoked")
def test_a_server_that_cannot_look_lets_nobody_in_by_the_stores_tokens_after_the_bound(scene: Scene) -> None:
    scene.create("t")
    scene.directory.look()
    scene.store.is_away = True
    with pytest.raises(StoreUnavailable):
        scene.directory.look()
    scene.clock.advance(CREDENTIAL_STALE_MS_MAX)
    assert scene.directory.caller(key("t")) is not None
    scene.clock.advance(1)
    with pytest.raises(TokensUnchecked) as refused:
        scene.directory.caller(key("t"))
    assert refused.value.retry_after_ms
    scene.store.is_away = False
    scene.directory.look()
    assert scene.directory.caller(key("t")) is not None


def test_a_store_that_was_put_back_is_read_again(scene: Scene) -> None:
    """The register of an older copy may have the same number of changes as the one that was read before."""
    scene.create("t")
    scene.directory.look()
    older = MemoryStore(scene.clock)
    Coordinator(older).one(CreateToken(digest=digest("other"), name="x", by="ops"))
    scene.store.inner = older
    scene.clock.advance(CREDENTIAL_RELOAD_MS + 1)
    scene.directory.look()
    assert scene.directory.caller(key("t")) is None
    assert scene.directory.caller(key("other")) is not None


@pytest.mark.promise("auth:revoked")
def test_reading_very_many_tokens_again_keeps_nobody_out_and_hides_no_revocation(scene: Scene) -> None:
    made = [CreateToken(digest=digest(f"t{number}"), name="ci", by="ops") for number in range(2_500)]
    Coordinator(scene.store.inner).run(made)
    scene.directory.look()
    seen: list[Caller | None] = []

    def between_pages() -> None:
        scene.clock.advance(CREDENTIAL_STALE_MS_MAX - 1)  # a slow store: a page takes that long
        seen.append(scene.directory.caller(key("t1")))
        if len(seen) == 1:
            scene.run(RevokeToken(digest=digest("t2"), by="ops"))

    scene.store.on_scan = between_pages
    scene.clock.advance(CREDENTIAL_RELOAD_MS + 1)
    scene.directory.look()
    assert len(seen) >= 3
    assert None not in seen
    with pytest.raises(AuthenticationFailed):
        scene.directory.caller(key("t2"))
    assert len(scene.directory) == 2_499


def test_a_rotated_token_and_its_successor_are_both_let_in_and_can_be_proved(scene: Scene) -> None:
    scene.create("t")
    scene.run(RotateToken(digest=digest("t"), fresh_digest=digest("u"), by="ops", grace_ms=1_000))
    scene.directory.look()
    assert scene.directory.caller(key("t")) is not None
    assert scene.directory.key_named(proof_key_id(key("u"))) == key("u")
    scene.run(RevokeToken(digest=digest("u"), by="ops"))
    scene.directory.look()
    assert scene.directory.key_named(proof_key_id(key("u"))) is None


@pytest.mark.promise("auth:revoked")
def test_the_store_is_asked_before_the_file(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(mode=0o600)
    path.write_text("ci:t:admin\nfile:f\n")
    guard = TokenGuard(str(path), directory=scene.directory)
    assert guard.caller(b"Bearer t").role == "admin"
    scene.create("t", role="viewer")
    scene.directory.look()
    assert guard.caller(b"Bearer t").role == "viewer"
    scene.run(RevokeToken(digest=digest("t"), by="ops"))
    scene.directory.look()
    with pytest.raises(AuthenticationFailed):
        guard.caller(b"Bearer t")
    scene.clock.advance(10 * CREDENTIAL_STALE_MS_MAX)
    assert guard.caller(b"Bearer f").principal == "file"  # the file needs no look at the store


def test_looking_goes_on_by_itself_and_sooner_when_somebody_heard_of_a_change(scene: Scene) -> None:
    directory = CredentialDirectory(scene.store)
    directory.start()
    try:
        scene.create("t")
        directory.hurry()
        for _ in range(2_000):
            if directory.caller(key("t")) is not None:
                break
            directory._works.join(0.005)
        assert directory.caller(key("t")) is not None
    finally:
        directory.stop()
    assert not directory._works.is_alive()


@pytest.mark.promise("auth:revoked")
def test_tokens_made_and_revoked_by_several_at_once_are_all_known(scene: Scene) -> None:
    def work(number: int) -> None:
        for each in range(20):
            scene.create(f"t{number}-{each}")
            if each % 2:
                scene.run(RevokeToken(digest=digest(f"t{number}-{each}"), by="ops"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        scene.directory.look()
    for thread in threads:
        thread.join(60)
    scene.directory.look()
    assert len(scene.directory) == 40
