"""Copies of a store meet what is in it: each way to get one, with webhooks, followers, limits, closures and tokens.

The store goes on after the copy was made, as one does whose disk fails a day later. Whatever it told since, nothing in
the copy may be taken for it.
"""

from __future__ import annotations

import io
import json
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import wall_ms
from dibs.base.errors import InvalidInput
from dibs.base.ids import new_id
from dibs.client.store_admin import backup, miscounted, restore, thaw
from dibs.core.caller_rights import LOCAL
from dibs.core.commands import Acquire, BeginCount, Close, OpenSession, Release
from dibs.core.lease_outcomes import ClosureSet
from dibs.core.outcomes import Granted, Queued, QuotaExceeded
from dibs.core.records import META_KEY, Meta, lock_key
from dibs.core.service.credentials import CreateToken, Credential, RevokeToken, RotateToken, credential_key
from dibs.engine.archive import export
from dibs.engine.archive_import import import_archive
from dibs.engine.coordinator import Coordinator
from dibs.engine.credentials import credentials
from dibs.engine.event_log import read_page
from dibs.engine.webhooks import WebhookAdmin, registered
from dibs.engine.webhooks.sender import DeliveryResult, Sender
from dibs.stores.memory import MemoryStore
from dibs.stores.port import StoreProxy
from dibs.stores.registry import open_store
from tests.dying import Dying
from tests.stores.test_moves import deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster
    from tests.postgres import Schema

NS = "default"
BOB = "/bob"
HELD_MAX = 5


