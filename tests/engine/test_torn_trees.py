"""A git remote whose own git is killed in the middle of a push keeps some of the refs of a step. Whichever they are: of
those who were told that they own a path, no two overlap, and nothing that is left is in anybody's way for long."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core.commands import Acquire, Break, Release, Sweep, Transfer
from dibs.core.holds import path_claims
from dibs.core.lease_outcomes import Transferred
from dibs.core.outcomes import Granted, Held, Queued
from dibs.core.records import lock_key, tree_key
from dibs.engine.coordinator import Coordinator
from dibs.stores.git.entries import tail_of
from dibs.stores.git.plan import FIRST, LAST, TOGETHER, part_of
from dibs.stores.memory import MemoryStore
from tests.build import tries
from tests.core.raw import NS, raw_of, the_tree_agrees
from tests.models.queue import overlap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.outcomes import Outcome
    from dibs.stores.port import Puts

pytestmark = pytest.mark.usefixtures("unchecked")
HOUR_MS = 3_600_000
PATHS = [f"path:{each}" for each in ("a", "a/x", "a/x/1", "a/y", "b", "b/x")]


class Killed(BaseException):
    """The process that made the step is gone, too."""


class TornStore(MemoryStore):
    """Keeps the first `whole` records of the next commit, in the order in which git moves their refs. None: all."""

    def __init__(self, now_ms: Any) -> None:
        super().__init__(now_ms)
        self.whole: int | None = None
        self.steps = 0
        self.error: type[BaseException] = Killed

    def commit(self, expect: Mapping[str, int], puts: Puts, events: Sequence[Event]) -> int:
        if self.whole is None:
            return super().commit(expect, puts, events)
        before = {key: each.record for key, each in self.read(puts).records.items()}

        def when(key: str) -> tuple[int, bool, str]:
            return part_of(before[key], puts[key]), before[key] is None, tail_of(key)

        order = sorted(puts, key=when)
        kept = {key: puts[key] for key in order[: self.whole]}
        self.steps, self.whole = len(order), None
        super().commit(expect, kept, [each for each in events if lock_key(each.ns, each.job) in kept])
        if len(kept) == len(order):
            return 0
        if self.error is Killed:
            raise Killed
        raise StoreUnavailable("half of it", unknown=True)


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.store = TornStore(lambda: self.now_ms)
        self.told: dict[str, str] = {}  # who was told that it owns what, by its lease
        self.number = 0

    def ask(self, name: str, lease_id: str = "", **how: Any) -> Outcome | None:
        self.number += 1
        lease_id = lease_id or f"lease-{self.number}"
        claim = Acquire(ns=NS, name=name, principal="p", owner=lease_id, ttl_ms=HOUR_MS, fresh_lease_id=lease_id, **how)
        outcome = self.do(claim)
        if isinstance(outcome, Granted):
            self.told[outcome.lease.lease_id] = name
        self.judge()
        return outcome

    def do(self, command: Command) -> Outcome | None:
        try:
            return Coordinator(self.store, pause=lambda _: None).one(command)
        except (Killed, StoreUnavailable):
            return None

    def release(self, lease_id: str) -> None:
        self.do(Release(ns=NS, name=self.told.pop(lease_id), principal="p", lease_id=lease_id))

    def owners(self) -> list[tuple[str, str]]:
        """Those who were told, and whose heartbeats still succeed."""
        live = {holder.lease_id for _, holder in raw_of(self.store, self.now_ms).live()}
        return [(name, lease_id) for lease_id, name in self.told.items() if lease_id in live]

    def judge(self) -> None:
        for (one, _), (other, _) in itertools.combinations(self.owners(), 2):
            assert not overlap(one, other), f"{one} and {other} both have owners"


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.fault("F-213")
@pytest.mark.promise("excl")
@pytest.mark.promise("tree")
@pytest.mark.parametrize("whole", [0, 1])
def test_who_repeats_a_claim_of_which_half_was_written_owns_it_only_beside_nobody(world: World, whole: int) -> None:
    world.ask("path:a/x", "first")
    world.release("first")
    world.store.whole = whole  # the lock is written, and then the tree
    assert world.ask("path:a/x", "second") is None
    assert isinstance(world.ask("path:a"), Granted)
    assert not isinstance(world.ask("path:a/x", "second"), Granted)


@pytest.mark.fault("F-213")
@pytest.mark.promise("tree")
def test_who_repeats_such_a_claim_while_nobody_is_in_its_way_has_it_whole(world: World) -> None:
    world.ask("path:a/x", "first")
    world.release("first")
    world.store.whole, world.store.error = 1, StoreUnavailable
    outcome = world.ask("path:a/x", "second")  # decided again at once
    assert isinstance(outcome, Granted)
    assert outcome.lease.token == 2
    assert isinstance(world.ask("path:a"), Held)
    the_tree_agrees(raw_of(world.store, world.now_ms))


def test_a_claim_in_the_tree_without_an_owner_is_gone_when_somebody_overlaps_it(world: World) -> None:
    world.ask("path:b")
    world.store.whole = 1  # the tree is there, and the lock is new
    assert world.ask("path:a/x", "nobody") is None
    assert len(raw_of(world.store, 0).claims()) == 2
    assert isinstance(world.ask("path:a"), Granted)
    the_tree_agrees(raw_of(world.store, world.now_ms))


@pytest.mark.fault("F-213")
@pytest.mark.promise("tree")
@pytest.mark.parametrize(("before", "records"), [(4, 4), (6, 5)], ids=["of the tree itself", "of a page"])
def test_however_a_split_is_torn_no_claim_is_hidden(before: int, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", 4)
    names = [f"path:{number}" for number in range(12)]
    for whole in range(records):
        world = World()
        for name in names[:before]:
            world.ask(name)
        world.store.whole = whole
        world.ask(names[before], "repeats")
        assert world.store.steps == records, "two pages, the lock, the tree, and the page that was split"
        for name in names[:before]:
            assert isinstance(world.ask(f"{name}/below"), Held)
        assert isinstance(world.ask(names[before], "repeats"), Granted)
        for name in names[before + 1 :]:
            assert isinstance(world.ask(name), Granted)
            assert isinstance(world.ask(f"{name}/below"), Held)
        raw = raw_of(world.store, 0)
        assert set(raw.pages) - set(raw.tree.pages) <= {2}, "only the page that was split may be left"


@pytest.mark.promise("excl")
@pytest.mark.promise("tree")
@pytest.mark.parametrize("seed", range(tries(12, 2_000)))
def test_after_any_torn_steps_no_two_owners_overlap(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(path_claims, "TREE_PAGE_CLAIMS", chance.choice((1, 2, 4, 64)))
    world, gone, waits = World(), list[tuple[str, str]](), list[Queued]()
    for _ in range(60):
        world.now_ms += 1
        if chance.random() < 0.4:
            world.store.whole = chance.randint(0, 5)
            world.store.error = chance.choice((Killed, StoreUnavailable))
        owners, what = world.owners(), chance.random()
        if what < 0.5 or not owners:
            name = chance.choice(PATHS)
            outcome = world.ask(name, wait=chance.random() < 0.3)
            if outcome is None:
                gone.append((name, f"lease-{world.number}"))
            elif isinstance(outcome, Queued):
                waits.append(outcome)
        elif what < 0.6 and gone:
            world.ask(*gone.pop())  # it is started again, and repeats its claim
        elif what < 0.7 and waits:
            place = waits.pop(chance.randrange(len(waits)))
            outcome = world.ask(place.name, wait=True, ticket=place.ticket, ticket_id=place.ticket_id)
            waits += [outcome] if isinstance(outcome, Queued) else [] if outcome is not None else [place]
        elif what < 0.78:
            world.release(chance.choice(owners)[1])
        elif what < 0.88:
            world.do(Break(ns=NS, name=chance.choice(owners)[0], principal="p", reason="test"))
        else:
            name, lease_id = chance.choice(owners)
            world.number += 1
            heir = f"lease-{world.number}"
            handed = world.do(
                Transfer(ns=NS, name=name, principal="p", lease_id=lease_id, fresh_lease_id=heir, to_owner="heir")
            )
            if isinstance(handed, Transferred):
                world.told[heir] = name
        world.store.whole = None
        world.judge()
    world.now_ms += 2 * HOUR_MS
    for name in PATHS:
        world.do(Sweep(key=lock_key(NS, name)))
    assert isinstance(world.ask("repo:all"), Granted), "what was left is in the way"


def test_pages_are_made_before_their_tree_and_dropped_after_it() -> None:
    from dibs.core.records import Tree

    tree, page = Tree(ns=NS), Tree(ns=NS, page=3)
    assert [part_of(None, page), part_of(page, page), part_of(page, None)] == [FIRST, TOGETHER, LAST]
    assert part_of(None, tree) == TOGETHER
    assert tail_of(lock_key(NS, "x")) < tail_of(tree_key(NS)), "locks move before trees"
