"""Lists cost what they return, or stop in time and say where to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dibs.base.ids import new_id
from dibs.core import limits
from dibs.core.commands import Acquire, Inspect, OpenSession
from dibs.core.outcomes import Granted, Queued
from dibs.core.records import DONE, FREE
from dibs.engine import event_log
from dibs.engine.activity import Activity
from dibs.engine.coordinator import Coordinator
from dibs.engine.queries import claimed, live_tickets, open_sessions
from dibs.stores.memory import MemoryStore
from dibs.stores.port import StoreProxy
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event, lock, put
from dibs.wire import sentences
from dibs.wire.documents import reply_to

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dibs.stores.port import Snapshot, Versioned

JOBS = 40


class Counting(MemoryStore):
    """Notes how much it is asked for at a time."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.most = 0
        self.reads = 0

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        self.most = max(self.most, limit)
        return super().scan(prefix, after, limit, live=live)

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        self.reads += 1
        self.most = max(self.most, len(asked))
        return super().read(asked)


@pytest.fixture
def store() -> Counting:
    store = Counting()
    for number in range(JOBS):
        put(store, lock(f"job-{number:03}").replace(holders=()))
    return store


def test_a_list_that_finds_nothing_stops_in_time_and_says_where_to_go_on(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIST_LOOKS_MAX", 10)
    after, pages = "", 0
    while True:
        page = claimed(store, "default", after=after, limit=3, states=(DONE,))
        assert page.locks == []
        pages += 1
        if page.next_after is None:
            break
        assert page.next_after > after
        after = page.next_after
    assert 1 < pages <= JOBS / 10 + 1


def test_the_pages_of_a_list_hold_each_job_once(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_LOOKS_MAX", 10)
    names, after = [], ""
    while True:
        page = claimed(store, "default", after=after, limit=7, states=(FREE,))
        names += [each.name for each in page.locks]
        if page.next_after is None:
            break
        after = page.next_after
    assert names == [f"job-{number:03}" for number in range(JOBS)]


def test_a_large_page_is_read_from_the_store_in_small_parts(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LIST_PAGE_DEFAULT", 8)
    assert len(claimed(store, "default", limit=JOBS, states=(FREE,)).locks) == JOBS
    assert store.most <= 8


def test_open_sessions_cost_a_few_reads_for_all_and_not_several_for_each() -> None:
    store = Counting()
    coordinator = Coordinator(store)
    for number in range(50):
        session = f"s-{number:02}"
        coordinator.one(OpenSession(ns="default", fresh_id=session, principal="p", owner="o", ttl_ms=60_000))
        for name in (f"own-{number}", "shared"):
            claim = Acquire(ns="default", name=name, principal="p", owner="o", ttl_ms=60_000, fresh_lease_id=new_id())
            coordinator.one(claim.replace(session=session, mode="shared"))
    store.reads = 0
    states = open_sessions(store, None)
    assert [(each.session.id, len(each.holds)) for each in states] == [(f"s-{n:02}", 2) for n in range(50)]
    assert store.reads <= 4


@pytest.mark.fault("F-379")
def test_after_a_copy_with_as_many_events_took_over_the_hour_is_counted_anew() -> None:
    one, other = MemoryStore(ManualClock()), MemoryStore(ManualClock())
    now_ms = one.read(()).now_ms
    for store in (one, other):
        store.commit({}, {}, [event("kept", at_ms=now_ms)])
    now = StoreProxy(one)
    activity = Activity(now)
    one.commit({}, {}, [event("lost", at_ms=now_ms) for _ in range(4)])
    assert sum(activity.hour("default").counts["acquired"]) == 5
    now.inner = other
    other.commit({}, {}, [event("lost", at_ms=now_ms + 1).replace(kind="released") for _ in range(6)])
    for _ in range(2):
        counts = activity.hour("default").counts
        assert (sum(counts["acquired"]), sum(counts["released"])) == (1, 6)


@pytest.mark.fault("F-462")
def test_of_very_many_claims_in_the_way_of_a_tree_a_hundred_are_named() -> None:
    store = MemoryStore(ManualClock())
    coordinator = Coordinator(store)
    claim = Acquire(ns="d", name="repo:x", owner="w", principal="p", ttl_ms=60_000, fresh_lease_id="", wait=True)
    count = limits.OWNERS_NAMED_MAX + 50
    paths = [claim.replace(name=f"path:{number}", owner="o", fresh_lease_id=new_id()) for number in range(count)]
    coordinator.run(paths)
    status = reply_to("inspect", coordinator.one(Inspect(ns="d", name="repo:x"))).body or {}
    assert (len(status["overlapping"]), status["overlapping_count"]) == (limits.OWNERS_NAMED_MAX, count)
    assert sentences.free(status).endswith(", and 50 more.")
    coordinator.one(claim.replace(fresh_lease_id=new_id()))
    [waiter] = live_tickets(store, "d", "repo:", "", 9).tickets
    assert len(waiter.blockers) == limits.OWNERS_NAMED_MAX


LONG = "x" * 300


@pytest.mark.fault("F-474")
@pytest.mark.parametrize(("chars", "sizes"), [(299, [1] * 7), (600, [2, 2, 2, 1]), (1_000, [3, 3, 1]), (10_000, [7])])
def test_a_page_has_no_more_text_than_a_client_reads_but_one_job_at_least(
    chars: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "PAGE_CHARS_MAX", chars)
    store = MemoryStore(ManualClock())
    coordinator = Coordinator(store)
    for number in range(7):
        taken = Acquire(
            ns="default", name=f"job-{number}", owner="o", principal="p", fresh_lease_id=new_id(), ttl_ms=60_000
        )
        assert isinstance(coordinator.one(taken.replace(metadata=LONG)), Granted)
    found, after, pages = [], "", []
    for _ in range(20):
        page = claimed(store, "default", after=after)
        found += [each.name for each in page.locks]
        pages.append(len(page.locks))
        if page.next_after is None:
            break
        after = page.next_after
    assert found == [f"job-{number}" for number in range(7)]
    assert pages == sizes
    events, at, pages = [], 0, []
    for _ in range(20):
        some = event_log.collect(store, event_log.EventFilter(ns="default"), at, 1_000)
        events += [each.seq for each in some.events]
        pages.append(len(some.events))
        at = some.upto
        if some.is_last:
            break
    assert events == list(range(1, 8))
    assert pages == sizes
    newest = event_log.collect(store, event_log.EventFilter(ns="default"), None, 1_000)
    assert [each.seq for each in newest.events] == events[-sizes[0] :]


@pytest.mark.fault("F-474")
def test_a_page_of_places_in_line_ends_when_it_has_much_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "PAGE_CHARS_MAX", 700)
    monkeypatch.setattr("dibs.engine.queries.TICKETS_AT_ONCE", 2)
    store = MemoryStore(ManualClock())
    coordinator = Coordinator(store)
    for number in range(8):
        asked = Acquire(
            ns="default",
            name="job",
            owner=f"o{number}",
            principal="p",
            fresh_lease_id=new_id(),
            ttl_ms=60_000,
            wait=True,
        )
        assert isinstance(coordinator.one(asked.replace(metadata=LONG)), Granted | Queued)
    owners, after, pages = [], "", 0
    for _ in range(20):
        page = live_tickets(store, "default", "", after, 1_000)
        owners += [each.ticket.owner for each in page.tickets]
        pages += 1
        assert len(page.tickets) <= 4
        if page.next_after is None:
            break
        after = page.next_after
    assert owners == [f"o{number}" for number in range(1, 8)]
    assert pages == 2
