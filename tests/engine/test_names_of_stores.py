"""A store has a name. Who goes on from a store that was frozen to be moved has another, and names those before."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import InvalidInput
from dibs.client.store_admin import thaw
from dibs.core.commands import Identify, Sweep
from dibs.core.lease_outcomes import Identified, Renewed
from dibs.core.limits import MOVES_KEPT, TICKET_MS
from dibs.core.outcomes import Granted, Queued
from dibs.core.records import LockRecord, Meta
from dibs.engine.archive import export
from dibs.engine.archive_import import AlreadyImported, import_archive
from dibs.engine.coordinator import Coordinator
from dibs.engine.decider import Decider
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from tests.core.make import KEY, acquire, renew

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.core.events import Event
    from dibs.stores.port import Puts, Store

TTL_MS = 60_000


def names(store: Store, fresh: str = "unused") -> tuple[str, tuple[str, ...]]:
    """The name of a store, as a server that starts on it learns it, and the names before."""
    told = Coordinator(store).one(Identify(fresh_id=fresh))
    assert isinstance(told, Identified)
    return told.store_id, told.moved_from


def copy_of(store: Store, *, freeze: bool) -> bytes:
    lines: list[str] = []
    export(store, lines.append, freeze=freeze)
    return "".join(lines).encode()


def moved(old: Store, new: Store, **how: Any) -> None:
    import_archive(new, io.BytesIO(copy_of(old, freeze=True)), **how)


def store_called(name: str, clock: ManualClock | None = None) -> MemoryStore:
    store = MemoryStore(clock or ManualClock())
    assert names(store, name) == (name, ())
    return store


@pytest.mark.promise("move:live")
def test_a_store_into_which_another_was_moved_names_it_and_those_before_it() -> None:
    stores = [store_called(name) for name in "abc"]
    moved(stores[0], stores[1])
    moved(stores[1], stores[2])
    assert [names(each) for each in stores] == [("a", ()), ("b", ("a",)), ("c", ("b", "a"))]


def test_a_store_that_had_no_name_gets_one_after_the_move() -> None:
    new = MemoryStore(ManualClock())
    moved(store_called("a"), new)
    assert names(new, "b") == ("b", ("a",))


@pytest.mark.promise("servers:one-store")
def test_a_copy_of_a_store_that_lives_on_names_nobody() -> None:
    old, new = store_called("a"), store_called("b")
    import_archive(new, io.BytesIO(copy_of(old, freeze=False)))
    assert names(new) == ("b", ())


@pytest.mark.promise("servers:one-store")
@pytest.mark.fault("F-406")
def test_a_store_that_is_thawed_after_its_copy_was_made_is_another_store_than_both() -> None:
    old, new = store_called("a"), store_called("b")
    moved(old, new)
    assert thaw(old) == {"was_frozen": True}
    name, before = names(old)
    assert (name in ("a", "b"), before, names(new)) == (False, ("a",), ("b", ("a",)))
    assert thaw(old) == {"was_frozen": False}
    assert names(old) == (name, ("a",)), "it is thawed already"


def test_an_import_that_is_refused_leaves_the_name_as_it_was() -> None:
    old, new = store_called("a"), store_called("b")
    Coordinator(new).one(acquire())
    with pytest.raises(InvalidInput, match="not empty"):
        moved(old, new)
    assert names(new) == ("b", ())


@pytest.mark.promise("move:live")
@pytest.mark.fault("F-477")
@pytest.mark.parametrize("adds", [False, True])
def test_who_repeats_a_move_after_its_end_is_told_so_and_the_store_is_not_frozen_for_it(adds: bool) -> None:
    old, new = store_called("a"), store_called("b")
    Coordinator(old).one(acquire())
    moved(old, new, adds=adds)
    Coordinator(new).one(acquire(name="another"))
    frozen: list[object] = []
    commit = new.commit

    def noted(expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        frozen.extend(each for each in puts.values() if isinstance(each, Meta) and each.frozen is not None)
        return commit(expect, puts, events)

    new.commit = noted  # type: ignore[method-assign]
    with pytest.raises(AlreadyImported, match=r"already, and complete.*\n.*Do not unfreeze"):
        moved(old, new, adds=adds)
    assert frozen == []
    assert names(new) == ("b", ("a",))


@pytest.mark.fault("F-730")
@pytest.mark.parametrize("adds", [False, True])
def test_who_repeats_a_move_of_a_store_that_never_had_a_server_is_told_so(adds: bool) -> None:
    old, new = MemoryStore(ManualClock()), MemoryStore(ManualClock())
    Coordinator(old).one(acquire())
    moved(old, new, adds=adds)
    for _ in range(2):
        with pytest.raises(AlreadyImported, match=r"already, and complete.*\n.*Do not unfreeze"):
            moved(old, new, adds=adds)


def test_a_store_to_which_another_was_added_goes_on_from_both() -> None:
    old, new = store_called("a"), store_called("b")
    moved(old, new, adds=True)
    assert names(new) == ("b", ("a",))


def test_so_many_names_are_kept_the_newest_first() -> None:
    stores = [store_called(f"s{number}") for number in range(MOVES_KEPT + 3)]
    for old, new in itertools.pairwise(stores):
        moved(old, new)
    own, before = names(stores[-1])
    assert own == f"s{MOVES_KEPT + 2}"
    assert before == tuple(f"s{number}" for number in range(MOVES_KEPT + 1, 1, -1))


# However long a move takes


def with_a_line(clock: ManualClock) -> MemoryStore:
    """A store in which somebody has the job for a minute, and somebody waits for it."""
    store = store_called("a", clock)
    there = Coordinator(store)
    assert isinstance(there.one(acquire(ttl_ms=TTL_MS)), Granted)
    assert isinstance(there.one(acquire(owner="second", fresh_lease_id="second", wait=True)), Queued)
    return store


def look_at(server: Decider) -> LockRecord:
    """The job, when the server has begun, and has swept all that is due."""
    server.beat_if_due()
    server.upkeep([Sweep(key=key) for key in server.store.due(100).keys])
    record = server.store.read((KEY,)).records[KEY].record
    assert isinstance(record, LockRecord)
    return record


@pytest.mark.promise("move:live")
@pytest.mark.fault("F-407")
def test_a_frozen_store_that_is_copied_an_hour_later_has_its_leases_and_its_line() -> None:
    """The first import failed: the cause was mended, and the line typed again."""
    clock = ManualClock()
    old, new = with_a_line(clock), store_called("b", clock)
    first = copy_of(old, freeze=True)
    clock.advance(3_600_000)
    assert copy_of(old, freeze=True) == first
    moved(old, new)
    server = Decider(new, lambda events, last_seq: None, clock.steady_ms)
    job = look_at(server)
    assert ([each.lease_id for each in job.holders], len(job.line)) == (["lease-9"], 1)
    assert isinstance(server.run([renew(lease_id="lease-9", principal="solo")])[0], Renewed)


@pytest.mark.promise("move:live")
@pytest.mark.fault("F-408")
def test_leases_and_places_are_kept_until_the_first_server_of_the_new_store_starts() -> None:
    clock = ManualClock()
    old, new = with_a_line(clock), store_called("b", clock)
    moved(old, new)
    clock.advance(TICKET_MS + TTL_MS)
    job = look_at(Decider(new, lambda events, last_seq: None, clock.steady_ms))
    assert ([each.lease_id for each in job.holders], len(job.line)) == (["lease-9"], 1)
