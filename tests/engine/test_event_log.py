"""Reading the log while others write and prune: nothing is skipped, and no gap is told that is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.ids import new_id
from dibs.core.commands import Acquire
from dibs.engine import event_log
from dibs.engine.coordinator import Coordinator
from dibs.engine.event_log import EventFilter, collect, position_at, read_page
from dibs.stores.memory import MemoryStore
from dibs.stores.sqlite import SqliteStore
from dibs.testing.clock import ManualClock
from dibs.testing.contract_base import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dibs.core.events import Event


class BusyStore(MemoryStore):
    """Something happens after each look at the events, in turn."""

    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.happens: list[Callable[[], object]] = []

    def events(self, *args: Any, **named: Any) -> list[Event]:
        found = super().events(*args, **named)
        if self.happens:
            self.happens.pop(0)()
        return found

    def claim(self, name: str) -> None:
        asked = Acquire(ns="default", name=name, owner="bob", principal="bob", ttl_ms=60_000, fresh_lease_id=new_id())
        Coordinator(self).one(asked)


def nothing() -> None:
    pass


@pytest.mark.promise("events:ordered")
@pytest.mark.parametrize("looks", range(4))
def test_an_event_that_comes_between_two_looks_is_not_taken_for_a_pruned_one(looks: int) -> None:
    store = BusyStore()
    store.happens = [*[nothing] * looks, lambda: store.claim("job")]
    page = read_page(store, 0, 10)
    store.happens.clear()
    store.claim("other")
    seen = [*page.events, *read_page(store, page.upto, 10).events]
    assert page.oldest is None
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert seen


@pytest.mark.promise("events:told")
@pytest.mark.parametrize("looks", range(4))
def test_a_gap_is_reported_before_the_first_event_that_is_left_whenever_others_prune(looks: int) -> None:
    store = BusyStore()
    for number in range(6):
        store.claim(f"job-{number}")
    store.prune(keep=3, before_ms=0)
    store.happens = [*[nothing] * looks, lambda: store.prune(keep=1, before_ms=0)]
    page = read_page(store, 1, 10)
    assert page.oldest == page.events[0].seq
    assert page.upto == 6


def test_a_time_is_looked_for_while_all_is_pruned() -> None:
    store = BusyStore()
    for number in range(6):
        store.claim(f"job-{number}")
    store.happens = [nothing, nothing, lambda: store.prune(keep=0, before_ms=0)]
    assert position_at(store, store.read(()).now_ms) in (0, 6)


@pytest.mark.fault("F-084")
@pytest.mark.parametrize("is_pruned", [False, True])
def test_looking_at_an_empty_history_writes_nothing(tmp_path: Path, is_pruned: bool) -> None:
    store, other = (SqliteStore(str(tmp_path / "dibs.db")) for _ in range(2))
    if is_pruned:
        store.commit({}, {}, [event("job")])
        store.prune(keep=0, before_ms=0)
    with other._link as db:
        before = db.execute("PRAGMA data_version").fetchone()
        assert store.newest_seq() == is_pruned
        for wanted in (None, EventFilter(ns="default"), EventFilter(ns="default", name="job")):
            page = read_page(store, store.newest_seq(), 10, wanted)
            assert (page.events, page.upto, page.oldest) == ([], store.newest_seq(), None)
        assert db.execute("PRAGMA data_version").fetchone() == before
    store.close()
    other.close()


@pytest.mark.promise("events:told")
@pytest.mark.fault("F-076")
def test_a_list_ends_before_a_gap_and_the_next_one_reports_it() -> None:
    store = MemoryStore(ManualClock())
    store.commit({}, {}, [event("job") for _ in range(5)])
    store.number_from(20)
    store.commit({}, {}, [event("job") for _ in range(5)])
    wanted = EventFilter(ns="default")
    first = collect(store, wanted, 2, 100)
    assert ([each.seq for each in first.events], first.upto, first.oldest) == ([3, 4, 5], 5, None)
    rest = collect(store, wanted, first.upto, 100)
    assert ([each.seq for each in rest.events], rest.oldest) == ([21, 22, 23, 24, 25], 21)
    assert rest.is_last


# A page of a list, against the log itself.

JOBS = ("a", "ab", "b", "", "a", "c", "ab", "other", "a", "b", "a", "ab", "c", "c", "a", "b")
WISHES = [{}, {"prefix": "a"}, {"prefix": "ab"}, {"name": "a"}, {"name": "c"}, {"name": "nobody"}, {"prefix": "x"}]
PAGE, LOOKS_MAX = 3, 6


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Sixteen events, one a second, one of them in another namespace. A page has three, and six are looked at."""
    monkeypatch.setattr(event_log, "LIST_PAGE_DEFAULT", PAGE)
    monkeypatch.setattr(event_log, "LIST_LOOKS_MAX", LOOKS_MAX)
    store = MemoryStore(ManualClock())
    for at, job in enumerate(JOBS):
        one = event(job).replace(ns="elsewhere" if job == "other" else "default", at_ms=1_000 * at)
        store.commit({}, {}, [one])
    return store


