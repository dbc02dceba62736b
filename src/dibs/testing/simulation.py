"""Servers of one store, their clients and everything that goes wrong between them, on one thread, from one seed.

A server is what `server/engine.py` puts together, without threads and HTTP: the real rules, coordinator, batcher,
waiters and sweeper. Whenever one calls the store, time passes and others work, so each can be overtaken between its
reading and its writing. It may be stopped there, cut off, or killed, before or after its write. Every commit and every
answer is checked (`checker.py`), and what clients knew is judged at the end as a run of `dibs verify` is (`judge.py`).

An episode is one such world, from its seed to the moment when everybody has gone home and nothing is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random  # noqa: TID251 - a seed makes a run that can be repeated
from typing import Any, NamedTuple, Protocol

from dibs.base.errors import DibsError, StoreUnavailable
from dibs.core import events as kinds
from dibs.core.commands import AcquireTerms, Command, Inspect
from dibs.core.draft import Decision, View
from dibs.core.events import Event
from dibs.core.limits import OUTAGE_MS_MIN, PULSE_LATE_MS, SWEEP_LATE_MS_MAX, TICK_MS
from dibs.core.outcomes import Outcome
from dibs.core.records import META_KEY, LockRecord, Meta, Stored, Ticket, ticket_key
from dibs.engine.batcher import Batcher
from dibs.engine.coordinator import Result
from dibs.engine.decider import Decider
from dibs.engine.sweeper import Sweeper
from dibs.engine.tally import Tally
from dibs.engine.waiters import Waiters
from dibs.stores.memory import MemoryStore
from dibs.stores.port import ABSENT, Conflict, Snapshot, StoreProxy, Versioned
from dibs.stores.waiters import mark_of
from dibs.testing.checker import Checker, Finding
from dibs.testing.decisions import checked, wrong
from dibs.testing.features import Meetings, features_of
from dibs.testing.judge import UNKNOWN, RecordedCall, judge
from dibs.testing.queue_checker import NS
from dibs.testing.simulated_webhooks import HookTarget, SimulatedDeliveries
from dibs.testing.timeline import START_MS, Killed, Rounds, Thread, Timeline, Timer
from dibs.testing.workload import BY_OPERATORS, jobs_of

EPISODE = 4_000  # operations of one world
HOOKED = 0.25  # the share of worlds with a webhook
FAILED_OVER = 0.2  # the share of the others in which an older copy of the store takes over once
LOST_COMMITS = (1, 5, 30)
LEFT_OUT = 10_000  # numbers of events, before the first one of an older copy; as in PostgreSQL
FAULTS = (
    *("lost", "late", "doubled", "hung-up"),  # messages
    *("conflict", "unknown", "refused", "slow", "full", "older"),  # the store
    *("stopped", "killed", "cut-off", "clock"),  # servers
    *("silent", "dead"),  # clients
)
HOME_MS_MAX = 300_000  # how long it may take until nothing is left
LATENCIES_MS = (0, 0, 1, 1, 2, 5)
TAKING_PLACES = frozenset(("done-marks", "attempts", "access-lists"))  # for these, places go whose callers come again


class EpisodeSettings(NamedTuple):
    """`without`: which faults and features are left out."""

    seed: str
    operations: int = EPISODE
    servers: int = 3
    clients: int = 12
    jobs: int = 5
    without: frozenset[str] = frozenset()

    def command(self) -> str:
        without = f" --without {','.join(sorted(self.without))}" if self.without else ""
        counts = f"--servers {self.servers} --clients {self.clients} --jobs {self.jobs}"
        return f"dibs simulate --seed {self.seed} --operations {self.operations} {counts}{without}"


class Waits(Protocol):
    """A request whose answer comes later. `place`: job and number of the place that its server knows."""

    @property
    def client(self) -> Participant: ...

    @property
    def server(self) -> SimulatedServer | None: ...

    @property
    def place(self) -> tuple[str, int] | None: ...


class Participant(Protocol):
    """A client. It is home when it wants nothing any more."""

    name: str
    is_home: bool


class SimulatedStore(MemoryStore):
    """Has every commit checked, and nobody waits."""

    def __init__(self, world: World) -> None:
        super().__init__(world.time.clock)
        self._world = world
        # Of the last commits: what was there before, and how many events it wrote.
        self._undo: deque[tuple[dict[str, Versioned | None], int]] = deque(maxlen=max(LOST_COMMITS))

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        for key, version in expect.items():
            found = self._records.get(key)
            if (found.version if found is not None else 0) != version:
                raise Conflict
        if self._world.writes is not None:
            self._world.writes.check_gone(puts, events)
        self._world.check(self._world.checker.committed, puts, events, self._world.time.now_ms)
        self._undo.append(({key: self._records.get(key) for key in puts}, len(events)))
        seq = super().commit({}, puts, events)
        self._world.on_commit(puts, self._events[len(self._events) - len(events) :])
        return seq

    def lose(self, commits: int) -> list[Event]:
        """Be an older copy, without the last commits. Returns the events that it has. As with PostgreSQL
        (`stores/postgres/store.py`), no version and no number of an event is used again."""
        for _ in range(min(commits, len(self._undo))):
            before, events = self._undo.pop()
            for key, found in before.items():
                self._put(key, found)
            del self._events[len(self._events) - events :]
        return self._events

    def arrive(self) -> None:
        """The first commit of an older copy: tokens begin above all that were handed out."""
        found = self._records.get(META_KEY, ABSENT).record
        meta = found if isinstance(found, Meta) else Meta()
        self._last_seq += LEFT_OUT
        self.commit({}, {META_KEY: meta.replace(token_floor=max(meta.token_floor + 1, self._clock()))}, ())

    def watch(self, after: int, timeout_ms: int) -> bool:
        return self._last_seq > after


class StoreLink(StoreProxy):
    """One server's way to the store: time passes there and back."""

    def __init__(self, server: SimulatedServer) -> None:
        super().__init__(server.world.store)
        self._server = server
        self._world = server.world

    def _ask(self, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        server, world = self._server, self._world
        asked_ms = world.time.now_ms
        try:
            if call == self._commit:  # between two reads time passes once
                world.on_the_way(server)
            if server.is_cut_off:
                world.time.pass_ms(50)
                server.fell_ill()
                server.cut_off_ms = world.time.now_ms
                raise StoreUnavailable("Cut off.")
            world.checker.alive(world.time.now_ms)
            answer = call(*args, **more)
            world.on_the_way(server)
            return answer
        finally:
            if world.time.now_ms - asked_ms > OUTAGE_MS_MIN - TICK_MS:
                server.fell_ill()

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._server.notes_gone()
        found: Snapshot = self._ask(self.inner.read, list(keys))
        self._server.known.update(found.records)
        return found

    def recall(self, keys: Iterable[str]) -> Snapshot:
        if not self._server.remembers:
            return self.read(keys)
        self._server.notes_gone()
        known = {key: self._server.known.get(key, ABSENT) for key in keys}
        return Snapshot(now_ms=self._world.time.now_ms, records=known, is_recalled=True)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        world = self._world
        if world.is_full or world.strikes("refused", 0.002):
            self._server.fell_ill()
            raise StoreUnavailable("It was refused.")
        if world.strikes("conflict", 0.01):
            raise Conflict
        is_lost = world.strikes("unknown", 0.012)
        is_there = not is_lost or world.chance.random() < 0.7
        seq = self._ask(self._commit, expect, puts, events) if is_there else 0
        if is_lost:
            if not world.time.depth and not self._server.is_dead:  # it waits for a reply that does not come
                world.time.pass_ms(world.chance.choice((0, 400, 1_200, 3_000)))
            self._server.fell_ill()
            raise StoreUnavailable("The reply was lost.", unknown=True)
        return seq

    def _commit(self, *args: Any) -> int:
        self._world.writes = self._server
        seq = self.inner.commit(*args)
        self._server.known.update(self.inner.read(args[1]).records)
        return seq


class SimulatedBatcher(Batcher):
    """Without a thread that could be woken."""

    wake: Callable[[], object]

    def _wake_thread(self) -> None:
        self._is_running = True
        self.wake()


class SimulatedDecider(Decider):
    """Shows the world the results that stand."""

    show: Callable[[Sequence[Result]], object]

    def run(self, commands: Sequence[Command]) -> list[Result]:
        results = super().run(commands)
        self.show(results)
        return results

    def upkeep(self, commands: Sequence[Command]) -> list[Result]:
        results = super().upkeep(commands)
        self.show(results)
        return results


class SimulatedServer:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        chance = world.chance
        self.is_at_once, self.remembers = chance.random() < 0.5, chance.random() < 0.5
        self.known: dict[str, Versioned] = {}  # records as it saw them last
        self._deciding: Sequence[Command] = ()
        self._gone: dict[str, AcquireTerms] = {}  # those whose callers had gone when it read last, by their fresh ids
        self.is_dead = self.is_cut_off = self.is_started = False
        self.stopped_until_ms = self.cut_off_ms = self.well_since_ms = 0
        self._rate = 1 + chance.choice((-0.001, 0, 0.001)) * (not world.settings.without & {"clock"})
        self._offset_ms = chance.randrange(10**9)
        self.loop = Thread(self)
        self.work = self.loop if self.is_at_once else Thread(self)
        self.upkeep = Thread(self)
        self.tally = Tally(self._read, gapless=True)
        self.tally.page = 2  # so that much happens while it counts
        self.decider = SimulatedDecider(
            StoreLink(self),
            self._committed,
            self.steady_ms,
            lambda handed: self.batcher.after(self.waiters.on_handed_over, handed),
            pause=lambda seconds: world.time.pass_ms(chance.choice(LATENCIES_MS)),
            server=name,
            is_gone=lambda command: self.batcher.is_gone(command),  # noqa: PLW0108 - it is made below
        )
        self.decider.show = world.check_answers
        self.batcher = SimulatedBatcher(
            self.run,
            deliver=lambda call, *args: world.time.later(0, self.loop, call, *args),
            soon=lambda call: world.time.later(0, self.loop, call),
            run_at_once=self.run if self.is_at_once else None,
            steady=self.steady_ms,
        )
        self.batcher.wake = lambda: world.time.later(0, self.work, self.batcher._answer)
        self.waiters = Waiters(self.post, self._later, lambda: self.sweeper.hurry(25))
        has_waiters = lambda: bool(self.waiters)  # noqa: E731
        self.sweeper = Sweeper(self.decider, self.tally, steady=self.steady_ms, has_waiters=has_waiters)
        rounds = Rounds(world.time, self.upkeep, self.sweeper.step, SWEEP_LATE_MS_MAX)
        self.sweeper.hurry = rounds.hurry  # type: ignore[method-assign]  # it has no thread that could be woken
        self.deliveries: SimulatedDeliveries | None = None
        if world.target is not None:
            link, steady = StoreLink(self), self.steady_ms
            self.deliveries = SimulatedDeliveries(self, name, link, world.time, steady, world.target)
        world.time.later(0, self.upkeep, self._start)

    def steady_ms(self) -> int:
        return self._offset_ms + int((self.world.time.now_ms - START_MS) * self._rate)

    def jump(self, ms: int) -> None:
        """Its clock goes ahead, as after a suspend."""
        self._offset_ms += ms
        self.fell_ill()

    def fell_ill(self, for_ms: int = 0) -> None:
        self.well_since_ms = max(self.world.time.now_ms + for_ms, self.well_since_ms)

    def is_able(self) -> bool:
        """Return whether it could serve until now, since it was well."""
        is_there = self.is_started and not (self.is_dead or self.is_cut_off or self.world.is_full)
        return is_there and max(self.stopped_until_ms, self.well_since_ms) <= self.world.time.now_ms

    def post(
        self, command: Command, callback: Callable[[Result], None], is_gone: Callable[[], bool] | None = None
    ) -> None:
        asked_ms = self.world.time.now_ms

        def answered(result: Result) -> None:
            if not self.is_dead:
                self.world.check(self.world.checker.answered, command, result)
                is_refused = isinstance(command, Inspect) and type(result) is StoreUnavailable
                if is_refused and self.cut_off_ms < asked_ms:
                    self.world.say("same-answer", f"A look failed although the store could be read: {result}")
            callback(result)

        self.batcher.post(command, answered, is_gone)

    def run(self, commands: Sequence[Command]) -> list[Result]:
        """Decide a batch. Nothing is decided for a caller that is known to be gone before."""
        gone = [command for command in commands if self.batcher.is_gone(command)]
        self._deciding, self._gone = commands, {}
        results = self.decider.run(commands)
        self._deciding = ()
        for command, result in zip(commands, results, strict=True):
            if command in gone and not isinstance(result, BaseException):
                self.world.say("queue:no-dead-grant", f"A claim was decided whose caller had gone: {result}")
        return results

    def notes_gone(self) -> None:
        """It reads: what it decides now is not for those who have gone. Its upkeep reads for itself."""
        if self.world.time.thread is not self.work:
            return
        claims = [each for each in self._deciding if isinstance(each, AcquireTerms) and self.batcher.is_gone(each)]
        self._gone = {each.fresh_lease_id: each for each in claims}

    def check_gone(self, puts: Mapping[str, Stored | None], events: Sequence[Event]) -> None:
        """A caller that has gone may have been told elsewhere that the job is another's. So its claim is looked up,
        and not decided anew."""
        served = {(event.job, event.token): event.ticket for event in events if event.kind == kinds.ACQUIRED}
        for key, record in puts.items() if self._gone else ():
            there = self.world.store._records.get(key, ABSENT).record
            if isinstance(record, Ticket) and there is None and record.lease_id in self._gone:
                self._say_gone(self._gone[record.lease_id], f"was put in line for {record.name}")
            if not isinstance(record, LockRecord):
                continue
            before = there.holders if isinstance(there, LockRecord) else ()
            for each in record.holders:
                claim = self._gone.get(each.lease_id)
                if claim is None or each.lease_id in [holder.lease_id for holder in before]:
                    continue
                if not self._has_ticket(record.name, served.get((record.name, each.token), 0), each.lease_id):
                    self._say_gone(claim, f"was given {record.name}")

    def _say_gone(self, claim: AcquireTerms, what: str) -> None:
        refused = self.world.checker.waits.refused.get(claim.request_key or "", "")
        also = f" It was told `{refused}` elsewhere meanwhile." if refused else ""
        said = f"{claim.owner} had hung up before {self.name} read the store, and {what}."
        self.world.say("queue:no-dead-grant", said + also)

    def _has_ticket(self, job: str, number: int, ticket_id: str) -> bool:
        """Return whether it got the job for the place that it had in the store before: any server serves that."""
        ticket = self.world.store._records.get(ticket_key(NS, job, number), ABSENT).record
        return isinstance(ticket, Ticket) and ticket.lease_id == ticket_id

    def _later(self, seconds: float, call: Callable[..., object], *args: object) -> Timer:
        return self.world.time.later(int(seconds * 1000), self.loop, call, *args)

    def _start(self) -> None:
        try:
            self.tally.begin(self.decider.store)
            self.tally.count_page(self.decider.store)
            self.decider.beat_if_due()
        except DibsError:
            if not self.is_dead:
                self.world.kill(self)  # whoever runs it starts it again
            return
        self.fell_ill()
        self.is_started = True
        self.sweeper.hurry(0)
        if self.deliveries is not None:
            self.deliveries.hurry()
        self._tick()

    def _tick(self) -> None:
        """Its liveness thread: it does nothing else, so it ticks unless the whole server is stopped."""
        if self.is_dead:
            return
        if self.stopped_until_ms > self.world.time.now_ms:
            self.world.time.later(self.stopped_until_ms - self.world.time.now_ms, None, self._tick)
            return
        self.decider.liveness.tick()
        self.world.time.later(TICK_MS, None, self._tick)

    def _committed(self, events: Sequence[Event], last_seq: int) -> None:
        self.tally.committed(events, last_seq)
        self.sweeper.stirred(events)
        if self.deliveries is not None and self.is_started:
            self.deliveries.wake()
        left = [event for event in events if event.kind in (kinds.LEFT, kinds.OPENED)]
        if left:
            self.batcher.after(self.waiters.on_events, left)

    def hear(self) -> None:
        """Its watcher was notified."""
        try:
            self.tally.catch_up(self.decider.store)
        except DibsError:
            pass

    def on_gone(self, marks: Sequence[str]) -> None:
        """A hint of the store."""
        if not self.is_dead:
            self.batcher.after(self.waiters.on_gone, marks)

    def _read(self, events: Sequence[Event]) -> None:
        if self.deliveries is not None and self.is_started:
            self.deliveries.wake()
        placed = [event for event in events if _is_news(event)]
        if placed:
            self.batcher.after(self.waiters.on_events, placed)


def _is_news(event: Event) -> bool:
    """Return whether it may concern somebody who waits."""
    return event.kind == kinds.OPENED or (bool(event.ticket) and event.kind in (kinds.ACQUIRED, kinds.LEFT))


def after(failover: float, calls: Sequence[RecordedCall]) -> Iterator[RecordedCall]:
    """The calls for which every promise holds. What an older copy lacks is lost, whoever was told: so they are those
    that were sent after the failover, and by whom nothing was asked before. Of what an operator asked before, nobody
    knows whether the copy has it. And what was not answered before may be carried out after it."""
    old = {call.key for call in calls if call.began < failover} - {""}
    for call in calls:
        if call.began >= failover or call.outcome == UNKNOWN:
            if call.key not in old:
                yield call
        elif call.call == "pool" or (call.call in BY_OPERATORS and call.ended >= failover):
            yield replace(call, outcome=UNKNOWN)


class World:
    def __init__(self, settings: EpisodeSettings, make_client: Callable[[World, str], Participant]) -> None:
        self.settings = settings
        self.chance = Random(settings.seed)
        self.features = features_of(settings.seed, settings.without)
        self.meetings = Meetings()
        self.time = Timeline()
        self.store = SimulatedStore(self)
        self.checker = Checker(self.say, self.store._records, self._denies_outage)
        self.found: list[Finding] = []
        self._wrong: list[tuple[Outcome, str]] = []  # answers that do not say what is written, and why
        self.calls: list[RecordedCall] = []
        self.operations = self.faults = self._starts = self._ids = 0
        self.is_full = self.is_calm = False
        self._fault: Exception | None = None
        self.writes: SimulatedServer | None = None  # whose commit is being checked
        self.target: HookTarget | None = None
        if self.chance.random() < HOOKED:
            self.target = HookTarget(self.store, self.chance, self.strikes, self.say)
        self.servers: list[SimulatedServer] = []
        for _ in range(settings.servers):
            self._start_server()
        self.jobs = jobs_of(self.chance, settings.jobs, self.features)
        self._make_client = make_client
        self.clients: list[Participant] = []
        self.waiting: dict[Waits, None] = {}  # requests without an answer
        for _ in range(settings.clients):
            self.start_client()
        self.time.later(500, None, self._trouble)
        self.time.later(1_000, None, self._look)
        self._failed_over_ms = 0
        copies = Random(f"{settings.seed} copies")  # its own, so that it changes nothing else
        if self.target is None and "older" not in settings.without and copies.random() < FAILED_OVER:
            self.time.later(copies.randrange(2_000, 200_000), None, self._fail_over, copies.choice(LOST_COMMITS))

    def run(self) -> list[Finding]:
        """Let the clients do their operations, then let everybody go home, then judge."""
        with checked(self._look_at):
            self.time.run(2**62)
        if self._fault is not None:
            raise self._fault
        if not self.found:  # nobody is left, and everybody knows it
            self.time.is_over = False
            for server in self.servers:
                server.tally.catch_up(self.store)
            self._check_counts()
        if not self.found:
            calls = sorted(after(self._failed_over_ms / 1000, self.calls), key=lambda call: (call.began, call.number))
            wrongs = judge(calls)
            if self.features & TAKING_PLACES:  # the checker knows why a place went, and the judge does not
                wrongs = [wrong for wrong in wrongs if wrong.promise != "queue:fifo"]
            for wrong in wrongs[:1]:
                self.say(wrong.promise, wrong.says, wrong.lines(calls))
        return self.found

    def _look_at(self, view: View, command: Command, decision: Decision) -> None:
        says = wrong(view, command, decision)
        if says is not None:
            self._wrong.append((decision.outcome, f"{type(command).__name__}: {says}"))

    def check_answers(self, results: Sequence[Result]) -> None:
        """Of a wrong answer that stands. What a server remembers of the store may be of different moments, and what it
        decides by that has a conflict: nothing is answered, and nothing is written."""
        for outcome, says in self._wrong:
            if any(result is outcome for result in results):
                self.say("answer", says)

    def check(self, call: Callable[..., object], *args: object) -> None:
        """A fault of the checker is no error of the store, which a server would bear."""
        try:
            call(*args)
        except Exception as fault:
            self._fault = fault
            self.time.is_over = True
            raise

    def say(self, promise: str, says: str, calls: Iterable[str] = ()) -> None:
        self.found.append(Finding(promise, says, self.operations, self.time.steps, tuple(calls)))
        self.time.is_over = True

    def fresh_id(self) -> str:
        self._ids += 1
        return f"00000000-0000-4000-8000-{self._ids:012x}"

    # What goes wrong

    def strikes(self, fault: str, share: float) -> bool:
        if self.is_calm or self.chance.random() >= share or fault in self.settings.without:
            return False
        self.faults += 1
        return True

    def on_the_way(self, server: SimulatedServer) -> None:
        """Between a server and the store."""
        odds = self.chance.random()
        ms = LATENCIES_MS[int(odds * len(LATENCIES_MS))]  # three times as fast as `choice`
        if odds < 0.0015 and not self.time.depth:  # who is in the middle of something would wait for the end of this
            if odds < 0.001 and self.strikes("slow", 1):
                ms = self.chance.choice((300, 1_200, 2_000, 4_000))
            elif odds >= 0.001 and self.strikes("stopped", 1):
                ms = self._stop(server)
        if ms:
            self.time.pass_ms(ms)
        if server.is_dead:
            raise Killed

    def _stop(self, server: SimulatedServer) -> int:
        ms = self.chance.choice((300, 1_500, 3_000, 8_000))
        if ms > OUTAGE_MS_MIN or self.time.now_ms < server.stopped_until_ms + 2 * TICK_MS:  # two stops are like one
            server.fell_ill(ms)
        server.stopped_until_ms = max(server.stopped_until_ms, self.time.now_ms + ms)
        return ms

    def _trouble(self) -> None:
        if self.is_calm:
            return
        self.time.later(self.chance.choice((200, 500, 2_000)), None, self._trouble)
        chance, able = self.chance, self.servers
        if able and self.strikes("stopped", 0.05):
            for server in chance.sample(able, chance.choice((1, 1, len(able)))):
                self._stop(server)
        if able and self.strikes("killed", 0.06):
            for server in chance.sample(able, chance.choice((1, 1, 1, len(able)))):
                self.kill(server)
        if able and self.strikes("cut-off", 0.06):
            for server in chance.sample(able, chance.choice((1, 1, len(able)))):
                server.is_cut_off = True
                self.time.later(chance.choice((300, 2_000, 6_000)), None, self._repair, server)
                server.fell_ill(6_000)
        if able and self.strikes("clock", 0.03):
            chance.choice(able).jump(chance.choice((400, 1_500, 5_000)))
        if self.strikes("full", 0.02):
            self.is_full = True
            self.time.later(chance.choice((500, 4_000)), None, self._repair, None)
            for server in able:
                server.fell_ill(4_000)

    def _fail_over(self, commits: int) -> None:
        if not self.is_calm:
            self.faults += 1
            self._failed_over_ms = self.time.now_ms
            self.checker = Checker(self.say, self.store._records, self._denies_outage, self.checker)
            self.checker.learn(self.store.lose(commits), self.time.now_ms)
            self.store.arrive()

    def _repair(self, server: SimulatedServer | None) -> None:
        if server is None:
            self.is_full = False
        else:
            server.is_cut_off = False

    def kill(self, server: SimulatedServer) -> None:
        server.is_dead = True
        self.servers.remove(server)
        self.time.later(self.chance.choice((100, 2_000, 9_000)), None, self._start_server)

    def _start_server(self) -> None:
        self._starts += 1
        self.servers.append(SimulatedServer(self, f"server-{self._starts}"))

    def start_client(self) -> None:
        self.clients.append(self._make_client(self, f"c{len(self.clients)}"))

    # What is true

    def _denies_outage(self, began_ms: int, ended_ms: int) -> str:
        """Another server was well all the time, or the one that records it had no reason to think of one."""
        for server in [each for each in self.servers if each.is_started]:
            ill_ms = max(server.well_since_ms, server.stopped_until_ms)
            if server is self.writes and ill_ms < began_ms - PULSE_LATE_MS:
                return f"{server.name}, which recorded it, was well"
            if ended_ms - began_ms > 2 * OUTAGE_MS_MIN and server.well_since_ms < began_ms:
                return f"{server.name} served all the time"
        return ""

    def on_commit(self, puts: Mapping[str, Stored | None], events: Sequence[Event]) -> None:
        """News for the servers at which somebody waits, and hints, of which some are lost."""
        if self.target is not None:
            self.target.happened(events)
        gone = [mark_of(key) for key, record in puts.items() if record is None and key.startswith("ticket/")]
        if gone or any(map(_is_news, events)):
            for server in self.servers:
                if server.is_started and server.waiters:
                    self.time.later(self.chance.choice((1, 5, 30)), server.upkeep, server.hear)
                    if gone and self.chance.random() < 0.5:
                        self.time.later(self.chance.choice((0, 1, 5)), None, server.on_gone, gone)

    def _look(self) -> None:
        now_ms = self.time.now_ms
        self._check_counts()
        self._check_waiting()
        if self.operations >= self.settings.operations and not self.is_calm:
            self._calm()
        if self.is_calm and not self._left():
            self.time.is_over = True
        else:
            self.time.later(1_000, None, self._look)
            if self.is_calm and now_ms - self._calm_ms > HOME_MS_MAX:
                self.say("lease:never-early", f"Five minutes after all faults this is left: {self._left()}")

    def _calm(self) -> None:
        """No more faults; everybody goes home."""
        self.is_calm, self.is_full = True, False
        self._calm_ms = self.time.now_ms
        for server in self.servers:
            server.is_cut_off = False
            server.stopped_until_ms = min(server.stopped_until_ms, self.time.now_ms)
        if not self.servers:
            self._start_server()

    def _left(self) -> list[str]:
        locks = [found.record for found in self.store._records.values()]
        held = [lock.name for lock in locks if isinstance(lock, LockRecord) and (lock.holders or lock.line)]
        left = self.target.left() if self.target is not None else []
        return [*held, *left, *[client.name for client in self.clients if not client.is_home]]

    def _check_waiting(self) -> None:
        """Nobody waits for what is free, or is answered late."""
        now_ms = self.time.now_ms
        able = [each for each in self.servers if each.is_able()]
        well_ms = min([each.well_since_ms for each in able], default=None)
        self.checker.look(now_ms, well_ms)
        for request in self.waiting:
            place, server = request.place, request.server
            if place is not None and server in able:
                self.checker.waits.answered_late(*place, request.client.name, server.well_since_ms, now_ms)

    def _check_counts(self) -> None:
        """Whoever knows all events counts what there is."""
        locks = [found.record for found in self.store._records.values() if isinstance(found.record, LockRecord)]
        held, waiting = sum(len(lock.holders) for lock in locks), sum(len(lock.line) for lock in locks)
        there = (held, waiting, len(self.store.scan("session/", limit=10**6, live=True)))
        for server in self.servers:
            tally = server.tally
            is_busy = server.loop.is_busy or server.work.is_busy or server.upkeep.is_busy
            if server.is_started and not (is_busy or tally.is_counting or self.store.watch(tally._seen_seq, 0)):
                counted = (tally.live, tally.waiting, tally.sessions)
                if counted != there:
                    self.say("quota", f"{server.name} counts {counted} held, waiting and sessions; there are {there}.")
