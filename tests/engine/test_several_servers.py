"""Two and three servers on one store: every promise holds, whatever happens to the servers and to their replies.

`DIBS_SERVERS_SEED` repeats a run. The long runs are in `scripts/soak`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dibs.core import events as kinds
from dibs.core.records import LockRecord
from tests.core import raw as raws
from tests.models.history import all_events, broken_promises, overlaps
from tests.models.servers import Cluster
from tests.models.workers import Worker

if TYPE_CHECKING:
    from dibs.core.events import Event

JOBS = ("one", "two", "three", "path:a", "path:a/b")
SEED = os.environ.get("DIBS_SERVERS_SEED")
SEEDS = [int(SEED)] if SEED else list(range(4))
LONG_SEEDS = [int(SEED)] if SEED else list(range(100, 160))


class Run:
    def __init__(self, seed: int, count: int, workers: int = 8) -> None:
        self.cluster = Cluster(seed, count, faults=0.04, mishaps=0.0008)
        self.count = count
        self.workers = [
            Worker(self.cluster, f"w{number}", JOBS, in_session=number % 2 == 0) for number in range(workers)
        ]
        self.checks = 0
        self.cluster.store.check = self.check
        self.cluster.meanwhile = self.act
        self.restart_at_ms: list[int] = []

    def check(self) -> None:
        """The records agree with each other at every commit, or at every so many when there are many."""
        self.checks += 1
        if self.checks % 7 == 0:
            raws.check(raws.raw_of(self.cluster.store, self.cluster.clock()))

    def go(self, ms: int, *, trouble: bool = True) -> None:
        clock = self.cluster.clock
        until_ms = clock.steady_ms() + ms
        while clock.steady_ms() < until_ms:
            clock.advance(self.cluster.chance.choice((1, 5, 20)))
            for server in list(self.cluster.able()):
                if server in self.cluster.able():
                    self.cluster.step(server)
            self.act()
            if trouble:
                self.trouble()
            self.restart()

    def act(self) -> None:
        for worker in self.workers:
            worker.act()

    def trouble(self) -> None:
        cluster, chance = self.cluster, self.cluster.chance
        now_ms = cluster.clock.steady_ms()
        what = chance.random()
        if what < 0.004 and cluster.servers:
            cluster.kill(chance.choice(cluster.servers))
            self.restart_at_ms.append(now_ms + chance.choice((100, 2_000, 15_000)))
        elif what < 0.006:
            for server in list(cluster.servers):  # all of them
                cluster.kill(server)
                self.restart_at_ms.append(now_ms + chance.choice((500, 9_000, 20_000)))
        elif what < 0.010 and cluster.servers:
            chance.choice(cluster.servers).stopped_until_ms = now_ms + chance.choice((300, 2_000, 10_000))
        elif what < 0.011:
            for server in cluster.servers:
                server.stopped_until_ms = now_ms + 9_000
        elif what < 0.020:
            for server in cluster.servers:
                server.is_cut_off = chance.random() < 0.3
        elif what < 0.022:
            chance.choice(self.workers).die()
            worker = Worker(cluster, f"w{len(self.workers)}", JOBS, in_session=chance.random() < 0.5)
            self.workers.append(worker)

    def restart(self) -> None:
        now_ms = self.cluster.clock.steady_ms()
        while self.restart_at_ms and min(self.restart_at_ms) <= now_ms:
            self.restart_at_ms.remove(min(self.restart_at_ms))
            self.cluster.start()

    def calm(self) -> None:
        """No more trouble; everybody goes home, and what the dead left behind is swept."""
        self.cluster.faults = self.cluster.mishaps = 0.0
        for server in self.cluster.servers:
            server.is_cut_off, server.stopped_until_ms = False, 0
        while len(self.cluster.servers) + len(self.restart_at_ms) < self.count:
            self.cluster.start()
        for worker in self.workers:
            if not worker.is_dead:
                worker.stop()
        self.go(120_000, trouble=False)

    def without_session_ends(self, history: list[Event]) -> list[Event]:
        """What was held in a session ends with it, whatever its own TTL is."""
        in_session = {worker.name for worker in self.workers if worker.session}
        return [each.replace(ttl_ms=0) if each.owner in in_session else each for each in history]

    def judge(self) -> None:
        store = self.cluster.store
        history = all_events(store)
        wrong = [each for worker in self.workers for each in worker.wrong]
        wrong += broken_promises(self.without_session_ends(history))
        wrong += overlaps(hold for worker in self.workers for hold in worker.seen)
        assert not wrong
        raws.check(raws.raw_of(store, self.cluster.clock()))
        raws.fifo(history)
        locks = [found.record for _, found in store.scan("lock/")]
        still = [lock.name for lock in locks if isinstance(lock, LockRecord) and (lock.holders or lock.line)]
        assert not still, f"nobody is left, and yet somebody has or waits for {still}"
        for server in self.cluster.servers:
            assert (server.tally.live, server.tally.waiting) == (0, 0), "a server lost count"
        placed = [each for each in history if each.ticket and each.kind in (kinds.ACQUIRED, kinds.LEFT)]
        assert self.cluster.total_wakes() <= len(placed), "more were woken than were concerned"
        assert len(history) > 60, "too little happened to show anything"


def simulate(seed: int, count: int, ms: int) -> Run:
    run = Run(seed, count)
    run.go(ms)
    run.calm()
    run.judge()
    history = all_events(run.cluster.store)
    told = {kind: sum(1 for event in history if event.kind == kind) for kind in (kinds.EXPIRED, kinds.OUTAGE)}
    print(
        f"DIBS_SERVERS_SEED={seed} servers={count} starts={run.cluster.starts} commits={run.cluster.commits} "
        f"conflicts={run.cluster.conflicts} events={len(history)} {told} "
        f"moves={sum(worker.moves for worker in run.workers)} "
        f"deadlocks={sum(worker.deadlocks for worker in run.workers)}"
    )
    return run


promises = pytest.mark.promise(
    "excl",
    "token:rises",
    "lease:never-early",
    "lease:outage-credit",
    "queue:fifo",
    "queue:one-wake",
    "session",
    "deadlock",
    "audit",
    "idem:acquire",
)


@promises
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_several_servers_keep_every_promise_through_faults(seed: int, count: int) -> None:
    simulate(seed, count, ms=60_000)


@promises
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", LONG_SEEDS)
def test_several_servers_keep_every_promise_for_long(seed: int, count: int) -> None:
    simulate(seed, count, ms=240_000)
