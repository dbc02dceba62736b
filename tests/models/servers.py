"""Several servers on one store in one thread: a manual clock, one seeded random, and faults at every call of the store.

A server is what `server/engine.py` puts together, without threads and HTTP. Whenever one of them calls the store, time
passes and others may do their work in between, so that each can be overtaken between its reading and its writing. Its
replies may be lost, it may be stopped for seconds, cut off from the store, or killed, before or after its write.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from dibs.base.errors import DibsError, StoreUnavailable
from dibs.core import events as kinds
from dibs.core.limits import SWEEP_LATE_MS_MAX
from dibs.engine.liveness import Decider
from dibs.engine.sweeper import Sweeper
from dibs.engine.tally import Tally
from dibs.engine.waiters import Waiters
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Conflict, StoreProxy
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.engine.liveness import Result
    from dibs.stores.port import Due, Snapshot, Versioned

BATCH_MAX = 16
LATENCIES_MS = (0, 0, 0, 1, 1, 2, 5, 20)


class Killed(BaseException):
    """The server was killed in the middle of its work."""


class Connection(StoreProxy):
    """One server's way to the store."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.cluster.store)
        self._server = server
        self._cluster = server.cluster

    def _ask(self, call: Callable[[], Any]) -> Any:
        self._cluster.on_the_way(self._server)
        if self._server.is_cut_off:
            raise StoreUnavailable("Cut off.")
        answer = call()
        self._cluster.on_the_way(self._server)
        return answer

    def read(self, keys: Iterable[str]) -> Snapshot:
        keys = list(keys)
        return self._ask(lambda: self.inner.read(keys))  # type: ignore[no-any-return]

    def scan(
        self, prefix: str, after: str = "", limit: int = 1000, *, live: bool = False
    ) -> list[tuple[str, Versioned]]:
        return self._ask(lambda: self.inner.scan(prefix, after, limit, live=live))  # type: ignore[no-any-return]

    def due(self, limit: int) -> Due:
        return self._ask(lambda: self.inner.due(limit))  # type: ignore[no-any-return]

    def events(
        self, after: int, limit: int, job: tuple[str, str] | None = None, *, newest: bool = False
    ) -> list[Event]:
        return self._ask(lambda: self.inner.events(after, limit, job, newest=newest))  # type: ignore[no-any-return]

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        cluster = self._cluster
        cluster.commits += 1
        chance = cluster.chance.random()
        if chance < cluster.faults / 4:
            raise Conflict
        if chance < cluster.faults / 2:
            raise StoreUnavailable("Lost before.", unknown=True)
        try:
            seq = self._ask(lambda: self.inner.commit(expect, puts, events))
        except Conflict:
            cluster.conflicts += 1
            raise
        if chance < cluster.faults:
            raise StoreUnavailable("The reply was lost.", unknown=True)
        return seq  # type: ignore[no-any-return]


