"""One decision costs what it looks at: twice as many waiters cost twice as much, or nothing more. Work is counted in
calls of functions and in reads of the store, not in time."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dibs.core import events as kinds
from dibs.core import outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    EndSession,
    InspectSession,
    OpenSession,
    Release,
    SetAcl,
    Sweep,
)
from dibs.core.holds import path_claims
from dibs.core.limits import LEAVE_AT_ONCE_MAX, TICKET_MS
from dibs.core.records import SHARED
from dibs.core.waiting import queue
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore
from tests.build import COMPILED
from tests.core import raw as raws
from tests.core.raw import raw_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dibs.core.commands import Command
    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Snapshot

NS = "default"
counts_calls = pytest.mark.skipif(COMPILED, reason="calls between compiled functions cannot be counted")


class CountingStore(MemoryStore):
    """Counts its reads, and the keys that were read."""

    reads = keys = 0

    def read(self, keys: Iterable[str]) -> Snapshot:
        asked = list(keys)
        self.reads += 1
        self.keys += len(asked)
        return super().read(asked)


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = CountingStore(lambda: self.now_ms)
        self.coordinator = Coordinator(self.store)
        self.fresh = 0

    def terms(self, **more: Any) -> dict[str, Any]:
        self.fresh += 1
        made = {"ns": NS, "principal": "team", "owner": f"w{self.fresh}", "ttl_ms": 3_600_000}
        return {**made, "fresh_lease_id": f"lease-{self.fresh}", **more}

    def claim(self, name: str, **more: Any) -> Outcome:
        return self.coordinator.one(Acquire(name=name, **self.terms(**{"wait": True, **more})))

    def session(self, parent: str | None = None) -> str:
        self.fresh += 1
        opened = OpenSession(
            ns="default",
            fresh_id=f"s{self.fresh}",
            principal="team",
            owner=f"s{self.fresh}",
            ttl_ms=3_600_000,
            parent=parent,
        )
        self.coordinator.one(opened)
        return opened.fresh_id

    def release(self, name: str, lease: str = "lease-1") -> Release:
        return Release(ns=NS, name=name, principal="team", lease_id=lease)

    def sweep_all(self) -> int:
        """Sweep until nothing is due. Returns how many places left at most in one decision."""
        most = 0
        for _ in range(5_000):
            due = self.store.due(1).keys
            if not due:
                return most
            before = len(self.store._events)
            self.coordinator.one(Sweep(key=due[0]))
            most = max(most, len(self.store._events) - before)
        raise AssertionError("something stays due for ever")


def calls(world: World, command: Command) -> int:
    """How many functions are called to decide a command."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        world.coordinator.one(command)
    finally:
        sys.setprofile(before)
    return count


def dead_line(count: int) -> tuple[World, Command]:
    world = World()
    world.claim("job")
    for _ in range(count):
        world.claim("job")
    world.now_ms += TICKET_MS
    return world, world.release("job")


def dead_lines_of_several(count: int) -> tuple[World, Command]:
    world = World()
    world.claim("job-0")
    names = tuple([f"job-{each}" for each in range(10)])
    for _ in range(count):
        world.coordinator.one(AcquireAll(names=names, wait=True, **world.terms()))
    world.now_ms += TICKET_MS
    return world, world.release("job-0")


def shared_line(count: int) -> tuple[World, Command]:
    """In a tree, all of them are served."""
    world = World()
    world.claim("path:src")
    for each in range(count):
        world.claim(f"path:src/{each}")
    return world, world.release("path:src")


def forbidden_line(count: int) -> tuple[World, Command]:
    world = World()
    world.claim("job")
    for _ in range(count):
        world.claim("job", badges=("b",))
    return world, SetAcl(ns=NS, name="job", principal="team", acl=("a",))


def line_of_sessions(count: int, name: str = "job", parent: bool = False, **more: Any) -> tuple[World, Command]:
    """Somebody who holds something joins: would waiting ever end?"""
    world = World()
    world.claim(name, **more)
    above = world.session() if parent else None
    for _ in range(count):
        world.claim(name, session=world.session(above), **more)
    asker = world.session(above)
    world.claim("other", session=asker)
    return world, Acquire(name=name, **world.terms(session=asker, wait=True, **more))


