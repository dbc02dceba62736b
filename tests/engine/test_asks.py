"""A caller that hangs up and asks again, at every possible moment, at one, two and three servers of one store.

Each run draws a schedule from its seed. Callers claim one job, or two at once, with a request key, a session or a
ticket. Their servers stand still with commands that are not decided yet, and hear of hang-ups late. The callers go on
at the same server or at another, or die. `DIBS_ASKS_SEED` repeats a run.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from dibs.core.commands import Acquire, AcquireAll, AcquireAny, OpenSession, Release
from dibs.core.outcomes import Granted, GrantedAll, Queued
from dibs.core.records import Holder, LockRecord, Ticket
from dibs.engine.coordinator import CallerGone
from tests.engine.waiting_server import WaitingServer

SEED = os.environ.get("DIBS_ASKS_SEED")
SEEDS = 700
LONG_SEEDS = 50_000
TTL_MS = 60_000
CHAOS_MS = 12_000  # shorter than a place or a cut lease lasts: whatever is lost meanwhile was taken away
JOBS = ("a", "b")
STEPS = 60


class Server(WaitingServer):
    """Decides, and hears of hang-ups and events, when the test says so."""

    def __init__(self, other: WaitingServer | None) -> None:
        super().__init__(other)
        self.unheard: list[Ask] = []  # asks whose hang-up it has not heard of
        self._heard = 0
        self._gone: list[Any] = []  # for each command in the queue

    def post(self, command: Any, callback: Any, is_gone: Any = None) -> None:
        super().post(command, callback, is_gone)
        self._gone.append(is_gone)

    def decide(self) -> None:
        """Nothing is decided but by `step`."""

    def step(self, count: int) -> None:
        """One batch, as the batcher takes it: without the commands of callers that are known to be gone."""
        batch, self.queue = self.queue[:count], self.queue[count:]
        gone, self._gone = self._gone[:count], self._gone[count:]
        there = [is_gone is None or not is_gone() for is_gone in gone]
        told = iter(self.coordinator.run([each[0] for each, here in zip(batch, there, strict=True) if here]))
        for (_, callback), here in zip(batch, there, strict=True):
            callback(next(told) if here else CallerGone("gone"))
        after, self._told = self._told, []
        for what, value in after:
            getattr(self.waiters, what)(value)

    def hear(self, count: int) -> None:
        """Of hang-ups, and of what happened at other servers."""
        for ask in self.unheard[:count]:
            ask.is_heard_of()
        del self.unheard[:count]
        events = self.store.events(self._heard, 1_000)
        if events:
            self._heard = events[-1].seq
            self.waiters.on_events(events)

    def fire(self) -> None:
        due = [timer for timer in self._timers if timer.at_ms <= self.clock()]
        self._timers = [timer for timer in self._timers if timer.at_ms > self.clock()]
        for timer in due:
            timer.call(*timer.args)

    def settle(self) -> None:
        """All that there is to do now."""
        self.hear(1_000)
        self.fire()
        while self.queue:
            self.step(len(self.queue))
            self.hear(1_000)


class Ask:
    """One HTTP claim."""

    def __init__(self, client: Client, server: Server, command: Any, wait_ms: int) -> None:
        self.client, self.server, self.command = client, server, command
        self.hung_up = self.known = self.was_delivered = False
        self.waiter: Any = None
        client.run.asks[command.fresh_lease_id] = self
        if wait_ms:
            has_hung_up = (lambda: self.known) if client.moves else None
            self.waiter = server.waiters.ask(command, wait_ms, self._take, has_hung_up=has_hung_up)
        else:
            if command.ticket_id is not None:
                server.waiters.on_poll(command)
            server.post(command, self._told, lambda: self.known)

    def _told(self, result: Any) -> None:
        if not self._take(result):
            self.server.waiters.on_undelivered(self.command, result)

    def _take(self, result: Any) -> bool:
        """A server that has not heard of the hang-up takes the answer for delivered."""
        self.was_delivered = not self.known
        if not self.hung_up:
            self.client.told(self, result)
        return self.was_delivered

    @property
    def place(self) -> Queued | None:
        """Where its server keeps it waiting."""
        parked = self.server.waiters._parked.get(self.waiter.ticket) if self.waiter is not None else None
        return parked.queued if parked is not None and parked is self.waiter else None

    def hang_up(self) -> None:
        self.hung_up = True
        self.server.unheard.append(self)

    def is_heard_of(self) -> None:
        self.known = True
        if self.waiter is not None:
            self.waiter.cancel()


class Client:
    """Asks one server at a time: it hangs up before it asks again."""

    def __init__(self, run: Run, number: int) -> None:
        self.run, self.name = run, f"w{number}"
        self.kind = run.chance.choice(("one", "one", "one", "all", "any"))
        self.proof = run.chance.choice(("key", "session", "key and session", "ticket"))
        self.moves = len(run.servers) > 1 or run.chance.random() < 0.2
        self.waits = self.kind != "any" and run.chance.random() < 0.8
        self.asks = 0
        self.ask: Ask | None = None
        self.queued: Queued | None = None  # what it was last told
        self.has_moved = False  # it hung up since
        self.leases: dict[str, Holder] = {}
        self.is_dead = False

    def start(self) -> None:
        if self.is_dead or self.leases or self.ask is not None:
            return
        self.asks += 1
        fields: dict[str, Any] = {
            "ns": "d",
            "principal": "team",
            "owner": self.name,
            "ttl_ms": TTL_MS,
            "fresh_lease_id": f"{self.name}-{self.asks}",
            "request_key": self.name if "key" in self.proof else None,
            "session": f"session-{self.name}" if "session" in self.proof else None,
        }
        wait = self.waits and not (self.queued is not None and self.run.chance.random() < 0.3)
        if self.queued is not None:
            fields["ticket"], fields["ticket_id"] = self.queued.ticket, self.queued.ticket_id
        command: Acquire | AcquireAll | AcquireAny
        if self.kind == "any":
            command = AcquireAny(names=JOBS, **fields)
        elif self.kind == "all":
            command = AcquireAll(names=JOBS, wait=wait, **fields)
        else:
            command = Acquire(name="a", wait=wait, **fields)
        wait_ms = self.run.chance.choice((200, 2_000, 60_000)) if wait else 0
        self.ask = Ask(self, self.run.chance.choice(self.run.servers), command, wait_ms)

    def move(self) -> None:
        """The connection breaks, or it has waited for this server for long enough."""
        if self.ask is not None:
            self.ask.hang_up()
            self.ask, self.has_moved = None, True

    def die(self) -> None:
        self.move()
        self.is_dead = True

    def told(self, ask: Ask, result: Any) -> None:
        assert ask is self.ask
        self.ask = None
        if isinstance(result, Queued):
            self.queued, self.has_moved = result, False
        elif isinstance(result, Granted | GrantedAll):
            grants = result.grants if isinstance(result, GrantedAll) else (result,)
            self.leases = {granted.name: granted.lease for granted in grants}
            self.queued = None
        else:
            self.queued = None

    def release(self) -> None:
        server = self.run.chance.choice(self.run.servers)
        for name, lease in self.leases.items():
            command = Release(ns="d", name=name, principal="team", lease_id=lease.lease_id)
            server.post(command, lambda result: None)
        self.leases, self.is_dead = {}, True


class Run:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.servers: list[Server] = []
        for _ in range(self.chance.choice((1, 2, 2, 3))):
            self.servers.append(Server(self.servers[0] if self.servers else None))
        self.store, self.clock = self.servers[0].store, self.servers[0].clock
        self.asks: dict[str, Ask] = {}
        self.clients = [Client(self, number) for number in range(self.chance.choice((1, 1, 2, 3)))]
        for client in self.clients:
            session = f"session-{client.name}"
            opened = OpenSession(ns="default", fresh_id=session, principal="team", owner=client.name, ttl_ms=3_600_000)
            self.servers[0].elsewhere.one(opened)
        self.until_ms = self.clock() + CHAOS_MS
        self.held = {name: self.servers[0].hold(name) for name in JOBS if self.chance.random() < 0.7}

    def go(self) -> None:
        chance = self.chance
        for _ in range(STEPS):
            what, server, client = chance.random(), chance.choice(self.servers), chance.choice(self.clients)
            if what < 0.30:
                client.start()
            elif what < 0.45:
                client.move()
            elif what < 0.70:
                server.step(chance.choice((1, 1, 2, 8)))
            elif what < 0.82:
                server.hear(chance.choice((1, 1, 4)))
            elif what < 0.92:
                self.pass_ms(chance.choice((0, 1, 100, 1_000, 2_000)))
                server.fire()
            elif what < 0.95:
                self.free(chance.choice(JOBS))
            elif what < 0.97:
                client.release()
            elif what < 0.98:
                client.die()
            else:
                server.settle()
            self.check()
        for name in JOBS:
            self.free(name)
        for client in self.clients:
            client.die()
        self.settle(2_000)
        self.check()
        self.check_left_behind()
        self.pass_ms(TTL_MS, over=True)
        self.settle(0)
        for name in JOBS:
            claim = Acquire(ns="d", name=name, principal="p", owner="last", ttl_ms=1_000, fresh_lease_id=name)
            assert isinstance(self.servers[0].elsewhere.one(claim), Granted)

    def free(self, name: str) -> None:
        """Whoever was there before lets go."""
        if name in self.held:
            self.servers[0].elsewhere.one(Release(ns="d", name=name, principal="h", lease_id=self.held.pop(name)))

    def pass_ms(self, ms: int, *, over: bool = False) -> None:
        self.clock.advance(ms if over else min(ms, max(0, self.until_ms - self.clock())))

    def settle(self, ms: int) -> None:
        for later_ms in (0, ms):
            self.pass_ms(later_ms, over=True)
            for _ in range(3):
                for server in self.servers:
                    server.settle()

    def holders(self) -> dict[str, Holder]:
        """By lease and job."""
        locks = [found.record for _, found in self.store.scan("lock/")]
        return {
            f"{holder.lease_id} {lock.name}": holder
            for lock in locks
            if isinstance(lock, LockRecord)
            for holder in lock.holders
        }

    def check(self) -> None:
        """Whoever was told that it has the job has it for as long as it was told. Whoever waits has its place."""
        holders = self.holders()
        for client in self.clients:
            for name, lease in client.leases.items():
                kept = holders.get(f"{lease.lease_id} {name}")
                assert kept is not None, f"{client.name} was told that it has {name}, and has lost it"
                assert kept.expires_ms >= lease.expires_ms, f"{client.name}'s lease was cut"
            if client.is_dead:
                continue
            places = [client.ask.place] if client.ask is not None else []
            if not client.has_moved:
                places.append(client.queued)
            for place in places:
                if place is not None:
                    self.check_place(client, place, holders)

    def check_place(self, client: Client, place: Queued, holders: dict[str, Holder]) -> None:
        found = [record.record for _, record in self.store.scan("ticket/")]
        is_there = any(
            isinstance(each, Ticket) and (each.name, each.number) == (place.name, place.ticket) for each in found
        )
        is_its = any(key.startswith(f"{place.ticket_id} ") for key in holders)
        is_held = client.proof in ("session", "key and session") and any(
            each.session == f"session-{client.name}" for each in holders.values()
        )
        assert is_there or is_its or is_held, f"{client.name} waits, and its place is gone"

    def check_left_behind(self) -> None:
        """All are gone, and all servers know. What nobody was told of, and nobody can ask for, is withdrawn."""
        found = [record.record for _, record in self.store.scan("ticket/")]
        left: list[Holder | Ticket] = [*self.holders().values()]
        left += [each for each in found if isinstance(each, Ticket)]
        for made in left:
            ask = self.asks.get(made.lease_id)
            if ask is not None and not ask.client.moves and ask.known and not ask.was_delivered and not made.used:
                assert made.request_key is not None, f"nobody was told of {made.lease_id}"


def play(seeds: range) -> None:
    for seed in [int(SEED)] if SEED else seeds:
        try:
            Run(seed).go()
        except AssertionError as error:
            raise AssertionError(f"{error} (DIBS_ASKS_SEED={seed})") from error


@pytest.mark.fault("F-001")
@pytest.mark.promise("excl")
@pytest.mark.promise("queue:fifo")
@pytest.mark.promise("servers:failover")
def test_whatever_callers_hang_up_and_repeat_no_lease_is_cut_and_no_place_is_lost() -> None:
    play(range(SEEDS))


@pytest.mark.slow
@pytest.mark.promise("excl")
@pytest.mark.promise("queue:fifo")
def test_the_same_for_long() -> None:
    play(range(SEEDS, LONG_SEEDS))
