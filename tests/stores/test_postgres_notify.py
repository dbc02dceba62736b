"""Waiting on PostgreSQL: woken by notifications, and served without them."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.clock import steady_ms
from dibs.stores.postgres import PostgresLocation, notify
from dibs.stores.postgres.notify import MARKS_MAX, hint_of
from dibs.stores.postgres.store import PostgresStore
from dibs.stores.waiters import mark_of
from dibs.testing.contract_base import drop, event, key_of, lock, put
from tests.programs import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import Schema

WAIT_S = 30
WAIT_MS = 20_000


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    return postgres_schema()


@pytest.fixture
def connect(schema: Schema) -> Iterator[Callable[..., PostgresStore]]:
    opened: list[PostgresStore] = []

    def connect(url: str = schema.url) -> PostgresStore:
        opened.append(PostgresStore(PostgresLocation(url)))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


class Waiting:
    """Somebody who waits in a thread, and when it was told."""

    def __init__(self, wait: Callable[[], bool]) -> None:
        self.answers: list[bool] = []
        self.told_ms = 0

        def run() -> None:
            self.answers.append(wait())
            self.told_ms = steady_ms()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def ends(self) -> None:
        self._thread.join(WAIT_S)
        assert self.answers == [True]


def hears(store: PostgresStore) -> bool:
    return store._listener.hears


@pytest.fixture
def _never_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter without a wake-up waits for ever."""
    monkeypatch.setattr(notify, "HEARD_POLL_MS_MAX", WAIT_MS)


@pytest.mark.usefixtures("_never_looks")
def test_a_watch_is_woken_by_a_commit_of_another_server(connect: Callable[..., PostgresStore]) -> None:
    near, far = connect(), connect()
    waiting = Waiting(lambda: near.watch(0, WAIT_MS))
    wait_until(lambda: hears(near), "it listens")
    put(far, lock("x"), events=(event("x"),))
    waiting.ends()


