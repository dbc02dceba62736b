"""Three servers' deciders over one store behind bad lines, taking turns at every read and every write.

Each decider has a thread of its own, but only one runs at a time: whoever calls the store hands the turn to one chosen
by a seeded random. So every interleaving of reads and commits can happen, and each is found again by its seed. Replies
are lost, writes are refused, and now and then everything stands still for seconds. At every commit the records must
agree with each other. At the end, no lease may have a successor before the deadline its owner was told.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from dibs.base.errors import StoreUnavailable
from dibs.core import lease_outcomes, outcomes
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Renew,
    Sweep,
)
from dibs.engine.decider import Decider
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock
from dibs.testing.faulty import FaultyStore
from tests.core import raw as raws
from tests.programs import WAIT_S_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.lease_outcomes import Renewed
    from dibs.core.outcomes import Granted, Outcome
    from dibs.core.records import Stored
    from dibs.stores.port import Snapshot
    from dibs.testing.faulty import Fault

NS = raws.NS
JOBS = ("one", "two", "path:a", "path:a/b")
QUIET: tuple[Fault, ...] = ("none",) * 12
FAULTS: tuple[Fault, ...] = (*QUIET, "lost after", "lost before", "refused", "conflict")


class Turns:
    """Chooses which of several threads runs. The others wait for their turn."""

    def __init__(self, count: int, chance: random.Random) -> None:
        self._ready = threading.Condition()
        self._left = set(range(count))
        self._chance = chance
        self._turn = -1
        self.broken: BaseException | None = None

    def start(self) -> None:
        self._give()

    def _give(self) -> None:
        with self._ready:
            self._turn = self._chance.choice(sorted(self._left)) if self._left else -1
            self._ready.notify_all()

    def take(self, me: int) -> None:
        with self._ready:
            if not self._ready.wait_for(lambda: self._turn == me or self.broken, WAIT_S_MAX):
                raise AssertionError("nobody was given the turn")
            if self.broken is not None:
                raise SystemExit

    def swap(self, me: int) -> None:
        self._give()
        self.take(me)

    def leave(self, me: int) -> None:
        self._left.discard(me)
        self._give()


class Seat(FaultyStore):
    """One server's way to the store."""

    def __init__(self, world: World, me: int) -> None:
        super().__init__(world.store)
        self._world = world
        self._me = me

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._world.pass_turn(self._me)
        return super().read(keys)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self._world.pass_turn(self._me)
        self.faults = [self._world.chance.choice(FAULTS)]
        return super().commit(expect, puts, events)


class Checked(MemoryStore):
    check: Callable[[], None] | None = None

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        seq = super().commit(expect, puts, events)
        if self.check is not None:
            self.check()
        return seq


