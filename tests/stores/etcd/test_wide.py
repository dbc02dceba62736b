"""Commits that are larger than a transaction of etcd: all of it or nothing, whoever dies, and nobody waits for ever."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreFull, StoreUnavailable
from dibs.base.ids import new_id
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    EndSession,
    Inspect,
    KeepTickets,
    OpenSession,
    Release,
    Sweep,
)
from dibs.core.lease_outcomes import Released
from dibs.core.limits import METADATA_CHARS_MAX, NAME_BYTES_MAX, TICKET_MS
from dibs.core.outcomes import Granted, GrantedAll, Queued, TicketsKept
from dibs.engine.coordinator import Coordinator
from dibs.stores.etcd import transaction as wide
from dibs.stores.etcd.clock import EtcdTime
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.etcd.transaction import end_of
from dibs.stores.port import Conflict
from dibs.testing.contract_base import event, in_threads, key_of, lock, put, versions
from tests.stalls import is_in_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.core.records import Stored
    from dibs.stores.etcd import EtcdLocation

NAMES = [f"job-{number:03}" for number in range(150)]


class Dying(EtcdStore):
    """After some more calls etcd does not hear from it, as from a process that was killed."""

    calls_left = 10**6

    def forget(self) -> None:
        super().forget()
        client = self._client
        call = client._call

        def counted(path: str, request: bytes, answer: Any, **how: Any) -> Any:
            if self.calls_left <= 0:
                raise StoreUnavailable("dead")
            self.calls_left -= 1
            return call(path, request, answer, **how)

        client._call = counted  # type: ignore[method-assign]


def tokens(store: EtcdStore) -> set[int]:
    found = store.read(map(key_of, NAMES)).records.values()
    return {0 if each.record is None else each.record.token for each in found}  # type: ignore[union-attr]


def internal_keys(store: EtcdStore) -> list[bytes]:
    """What wide commits left in etcd."""
    ranges = [
        store._client.range(first, end_of(first), keys_only=True)
        for first in (store._layout.root + b"w/", store._layout.wide)
    ]
    return [kv.key for kvs in ranges for kv in kvs]


@pytest.mark.fault("F-035")
@pytest.mark.promise("durable")
@pytest.mark.parametrize("is_large", [False, True], ids=["one part", "several parts"])
def test_a_writer_that_dies_at_any_step_leaves_all_of_its_commit_or_nothing(
    store: EtcdStore, location: EtcdLocation, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    monkeypatch.setattr(wide, "WIDE_MS", 30)
    if is_large:
        monkeypatch.setattr(wide, "PART_OPS", 60)
    put(store, *[lock(name) for name in NAMES])
    expected, outcomes, calls = 1, [], 0
    while True:
        dying = Dying(location)
        read = versions(dying, *map(key_of, NAMES))
        dying.calls_left = calls
        puts: dict[str, Stored | None] = {key_of(name): lock(name, token=expected + 1) for name in NAMES}
        try:
            dying.commit(read, puts, [event("all")])
            outcomes.append("told")
        except StoreUnavailable:
            outcomes.append("dead")
        put(store, lock("another"))  # is let through
        seen = tokens(store)
        assert len(seen) == 1, f"a half of it, after {calls} calls"
        assert len(store.events(0, 100)) == seen.copy().pop() - 1
        assert internal_keys(store) == []
        if outcomes[-1] == "dead" and seen == {expected + 1}:
            outcomes[-1] = "decided"
        expected = seen.pop()
        dying.close()
        if outcomes[-1] == "told":
            break
        calls += 1
    assert outcomes == sorted(outcomes, key=["dead", "decided", "told"].index)
    assert outcomes.count("dead") > 3
    assert ("decided" in outcomes) == is_large


@pytest.mark.fault("F-035")
def test_a_writer_that_was_stopped_finds_out_that_it_was_too_slow(
    store: EtcdStore, connect: Callable[[], EtcdStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "WIDE_MS", 30)
    other = connect()
    put(store, *[lock(name) for name in NAMES])
    keep = store._wide.keep

    def stopped(commit: wide.WideCommit) -> None:
        put(other, lock(NAMES[7], token=9))  # others do not wait for ever
        keep(commit)

    monkeypatch.setattr(store._wide, "keep", stopped)
    read = versions(store, *map(key_of, NAMES))
    with pytest.raises(Conflict):
        store.commit(read, {key_of(name): lock(name, token=2) for name in NAMES}, [event("x")])
    assert tokens(store) == {1, 9}
    assert store.events(0, 10) == []
    assert internal_keys(store) == []


@pytest.mark.fault("F-135")
@pytest.mark.promise("durable")
def test_a_list_never_shows_a_half_of_a_commit_whose_writer_died(
    store: EtcdStore, location: EtcdLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "WIDE_MS", 30)
    monkeypatch.setattr(wide, "PART_OPS", 60)
    put(store, *[lock(name) for name in NAMES])
    seen: list[set[int]] = []
    is_told, calls = False, 0
    while not is_told:
        dying = Dying(location)
        read = versions(dying, *map(key_of, NAMES))
        dying.calls_left = calls
        calls += 1
        assert calls < 40
        try:
            dying.commit(read, {key_of(name): lock(name, token=calls + 1) for name in NAMES}, ())
            is_told = True
        except StoreUnavailable:
            pass
        found = [each.record for _, each in store.scan(key_of("job-"))]
        seen.append({each.token for each in found})  # type: ignore[union-attr]
        store.read([key_of(NAMES[0])])  # finishes what is decided
        put(store, lock("another"))  # and gives up what is not
        dying.close()
    assert {len(each) for each in seen} == {1}


@pytest.mark.fault("F-136")
def test_the_number_that_a_wide_commit_returns_is_that_of_its_last_event_after_an_import_too(
    store: EtcdStore,
) -> None:
    store.number_from(10**12)
    last = put(store, *[lock(name) for name in NAMES], events=(event("a"), event("b")))
    assert last == store.newest_seq()
    assert [each.seq for each in store.events(last - 1, 10)] == [last]


@pytest.mark.fault("F-035")
@pytest.mark.promise("excl")
def test_nobody_sees_a_half_of_a_commit_that_is_written_in_parts(
    connect: Callable[[], EtcdStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide, "PART_OPS", 30)
    writer, reader = connect(), connect()
    put(writer, *[lock(name, token=0) for name in NAMES])
    ends = [key_of(NAMES[0]), key_of(NAMES[75]), key_of(NAMES[-1])]
    rounds = 3
    torn: list[object] = []

    def write() -> None:
        for token in range(1, rounds + 1):
            put(writer, *[lock(name, token=token) for name in NAMES])

    def read() -> None:
        seen = {0}
        while seen != {rounds}:
            found = reader.read(ends).records.values()
            seen = {each.record.token for each in found if each.record is not None}  # type: ignore[union-attr]
            if len(seen) != 1:
                torn.append(seen)

    in_threads([write, read])
    assert not torn


# What the rules decide in one piece.


class SetTime(EtcdTime):
    """The store's time, and what a test adds to it."""

    added_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.added_ms

    def raising(self) -> bytes:
        self._clock.saw(self.now_ms())
        self.added_ms = 0
        return super().raising()