@pytest.mark.usefixtures("_never_looks")
def test_a_watch_believes_the_number_in_a_note_and_nothing_that_is_no_number(
    schema: Schema, connect: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = connect(), connect()
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    looks: list[bytes] = []
    rows = near._pool.rows

    def look(sql: bytes, values: tuple[bytes, ...] = ()) -> Any:
        looks.append(sql)
        return rows(sql, values)

    def has_looked(times: int) -> bool:
        return len(looks) == times

    monkeypatch.setattr(near._pool, "rows", look)
    waiting = Waiting(lambda: near.watch(0, WAIT_MS))
    wait_until(lambda: looks, "it has looked before it waits")
    for number, text in enumerate(("", "x", "-1", "9" * 5_000, "1e9"), start=2):
        schema.run(f"SELECT pg_notify('{near._location.channel}', '{text}')")
        wait_until(partial(has_looked, number), f"{text[:9]!r} has it look and wait on")
    put(far, lock("x"), events=(event("x"),))
    waiting.ends()
    assert len(looks) == 6


@pytest.mark.usefixtures("_never_looks")
def test_who_waits_again_asks_nothing_that_the_notes_have_told(
    connect: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = connect(), connect()
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    assert not near.watch(0, 1), "somebody has looked since"
    looks: list[int] = []
    newest_seq = near.newest_seq

    def look() -> int:
        looks.append(newest_seq())
        return looks[-1]

    monkeypatch.setattr(near, "newest_seq", look)
    for seq in range(4):
        waiting = Waiting(partial(near.watch, seq, WAIT_MS))
        wait_until(lambda: near._listener._waiting, "it waits")
        put([near, far][seq % 2], lock(f"x{seq}"), events=(event("x"),))  # our own, and another server's
        waiting.ends()
    assert looks == []
    assert not near.watch(4, 0), "who does not wait asks"
    assert looks == [4]


@pytest.mark.usefixtures("_never_looks")
def test_a_note_that_came_before_the_wait_is_not_missed(connect: Callable[..., PostgresStore], schema: Schema) -> None:
    near, far = connect(), connect()
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    assert not near.watch(0, 1)
    put(far, lock("x"), events=(event("x"),))
    assert near.watch(0, WAIT_MS)
    schema.run(f"SELECT pg_notify('{near._location.channel}', '999 ')")  # anybody may say so
    wait_until(lambda: near._listener._heard == 999, "it is told")
    assert not near.watch(1, 50)
    waiting = Waiting(lambda: near.watch(1, WAIT_MS))
    wait_until(lambda: near._listener._waiting, "it waits")
    put(far, lock("y"), events=(event("y"),))
    waiting.ends()


@pytest.mark.usefixtures("_never_looks")
def test_who_waits_for_events_is_woken_once_by_our_own_commit(
    connect: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    near = connect()
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    woken: list[bool] = []
    monkeypatch.setattr(near._listener, "wake", lambda keys, seq: woken.append(None in keys))
    put(near, lock("x"), events=(event("x"),))
    wait_until(lambda: len(woken) == 2, "the commit and its note are heard")
    assert sorted(woken) == [False, True] or woken == [True, True], "the note may come before the answer"
    put(near, lock("y"))
    assert len(woken) == 2, "a commit without events wakes nobody"


@pytest.mark.usefixtures("_never_looks")
@pytest.mark.promise("queue:one-wake")
def test_only_who_waits_for_the_record_that_goes_looks(
    connect: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = connect(), connect()
    names = [f"job-{number}" for number in range(20)]
    put(far, *map(lock, names))
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    looks: list[tuple[bytes, ...]] = []
    rows = near._pool.rows

    def look(sql: bytes, values: tuple[bytes, ...] = ()) -> Any:
        found = rows(sql, values)
        looks.append(values)
        return found

    monkeypatch.setattr(near._pool, "rows", look)
    waiting = {name: Waiting(partial(near.until_gone, key_of(name), WAIT_MS)) for name in names}
    wait_until(lambda: len(looks) == len(names), "all have looked")
    drop(far, key_of("job-7"))
    waiting["job-7"].ends()
    assert len(looks) == len(names) + 1
    drop(far, *(key_of(name) for name in names if name != "job-7"))
    for each in waiting.values():
        each.ends()


def test_whoever_asks_for_it_is_told_what_others_delete(connect: Callable[..., PostgresStore]) -> None:
    near, far = connect(), connect()
    told: list[str] = []
    near.on_gone(told.extend)
    near.watch(0, 1)
    wait_until(lambda: hears(near), "it listens")
    put(far, lock("x"), lock("y"))
    drop(far, key_of("x"))
    wait_until(lambda: told, "it is told")
    assert told == [mark_of(key_of("x"))]


@pytest.mark.usefixtures("_never_looks")
def test_a_commit_that_deletes_more_than_a_note_can_say_wakes_everybody(
    connect: Callable[..., PostgresStore],
) -> None:
    near, far = connect(), connect()
    names = [f"job-{number}" for number in range(MARKS_MAX + 1)]
    assert hint_of(names) == "*"
    put(far, *map(lock, names))
    waiting = Waiting(lambda: near.until_gone(key_of("job-7"), WAIT_MS))
    wait_until(lambda: hears(near), "it listens")
    drop(far, *map(key_of, names))
    waiting.ends()


def test_a_listener_that_is_cut_off_listens_again_and_nothing_is_missed(
    schema: Schema, connect: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_AGAIN_S", 1.5)  # nobody listens for so long that it is seen
    near, far = connect(), connect()
    waiting = Waiting(lambda: near.watch(1, WAIT_MS))
    wait_until(lambda: hears(near), "it listens")
    schema.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{schema.name}%'")
    wait_until(lambda: not hears(near), "it notices")
    put(far, lock("x"), events=(event("x"), event("x")))
    waiting.ends()
    Waiting(lambda: near.watch(2, 1))
    wait_until(lambda: hears(near), "it listens again")


@pytest.mark.full
def test_behind_pgbouncer_nobody_listens_and_who_waits_is_served_all_the_same(
    schema: Schema, connect: Callable[..., PostgresStore], pgbouncer_url: str
) -> None:
    near, far = connect(f"{pgbouncer_url}?schema={schema.name}"), connect()
    put(far, lock("x"))
    waiting = Waiting(lambda: near.until_gone(key_of("x"), WAIT_MS))
    waiting._thread.join(0.3)
    assert not hears(near)
    assert schema.run(f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%{schema.name}%'") == [(0,)]
    drop(far, key_of("x"))
    waiting.ends()
    says = {each["check"]: each["says"] for each in near.probe()}
    assert says["wake"].startswith("a pooler is in between")


@pytest.mark.full
@pytest.mark.usefixtures("_never_looks")
def test_behind_pgbouncer_a_direct_address_wakes_who_waits(
    schema: Schema, connect: Callable[..., PostgresStore], pgbouncer_url: str
) -> None:
    direct = schema.server_url.partition("@")[2].partition("/")[0]
    near, far = connect(f"{pgbouncer_url}?schema={schema.name}&listen={direct}"), connect()
    put(far, lock("x"))
    waiting = Waiting(lambda: near.until_gone(key_of("x"), WAIT_MS))
    wait_until(lambda: hears(near), "it listens")
    drop(far, key_of("x"))
    waiting.ends()


def test_with_listen_off_no_connection_is_made_for_it(schema: Schema, connect: Callable[..., PostgresStore]) -> None:
    near = connect(f"{schema.url}&listen=off")
    put(near, lock("x"), events=(event("x"),))
    assert near.watch(0, WAIT_MS)
    assert not near.watch(1, 50)
    assert not hears(near)


def test_a_store_that_is_closed_ends_its_thread(connect: Callable[..., PostgresStore]) -> None:
    def listening() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name == "dibs-listen"}

    store = connect()
    before = listening()  # some may be about to end
    store.watch(0, 1)
    (started,) = listening() - before
    store.close()
    started.join(WAIT_S)
    assert not started.is_alive()