class World:
    def __init__(self, seed: int, seats: int = 3) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.store = Checked(self.clock)
        self.store.check = self.check
        self.turns = Turns(seats, self.chance)
        self.fresh = 0
        self.told: list[Outcome] = []
        self.seats = seats

    def check(self) -> None:
        raw = raws.raw_of(self.store, self.clock())
        raws.check(raw)
        raws.fifo(raw.events)
        ids = [each.lease_id for each in raw.tickets.values() if not each.whole]
        assert len(ids) == len(set(ids)), "one ask stands in line twice"

    def pass_turn(self, me: int) -> None:
        self.clock.advance(self.chance.choice((0, 0, 1, 20, 100)))
        if self.chance.random() < 0.01:
            self.clock.advance(5_000)
        self.turns.swap(me)

    def command(self, me: int) -> Command:
        chance, session = self.chance, self.chance.choice((f"s{me}", f"s{me}", None))
        self.fresh += 1
        name, lease = chance.choice(JOBS), f"lease-{self.fresh}"
        claim: dict[str, Any] = {
            "ns": NS,
            "principal": "team",
            "owner": session or f"w{self.fresh}",
            "ttl_ms": chance.choice((1_000, 3_000, 60_000)),
            "fresh_lease_id": lease,
            "session": session,
            "wait": chance.random() < 0.5,
            "request_key": chance.choice((None, None, f"k{chance.randrange(6)}")),
        }
        held = [each for each in self.told if isinstance(each, outcomes.Granted | outcomes.Queued)][-8:]
        last = chance.choice(held) if held else None
        kind = chance.randrange(10)
        if kind < 4:
            return Acquire(name=name, **claim)
        if kind == 4:
            return AcquireAll(names=("one", "two"), **claim)
        if kind == 5:
            return KeepSession(session=f"s{me}", principal="team")
        if kind == 6 and chance.random() < 0.2:
            return EndSession(session=f"s{me}", principal="team")
        if isinstance(last, outcomes.Queued):
            place: dict[str, Any] = {"ticket": last.ticket, "ticket_id": last.ticket_id}
            if chance.random() < 0.3:
                return Leave(ns=NS, name=last.name, principal="team", **place)
            return Acquire(name=last.name, **{**claim, **place, "session": None, "wait": True})
        if isinstance(last, outcomes.Granted):
            proof: dict[str, Any] = {
                "ns": NS,
                "name": last.name,
                "principal": "team",
                "lease_id": last.lease.lease_id,
            }
            return Renew(**proof) if chance.random() < 0.5 else Release(**proof)
        return OpenSession(ns="default", fresh_id=f"s{me}", principal="team", owner=f"s{me}", ttl_ms=10_000)

    def serve(self, me: int, batches: int) -> None:
        try:
            self.turns.take(me)
            decider = Decider(
                Seat(self, me),
                lambda events, seq: None,
                self.clock.steady_ms,
                pause=lambda s: self.pass_turn(me),
            )
            for _ in range(batches):
                due: list[Command] = [Sweep(key=key) for key in self.store.due(3).keys]
                asked = [self.command(me) for _ in range(self.chance.randrange(1, 5))]
                for each in decider.run([*asked, *due]):
                    if isinstance(each, BaseException):
                        assert isinstance(each, StoreUnavailable), each
                    else:
                        self.told.append(each)
        except BaseException as error:
            self.turns.broken = self.turns.broken or error  # the others only stop because of the first
            raise
        finally:
            self.turns.leave(me)

    def run(self, batches: int) -> None:
        threads = [threading.Thread(target=self.guarded, args=(me, batches), daemon=True) for me in range(self.seats)]
        for thread in threads:
            thread.start()
        self.turns.start()
        for thread in threads:
            thread.join(WAIT_S_MAX)
        if self.turns.broken is not None:
            raise self.turns.broken

    def guarded(self, me: int, batches: int) -> None:
        try:
            self.serve(me, batches)
        except BaseException:  # told by `run`
            return


def granted_in(told: list[Outcome]) -> list[Granted | Renewed]:
    found: list[Granted | Renewed] = []
    for each in told:
        if isinstance(each, outcomes.GrantedAll):
            found += each.grants
        elif isinstance(each, outcomes.Granted | lease_outcomes.Renewed):
            found.append(each)
    return found


@pytest.mark.promise("excl", "token:rises", "lease:never-early", "idem:acquire", "queue:fifo", "proof")
@pytest.mark.parametrize("seed", range(12))
def test_three_servers_on_one_store_behind_bad_lines_keep_every_promise(seed: int) -> None:
    world = World(seed)
    world.run(batches=25)
    history = world.store.events(0, 100_000)
    acquired = {(event.job, event.token): event for event in history if event.kind == "acquired"}
    let_go = {(event.job, event.token) for event in history if event.kind in ("released", "transferred")}
    answers = granted_in(world.told)
    assert answers, "nobody got anything: the test shows nothing"
    for each in answers:
        key = (each.name, each.lease.token)
        assert key in acquired, "told of a lease that is in no history"
        later = [event for (job, token), event in acquired.items() if job == each.name and token > key[1]]
        if later and key not in let_go:
            first_ms = min(event.at_ms for event in later)
            ended_with_session = each.lease.session is not None
            assert first_ms >= each.lease.expires_ms or ended_with_session, "given away early"
