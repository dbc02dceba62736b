"""Random walks of the engine's parts, with what each of them asks of its neighbours and answers.

The parts are driven on one thread, with manual clocks: the coordinator over a store that remembers, is overtaken, loses
replies and fails; the waiters with callers that hang up; the batcher with a loop that turns when it is told; the
sweeper; liveness. `scripts/dev/compare` holds the steps against those of another commit.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from dibs.base.errors import DibsError, StoreBroken, StoreUnavailable
from dibs.core import limits
from dibs.core.commands import (
    Acquire,
    AcquireAll,
    AcquireAny,
    Beat,
    Break,
    EndSession,
    Freeze,
    Inspect,
    KeepSession,
    OpenSession,
    Release,
    Renew,
    SetAcl,
    Thaw,
)
from dibs.core.records import LockRecord, Pulse, pulse_key, ticket_key
from dibs.engine.batcher import Batcher
from dibs.engine.coordinator import Coordinator
from dibs.engine.decider import Decider
from dibs.engine.metrics import Metrics
from dibs.engine.pulses import is_idle
from dibs.engine.sweeper import Sweeper
from dibs.engine.tally import Tally
from dibs.engine.waiters import Waiters
from dibs.stores.memory import MemoryStore
from dibs.stores.port import Busy, CommitTooLarge, Conflict, Snapshot
from dibs.stores.waiters import mark_of
from dibs.testing.clock import ManualClock
from tests.engine.test_sweeper import Recorded
from tests.engine.waiting_server import Caller, WaitingServer, claim, claim_all
from tests.walks.step import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from dibs.core.commands import Command
    from dibs.core.draft import HandedOver
    from dibs.core.events import Event
    from dibs.core.records import Stored
    from dibs.stores.port import Versioned

NAMES = "abcd"


class Lines:
    """What happens, in short; what is too long to show is in a checksum."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._now: list[str] = []
        self._more: list[str] = []

    def say(self, short: str, *more: object) -> None:
        self._now.append(short)
        self._more += [short, *map(str, more)]

    def end(self) -> None:
        told = "\n".join(self._more)
        self.steps.append(Step(f"{', '.join(self._now)} {crc32(told.encode()):08x}".strip(), told))
        self._now, self._more = [], []


def is_gone_now() -> bool:
    return True


def kind(result: object) -> str:
    return type(result).__name__


# The coordinator


class ForgetfulStore(MemoryStore):
    """It remembers what it read, and is overtaken, loses replies and fails as its walk says."""

    def __init__(self, walk: CoordinatorWalk) -> None:
        super().__init__(lambda: walk.now_ms)
        self.capabilities = self.capabilities.replace(batch_max=walk.batch_max)
        self._walk = walk
        self._known: dict[str, Versioned] = {}
        self.is_quiet = False

    def read(self, keys: Iterable[str]) -> Snapshot:
        found = super().read(sorted(keys) if isinstance(keys, set) else keys)
        if not self.is_quiet:
            self._walk.say(f"read {len(found.records)}", *found.records)
            self._known.update(found.records)
            self._walk.meanwhile()
        return found

    def recall(self, keys: Iterable[str]) -> Snapshot:
        wanted = list(keys)
        if not set(wanted) <= set(self._known):
            return self.read(wanted)
        self._walk.say(f"recall {len(wanted)}", *wanted)
        return Snapshot(now_ms=self._clock(), records={key: self._known[key] for key in wanted}, is_recalled=True)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self.is_quiet:
            return super().commit(expect, puts, events)
        walk = self._walk
        fault = walk.chance.choice(walk.faults)
        walk.say(f"commit {len(expect)}/{len(puts)}/{len(events)} {fault}", *sorted(expect), *sorted(puts), *events)
        if fault == "overtaken":
            self._known.clear()
            raise Conflict
        if fault == "others":
            walk.others_write()
        if fault == "large" or (fault == "long" and len(puts) > 1):
            raise CommitTooLarge("too long")
        if fault == "refused":
            raise StoreUnavailable("refused")
        if fault == "lost before":
            raise StoreUnavailable("lost", unknown=True)
        try:
            seq = super().commit(expect, puts, events)
        except Conflict:
            walk.say("conflict")
            self._known.clear()
            raise
        if fault == "lost after":
            raise StoreUnavailable("lost", unknown=True)
        return seq