def many_waits(count: int) -> tuple[World, Command]:
    world = World()
    session = world.session()
    for each in range(count):
        world.claim(f"job-{each}")
        world.claim(f"job-{each}", session=session)
    return world, EndSession(session=session, principal="team")


@counts_calls
@pytest.mark.fault("F-050")
@pytest.mark.parametrize("made", [dead_line, dead_lines_of_several, forbidden_line, shared_line])
def test_twice_as_many_places_that_leave_cost_twice_as_much(
    made: Callable[[int], tuple[World, Command]],
) -> None:
    few, many = calls(*made(80)), calls(*made(160))
    assert many < 2.4 * few


@pytest.mark.fault("F-050")
@pytest.mark.parametrize("made", [dead_line, dead_lines_of_several, shared_line])
def test_a_line_is_read_in_few_reads_however_long_it_is(
    made: Callable[[int], tuple[World, Command]],
) -> None:
    world, command = made(90)
    world.store.reads = 0
    world.coordinator.one(command)
    assert world.store.reads <= 16


@pytest.mark.fault("F-050")
@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("queue:no-dead-grant")
def test_of_many_dead_waiters_so_many_leave_at_once_and_nobody_overtakes_those_who_live() -> None:
    world, command = dead_line(LEAVE_AT_ONCE_MAX + 100)
    world.now_ms -= 1
    alive = world.claim("job")
    world.now_ms += 1
    before = len(world.store._events)
    world.coordinator.one(command)
    assert len(world.store._events) - before == LEAVE_AT_ONCE_MAX + 1  # and one release
    assert world.store.due(1).keys, "the rest is due now"
    late = world.claim("job", wait=False)
    assert isinstance(alive, outcomes.Queued)
    assert isinstance(late, outcomes.Held)
    world.sweep_all()
    held = raw_of(world.store, world.now_ms).live()
    assert [holder.lease_id for _, holder in held] == [alive.ticket_id]


