"""The store's time on PostgreSQL: a wall clock that is stepped, or another machine's after a failover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.core.outcomes import Granted, Held
from dibs.engine.coordinator import Coordinator
from dibs.stores.postgres import PostgresLocation
from dibs.stores.postgres.clock import ANCHOR_MS, ANSWER_MS, TOLERANCE_MS, StepWatch
from dibs.stores.postgres.connection import PostgresConnection
from dibs.stores.postgres.store import PostgresStore
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dibs.core.outcomes import Outcome
    from tests.postgres import Schema

HOUR_MS = 3_600_000


@pytest.fixture
def schema(postgres_schema: Callable[[], Schema]) -> Schema:
    made = postgres_schema()
    made.stop_clock()
    return made


@pytest.fixture
def connect(schema: Schema) -> Iterator[Callable[[], PostgresStore]]:
    opened: list[PostgresStore] = []

    def connect() -> PostgresStore:
        opened.append(PostgresStore(PostgresLocation(schema.url), steady_ms=schema.clock.steady_ms))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def claim(store: PostgresStore, owner: str, ttl_ms: int = 60_000, name: str = "job") -> Outcome:
    command = Acquire(ns="default", name=name, principal="p", owner=owner, ttl_ms=ttl_ms, fresh_lease_id=new_id())
    return Coordinator(store).one(command)


@pytest.mark.promise("lease:never-early")
def test_a_clock_set_forward_ends_no_lease_of_a_store_that_somebody_has_open(
    schema: Schema, connect: Callable[[], PostgresStore]
) -> None:
    first, second = connect(), connect()
    second.read(())
    assert isinstance(claim(first, "a"), Granted)
    schema.advance(1_000)
    schema.step(HOUR_MS)
    assert isinstance(claim(second, "b"), Held)
    assert second.due(10).keys == []
    assert "ran ahead by 3600 seconds" in second.notices()[0]
    schema.advance(58_000)
    assert isinstance(claim(first, "b"), Held)
    schema.advance(1_001)
    assert isinstance(claim(first, "b"), Granted)


@pytest.mark.promise("lease:never-early")
def test_who_is_started_after_the_step_was_corrected_goes_by_the_corrected_time(
    schema: Schema, connect: Callable[[], PostgresStore]
) -> None:
    first = connect()
    assert isinstance(claim(first, "a"), Granted)
    schema.step(HOUR_MS)
    now_ms = first.read(()).now_ms
    assert isinstance(claim(connect(), "b"), Held)
    assert connect().read(()).now_ms - now_ms <= TOLERANCE_MS


@pytest.mark.parametrize("first_step_ms", [HOUR_MS, -HOUR_MS])
def test_steps_there_and_back_move_nothing(
    schema: Schema, connect: Callable[[], PostgresStore], first_step_ms: int
) -> None:
    store = connect()
    claim(store, "a")
    began_ms = store.read(()).now_ms
    for step_ms in (first_step_ms, -first_step_ms, first_step_ms):
        schema.step(step_ms)
        schema.advance(1_000)
        claim(store, "b")
        schema.advance(1_000)
        store.read(())
    passed_ms = store.read(()).now_ms - began_ms
    assert 0 <= passed_ms <= 6_000 + TOLERANCE_MS * 3


def test_time_never_runs_back_and_goes_on_after_the_next_commit(
    schema: Schema, connect: Callable[[], PostgresStore]
) -> None:
    store, other = connect(), connect()
    claim(store, "a", ttl_ms=HOUR_MS)
    before_ms = store.read(()).now_ms
    schema.step(-HOUR_MS)
    assert store.read(()).now_ms == other.read(()).now_ms == connect().read(()).now_ms == before_ms
    claim(store, "a")
    store.commit({}, {}, ())
    schema.advance(5_000)
    assert store.read(()).now_ms == connect().read(()).now_ms == before_ms + 5_000


@pytest.mark.promise("lease:never-early")
def test_a_clock_set_back_makes_no_lease_shorter(schema: Schema, connect: Callable[[], PostgresStore]) -> None:
    store = connect()
    schema.step(-HOUR_MS)
    assert isinstance(claim(store, "a"), Granted)
    schema.advance(59_000)
    assert isinstance(claim(connect(), "b"), Held)


def test_of_several_that_see_the_same_step_one_corrects_it(
    schema: Schema, connect: Callable[[], PostgresStore]
) -> None:
    stores = [connect() for _ in range(4)]
    for each in stores:
        each.read(())
    schema.step(HOUR_MS)
    times = [each.read(()).now_ms for each in stores]
    assert len(set(times)) == 1
    assert schema.run("SELECT offset_no, offset_ms FROM {s}.state") == [(1, -HOUR_MS)]


def test_who_slept_and_wakes_with_a_clock_that_stood_takes_nothing_back(
    schema: Schema, connect: Callable[[], PostgresStore]
) -> None:
    """A virtual machine that was paused: its steady clock lost an hour, the database's did not."""
    paused, awake = connect(), PostgresStore(PostgresLocation(schema.url), steady_ms=lambda: steady_ms)
    steady_ms = 0
    paused.read(())
    awake.read(())
    schema.step(HOUR_MS)
    steady_ms = HOUR_MS
    decided_ms = awake.read(()).now_ms
    awake.commit({}, {}, ())
    paused.read(())
    assert connect().read(()).now_ms >= decided_ms
    awake.close()