def numbers_of(wish: dict[str, str], after: int, upto: int = 99) -> list[int]:
    return [
        seq
        for seq, job in enumerate(JOBS, 1)
        if after < seq <= upto and job not in ("", "other")
        if (job == wish["name"] if "name" in wish else job.startswith(wish.get("prefix", "")))
    ]


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 20])
def test_a_list_has_all_that_is_wanted_up_to_where_it_says(log: MemoryStore, wish: dict[str, str], limit: int) -> None:
    wanted = EventFilter(ns="default", **wish)
    for start in range(len(JOBS) + 1):
        after, got = start, list[int]()
        for _ in range(40):
            page = collect(log, wanted, after, limit)
            numbers = [each.seq for each in page.events]
            assert numbers == numbers_of(wish, after, page.upto)
            assert page.oldest is None
            assert len(numbers) <= limit
            looked = numbers if "name" in wish else range(after, page.upto)
            assert len(looked) <= LOOKS_MAX
            assert page.is_last or len(numbers) == limit or len(looked) == LOOKS_MAX
            after, got = page.upto, [*got, *numbers]
            if page.is_last:
                break
        assert (after, got) == (len(JOBS), numbers_of(wish, start))
    newest = collect(log, wanted, None, limit)
    looked_from = 0 if "name" in wish else len(JOBS) - max(limit, PAGE)
    assert [each.seq for each in newest.events] == numbers_of(wish, looked_from)[-limit:]
    assert newest.is_last
    assert newest.upto == (newest.events[-1].seq if "name" in wish and newest.events else len(JOBS))


@pytest.mark.parametrize("kept", [len(JOBS), 10, 1, 0])
def test_the_position_of_a_time_is_before_its_first_event(log: MemoryStore, kept: int) -> None:
    log.prune(keep=kept, before_ms=0)
    for at_ms in range(-500, 1_000 * len(JOBS) + 1, 500):
        first = max(0, -(-at_ms // 1_000)) + 1
        there = range(len(JOBS) - kept + 1, len(JOBS) + 1)
        assert position_at(log, at_ms) == min([each for each in there if each >= first], default=len(JOBS) + 1) - 1


@pytest.mark.promise("events:told")
@pytest.mark.parametrize("kept", [16, 4, 0])
@pytest.mark.parametrize("wish", [None, {}, {"name": "a"}])
def test_a_page_reports_what_was_pruned_after_its_position_and_nothing_else(
    log: MemoryStore, kept: int, wish: dict[str, str] | None
) -> None:
    log.prune(keep=kept, before_ms=0)
    first = len(JOBS) - kept + 1
    for after in range(len(JOBS) + 1):
        page = read_page(log, after, 20, None if wish is None else EventFilter(ns="default", **wish))
        is_gap = after + 1 < first
        wanted = range(1, len(JOBS) + 1) if wish is None else numbers_of(wish, 0)
        assert [each.seq for each in page.events] == [each for each in wanted if each > after and each >= first]
        assert (page.oldest, page.upto, page.is_last) == (first if is_gap else None, len(JOBS), True)


def test_a_store_that_was_replaced_by_an_older_copy_goes_on_where_its_numbers_end() -> None:
    store = MemoryStore(ManualClock())
    store.commit({}, {}, [event("job") for _ in range(3)])
    for wish in (None, EventFilter(ns="default"), EventFilter(ns="default", name="job")):
        page = read_page(store, 9, 10, wish)
        assert (page.events, page.oldest, page.upto) == ([], 4, 3)
