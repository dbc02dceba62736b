"""A git remote whose own git is killed in the middle of a push may have changed a line and not its ticket, or the
ticket and not its line. Nobody is stuck then, no place is lost for ever, and no token is given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dibs.core.commands import Acquire, Release, Sweep
from dibs.core.limits import TICKET_MS
from dibs.core.outcomes import Granted, Queued
from dibs.core.records import LockRecord, lock_key, ticket_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.memory import MemoryStore

if TYPE_CHECKING:
    from dibs.core.outcomes import Outcome

LOCK, TICKET = lock_key("d", "x"), ticket_key("d", "x", 1)
HOUR_MS = 3_600_000


class World:
    """The job is held by `first`, and `heir` waits for it."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = MemoryStore(lambda: self.now_ms)
        self.ask("first")
        self.ask("heir", wait=True)

    def ask(self, owner: str, lease_id: str | None = None, **how: Any) -> Outcome:
        claim = Acquire(
            ns="d", name="x", principal="p", owner=owner, ttl_ms=HOUR_MS, fresh_lease_id=lease_id or owner, **how
        )
        return Coordinator(self.store).one(claim)

    def poll(self) -> Outcome:
        return self.ask("heir", "later", wait=True, ticket=1, ticket_id="heir")

    def release(self, lease_id: str) -> None:
        Coordinator(self.store).one(Release(ns="d", name="x", principal="p", lease_id=lease_id))

    def undo(self, key: str, since: dict[str, Any]) -> None:
        """This record was not written."""
        self.store.commit({key: self.store.read([key]).records[key].version}, {key: since[key].record}, ())

    def records(self) -> dict[str, Any]:
        return dict(self.store.read([LOCK, TICKET]).records)

    def lock(self) -> LockRecord:
        found = self.records()[LOCK].record
        assert isinstance(found, LockRecord)
        return found


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def ticket_left(world: World) -> World:
    """The job was handed over, and the ticket is still there: in no line."""
    before = world.records()
    world.release("first")
    world.undo(TICKET, before)
    return world


def test_an_heir_whose_ticket_was_left_has_the_job(ticket_left: World) -> None:
    outcome = ticket_left.poll()
    assert isinstance(outcome, Granted)
    assert (outcome.lease.lease_id, outcome.lease.token) == ("heir", 2)


@pytest.mark.fault("F-212")
@pytest.mark.promise("queue:fifo")
def test_a_ticket_that_is_in_no_line_gets_a_place_in_it(ticket_left: World) -> None:
    ticket_left.release("heir")
    ticket_left.ask("other")
    assert isinstance(ticket_left.poll(), Queued)
    assert ticket_left.lock().line == (2,), "whoever comes later is behind it"
    ticket_left.release("other")
    (holder,) = ticket_left.lock().holders
    assert (holder.owner, holder.token) == ("heir", 4)


def test_a_ticket_that_is_in_no_line_is_gone_when_its_owner_does_not_ask(ticket_left: World) -> None:
    ticket_left.now_ms += TICKET_MS + 1
    Coordinator(ticket_left.store).one(Sweep(key=TICKET))
    assert ticket_left.records()[TICKET].record is None
    assert [each.owner for each in ticket_left.lock().holders] == ["heir"]


def test_a_place_whose_ticket_is_gone_is_passed_over(world: World) -> None:
    before = world.records()
    world.release("first")
    world.undo(LOCK, before)  # it was not handed over, but the ticket is gone
    assert isinstance(world.ask("late", wait=True), Queued)
    assert isinstance(world.poll(), Queued)
    world.release("first")
    lock = world.lock()
    assert [(each.owner, each.token) for each in lock.holders] == [("late", 2)]
    assert lock.line == (3,), "the heir, at a new place"