def test_a_claim_of_a_server_that_runs_is_one_statement(
    connect: Callable[[], PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = connect()
    claim(store, "a")
    asked: list[bytes] = []
    query = PostgresConnection.query

    def noted(link: PostgresConnection, sql: bytes, *rest: Any) -> Any:
        asked.append(sql)
        return query(link, sql, *rest)

    monkeypatch.setattr(PostgresConnection, "query", noted)
    assert isinstance(claim(store, "b", name="another"), Granted)
    assert asked == [store._queries.commit]


@pytest.mark.promise("excl")
def test_a_claim_by_old_records_is_decided_again(connect: Callable[[], PostgresStore]) -> None:
    near, far = connect(), connect()
    claim(near, "a", name="another")
    assert isinstance(claim(far, "b"), Granted)
    assert isinstance(claim(near, "c"), Held)


@pytest.mark.promise("lease:never-early")
def test_the_time_between_two_answers_is_never_ahead_of_the_store_and_not_guessed_for_long() -> None:
    clock = ManualClock()
    watch = StepWatch(clock.steady_ms)
    assert watch.now_ms() is None
    asked_ms = clock.steady_ms()
    clock.advance(300)  # on its way back
    assert watch.expected_ms(1_000_000, asked_ms) is None
    clock.advance(ANSWER_MS - 1)
    assert watch.now_ms() == 1_000_000 + ANSWER_MS - 1
    assert watch.handed_out(1_000_000) == 1_000_000 + ANSWER_MS - 1, "time is never taken back"
    clock.advance(1)
    assert watch.now_ms() is None


def test_a_slow_trip_is_no_step() -> None:
    clock = ManualClock()
    watch = StepWatch(clock.steady_ms)
    assert watch.expected_ms(1_000_000, clock.steady_ms()) is None
    asked_ms = clock.steady_ms()
    clock.advance(4_000)  # on its way there, or back: nobody knows
    assert watch.expected_ms(1_004_000, asked_ms) is None
    assert watch.expected_ms(1_000_000, asked_ms) is None
    assert watch.expected_ms(1_004_000 + TOLERANCE_MS + 5, clock.steady_ms()) == 1_004_000


def test_a_clock_that_is_slewed_ahead_is_noticed_before_it_has_gained_much() -> None:
    clock = ManualClock()
    watch = StepWatch(clock.steady_ms)
    store_ms, gained_ms = 1_000_000.0, 0.0
    for _ in range(1_000):
        clock.advance(100)
        store_ms += 108.3  # as fast as chrony goes
        if watch.expected_ms(int(store_ms), clock.steady_ms()) is not None:
            break
        gained_ms += 8.3
    assert gained_ms < 2 * TOLERANCE_MS


def test_clocks_that_drift_as_clocks_do_are_never_corrected() -> None:
    clock = ManualClock()
    watch = StepWatch(clock.steady_ms)
    store_ms = 1_000_000.0
    for _ in range(5_000):
        clock.advance(1_000)
        store_ms += 1_000.2  # 200 ppm
        assert watch.expected_ms(int(store_ms), clock.steady_ms()) is None
    assert ANCHOR_MS < 5_000 * 1_000