class CoordinatorWalk(Lines):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.chance = Random(name)
        calm = ("fine",) * (3 if "stormy" in name else 12)
        self.faults = (*calm, "overtaken", "others", "others", "long", "large", "refused", "lost before", "lost after")
        self.batch_max = self.chance.choice((2, 4, 100))
        self.now_ms = 1_000_000
        self.fresh = 0
        self.gone: set[int] = set()
        self.asked: list[tuple[Command, Any]] = []  # the commands of the last step, with their results
        self.reported: list[tuple[list[Event], int]] = []  # what the coordinator told of its commits
        self.handed: list[HandedOver] = []
        self.pauses: list[float] = []
        self.store = ForgetfulStore(self)
        self.coordinator = Coordinator(
            self.store,
            self.on_commit,
            self.on_handed,
            vouch=lambda: lambda now_ms: now_ms - 10,
            pause=self.pause,
            fraction=lambda: 0.5,
            is_gone=lambda command: id(command) in self.gone,
        )
        self.other = Coordinator(self.store)

    def on_commit(self, events: Sequence[Event], seq: int) -> None:
        self.reported.append((list(events), seq))
        self.say(f"told {len(events)} to {seq}")

    def on_handed(self, handed: Sequence[HandedOver]) -> None:
        self.handed += handed
        self.say(f"handed {len(handed)}")

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.say(f"pause {seconds}")

    def quietly(self, command: Command) -> object:
        self.store.is_quiet = True
        try:
            return self.other.one(command)
        except DibsError as error:
            return error
        finally:
            self.store.is_quiet = False

    def others_write(self) -> None:
        self.quietly(self.claim(principal="others"))

    def meanwhile(self) -> None:
        if self.chance.random() < 0.1:
            self.others_write()

    def claim(self, **more: Any) -> Acquire:
        self.fresh += 1
        made: dict[str, Any] = {"ns": "d", "principal": "team", "owner": "o", "ttl_ms": 8_000}
        made |= {"name": self.chance.choice(NAMES), "fresh_lease_id": f"L{self.fresh}"}
        return Acquire(**(made | more))

    def command(self) -> Command:
        claim = self.claim()
        name, held = claim.name, self.store._records.get(f"lock/d/{claim.name}")
        lock = held.record if held is not None else None
        lease_id = lock.holders[0].lease_id if isinstance(lock, LockRecord) and lock.holders else "L1"
        lease: dict[str, Any] = {"ns": "d", "name": name, "principal": "team", "lease_id": lease_id}
        terms = {field: getattr(claim, field) for field in ("ns", "principal", "owner", "ttl_ms", "fresh_lease_id")}
        return self.chance.choice(
            (
                lambda: claim,
                lambda: claim.replace(wait=True),
                lambda: claim.replace(lease_id=lease_id),
                lambda: AcquireAny(names=("a", "b"), **terms),
                lambda: AcquireAll(names=("a", "c"), wait=True, **terms),
                lambda: Renew(**lease),
                lambda: Release(**lease),
                lambda: Inspect(ns="d", name=name),
                lambda: Break(ns="d", name=name, principal="op", reason="r"),
                lambda: SetAcl(ns="d", name=name, principal="op", acl=(), admin=True, ahead=True),
            )
        )()

    def step(self) -> None:
        self.now_ms += self.chance.choice((0, 10, 3_000))
        count = self.chance.choice((1, 1, 2, 5))
        commands = [self.command() for _ in range(count)]
        if self.chance.random() < 0.1:
            commands = [Inspect(ns="d", name=each) for each in NAMES[:count]]
        self.gone = {id(each) for each in commands if self.chance.random() < 0.05}
        self.say(" ".join([kind(each) for each in commands]), *commands)
        results = self.coordinator.run(commands)
        self.asked = list(zip(commands, results, strict=True))
        words = [f"{kind(each)}{'?' if getattr(each, 'unknown', False) else ''}" for each in results]
        self.say(f"answered {' '.join(words)}", *results)
        self.end()


# The waiters