class World:
    def __init__(self, location: EtcdLocation) -> None:
        self.store = EtcdStore(location, SetTime)
        self.coordinator = Coordinator(self.store)

    def run(self, *commands: Command) -> list[Any]:
        return self.coordinator.run(commands)

    def pass_time(self, ms: int) -> None:
        assert isinstance(self.store._time, SetTime)
        self.store._time.added_ms = ms
        self.store.commit({}, {}, ())

    def sweep(self) -> list[Any]:
        return self.run(*[Sweep(key=key) for key in self.store.due(512).keys])

    def owner(self, name: str) -> str | None:
        (look,) = self.run(Inspect(ns="d", name=name))
        return look.lock.holders[0].owner if look.lock.holders else None


@pytest.fixture
def world(location: EtcdLocation) -> Any:
    made = World(location)
    yield made
    made.store.close()


def claim(name: str, who: str, **fields: Any) -> Acquire:
    made: dict[str, Any] = {"ttl_ms": 60_000, "fresh_lease_id": new_id()}
    return Acquire(ns="d", name=name, principal=who, owner=who, **(made | fields))


def claim_all(who: str, *names: str, **fields: Any) -> AcquireAll:
    made: dict[str, Any] = {"ttl_ms": 60_000, "fresh_lease_id": new_id()}
    return AcquireAll(ns="d", names=names, principal=who, owner=who, **(made | fields))


def release(grant: Granted, who: str) -> Release:
    return Release(ns="d", name=grant.name, principal=who, lease_id=grant.lease.lease_id)


@pytest.mark.fault("F-035")
@pytest.mark.promise("queue:no-dead-grant")
@pytest.mark.parametrize("ends", ["it is released", "it expires"])
def test_a_job_with_a_hundred_dead_waiters_goes_to_the_next_who_lives(world: World, ends: str) -> None:
    (held,) = world.run(claim("j", "holder"))
    queued = world.run(*[claim("j", f"dead-{number}", wait=True) for number in range(110)])
    assert {type(each) for each in queued} == {Queued}
    world.pass_time(TICKET_MS + 1_000 if ends == "it is released" else 61_000)
    (waiting,) = world.run(claim("j", "living", wait=True))
    if ends == "it is released":
        assert isinstance(waiting, Queued)
        (released,) = world.run(release(held, "holder"))
        assert isinstance(released, Released)
    assert world.owner("j") == "living"
    assert not [each for each in world.sweep() if isinstance(each, BaseException)]
    assert world.store.due(10).keys == []


