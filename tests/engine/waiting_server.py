"""`Waiters` over real rules and a memory store, with a queue in place of the batcher and timers that the test fires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dibs.base.ids import new_id
from dibs.core import events as kinds
from dibs.core.commands import Acquire, AcquireAll, Release
from dibs.core.outcomes import Granted
from dibs.engine.coordinator import Coordinator
from dibs.engine.waiters import Waiters
from dibs.stores.memory import MemoryStore
from dibs.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from dibs.core.commands import Command
    from dibs.engine.waiters import Result, Waiter


class Timer:
    def __init__(self, at_ms: int, call: Callable[..., object], args: tuple[object, ...]) -> None:
        self.at_ms = at_ms
        self.call = call
        self.args = args

    def cancel(self) -> None:
        self.call, self.args = lambda: None, ()


class WaitingServer:
    """What surrounds `Waiters` in a server. Commands gather until `decide` decides them in one commit."""

    def __init__(self, other: WaitingServer | None = None) -> None:
        """`other`: another server on the same store."""
        self.clock: ManualClock = ManualClock() if other is None else other.clock
        self.store: MemoryStore = MemoryStore(self.clock) if other is None else other.store
        self.elsewhere = Coordinator(self.store)
        self.coordinator = Coordinator(self.store, self._committed, lambda handed: self._tell("on_handed_over", handed))
        self.waiters: Waiters = Waiters(self.post, self.later, lambda: self.filled.append(len(self.waiters)))
        self.queue: list[tuple[Command, Callable[[Result], None]]] = []
        self.posted: list[Command] = []
        self.filled: list[int] = []
        self.refusal: Exception | None = None
        self._told: list[tuple[str, Any]] = []
        self._timers: list[Timer] = []

    def post(
        self,
        command: Command,
        callback: Callable[[Result], None],
        is_gone: Callable[[], bool] | None = None,
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.posted.append(command)
        self.queue.append((command, callback))

    def later(self, delay_s: float, call: Callable[..., object], *args: object) -> Timer:
        timer = Timer(self.clock() + round(delay_s * 1000), call, args)
        self._timers.append(timer)
        return timer

    def _committed(self, events: Any, last_seq: int) -> None:
        left = [event for event in events if event.kind in (kinds.LEFT, kinds.OPENED)]
        if left:
            self._tell("on_events", left)

    def _tell(self, what: str, value: Any) -> None:
        self._told.append((what, value))

    def decide(self) -> None:
        """One batch: the answers first, then what it brought about for others. Until nothing is left to decide."""
        while self.queue:
            batch, self.queue = self.queue, []
            results = self.coordinator.run([command for command, _ in batch])
            for (_, callback), result in zip(batch, results, strict=True):
                callback(result)
            told, self._told = self._told, []
            for what, value in told:
                getattr(self.waiters, what)(value)

    def news(self, after: int) -> None:
        self.waiters.on_events(self.store.events(after, 1_000))
        self.decide()

    def pass_ms(self, ms: int) -> None:
        """Let time pass, a second at most at a time, and fire what is due."""
        while ms > 0:
            self.clock.advance(min(ms, 1_000))
            ms -= 1_000
            due = [timer for timer in self._timers if timer.at_ms <= self.clock()]
            self._timers = [timer for timer in self._timers if timer.at_ms > self.clock()]
            for timer in due:
                timer.call(*timer.args)
            self.decide()

    def caller(self, wait_ms: int = 600_000, *, moves: bool = False, **fields: Any) -> Caller:
        return Caller(self, claim(**fields), wait_ms, moves=moves)

    def in_line(self, count: int, **fields: Any) -> list[Caller]:
        callers = [self.caller(owner=f"w-{number}", **fields) for number in range(count)]
        self.decide()
        return callers

    def hold(self, name: str = "job", **fields: Any) -> str:
        outcome = self.elsewhere.one(claim(name=name, owner="holder", principal="h", **fields))
        assert isinstance(outcome, Granted)
        return outcome.lease.lease_id

    def release(self, lease_id: str, name: str = "job", principal: str = "h", **fields: Any) -> Result:
        got: list[Result] = []
        command = Release(ns="d", name=name, principal=principal, lease_id=lease_id, **fields)
        self.post(command, got.append)
        self.decide()
        return got[0]


class Caller:
    """A connection that asked and waits."""

    def __init__(
        self, server: WaitingServer, command: Acquire | AcquireAll, wait_ms: int, *, moves: bool = False
    ) -> None:
        self.got: list[Result] = []
        self.is_there = True
        has_hung_up = (lambda: not self.is_there) if moves else None
        self.waiter: Waiter = server.waiters.ask(command, wait_ms, self._take, has_hung_up=has_hung_up)

    def _take(self, result: Result) -> bool:
        self.got.append(result)
        return self.is_there

    @property
    def answer(self) -> Any:
        assert len(self.got) == 1, self.got
        return self.got[0]


def claim(name: str = "job", owner: str = "w", principal: str = "w", **fields: Any) -> Acquire:
    return Acquire(
        ns="d",
        name=name,
        owner=owner,
        principal=principal,
        **{"ttl_ms": 3_600_000, "fresh_lease_id": new_id(), "wait": True, **fields},
    )


def claim_all(*names: str, **fields: Any) -> AcquireAll:
    return AcquireAll(
        ns="d",
        names=names,
        owner="w",
        principal="w",
        **{"ttl_ms": 3_600_000, "fresh_lease_id": new_id(), "wait": True, **fields},
    )
