"""A record that cannot be read, on each store that is made of text: left out of pages, refused to who reads it, set
aside with its text. `tests/cli/test_damage.py` has what commands and servers make of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_token
from dibs.stores.etcd.location import revision_of
from dibs.stores.etcd.messages import put_op
from dibs.stores.etcd.store import EtcdStore
from dibs.stores.etcd.transaction import end_of
from dibs.stores.port import RecordCorrupt, maintenance_of
from dibs.stores.registry import open_store
from dibs.stores.sqlite import SqliteStore
from dibs.testing.contract_base import event, key_of, lock, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dibs.stores.port import Store
    from tests.etcd import Cluster
    from tests.postgres import Schema

NAMES = [f"{number:02}" for number in range(8)]
SPOILT = ["00", "03", "07"]
LATER_MS = 10**14
Spoil = tuple["Store", "Callable[[str, str], None]"]
SpoilEvent = tuple["Store", "Callable[[int, str], None]"]
Damage = tuple["Store", "Callable[[str, str], None]", "Callable[[int, str], None]"]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Damage]:
    import sqlite3

    path = str(tmp_path / "dibs.db")
    store = SqliteStore(path)

    def spoil(key: str, text: str) -> None:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE records SET body = ? WHERE key = ?", (text, key))
        db.close()

    def spoil_event(seq: int, text: str) -> None:
        with sqlite3.connect(path) as db:
            db.execute("UPDATE events SET body = ? WHERE seq = ?", (text, seq))
        db.close()

    yield store, spoil, spoil_event
    store.close()


@pytest.fixture
def postgres(postgres_schema: Callable[[], Schema]) -> Iterator[Damage]:
    schema = postgres_schema()
    store = open_store(schema.url)

    def spoil(key: str, text: str) -> None:
        quoted = text.replace("'", "''")
        schema.run(f"UPDATE {{s}}.records SET body = '{quoted}', version = version + 1 WHERE key = '{key}'")

    def spoil_event(seq: int, text: str) -> None:
        schema.run(f"UPDATE {{s}}.events SET body = '{text}' WHERE seq = {seq}")

    yield store, spoil, spoil_event
    store.close()


@pytest.fixture
def etcd(etcd_cluster: Cluster) -> Iterator[Damage]:
    store = EtcdStore(etcd_cluster.location(f"damage/{new_token()}"))

    def spoil(key: str, text: str) -> None:
        store._client.txn([put_op(store._layout.record(key), text.encode())])

    def spoil_event(seq: int, text: str) -> None:
        """Whoever writes to the key of an event gives it a later number, so the last one has to be that late."""
        kvs = store._client.range(store._layout.log, end_of(store._layout.log))
        kvs += store._client.range(store._layout.jobs, end_of(store._layout.jobs))
        spoilt = [kv.key for kv in kvs if kv.mod_revision == revision_of(seq)]
        store._client.txn([*[put_op(key, text.encode()) for key in spoilt], put_op(store._layout.last, b"1")])

    yield store, spoil, spoil_event
    store.close()


@pytest.fixture
def filled(request: pytest.FixtureRequest) -> Spoil:
    store, spoil, _ = _filled(request)
    return store, spoil


@pytest.fixture
def logged(request: pytest.FixtureRequest) -> SpoilEvent:
    store, _, spoil_event = _filled(request)
    return store, spoil_event


def _filled(request: pytest.FixtureRequest) -> Damage:
    damage: Damage = request.getfixturevalue(request.param)
    for name in NAMES:
        put(damage[0], lock(name, expires_ms=LATER_MS), events=(event(name),))
    return damage


STORES = pytest.mark.parametrize("filled", ["sqlite", "postgres", "etcd"], indirect=True)
LOGS = pytest.mark.parametrize("logged", ["sqlite", "postgres", "etcd"], indirect=True)


@STORES
@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-433")
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 8, 100])
def test_pages_leave_it_out_and_are_full_until_the_last(filled: Spoil, live: bool, step: int) -> None:
    store, spoil = filled
    for name in SPOILT:
        spoil(key_of(name), '{"ns":"def')
    pages, after = [], ""
    while page := store.scan("lock/", after, step, live=live):
        after = page[-1][0]
        pages.append([key for key, _ in page])
    assert [key for page in pages for key in page] == [key_of(name) for name in NAMES if name not in SPOILT]
    assert all(len(page) == step for page in pages[:-1])
    assert store.damaged() == [key_of(name) for name in SPOILT]
    assert store.trouble() is None, "all other records can be used"


@STORES
@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-433")
def test_who_reads_it_is_told_its_key_and_it_is_set_aside_with_its_text(filled: Spoil) -> None:
    store, spoil = filled
    key, text = key_of("03"), "no JSON at all"
    spoil(key, text)
    with pytest.raises(RecordCorrupt, match=rf"{key}.*\n.*dibs doctor --set-aside {key}") as caught:
        store.read((key, key_of("01")))
    assert caught.value.key == key
    kept: list[str] = []
    assert not maintenance_of(store).set_aside(key_of("01"), kept.append)
    assert not maintenance_of(store).set_aside(key_of("none"), kept.append)
    assert maintenance_of(store).set_aside(key, kept.append)
    assert kept == [text]
    assert not maintenance_of(store).set_aside(key, kept.append)
    assert store.damaged() == []
    assert store.read((key,)).records[key].record is None
    assert [each for each, _ in store.scan("lock/", live=True)] == [key_of(name) for name in NAMES if name != "03"]
    assert key not in store.due(100).keys
    put(store, lock("03", token=7), events=(event("03"),))
    assert store.read((key,)).records[key].record == lock("03", token=7)


@STORES
@pytest.mark.fault("F-433")
def test_nothing_is_removed_if_its_text_cannot_be_kept(filled: Spoil) -> None:
    store, spoil = filled
    key = key_of("03")
    spoil(key, "{")

    def fail(_: str) -> None:
        raise OSError("no room")

    with pytest.raises(Exception, match="no room"):
        maintenance_of(store).set_aside(key, fail)
    with pytest.raises(RecordCorrupt):
        store.read((key,))


@STORES
@pytest.mark.fault("F-433")
def test_a_record_that_was_repaired_is_not_damaged_any_more(filled: Spoil) -> None:
    store, spoil = filled
    key = key_of("03")
    good = next(found for each, found in store.scan("lock/") if each == key).record
    assert good is not None
    spoil(key, "{")
    store.scan("lock/")
    assert store.damaged() == [key]
    from dibs.stores.codec import encode

    spoil(key, encode(good))
    assert store.damaged() == []


def jobs_by_page(store: Store, step: int) -> list[str]:
    found, after = [], 0
    while page := store.events(after, step):
        after = page[-1].seq
        found += [each.job for each in page]
    return found


@LOGS
@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-471")
@pytest.mark.parametrize("text", ["no JSON at all", '{"kind":"cl'])
def test_history_goes_on_without_an_event_that_cannot_be_read(logged: SpoilEvent, text: str) -> None:
    store, spoil = logged
    numbers = {each.job: each.seq for each in store.events(0, 100)}
    for name in SPOILT:
        spoil(numbers[name], text)
    left = [name for name in NAMES if name not in SPOILT]
    for step in (1, 2, 3, 8, 100):
        assert jobs_by_page(store, step) == left
        assert [each.job for each in store.events(0, step, newest=True)] == left[-step:]
    assert [each.job for each in store.events(0, 5, ("default", "01"))] == ["01"]
    assert store.events(0, 5, ("default", "03")) == []
    assert store.events(0, 5, ("default", "03"), newest=True) == []
    keys = store.damaged()
    assert len(keys) == len(SPOILT)
    assert all(key.startswith("event/") for key in keys)
    assert store.trouble() is None


@LOGS
@pytest.mark.promise("damage:told")
@pytest.mark.fault("F-471")
def test_an_event_that_cannot_be_read_is_set_aside_with_its_text(logged: SpoilEvent) -> None:
    store, spoil = logged
    numbers = {each.job: each.seq for each in store.events(0, 100)}
    spoil(numbers[NAMES[-1]], "half of {")  # the newest: on SQLite it carries the counters
    last = store.newest_seq()
    store.events(0, 100)
    (key,) = store.damaged()
    kept: list[str] = []
    sound = next(seq for name, seq in numbers.items() if name == "01")
    assert not maintenance_of(store).set_aside(f"event/{sound}", kept.append)
    assert not maintenance_of(store).set_aside("event/1", kept.append) or sound == 1
    assert maintenance_of(store).set_aside(key, kept.append)
    assert "half of {" in kept[0]
    assert not maintenance_of(store).set_aside(key, kept.append)
    assert store.damaged() == []
    assert jobs_by_page(store, 3) == NAMES[:-1]
    assert store.newest_seq() >= last, "numbers do not come twice"
    assert put(store, lock("new"), events=(event("new"),)) > 0
    assert store.events(0, 1, newest=True)[0].seq > last