class WaitersWalk(Lines):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.chance = Random(name)
        self.server = WaitingServer()
        self.other = WaitingServer(self.server)
        self.metrics = Metrics()
        self.server.waiters = Waiters(self.server.post, self.server.later, self.first, self.metrics)
        self.fresh = self.heard = 0
        self.callers: list[Caller] = []
        self.answers: dict[Caller, list[Any]] = {}  # all that each was told
        self.asked_ms: dict[Caller, int] = {}
        self.refused: set[Caller] = set()  # those of whom something could not be asked
        self.refused_ms = 0  # when that was last
        self.posted = 0

    def first(self) -> None:
        self.say("somebody waits")

    def ask(self) -> None:
        self.fresh += 1
        names = ("a", "b") if self.chance.random() < 0.3 else (self.chance.choice("ab"),)
        more: dict[str, Any] = {"fresh_lease_id": f"L{self.fresh}", "ttl_ms": self.chance.choice((5_000, 3_600_000))}
        if self.chance.random() < 0.3:
            more["request_key"] = self.chance.choice("kl")
        if self.chance.random() < 0.2:
            more |= {"ttl_ms": 3_600_000, "replaces": "g"}
        asked = claim(names[0], **more) if len(names) == 1 else claim_all(*names, **more)
        places = [each.waiter.queued for each in self.callers if each.waiter.queued is not None]
        if places and self.chance.random() < 0.3:
            place = self.chance.choice(places)
            if len(names) == 1:
                asked = asked.replace(name=place.name, ticket=place.ticket, ticket_id=place.ticket_id)
        wait_ms = self.chance.choice((0, 2_000, 60_000, 60_000, 60_000))
        self.callers.append(Caller(self.server, asked, wait_ms, moves=self.chance.random() < 0.4))
        self.answers[self.callers[-1]] = []
        self.asked_ms[self.callers[-1]] = self.server.clock()

    def hang_up(self) -> None:
        caller = self.chance.choice(self.callers)
        caller.is_there = False
        if self.chance.random() < 0.7:
            caller.waiter.cancel()

    def hurry(self) -> None:
        self.chance.choice(self.callers).waiter.hurry()

    def release(self) -> None:
        """Whoever has a job lets it go, here or at another server."""
        locks = [each.record for each in self.server.store._records.values() if isinstance(each.record, LockRecord)]
        held = [(lock.name, each) for lock in locks for each in lock.holders]
        if not held:
            return
        name, hold = self.chance.choice(held)
        command = Release(ns="d", name=name, principal=hold.principal, lease_id=hold.lease_id)
        if self.chance.random() < 0.5:
            self.server.post(command, lambda result: self.say(f"released {kind(result)}"))
        else:
            self.server.elsewhere.one(command)

    def news(self) -> None:
        after, self.heard = self.heard, self.server.store.newest_seq()
        self.server.news(after)

    def hint(self) -> None:
        places = [each.waiter.queued for each in self.callers if each.waiter.queued is not None]
        marks = [mark_of(ticket_key(each.ns, each.name, each.ticket)) for each in places]
        self.server.waiters.on_gone([*marks[:3], "none"])

    def time(self) -> None:
        self.server.pass_ms(self.chance.choice((200, 3_000, 20_000)))

    def step(self) -> None:
        ways = [self.ask, self.ask, self.ask, self.release, self.release, self.news, self.hint, self.time]
        way = self.chance.choice([*ways, self.hang_up, self.hurry] if self.callers else ways)
        self.say(way.__name__)
        if self.chance.random() < 0.06:
            self.server.refusal = StoreUnavailable("too much to do")
        try:
            way()
        except StoreUnavailable as error:
            self.say(str(error))
        if self.server.refusal is not None:
            self.refused.update(self.callers)
            self.refused_ms = self.server.clock()
        self.server.refusal = None
        if self.chance.random() < 0.8:
            self.server.decide()
        self.told()

    def told(self) -> None:
        posted = self.server.posted[self.posted :]
        self.posted += len(posted)
        if posted:
            self.say("asks " + " ".join([kind(each) for each in posted]), *posted)
        for number, caller in enumerate(self.callers):
            for result in caller.got:
                self.say(f"caller {number} {kind(result)}", result)
            self.answers[caller] += caller.got
            caller.got.clear()
        waited = {each.__name__: count for each, count in sorted(self.metrics._waited.items(), key=str) if count}
        self.say(f"{len(self.server.waiters)} wait", waited, self.metrics.abandoned)
        self.end()

    def close(self) -> None:
        self.say("close")
        self.server.waiters.close()
        self.server.pass_ms(2_000)
        self.told()


# The batcher