class Receiver(Sender):
    """A receiver by the book: what comes under a number that it knows is a repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[int, tuple[Any, ...]] = {}
        self.repeats: list[int] = []  # those that were another event
        self.gaps: list[dict[str, Any]] = []

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> DeliveryResult:
        document = json.loads(body)
        if document["event"] == "gap":
            self.gaps.append(document)
            return DeliveryResult(status=200)
        event = document["event"], document["lock"], document["fencing_token"]
        if self.seen.setdefault(document["id"], event) != event:
            self.repeats.append(document["id"])
        return DeliveryResult(status=200)

    def close(self) -> None:
        pass

    @property
    def jobs(self) -> set[str]:
        return {job for _, job, _ in self.seen.values()}


def ask(store: Store, command: Any) -> Any:
    return Coordinator(store).one(command)


def claim(store: Store, name: str, **changes: Any) -> Any:
    terms = {"ns": NS, "principal": "team", "owner": "a1", "ttl_ms": 3_600_000, "fresh_lease_id": f"lease-{name}"}
    return ask(store, Acquire(**{**terms, "name": name, **changes}))


def as_bob(store: Store, name: str, **changes: Any) -> Any:
    return claim(store, name, **{"principal": "bob", "payer": BOB, "held_max": HELD_MAX, **changes})


def close_jobs(store: Store, name: str, ns: str = NS) -> None:
    closed = ask(store, Close(ns=ns, name=name, principal="ops", length_ms=3_600_000, reason="why"))
    assert isinstance(closed, ClosureSet)


def closures(store: Store) -> set[tuple[str, str]]:
    meta = store.read((META_KEY,)).records[META_KEY].record
    return {(each.ns, each.name) for each in meta.closures} if isinstance(meta, Meta) else set()


def valid_tokens(store: Store) -> set[str]:
    now_ms = store.read(()).now_ms
    return {each.digest for each in credentials(store) if not each.is_over(now_ms)}


def token(store: Store, digest: str, **more: Any) -> None:
    ask(store, CreateToken(**{"digest": digest, "name": digest, "by": "root", **more}))


def archive_of(store: Store, *, freeze: bool = False) -> bytes:
    lines: list[str] = []
    export(store, lines.append, freeze=freeze)
    return "".join(lines).encode()


class Old:
    """A store in use, with a webhook whose receiver and a follower whose position outlive it."""

    def __init__(self, store: Store) -> None:
        self.store, self.receiver = store, Receiver()
        for digest in ("stays", "revoked", "rotated"):
            token(store, digest)
        WebhookAdmin(store, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
        close_jobs(store, "deploy/")
        ask(store, OpenSession(fresh_id="s1", principal="team", owner="a1", ttl_ms=3_600_000, ns=NS))
        for number in range(2):
            assert isinstance(as_bob(store, f"bob-{number}"), Granted)
        assert isinstance(as_bob(store, "bob-0", fresh_lease_id="waits", owner="b2", wait=True), Queued)
        self.go_on("early", 5)

    def go_on(self, word: str, jobs: int) -> None:
        for number in range(jobs):
            assert isinstance(claim(self.store, f"{word}-{number}"), Granted)
        deliver(self.store, self.receiver, lambda: f"{word}-{jobs - 1}" in self.receiver.jobs)  # type: ignore[arg-type]

    def live_on(self) -> None:
        """What a copy that was made before does not know of."""
        self.go_on("later", 12)
        ask(self.store, RevokeToken(digest="revoked", by="root"))
        ask(self.store, RotateToken(digest="rotated", fresh_digest="fresh", by="root", grace_ms=0))
        self.position = self.store.newest_seq()


def killed_before_its_last_write(store: Store, text: bytes, *, adds: bool = False) -> None:
    """An import that is killed as late as it can be."""

    class Counting(StoreProxy):
        commits = 0

        def commit(self, *given: Any) -> int:
            Counting.commits += 1
            return self.inner.commit(*given)

    tried = MemoryStore(wall_ms)
    import_archive(Counting(tried), io.BytesIO(text), adds=adds)
    for commits in range(Counting.commits - 1, 0, -1):  # stores need not commit as often as one in memory
        try:
            import_archive(Dying(store, commits), io.BytesIO(text), adds=adds)
        except KeyboardInterrupt:
            return
    raise AssertionError("it was not killed")


@pytest.fixture(params=["sqlite", "postgresql", "etcd"])
def open_new(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_schema: Callable[[], Schema], etcd_cluster: Cluster
) -> Iterator[Callable[[], Store]]:
    """Makes empty stores of one kind."""
    stores: list[Store] = []

    def open_one() -> Store:
        urls = {
            "sqlite": lambda: f"sqlite:{tmp_path}/new-{len(stores)}.db",
            "postgresql": lambda: postgres_schema().url,
            "etcd": lambda: etcd_cluster.url(new_id()),
        }
        stores.append(open_store(urls[str(request.param)]()))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Old]:
    store = open_store(f"sqlite:{tmp_path}/old.db")
    yield Old(store)
    store.close()


def imported(old: Old, open_new: Callable[[], Store]) -> Store:
    new, text = open_new(), archive_of(old.store)
    old.live_on()
    import_archive(new, io.BytesIO(text))
    return new


def thawed_and_imported(old: Old, open_new: Callable[[], Store]) -> Store:
    """The copy of a frozen store, which went on all the same."""
    new, text = open_new(), archive_of(old.store, freeze=True)
    thaw(old.store)
    old.live_on()
    import_archive(new, io.BytesIO(text))
    return new


def added(old: Old, open_new: Callable[[], Store]) -> Store:
    new, text = open_new(), archive_of(old.store)
    assert isinstance(claim(new, "mine", ns="own"), Granted)
    assert isinstance(as_bob(new, "bob-here", ns="own"), Granted)
    close_jobs(new, "mine", ns="own")
    token(new, "own")
    old.live_on()
    import_archive(new, io.BytesIO(text), adds=True)
    return new


def killed_and_repeated(old: Old, open_new: Callable[[], Store]) -> Store:
    new, text = open_new(), archive_of(old.store)
    old.live_on()
    killed_before_its_last_write(new, text)
    import_archive(new, io.BytesIO(text))
    return new


def added_killed_and_repeated(old: Old, open_new: Callable[[], Store]) -> Store:
    new, text = open_new(), archive_of(old.store)
    assert isinstance(claim(new, "mine", ns="own"), Granted)
    assert isinstance(as_bob(new, "bob-here", ns="own"), Granted)
    old.live_on()
    killed_before_its_last_write(new, text, adds=True)
    import_archive(new, io.BytesIO(text), adds=True)
    return new


def after_another_was_killed(old: Old, open_new: Callable[[], Store]) -> Store:
    new, text = open_new(), archive_of(old.store)
    token(new, "own")
    other = MemoryStore(wall_ms)
    token(other, "foreign", role="admin")
    close_jobs(other, "foreign/")
    WebhookAdmin(other, LOCAL, NS).ask("webhook-create", "", {"url": "https://foreign.test/"})
    for number in range(3):
        assert isinstance(as_bob(other, f"foreign-{number}"), Granted)
    old.live_on()
    killed_before_its_last_write(new, archive_of(other))
    import_archive(new, io.BytesIO(text))
    return new


def restored(old: Old, open_new: Callable[[], Store], *, lost: bool = False) -> Store:
    path = old.store.path  # type: ignore[attr-defined]
    backup(old.store, f"{path}.copy")
    old.live_on()
    old.store.close()
    if lost:
        for name in (path, f"{path}-wal", f"{path}-shm"):
            if os.path.exists(name):
                os.unlink(name)
    restore(f"{path}.copy", path)
    old.store = open_store(f"sqlite:{path}")
    return old.store


def restored_without_the_old(old: Old, open_new: Callable[[], Store]) -> Store:
    return restored(old, open_new, lost=True)


def frozen_and_thawed(old: Old, open_new: Callable[[], Store]) -> Store:
    old.live_on()
    archive_of(old.store, freeze=True)
    thaw(old.store)
    return old.store


COPIED = {"stays", "revoked", "rotated"}
NOW = {"stays", "fresh"}
# The ways to get a copy, the tokens that are valid in it then, and how many jobs bob has.
WAYS: dict[Callable[..., Store], tuple[set[str], int]] = {
    imported: (COPIED, 2),
    thawed_and_imported: (COPIED, 2),
    added: ({*COPIED, "own"}, 3),
    killed_and_repeated: (COPIED, 2),
    added_killed_and_repeated: (COPIED, 3),
    after_another_was_killed: ({*COPIED, "own"}, 2),
    restored: (NOW, 2),
    restored_without_the_old: (COPIED, 2),
    frozen_and_thawed: (NOW, 2),
}
OF_SQLITE = (restored, restored_without_the_old, frozen_and_thawed)


@pytest.mark.promise("webhook:at-least-once")
@pytest.mark.promise("events:told")
@pytest.mark.promise("quota")
@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-415")
@pytest.mark.fault("F-416")
@pytest.mark.fault("F-418")
@pytest.mark.fault("F-419")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_copy_repeats_no_number_and_has_what_is_its_own_and_nothing_else(
    old: Old, open_new: Callable[[], Store], way: Callable[..., Store], request: pytest.FixtureRequest
) -> None:
    if way in OF_SQLITE and "sqlite" not in request.node.name.partition("[")[2].split("-"):
        return
    new = way(old, open_new)
    tokens, held = WAYS[way]
    is_same_store = way is frozen_and_thawed
    # A webhook: each event that comes now is told, and none under the number of another.
    old.receiver.gaps.clear()
    for number in range(20):
        assert isinstance(claim(new, f"new-{number}"), Granted)
    deliver(new, old.receiver, lambda: "new-19" in old.receiver.jobs)  # type: ignore[arg-type]
    assert old.receiver.repeats == []
    assert {f"new-{number}" for number in range(20)} <= old.receiver.jobs
    assert bool(old.receiver.gaps) != is_same_store
    assert len(registered(new).entries) == 1
    # A follower that had read all.
    page = read_page(new, old.position, 1_000)
    assert (page.oldest is None) == is_same_store
    told = [event.job for event in page.events if event.job.startswith("new-")]
    assert told == [f"new-{number}" for number in range(20)]
    # Closures and tokens.
    assert closures(new) == ({(NS, "deploy/"), ("own", "mine")} if way is added else {(NS, "deploy/")})
    assert valid_tokens(new) == tokens
    # Limits: places count as jobs.
    assert miscounted(new) == []
    for number in range(HELD_MAX - held - 1):
        assert isinstance(as_bob(new, f"more-{number}"), Granted)
    assert isinstance(as_bob(new, "too-many"), QuotaExceeded)
    ask(new, Release(ns=NS, name="bob-1", principal="bob", lease_id="lease-bob-1"))
    assert isinstance(as_bob(new, "one-more"), Granted)
    assert isinstance(as_bob(new, "too-many"), QuotaExceeded)
    assert miscounted(new) == []


@pytest.mark.promise("closed")
@pytest.mark.fault("F-420")
@pytest.mark.parametrize("what", ["a closure", "a webhook", "a session", "jobs"])
@pytest.mark.parametrize("there", ["jobs", "a closure", "a webhook", "a session"])
def test_a_namespace_of_which_both_have_anything_is_not_added(what: str, there: str) -> None:
    source, target = MemoryStore(wall_ms), MemoryStore(wall_ms)
    claim(source, "job", ns="other")
    for store, kind in ((source, what), (target, there)):
        if kind == "jobs":
            claim(store, f"job-{id(store)}")
        elif kind == "a closure":
            close_jobs(store, "deploy/")
        elif kind == "a webhook":
            WebhookAdmin(store, LOCAL, NS).ask("webhook-create", "", {"url": "https://hook.test/"})
        else:
            session = OpenSession(fresh_id=new_id(), principal="team", owner="a1", ttl_ms=3_600_000, ns=NS)
            ask(store, session)
    before = target.scan("")
    with pytest.raises(InvalidInput, match=f"has {what} in a namespace that the store has as well: default"):
        import_archive(target, io.BytesIO(archive_of(source)), adds=True)
    assert [each for each in target.scan("") if each[0] != META_KEY] == [each for each in before if each[0] != META_KEY]
    assert isinstance(claim(target, "mine", ns="own"), Granted)


@pytest.mark.fault("F-420")
def test_what_is_over_in_a_namespace_does_not_keep_it_from_being_added() -> None:
    source, target = MemoryStore(wall_ms), MemoryStore(wall_ms)
    claim(source, "job", ns="other")
    claim(target, "job")
    close_jobs(source, "deploy/")
    meta = source.read((META_KEY,)).records[META_KEY]
    assert isinstance(meta.record, Meta)
    over = [each.replace(until_ms=1) for each in meta.record.closures]
    source.commit({META_KEY: meta.version}, {META_KEY: meta.record.replace(closures=tuple(over))}, ())
    import_archive(target, io.BytesIO(archive_of(source)), adds=True)
    assert isinstance(claim(target, "deploy/web"), Granted)


@pytest.mark.fault("F-418")
def test_charges_that_are_not_in_the_count_are_seen_and_counted_anew() -> None:
    store = MemoryStore(wall_ms)
    for number in range(2):
        as_bob(store, f"job-{number}")
    assert miscounted(store) == []
    ask(store, BeginCount(payer=BOB))  # killed before it has counted
    assert miscounted(store) == ["bob"]
    assert miscounted(store, recounts=True) == ["bob"]
    assert miscounted(store) == []
    assert isinstance(as_bob(store, "third", held_max=2), QuotaExceeded)


@pytest.mark.full
def test_a_thousand_tokens_are_published_in_one_write(open_new: Callable[[], Store]) -> None:
    source, target = MemoryStore(wall_ms), open_new()
    tokens = {f"{number:064x}" for number in range(1_000)}
    made = {credential_key(digest): Credential(digest=digest, name="team", since_ms=1) for digest in tokens}
    source.commit(dict.fromkeys(made, 0), made, ())
    text = archive_of(source)
    killed_before_its_last_write(target, text)
    assert valid_tokens(target) == set()
    import_archive(target, io.BytesIO(text))
    assert valid_tokens(target) == tokens


@pytest.mark.promise("move:whole")
@pytest.mark.fault("F-419")
@pytest.mark.parametrize("seed", range(6))
def test_whenever_imports_are_killed_the_one_that_completes_is_all_that_is_there(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of several stores, in random order, each killed at a random write."""
    monkeypatch.setattr("dibs.engine.archive_import.PART_RECORDS", 3)
    chance = random.Random(seed)
    copies = []
    for number in range(3):
        source = MemoryStore(wall_ms)
        token(source, f"token-{number}", role="admin")
        close_jobs(source, f"closed-{number}/")
        WebhookAdmin(source, LOCAL, NS).ask("webhook-create", "", {"url": f"https://hook-{number}.test/"})
        for job in range(chance.randrange(1, 8)):
            assert isinstance(as_bob(source, f"job-{job}", held_max=20), Granted)
        copies.append((source, archive_of(source)))
    target = MemoryStore(wall_ms)
    token(target, "own")
    as_bob(target, "gone")
    ask(target, Release(ns=NS, name="gone", principal="bob", lease_id="lease-gone"))
    key = lock_key(NS, "gone")
    target.commit({key: target.read((key,)).records[key].version}, {key: None}, ())
    number = 0
    for _ in range(chance.randrange(1, 8)):
        number = chance.randrange(3)
        try:
            import_archive(Dying(target, chance.randrange(12)), io.BytesIO(copies[number][1]))
        except KeyboardInterrupt:
            continue
        break
    else:
        number = chance.randrange(3)
        import_archive(target, io.BytesIO(copies[number][1]))
    source = copies[number][0]
    assert valid_tokens(target) == {"own", f"token-{number}"}
    assert closures(target) == {(NS, f"closed-{number}/")}
    assert registered(target).entries == registered(source).entries
    for prefix in ("lock/", "webhook/", "webhook-progress/"):
        assert [key for key, _ in target.scan(prefix)] == [key for key, _ in source.scan(prefix)]
    jobs = [event.job for event in target.events(0, 1_000) if event.job and event.job != "gone"]
    assert jobs == [event.job for event in source.events(0, 1_000) if event.job]
    assert miscounted(target) == []
    held = len(source.scan("lock/"))
    assert isinstance(as_bob(target, "last", held_max=held + 1), Granted)
    assert isinstance(as_bob(target, "too-many", held_max=held + 1), QuotaExceeded)