@pytest.mark.fault("F-035")
@pytest.mark.promise("all-or-nothing")
def test_a_claim_of_many_jobs_with_others_in_line_behind_it_does_not_jam(world: World) -> None:
    names = [f"j{number:02}" for number in range(45)]
    (held,) = world.run(claim("j00", "holder"))
    (queued,) = world.run(claim_all("all", *names, wait=True))
    assert isinstance(queued, Queued)
    others = world.run(*[claim(name, f"other-{name}", wait=True) for name in names[:12]])
    assert {type(each) for each in others} == {Queued}
    (released,) = world.run(release(held, "holder"))
    assert isinstance(released, Released)
    assert {world.owner(name) for name in names} == {"all"}


@pytest.mark.fault("F-035")
@pytest.mark.promise("session")
@pytest.mark.parametrize("count", [120, pytest.param(500, marks=pytest.mark.slow)])
def test_a_session_with_many_jobs_ends_in_one_decision_and_all_who_wait_are_served(world: World, count: int) -> None:
    names = [f"job-{number:03}" for number in range(count)]
    world.run(OpenSession(ns="default", fresh_id="s", principal="a", owner="a", ttl_ms=60_000))
    grants = world.run(*[claim(name, "a", session="s", ttl_ms=0, ephemeral=True) for name in names])
    assert {type(each) for each in grants} == {Granted}
    queued = world.run(*[claim(name, "next", wait=True) for name in names])
    assert {type(each) for each in queued} == {Queued}
    world.run(EndSession(session="s", principal="a"))
    owners = {each.lock.holders[0].owner for each in world.run(*[Inspect(ns="d", name=name) for name in names])}
    assert owners == {"next"}


@pytest.mark.fault("F-037")
@pytest.mark.promise("queue:fifo")
def test_the_places_of_hundreds_of_waiters_are_kept_at_once(world: World) -> None:
    world.run(claim("j", "holder"))
    places = world.run(*[claim("j", f"waiter-{number}", wait=True) for number in range(256)])
    world.pass_time(TICKET_MS // 3)
    (kept,) = world.run(KeepTickets(tickets=tuple((each.ns, each.name, each.ticket) for each in places)))
    assert isinstance(kept, TicketsKept)
    assert kept.gone == ()
    world.pass_time(TICKET_MS * 2 // 3)
    assert [key for key in world.store.due(10).keys if key.startswith("ticket/")] == []


@pytest.mark.fault("F-035")
def test_the_largest_claim_that_the_rules_allow_is_taken(world: World) -> None:
    names = [f"{number:03}".ljust(NAME_BYTES_MAX, "n") for number in range(100)]
    (granted,) = world.run(claim_all("a", *names, metadata="😀" * METADATA_CHARS_MAX))
    assert isinstance(granted, GrantedAll)
    assert len(world.store.events(0, 200)) == 100


@pytest.mark.fault("F-435")
@pytest.mark.fault("F-473")
@pytest.mark.parametrize("written", [0, 1])
def test_while_there_is_no_room_to_finish_a_commit_readers_look_past_it_or_are_told_at_once(
    store: EtcdStore, connect: Callable[[], EtcdStore], monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """The process died after the decision, or after so many parts. The rest is there when there is room again."""
    put(store, lock("before"))

    def die(begun: wide.WideCommit) -> None:
        for _ in range(written):
            assert store._wide._write_part(begun) is not None
        raise StoreUnavailable("dead")

    monkeypatch.setattr(wide, "PART_OPS", 100)
    monkeypatch.setattr(store._wide, "_write_parts", die)
    records = {key_of(name): lock(name) for name in NAMES}
    with pytest.raises(StoreUnavailable, match="dead"):
        store.commit(dict.fromkeys(records, 0), records, ())
    reader = connect()
    reader._time.ready()
    write = reader._client.write

    def full(*_: object) -> None:
        raise StoreFull("etcd has no room.")

    def look() -> None:
        if written:
            with pytest.raises(StoreFull):
                reader.read((key_of(NAMES[0]),))
            return
        found = reader.read((*records, key_of("before"))).records
        assert [key for key, each in found.items() if each.record is not None] == [key_of("before")]
        assert [key for key, _ in reader.scan("lock/")] == [key_of("before")]

    monkeypatch.setattr(reader._client, "write", full)
    look()
    began_s = time.monotonic()
    for _ in range(3):
        look()
    assert is_in_time(began_s, wide.WIDE_MS / 1_000)
    with pytest.raises(StoreFull):
        reader.commit({}, {}, ())
    assert isinstance(reader.trouble(), StoreFull)
    monkeypatch.setattr(reader._client, "write", write)
    assert len([each for each in reader.read(records).records.values() if each.record is not None]) == len(NAMES)
    assert reader.trouble() is None