class Timer:
    def __init__(self, at_ms: int, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self.at_ms, self.call, self.args = at_ms, call, args
        self.is_over = False

    def cancel(self) -> None:
        self.is_over = True


class Server:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.is_dead = self.is_cut_off = False
        self.stopped_until_ms = 0
        self.wakes = 0
        self._queue: list[tuple[Command, Callable[[Result], None]]] = []
        self._timers: list[Timer] = []
        self._after: list[tuple[Callable[..., object], Any]] = []
        self._chore_at_ms = 0
        clock, store = cluster.clock, Connection(self)
        self.tally = Tally(self._read, gapless=store.capabilities.gapless)
        self.decider = Decider(
            store,
            self._committed,
            clock.steady_ms,
            lambda handed: self._after.append((self.waiters.on_handed_over, handed)),
            pause=lambda seconds: clock.advance(cluster.chance.choice(LATENCIES_MS)),
            server=name,
        )
        self.waiters = Waiters(self.post, self._later, lambda: None)
        self.sweeper = Sweeper(self.decider, self.tally, steady=clock.steady_ms, has_waiters=lambda: bool(self.waiters))
        self._store = store
        self._started = False

    def post(
        self,
        command: Command,
        callback: Callable[[Result], None],
        is_gone: Callable[[], bool] | None = None,
    ) -> None:
        self._queue.append((command, callback))

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> Timer:
        timer = Timer(self.cluster.clock.steady_ms() + int(seconds * 1000), call, args)
        self._timers.append(timer)
        return timer

    def _committed(self, events: Sequence[Event], last_seq: int) -> None:
        self.tally.committed(events, last_seq)
        left = [event for event in events if event.kind == kinds.LEFT]
        self._after.append((self.waiters.on_events, left))

    def _read(self, events: Sequence[Event]) -> None:
        placed = [event for event in events if event.ticket]
        self._after.append((self._hear, placed))

    def _hear(self, events: Sequence[Event]) -> None:
        before = len(self._queue)
        self.waiters.on_events(events)
        self.wakes += len(self._queue) - before

    def step(self) -> None:
        """The work of its threads: answer requests, do the chores, wake waiters, fire timers."""
        try:
            if not self._started:
                self.tally.begin(self._store)
                self.decider.beat_if_due()
                self._started = True
            self._answer()
            if self.cluster.clock.steady_ms() >= self._chore_at_ms:
                self._chore_at_ms = self.cluster.clock.steady_ms() + self._chore()
                self._tell()
        except Killed:
            self.is_dead = True
            return
        except DibsError:  # it could not even start
            return
        now_ms = self.cluster.clock.steady_ms()
        due = [timer for timer in self._timers if timer.at_ms <= now_ms]
        self._timers = [timer for timer in self._timers if timer.at_ms > now_ms]
        for timer in due:
            if not timer.is_over:
                timer.call(*timer.args)

    def _answer(self) -> None:
        batch, self._queue = self._queue[:BATCH_MAX], self._queue[BATCH_MAX:]
        if not batch:
            return
        try:
            results = self.decider.run([command for command, _ in batch])
        except DibsError as error:
            results = [error] * len(batch)
        self.cluster.commands += len(batch)
        for (_, callback), result in zip(batch, results, strict=True):
            callback(result)
        self._tell()

    def _chore(self) -> int:
        try:
            return self.sweeper.step()
        except DibsError:
            return SWEEP_LATE_MS_MAX

    def _tell(self) -> None:
        after, self._after = self._after, []
        for call, value in after:
            call(value)


class CheckedStore(MemoryStore):
    """Has its records checked after every commit."""

    check: Callable[[], None] = staticmethod(lambda: None)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        seq = super().commit(expect, puts, events)
        self.check()
        return seq


class Cluster:
    """`faults` is the share of commits that meet one; `mishaps` how likely a server meets one at a call."""

    def __init__(self, seed: int, count: int, faults: float = 0.0, mishaps: float = 0.0, crowding: float = 0.3) -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock()
        self.store = CheckedStore(self.clock)
        self.faults, self.mishaps, self.crowding = faults, mishaps, crowding
        self.commits = self.conflicts = self.commands = self.wakes = self.starts = 0
        self.meanwhile: Callable[[], None] = lambda: None  # what the workers do while a server is stopped
        self._at_work: list[Server] = []
        self.servers: list[Server] = []
        for _ in range(count):
            self.start()

    def start(self) -> Server:
        self.starts += 1
        server = Server(self, f"server-{self.starts}")
        self.servers.append(server)
        return server

    def kill(self, server: Server) -> None:
        """Kills it at once, or at its next call of the store if it is in the middle of a step."""
        server.is_dead = True
        self.wakes += server.wakes
        self.servers.remove(server)

    def total_wakes(self) -> int:
        return self.wakes + sum(server.wakes for server in self.servers)

    def able(self) -> list[Server]:
        now_ms = self.clock.steady_ms()
        return [each for each in self.servers if now_ms >= each.stopped_until_ms and not each.is_dead]

    def work(self, *, but: Server | None = None) -> None:
        """One server that is not in the middle of a step does a step."""
        free = [each for each in self.able() if each not in self._at_work and each is not but]
        if free:
            self.step(self.chance.choice(free))

    def step(self, server: Server) -> None:
        self._at_work.append(server)
        try:
            server.step()
        finally:
            self._at_work.remove(server)

    def on_the_way(self, server: Server) -> None:
        """Between a server and the store: time passes, other servers work, and faults happen."""
        chance = self.chance
        self.clock.advance(chance.choice(LATENCIES_MS))
        if chance.random() < self.crowding:
            self.work(but=server)
        if chance.random() < self.mishaps:
            until_ms = self.clock.steady_ms() + chance.choice((200, 1_500, 6_000))
            while self.clock.steady_ms() < until_ms:  # it is stopped here, and the others go on
                self.clock.advance(20)
                self.work(but=server)
                self.meanwhile()
        if server.is_dead:
            raise Killed