class BatcherWalk(Lines):
    """A loop that turns and a thread that works when they are told to."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.chance = Random(name)
        self.is_calm = "calm" in name  # the loop stays open
        self.posted: dict[str, Command] = {}
        self.answers: list[str] = []
        self.batches: list[list[Command]] = []
        self.now_ms = 0
        self.ready: deque[Callable[[], object]] = deque()
        self.metrics = Metrics()
        self.quick = True
        self.batcher = Batcher(
            lambda commands: self.run("thread", commands),
            deliver=self.soon,
            soon=self.soon,
            run_at_once=None if "thread" in name else lambda commands: self.run("loop", commands),
            is_quick=lambda: self.quick,
            steady=lambda: self.now_ms,
            metrics=self.metrics,
        )
        self.count = 0

    def soon(self, call: Callable[..., object], *args: object) -> None:
        if not self.is_calm and self.chance.random() < 0.01:
            raise RuntimeError("the loop is closed")
        self.ready.append(lambda: call(*args))

    def run(self, where: str, commands: Sequence[Command]) -> list[Any]:
        self.batches.append(list(commands))
        gone = [self.batcher.is_gone(each) for each in commands]
        self.say(f"{where} {len(commands)}", *commands, gone)
        if self.chance.random() < 0.05:
            raise StoreUnavailable("gone")
        if self.chance.random() < 0.2:
            self.batcher.after(self.say, "after")
        late = where == "loop" and self.chance.random() < 0.2
        return [Busy("wait") if late and at % 2 else Inspect(ns="d", name="done") for at, _ in enumerate(commands)]

    def post(self) -> None:
        for _ in range(self.chance.choice((1, 3, 700, 1_500))):
            self.count += 1
            name = f"{self.count}"
            command: Command = Inspect(ns="d", name=name)
            if self.chance.random() < 0.6:
                command = Renew(ns="d", name=name, principal="p")
            is_gone = is_gone_now if self.chance.random() < 0.2 else None
            try:
                self.batcher.post(command, partial(self.answered, name), is_gone)
            except (DibsError, RuntimeError) as error:
                self.say(kind(error))
                break
            self.posted[name] = command

    def answered(self, name: str, result: object) -> None:
        self.answers.append(name)
        self._more.append(f"{name} {kind(result)}")
        if self.chance.random() < 0.02:
            raise KeyError("a caller that fails")

    def turn(self) -> None:
        for _ in range(len(self.ready)):
            self.ready.popleft()()

    def work(self) -> None:
        if self.batcher._wake.is_set():
            self.batcher._wake.clear()
            self.say(f"more {self.batcher._answer()}")

    def step(self) -> None:
        way = self.chance.choice((self.post, self.post, self.turn, self.turn, self.turn, self.work, self.work))
        self.now_ms += self.chance.choice((0, 5, 40_000))
        self.quick = self.chance.random() < 0.7
        self.say(way.__name__)
        try:
            way()
        except RuntimeError as error:
            self.say(str(error))
        self.say(f"{len(self.ready)} ready", self.metrics.overloaded, self.metrics.batches.counts)
        self.end()

    def close(self) -> None:
        self.batcher._stopping = True
        self.post()
        self.batcher._work()
        self.turn()
        self.end()


# The sweeper


class WatchingStore(MemoryStore):
    def __init__(self, walk: SweeperWalk) -> None:
        super().__init__(walk.clock)
        self._walk = walk
        self.capabilities = self.capabilities.replace(watch=walk.chance.choice(("polling", "direct")))

    def due(self, limit: int) -> Any:
        found = super().due(limit)
        self._walk.say(f"due {limit}" if limit else "next", found.next_ms)
        return found

    def prune(self, *, keep: int, before_ms: int) -> int:
        self._walk.say(f"prune {keep}", before_ms)
        return super().prune(keep=keep, before_ms=before_ms)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        if self._walk.fails:
            self._walk.fails -= 1
            raise StoreUnavailable("refused")
        self._walk.say(f"commit {len(puts)}", *sorted(puts))
        return super().commit(expect, puts, events)


class SweeperWalk(Lines):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.chance = Random(name)
        self.clock = ManualClock()
        self.fails = 0
        self.store = WatchingStore(self)
        self.tally = Tally()
        self.decider = Recorded(self.store, self.tally.committed, self.clock.steady_ms, pause=lambda seconds: None)
        self.decider.server = "one"
        self.sweeper = Sweeper(
            self.decider,
            self.tally,
            keep_events=20,
            keep_events_ms=60_000,
            steady=self.clock.steady_ms,
            has_waiters=lambda: self.has_waiters,
        )
        self.sweeper._share._server = "one"
        self.has_waiters = False
        self.fresh = 0
        self.ran = 0

    def claims(self) -> None:
        commands: list[Command] = []
        for _ in range(self.chance.choice((1, 4, 90))):
            self.fresh += 1
            ttl_ms = self.chance.choice((1_000, 4_000, 60_000))
            terms: dict[str, Any] = {"ns": "d", "principal": "p", "owner": "o", "ttl_ms": ttl_ms}
            commands.append(Acquire(name=f"job{self.fresh}", fresh_lease_id=f"L{self.fresh}", **terms))
        self.decider.run(commands)

    def session(self) -> None:
        self.fresh += 1
        one = f"S{self.fresh}"
        self.decider.run([OpenSession(fresh_id=one, ns="d", principal="p", owner="o", ttl_ms=5_000)])
        terms: dict[str, Any] = {"ns": "d", "principal": "p", "owner": "o", "ttl_ms": 0, "session": one}
        self.decider.run([Acquire(name=f"{one}-{at}", fresh_lease_id=f"{one}.{at}", **terms) for at in range(3)])
        if self.chance.random() < 0.5:
            self.decider.run([KeepSession(session=one, principal="p")])
        elif self.chance.random() < 0.5:
            self.decider.run([EndSession(session=one, principal="p")])

    def neighbour(self) -> None:
        """Another server is up."""
        key = pulse_key("two")
        found = self.store.read([key]).records[key]
        self.store.commit({key: found.version}, {key: Pulse(server="two", at_ms=self.clock())}, ())

    def rounds(self) -> None:
        for _ in range(self.chance.choice((1, 3, 8))):
            rest_ms = self.sweeper._try()
            self.say(f"rest {rest_ms}")
            self.clock.advance(min(rest_ms, 3_000))

    def step(self) -> None:
        ways = (self.claims, self.session, self.neighbour, self.rounds, self.rounds, self.rounds)
        way = self.chance.choice(ways)
        self.say(way.__name__)
        self.clock.advance(self.chance.choice((0, 100, 2_500, 400_000 if self.chance.random() < 0.2 else 10)))
        self.has_waiters = self.chance.random() < 0.4
        self.fails = self.chance.choice((0,) * 12 + (1, 2))
        try:
            way()
        except StoreUnavailable as error:
            self.say(str(error))
        ran = getattr(self.decider, "ran", [])
        self.say(f"swept {len(ran) - self.ran}", *ran[self.ran :])
        self.ran = len(ran)
        self.end()


# Liveness

STOPS_MS = (limits.TICK_MS, limits.PULSE_MS, limits.PULSE_LATE_MS, limits.OUTAGE_MS_MIN, limits.GRACE_MS_MAX)
LENGTHS_MS = (0, 0, 40, *[stop_ms + more_ms for stop_ms in STOPS_MS for more_ms in (-1, 0, 1)])


class FlawedStore(MemoryStore):
    """Takes its time, and fails, as its walk says."""

    def __init__(self, walk: LivenessWalk) -> None:
        super().__init__(walk.clock)
        self._walk = walk

    def read(self, keys: Iterable[str]) -> Snapshot:
        self._walk.on_the_way("read")
        found = super().read(keys)
        self._walk.on_the_way("")
        return found

    def scan(self, prefix: str, *args: Any, **named: Any) -> list[tuple[str, Versioned]]:
        self._walk.on_the_way(f"scan {prefix}")
        return super().scan(prefix, *args, **named)

    def commit(self, expect: Mapping[str, int], puts: Mapping[str, Stored | None], events: Sequence[Event]) -> int:
        self._walk.on_the_way(f"commit {len(puts)}", Conflict())
        seq = super().commit(expect, puts, events)
        self._walk.on_the_way("", StoreUnavailable("lost", unknown=True))
        return seq


class LivenessWalk(Lines):
    """A server that is stopped, and whose store is slow, refuses, or is taken; another one is up at times."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.chance = Random(name)
        self.clock = ManualClock()
        self.is_rough = False
        self.metrics = Metrics()
        self.store = FlawedStore(self)
        pause = lambda seconds: self.clock.advance(5)  # noqa: E731
        steady = self.clock.steady_ms
        self.decider = Decider(self.store, lambda *_: None, steady, pause=pause, server="one", metrics=self.metrics)
        self.liveness = self.decider.liveness
        self.earlier = self.liveness.vouch()
        self.other = Coordinator(self.store)
        self.fresh = 0
        if self.chance.random() < 0.7:
            self.beat()

    def on_the_way(self, what: str, *faults: Exception) -> None:
        if not self.is_rough:
            return
        if what:
            self.say(what)
        if self.chance.random() < 0.25:
            self.clock.advance(self.chance.choice(LENGTHS_MS))
        if what and self.chance.random() < 0.3:
            self.liveness.tick()
        if self.chance.random() < 0.05:
            raise self.chance.choice((StoreUnavailable("refused"), StoreBroken("broken"), Busy("taken"), *faults))

    def claims(self) -> list[Command]:
        self.fresh += 1
        terms: dict[str, Any] = {
            "ns": "d",
            "principal": "p",
            "owner": "o",
            "ttl_ms": self.chance.choice((1_000, 5_000)),
        }
        made = Acquire(name=self.chance.choice("ab"), fresh_lease_id=f"L{self.fresh}", **terms)
        looks: list[Command] = [Inspect(ns="d", name=each) for each in "ab"]
        batches: list[list[Command]] = [[made], [made, *looks], looks, [looks[0], made, made.replace(name="c")]]
        return self.chance.choice(batches)

    def batch(self) -> list[Any]:
        return self.decider.run(self.claims())

    def batch_at_once(self) -> list[Any]:
        return self.decider.run_at_once(self.claims())

    def upkeep(self) -> list[Any]:
        return self.decider.upkeep(self.claims())

    def beat(self) -> list[Any]:
        self.decider.beat_if_due()
        return []

    def passes(self) -> list[Any]:
        self.clock.advance(self.chance.choice(LENGTHS_MS))
        return []

    def ticks(self) -> list[Any]:
        for _ in range(self.chance.randrange(12)):
            self.clock.advance(limits.TICK_MS)
            self.liveness.tick()
        return []

    def neighbour(self) -> list[Any]:
        self.is_rough = False
        return [self.other.one(Beat(server="two"))]

    def freezes(self) -> list[Any]:
        """A beat of a store that is frozen counts for nothing."""
        self.is_rough = False
        frozen = self.other.one(Freeze(id="x"))
        self.beat()
        return [frozen, self.liveness.has_gap(), self.other.one(Thaw(id="x"))]

    def step(self) -> None:
        usual = (self.batch, self.batch, self.batch_at_once, self.upkeep, self.passes, self.ticks)
        way = self.chance.choice(
            (*usual, self.ticks, self.beat, self.beat, self.beat, self.beat, self.neighbour, self.freezes)
        )
        self.is_rough = self.chance.random() < 0.8
        self.say(way.__name__)
        try:
            results: list[Any] = way()
        except DibsError as error:
            results = [error]
        self.is_rough = False
        self.say(" ".join(map(kind, results)), *results)
        now_ms = self.clock()
        behind = [now_ms - earlier(now_ms) for earlier in (self.earlier, self.liveness.vouch())]
        self.earlier = self.liveness.vouch()
        counted = [getattr(self.metrics, each) for each in ("stalls", "busy", "conflicts", "read_errors")]
        counted += [self.metrics.write_errors, self.metrics.outages_ms, self.metrics.write_failed_us > 0]
        pulses = [each.record for key, each in self.store._records.items() if key.startswith(("pulse/", "meta"))]
        self.say(f"behind {behind}, due {self.liveness.beat_due_in_ms()}", counted, self.decider.batches, pulses)
        gap = self.liveness.gap(now_ms) if self.liveness.has_gap() else None
        self.say(f"idle {is_idle(self.store)}", is_idle(self.store, now_ms - 1_000), gap)
        self.end()


WALKS: dict[str, tuple[Callable[[str], Any], int]] = {
    **{f"coordinator {number}": (CoordinatorWalk, 60) for number in range(3)},
    **{f"coordinator, stormy {number}": (CoordinatorWalk, 60) for number in range(3)},
    **{f"waiters {number}": (WaitersWalk, 50) for number in range(6)},
    **{f"batcher {number}": (BatcherWalk, 50) for number in range(3)},
    "batcher, on a thread": (BatcherWalk, 50),
    **{f"sweeper {number}": (SweeperWalk, 40) for number in range(3)},
    **{f"liveness {number}": (LivenessWalk, 60) for number in range(8)},
}


def walked(name: str) -> list[Step]:
    make, steps = WALKS[name]
    walk = make(name)
    for _ in range(steps):
        walk.step()
    if hasattr(walk, "close"):
        walk.close()
    found: list[Step] = walk.steps
    return found