@counts_calls
@pytest.mark.fault("F-050")
@pytest.mark.promise("queue:fifo")
@pytest.mark.parametrize("seed", range(4))
def test_lines_that_are_cut_are_served_by_sweeps_as_the_plain_model_serves_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random claims in a deep tree and beside it, shared or not, of one name or several, of the living and the dead."""
    if seed % 2:
        monkeypatch.setattr(queue, "LEAVE_AT_ONCE_MAX", 1 + seed)
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 1 + seed // 2)
    chance = random.Random(seed)
    world = World()
    parts = ("a", "b", "c")
    held: list[tuple[str, str]] = []
    for _ in range(150):
        name = "path:" + "/".join(chance.choices(parts, k=chance.randint(1, 4)))
        name = chance.choice((name, name, name, name, "job", "repo:r"))
        mode = {"mode": SHARED} if chance.random() < 0.3 else {}
        what = chance.random()
        if what < 0.5:
            outcome = world.claim(name, **mode)
        elif what < 0.65:
            both = tuple(dict.fromkeys((name, "other")))
            outcome = world.coordinator.one(AcquireAll(names=both, wait=True, **world.terms(**mode)))
        elif what < 0.8 or not held:
            names = tuple(dict.fromkeys([name, "path:a/a/b", "path:c"]))
            outcome = world.coordinator.one(AcquireAny(names=names, **world.terms(**mode)))
        else:
            outcome = world.coordinator.one(world.release(*held.pop(chance.randrange(len(held)))))
        world.now_ms += chance.choice((0, 10, 10, 400, TICKET_MS // 3))
        world.sweep_all()
        raw = raw_of(world.store, world.now_ms)
        raws.check(raw)
        raws.nobody_waits_for_nothing(raw)
        held = [(lock.name, holder.lease_id) for lock, holder in raw.live()]
        assert outcome is not None
    raw = raw_of(world.store, world.now_ms)
    raws.fifo(raw.events)
    assert [each for each in raw.events if each.kind == kinds.LEFT]
    assert [each for each in raw.events if each.kind == kinds.ACQUIRED and each.ticket]


@counts_calls
@pytest.mark.fault("F-051")
def test_a_claim_of_many_paths_costs_the_same_however_many_wait_in_the_tree() -> None:
    def asked(waiters: int) -> tuple[World, Command]:
        world = World()
        world.claim("path:src")
        for _ in range(waiters):
            world.claim("path:src")
        names = tuple([f"path:src/{each}" for each in range(100)])
        return world, AcquireAny(names=names, **world.terms())

    few, many = calls(*asked(10)), calls(*asked(40))
    assert many < 1.2 * few


@pytest.mark.promise("tree")
def test_a_claim_of_a_path_costs_what_it_is_deep_however_many_others_are_claimed() -> None:
    world = World()
    for each in range(0, 3_000, 100):
        names = tuple([f"path:src/{at % 9}/{at}" for at in range(each, each + 100)])
        outcome = world.coordinator.one(AcquireAll(names=names, **world.terms()))
        assert isinstance(outcome, outcomes.GrantedAll)
    world.store.keys = 0
    assert isinstance(world.claim("path:src/5/new/file"), outcomes.Granted)
    assert world.store.keys <= 12
    refused = world.claim("path:src/5/5", wait=False)
    assert isinstance(refused, outcomes.Held)
    assert [each.name for each in refused.blockers] == ["path:src/5/5"]
    whole = world.claim("path:src/7", wait=False)
    assert isinstance(whole, outcomes.Held)
    assert len(whole.blockers) + whole.unnamed == len(range(7, 3_000, 9))


@pytest.mark.fault("F-051")
@pytest.mark.promise("tree")
def test_a_claim_of_a_path_looks_at_nothing_that_waits_elsewhere_in_the_tree() -> None:
    world = World()
    world.claim("path:src")
    for each in range(60):
        world.claim(f"path:src/{each % 7}")
    world.store.reads = world.store.keys = 0
    assert isinstance(world.claim("path:lib/new"), outcomes.Granted)
    assert (world.store.reads, world.store.keys) == (1, 3)


@pytest.mark.fault("F-051")
@pytest.mark.promise("tree")
def test_a_dead_place_keeps_no_newcomer_out_even_if_a_living_one_is_ahead_of_it() -> None:
    world = World()
    world.claim("path:a/c")
    waits = world.claim("path:a/c")
    world.claim("path:a")  # it waits for a/c, and dies
    world.now_ms += TICKET_MS - 1
    assert isinstance(waits, outcomes.Queued)
    world.claim("path:a/c", ticket=waits.ticket, ticket_id=waits.ticket_id, fresh_lease_id="again")
    world.now_ms += 1
    assert isinstance(world.claim("path:a/b", wait=False), outcomes.Granted)


@counts_calls
@pytest.mark.fault("F-052")
@pytest.mark.promise("deadlock")
@pytest.mark.parametrize("more", [{}, {"parent": True}, {"name": "path:src"}, {"mode": SHARED, "name": "path:src"}])
def test_looking_for_a_deadlock_costs_what_the_line_is_long(more: dict[str, Any]) -> None:
    # What reads fewer records than REREAD_KEYS_MAX reads them twice: a short line is too dear to compare with.
    few, many = calls(*line_of_sessions(80, **more)), calls(*line_of_sessions(160, **more))
    assert many < 2.4 * few


@counts_calls
@pytest.mark.fault("F-052")
@pytest.mark.promise("session")
def test_the_end_of_a_session_with_many_places_costs_what_it_has() -> None:
    few, many = calls(*many_waits(15)), calls(*many_waits(30))
    assert many < 2.4 * few


@counts_calls
@pytest.mark.fault("F-463")
def test_the_state_of_a_session_with_many_paths_costs_what_it_has_however_many_wait_in_the_tree() -> None:
    def asked(waiters: int) -> tuple[World, Command]:
        world = World()
        session = world.session()
        for each in range(150):
            world.claim(f"path:src/{each}", session=session)
        for each in range(waiters):
            world.claim(f"path:src/{each}")
        return world, InspectSession(session=session, principal="team")

    none, many = calls(*asked(0)), calls(*asked(150))
    assert many < 3 * none  # before, each of the paths was compared with each of the places
